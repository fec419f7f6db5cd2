"""
Critic-free algorithms to compare with: each is SeeUPO with some settings fixed.

In the objectives below B groups of G episodes are sampled; the members of a group start from one initial state. R_i is
the return of episode i, mean(R) and std(R) are over its group, T_i is its number of turns, and ``N = sum_i T_i`` is the
number of rows. An action has K components (tokens). rho is its probability now divided by that at collection, and
``rho^k`` is the same for component k. All turns are in one loss, a mean over the rows of all turns and episodes. The
papers are about language models: they take means over the tokens of a response, and most add a KL penalty to a
pretrained model, which does not exist here.

The guarantees are about expectations, the undiscounted return and the plain objective: without entropy bonus, KL
penalty, ``advantage_clip``, ``batch_size`` and ``max_grad_norm``. If all episodes have the same length, N is a constant
factor. If lengths vary, N is random and biases a gradient of B groups by O(1 / B). ``docs/theory.md`` has the
measurements, and ``docs/algorithm.md`` the table.
"""

from __future__ import annotations

from inspect import Parameter, Signature, signature
from typing import Any, ClassVar

from stable_baselines3.common.type_aliases import GymEnv

from seeupo_gym.agents.policies.turn_policy import TurnPolicy
from seeupo_gym.agents.seeupo import SeeUPO

# Settings of all of them: the papers have one policy and one loss, without an order of turns.
_ONE_LOSS = {"update_order": "simultaneous", "schedule": "sweep"}


class NamedSetting(SeeUPO):
    """
    SeeUPO with some settings fixed. As in the papers one network plays all turns, unless ``turn_policies="separate"``.

    A fixed setting, or ``turn_policies``, may be given as None, which is the same as not giving it. ``factor_clip`` has
    no effect, as turns that are updated together have no factors.

    :param policy: see :class:`~seeupo_gym.agents.SeeUPO`
    :param env: see :class:`~seeupo_gym.agents.SeeUPO`
    :param settings: all other settings are those of :class:`~seeupo_gym.agents.SeeUPO`
    :raises ValueError: if a fixed setting is given another value
    """

    fixed_settings: ClassVar[dict[str, Any]] = _ONE_LOSS
    default_settings: ClassVar[dict[str, Any]] = {"turn_policies": "shared"}

    __signature__: ClassVar[Signature]
    """The arguments of :class:`~seeupo_gym.agents.SeeUPO` less those that are fixed, for ``help`` and completion."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        (_, *shown) = signature(cls.__init__).parameters.values()
        if cls.__init__ is NamedSetting.__init__:
            (_, policy, env, *settings) = signature(SeeUPO.__init__).parameters.values()
            shown = [policy, env] + [
                p.replace(kind=Parameter.KEYWORD_ONLY, default=cls.default_settings.get(p.name, p.default))
                for p in settings
                if p.name not in cls.fixed_settings
            ]
        cls.__signature__ = Signature(shown)

    def __init__(self, policy: str | type[TurnPolicy], env: GymEnv | str | None, **settings: Any) -> None:
        for name, value in self.fixed_settings.items():
            if settings.get(name) not in (None, value):
                raise ValueError(
                    f"{type(self).__name__} is SeeUPO with {name}={value!r}, got {settings[name]!r}: "
                    "for other combinations use SeeUPO"
                )
        for name, value in self.default_settings.items():
            if settings.get(name) is None:
                settings[name] = value
        super().__init__(policy, env, **{**settings, **self.fixed_settings})


class GRPO(NamedSetting):
    """
    Group Relative Policy Optimization (Shao et al., DeepSeekMath, arXiv:2402.03300), without its KL penalty::

        J = 1/N sum_i sum_t 1/K sum_k min(rho_it^k A_i, clip(rho_it^k, 1 - eps, 1 + eps) A_i)
        A_i = (R_i - mean(R)) / std(R)

    Guarantees. Single turn: no monotonic improvement, as division by the group's standard deviation biases the
    gradient, whose expectation can even point the wrong way. Several turns: none either.

    :param policy: see :class:`~seeupo_gym.agents.SeeUPO`
    :param env: see :class:`~seeupo_gym.agents.SeeUPO`
    :param settings: all other settings are those of :class:`~seeupo_gym.agents.SeeUPO`
    """

    fixed_settings: ClassVar[dict[str, Any]] = {
        **_ONE_LOSS,
        "advantage_estimator": "group_mean",
        "normalize_advantage": "group",
        "ratio_level": "token",
        "update_rule": "clip",
    }


class GSPO(NamedSetting):
    """
    Group Sequence Policy Optimization (Zheng et al., arXiv:2507.18071)::

        J = 1/N sum_i sum_t min(s_it A_i, clip(s_it, 1 - eps, 1 + eps) A_i),   s_it = rho_it^(1/K)
        A_i = (R_i - mean(R)) / std(R)

    For actions of one component it is :class:`GRPO`.

    Guarantees. Single turn: no monotonic improvement, as division by the group's standard deviation biases the
    gradient, whose expectation can even point the wrong way. Several turns: none either.

    :param policy: see :class:`~seeupo_gym.agents.SeeUPO`
    :param env: see :class:`~seeupo_gym.agents.SeeUPO`
    :param settings: all other settings are those of :class:`~seeupo_gym.agents.SeeUPO`
    """

    fixed_settings: ClassVar[dict[str, Any]] = {
        **_ONE_LOSS,
        "advantage_estimator": "group_mean",
        "normalize_advantage": "group",
        "ratio_level": "sequence",
        "update_rule": "clip",
    }


class RLOO(NamedSetting):
    """
    REINFORCE Leave-One-Out (Ahmadian et al., arXiv:2402.14740)::

        J = 1/N sum_i sum_t A_i log pi(a_it | h_it),   A_i = R_i - mean of R_j over the other members j of the group

    One pass over the data, without a ratio: ``n_epochs`` and the clip ranges have no effect.

    Guarantees. Single turn: it follows the true policy gradient, and so converges to a stationary point with suitable
    step sizes. For a tabular softmax policy this is the global optimum, in the sense of arXiv:2602.06554. Several
    turns: it still follows the true gradient to a stationary point. But all turns move at once and share a network, so
    a step of finite size has no guarantee of monotonic improvement.

    :param policy: see :class:`~seeupo_gym.agents.SeeUPO`
    :param env: see :class:`~seeupo_gym.agents.SeeUPO`
    :param settings: all other settings are those of :class:`~seeupo_gym.agents.SeeUPO`
    """

    fixed_settings: ClassVar[dict[str, Any]] = {
        **_ONE_LOSS,
        "advantage_estimator": "leave_one_out",
        "normalize_advantage": "none",
        "ratio_level": "joint",
        "update_rule": "reinforce",
    }


class REINFORCE(NamedSetting):
    """
    REINFORCE (Williams, "Simple statistical gradient-following algorithms", 1992) with the group's mean as baseline::

        J = 1/N sum_i sum_t A_i log pi(a_it | h_it),   A_i = R_i - mean(R)

    One pass over the data, without a ratio: ``n_epochs`` and the clip ranges have no effect.

    Guarantees: those of :class:`RLOO`. Its gradient times (G - 1) / G is this one, because here an episode's own return
    is part of its baseline.

    :param policy: see :class:`~seeupo_gym.agents.SeeUPO`
    :param env: see :class:`~seeupo_gym.agents.SeeUPO`
    :param settings: all other settings are those of :class:`~seeupo_gym.agents.SeeUPO`
    """

    fixed_settings: ClassVar[dict[str, Any]] = {
        **_ONE_LOSS,
        "advantage_estimator": "group_mean",
        "normalize_advantage": "none",
        "ratio_level": "joint",
        "update_rule": "reinforce",
    }


class REINFORCEPlusPlus(NamedSetting):
    """
    REINFORCE++ (Hu et al., arXiv:2501.03262) in its variant "REINFORCE++-Baseline", with the group's mean as baseline
    and without its KL penalty::

        J = 1/N sum_i sum_t 1/K sum_k min(rho_it^k A_i, clip(rho_it^k, 1 - eps, 1 + eps) A_i)
        A_i = (R_i - mean(R)) / standard deviation of R_j - mean(R) over all episodes j of the batch

    Guarantees. Single turn: arXiv:2602.06554 says that clipping with group-relative advantages loses PPO's monotonic
    improvement; ``docs/theory.md`` says when it does and when not. The standard deviation of a large batch is a mere
    factor; that of a few groups biases the gradient, as the group's does. Several turns, which move at once and share a
    network: no guarantee of monotonic improvement.

    :param policy: see :class:`~seeupo_gym.agents.SeeUPO`
    :param env: see :class:`~seeupo_gym.agents.SeeUPO`
    :param settings: all other settings are those of :class:`~seeupo_gym.agents.SeeUPO`
    """

    fixed_settings: ClassVar[dict[str, Any]] = {
        **_ONE_LOSS,
        "advantage_estimator": "group_mean",
        "normalize_advantage": "batch",
        "ratio_level": "token",
        "update_rule": "clip",
    }
