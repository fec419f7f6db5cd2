"""The method for torch modules of one's own, and trajectories that were collected elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch as th
from torch import nn

from seeupo_gym.agents.checks import check_update_order
from seeupo_gym.agents.low_level.module_policies import ModulePolicies, Policy
from seeupo_gym.agents.low_level.trajectories import MultiTurnTrajectory, make_turn_batch, trajectory_advantages
from seeupo_gym.agents.method.batches import TurnBatch
from seeupo_gym.agents.method.rules import get_rule
from seeupo_gym.agents.method.sequential import SequentialUpdate, turn_order
from seeupo_gym.agents.method.settings import MethodSettings, show_settings
from seeupo_gym.agents.method.statistics import TurnStats
from seeupo_gym.agents.method.threads import one_torch_thread


class BackwardInductionOptimizer:
    """
    SeeUPO (arXiv:2602.06554, Algorithm 1) for policies and episodes of one's own: each turn is updated by itself, from
    the last to the first, weighted by what the turns before it have changed. The computation is that of
    :class:`~seeupo_gym.agents.SeeUPO`.

    A policy is a module whose ``forward(states)`` returns logits of discrete actions or a
    ``torch.distributions.Distribution``; or any object with ``log_prob(states, actions)`` and ``parameters()``
    (and ``entropy(states)``, for an entropy bonus), which comes first where a module has it.
    Policies are called as they are. Dropout and batch normalisation in training mode are refused, since importance
    ratios compare log-probabilities of one mode. Turns whose policies share parameters move each other. Small policies
    are updated with one torch thread, as more would wait for each other.

    :param policies: one policy per turn, or one for all turns; they stay on their device
    :param optimizer_class: optimizer, one per distinct policy
    :param optimizer_kwargs: its arguments, without the learning rate; by default those of ``SeeUPO``
    :param seed: of the minibatches and of the random order; None: fresh entropy. Never touches a global generator
    :param settings: those of :class:`~seeupo_gym.agents.method.settings.MethodSettings`, with the names, meanings and
        defaults that they have in :class:`~seeupo_gym.agents.SeeUPO`, but without schedules. Log-probabilities that
        were recorded for each token have a ratio each, unless ``ratio_level`` says otherwise
    :raises ValueError: for settings out of range and for what is no policy
    """

    @show_settings(MethodSettings)
    def __init__(
        self,
        policies: Policy | Sequence[Policy] | nn.ModuleList,
        *,
        optimizer_class: type[th.optim.Optimizer] = th.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        seed: int | None = None,
        **settings: Any,
    ) -> None:
        self.settings = MethodSettings(**{"ratio_level": "token", **settings})
        self.rule = get_rule(self.settings)
        if optimizer_kwargs is None:
            optimizer_kwargs = {"eps": 1e-5, "fused": True} if optimizer_class is th.optim.Adam else {}
        self.policies = policies
        self.turns = ModulePolicies(policies, optimizer_class, {"lr": self.settings.learning_rate, **optimizer_kwargs})
        update_order = self.settings.update_order
        check_update_order(update_order, len(update_order) if self.turns.shared else len(self.turns.policies))
        params = [p for o in set(self.turns.optimizers) for group in o.param_groups for p in group["params"]]
        if update_order == "simultaneous" and len(set(params)) < len(params):
            raise ValueError(
                'update_order="simultaneous" would take several steps with parameters that different policies share: '
                "pass one policy for all turns, or update the turns one by one"
            )
        self.generator = th.Generator()
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)
        self.stats: dict[int, TurnStats] = {}
        """Statistics of the last update, by turn."""

    def compute_advantages(self, trajectories: Sequence[MultiTurnTrajectory], turn: int) -> th.Tensor:
        """
        Advantages A of one turn, against the members of the same group.

        :param trajectories: of at least one group with two members
        :param turn: counted from 0
        :return: one for each trajectory that reaches the turn, in their order
        :raises ValueError: for no trajectories, groups of one only, and a turn that none reaches
        """
        self._check(trajectories, turn)
        reaching = [index for index, trajectory in enumerate(trajectories) if len(trajectory) > turn]
        return self._advantages(trajectories)[turn, reaching]

    def step(self, trajectories: Sequence[MultiTurnTrajectory], turn: int, factors: th.Tensor | None = None) -> float:
        """
        Update the policy of one turn, with ``M = A * F``, and carry what changed over to F (eq. 8).

        :param trajectories: see :meth:`compute_advantages`; nothing is updated if any of them is refused
        :param turn: counted from 0
        :param factors: F of every trajectory, whether it reaches the turn or not; changed in place. None: 1
        :return: the mean loss of the gradient steps
        :raises ValueError: see :meth:`train_epoch`; also for factors of a wrong shape and a turn that none reaches
        :raises NonFiniteError: see :meth:`train_epoch`
        """
        self._check(trajectories, turn)
        advantages = self._advantages(trajectories)
        own_factors = None
        if factors is not None:
            n = len(trajectories)
            if factors.shape != (n,) or not factors.is_floating_point() or not bool(factors.isfinite().all()):
                raise ValueError(
                    f"factors must be {n} finite floats, one per trajectory, got shape {tuple(factors.shape)} of "
                    f"{factors.dtype}: start from torch.ones({n})"
                )
            own_factors = factors.detach().to(advantages)
        with one_torch_thread(only_if=self.turns.small):
            # Only this turn is looked at, so its batch can stand where the others would.
            update = self._update([self._checked_batch(trajectories, turn)] * (turn + 1), advantages, own_factors)
            update.maximise([turn])
            update.carry_over([turn])
        self.stats = update.stats()
        if factors is not None and own_factors is not None:
            with th.no_grad():
                factors.copy_(own_factors)
        return self.stats[turn].policy_loss

    def train_epoch(self, trajectories: Sequence[MultiTurnTrajectory]) -> dict[int, float]:
        """
        Update all turns that any trajectory reaches, in the update order: one iteration of the method.

        :param trajectories: see :meth:`compute_advantages`; nothing is updated if any of them is refused
        :return: the mean loss of each turn, in the order of the updates
        :raises ValueError: for no trajectories, groups of one only, an episode longer than there are policies, and a
            policy that does not fit what was recorded; nothing was updated
        :raises NonFiniteError: if a policy gives NaN or infinity, before anything is updated; or if a gradient is not
            finite, before the step that would spread it
        """
        self._check(trajectories)
        advantages = self._advantages(trajectories)
        with one_torch_thread(only_if=self.turns.small):
            batches = [self._checked_batch(trajectories, turn) for turn in range(len(advantages))]
            order = turn_order(len(batches), self.settings.update_order, self.generator)
            update = self._update(batches, advantages)
            for _ in range(self.settings.n_sweeps):
                update.begin_sweep(order)
                for turns in order:
                    update.maximise(turns)
                    update.carry_over(turns)
        self.stats = update.stats()
        return {turn: stats.policy_loss for turn, stats in self.stats.items()}

    def _update(
        self, batches: list[TurnBatch], advantages: th.Tensor, factors: th.Tensor | None = None
    ) -> SequentialUpdate:
        return SequentialUpdate(self.turns, batches, advantages, self.rule, self.settings, self.generator, factors)

    def _check(self, trajectories: Sequence[MultiTurnTrajectory], turn: int | None = None) -> None:
        if len(trajectories) == 0:
            raise ValueError("there are no trajectories: pass at least two of the same group")
        longest = max(range(len(trajectories)), key=lambda index: len(trajectories[index]))
        n_turns, n_policies = len(trajectories[longest]), len(self.turns.policies)
        if not self.turns.shared and n_turns > n_policies:
            raise ValueError(
                f"trajectory {longest} has {n_turns} turns, but there are policies for {n_policies}: pass one policy "
                "per turn, or a single one, not in a list, for all turns"
            )
        if turn is not None and not 0 <= turn < n_turns:
            raise ValueError(f"no trajectory reaches turn {turn}: the longest has turns 0 to {n_turns - 1}")

    def _advantages(self, trajectories: Sequence[MultiTurnTrajectory]) -> th.Tensor:
        """Shape (turns, trajectories)."""
        advantages = trajectory_advantages(trajectories, self.settings)
        return th.tensor(advantages, dtype=self.turns.log_dtype, device=self.turns.device)

    def _checked_batch(self, trajectories: Sequence[MultiTurnTrajectory], turn: int) -> TurnBatch:
        dtype = self.turns.turn_parameters(turn)[0].dtype
        batch = make_turn_batch(trajectories, turn, self.turns.device, dtype, self.turns.log_dtype)
        self.turns.per_token = batch.log_probs.ndim == 2
        self.turns.check(turn, batch, entropy_needed=self.settings.ent_coef != 0.0)
        return batch


def train_multi_turn_agent(
    policies: Policy | Sequence[Policy] | nn.ModuleList | BackwardInductionOptimizer,
    collect: Callable[[Any], Sequence[MultiTurnTrajectory]],
    n_epochs: int,
    callback: Callable[[int, dict[str, Any]], bool | None] | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """
    Collect and update by turns: ``collect(policies)``, then :meth:`BackwardInductionOptimizer.train_epoch`. With small
    policies ``collect`` too has one torch thread; the number set before is restored.

    :param policies: see :class:`BackwardInductionOptimizer`; or one of those, to go on with its optimizers
    :param collect: plays episodes with the policies, as they were passed, and returns them
    :param n_epochs: how often. The passes over each batch, which are called the same, stay at their default here; pass
        a ``BackwardInductionOptimizer`` to choose them
    :param callback: called after every epoch with its number, from 0, and its record; False stops the training
    :param settings: settings of the :class:`BackwardInductionOptimizer`
    :return: one record per epoch: "epoch", "n_trajectories", "mean_return" (discounted, of the episodes that were
        collected, so before the update) and "losses" by turn
    :raises ValueError: see :meth:`BackwardInductionOptimizer.train_epoch`
    """
    if isinstance(policies, BackwardInductionOptimizer):
        optimizer = policies
        if settings:
            raise ValueError(f"the optimizer has its settings already: leave out {', '.join(settings)}")
    else:
        optimizer = BackwardInductionOptimizer(policies, **settings)
    history: list[dict[str, Any]] = []
    with one_torch_thread(only_if=optimizer.turns.small):
        for epoch in range(n_epochs):
            trajectories = collect(optimizer.policies)
            losses = optimizer.train_epoch(trajectories)
            returns = [float(trajectory.returns(optimizer.settings.gamma)[0]) for trajectory in trajectories]
            record = {"epoch": epoch, "n_trajectories": len(returns), "mean_return": sum(returns) / len(returns)}
            history.append({**record, "losses": losses})
            if callback is not None and callback(epoch, history[-1]) is False:
                break
    return history
