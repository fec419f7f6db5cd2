"""SeeUPO behind the Stable-Baselines3 algorithm interface: its settings, and one iteration's update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import update_learning_rate

from seeupo_gym.agents.arguments import check_arguments, find_policy_class
from seeupo_gym.agents.group_algorithm import GroupAlgorithm
from seeupo_gym.agents.method.advantages import discounted_returns, estimate_advantages
from seeupo_gym.agents.method.rules import get_rule
from seeupo_gym.agents.method.sequential import SequentialUpdate, UpdateRule, turn_order
from seeupo_gym.agents.method.settings import (
    AdvantageEstimator,
    Normalization,
    RatioLevel,
    ScheduleName,
    Sharing,
    StageSettings,
    TrainingSettings,
    UpdateOrder,
)
from seeupo_gym.agents.method.staged import Stages
from seeupo_gym.agents.method.statistics import TurnStats
from seeupo_gym.agents.policies import CandidatePolicy, CnnPolicy, MlpPolicy, MultiInputPolicy, TurnPolicy
from seeupo_gym.agents.policies.roll_in import act_in_stage
from seeupo_gym.agents.turn_logging import record_stage, record_turn_stats
from seeupo_gym.envs.arguments import check_env_kwargs


class SeeUPO(GroupAlgorithm):
    """
    Sequence-level Sequential Update Policy Optimization (SeeUPO), Hu et al., arXiv:2602.06554.

    Critic-free. Every turn of an episode has a policy of its own; episodes are sampled in groups that start
    from one initial state, and compared with their group; the turns are updated from the last to the first.
    See ``docs/architecture.md`` for how an iteration's data flows.

    Turns are counted from 0. A turn beyond ``max_turns`` is played by the last policy and trains it. A
    truncated episode is not bootstrapped, as there is no critic: its return is what was paid until then.
    ``learn`` takes whole iterations, so it overshoots ``total_timesteps`` by up to one.

    :param policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy", "CandidatePolicy", ``CausalLMPolicy``, or another
        subclass of ``TurnPolicy``
    :param env: environment, vector environment, or registered id. For an id of this package a native vector
        environment with ``n_groups * group_size`` lanes is made; see also ``seeupo_gym.make_vec``. Its arguments are
        ``env_kwargs``
    :param learning_rate: learning rate, or a function of the remaining progress (1 to 0)
    :param n_groups: groups per iteration (B), each from an initial state of its own
    :param group_size: episodes per group (G), at least 2. Neither depends on the number of environments
    :param n_epochs: passes over the episodes of a turn, in each sweep
    :param batch_size: minibatch size; None: all episodes of a turn at once
    :param micro_batch_size: rows that are in memory at once, whose gradients are added up to those of a minibatch;
        None: all
    :param gamma: discount factor; the guarantees hold for 1
    :param clip_range: clip range of the importance ratio, or a function of the remaining progress
    :param clip_range_high: upper clip range, if it is to differ from ``clip_range``; a float or a function
    :param factor_clip: clip range (delta) of the factor that carries updated turns over to the next one
    :param advantage_estimator: "group_mean" (GRAE), "leave_one_out", or "reward_to_go" of each turn, against the
        members that reached it; see :func:`~seeupo_gym.agents.method.advantages.estimate_advantages`
    :param normalize_advantage: "batch", "group" (as in GRPO; breaks the guarantee) or "none"; as in SB3, True is
        "batch" and False is "none"
    :param advantage_clip: bound of the advantages' absolute value, for example 3; None: none
    :param ratio_level: importance ratio of an action with several components: "joint" (their product),
        "sequence" (its geometric mean, the ratio of the paper for responses of many tokens) or "token" (one ratio
        per component). They are the same for an action of one component. None: what the policy class prefers,
        "joint" for networks and "sequence" for language models
    :param update_rule: what a turn maximises: "clip" (the clipped surrogate), "reinforce" (the policy gradient
        without a ratio; one pass, whatever ``n_epochs`` is), "kl_penalty" (``rho * M`` less ``kl_coef`` times the
        KL) or "trust_region" (one natural-gradient step with a line search within ``target_kl``); see
        :data:`~seeupo_gym.agents.method.rules.UPDATE_RULES`. Or an
        :class:`~seeupo_gym.agents.method.sequential.UpdateRule` of one's own
    :param ent_coef: coefficient of the entropy bonus, or a function of the remaining progress; as advantages have
        a standard deviation of 1, it takes 0.1 or more to keep turns exploring that wait for others to improve
        (see docs/benchmarks.md)
    :param kl_coef: coefficient of a penalty on KL(pi_old || pi), pi_old the policy that collected (k3 form)
    :param reference_kl_coef: coefficient of a penalty on KL(pi || pi_ref), per token, pi_ref a policy that is not
        trained (k3 form); for policies that have one, see ``CausalLMPolicy``
    :param target_kl: end the update of a turn when its approximate KL exceeds 1.5 times this; None: never. For
        "trust_region" it is the bound of the KL
    :param max_grad_norm: gradient clipping, for each turn by itself; None: none
    :param max_turns: number of turn policies; None: the smallest of the environment's ``max_turns`` attribute, its
        spec's ``max_episode_steps`` and the limit of its ``TimeLimit``
    :param turn_policies: "separate" or "shared" (one network for all turns: fewer parameters, but updating a
        turn moves the turns updated before it, so that the guarantee is only approximate). None: what the policy class
        prefers, "separate" for networks and "shared" for language models
    :param update_order: "reverse" (backward induction), "forward", "random", "simultaneous" (all turns in one
        loss, no factors), or a permutation of the turns, first to last
    :param n_sweeps: how often an iteration goes over all its turns. 1 is the paper's method; from the second sweep on,
        a turn is weighted with the current ratios of all other turns, see docs/algorithm.md
    :param schedule: "sweep" (every iteration updates all turns) or "staged" (the last turn is trained first, from
        states that exploratory actions lead to; then it is frozen, and the turn before is trained, and so on)
    :param schedule_kwargs: for "staged"; see :class:`~seeupo_gym.agents.method.settings.StageSettings`
    :param independent_noise: reseed the transitions for each member of a group; by default its members share
        them, which is a valid baseline with less variance
    :param use_masking: use the environment's ``action_masks()`` if it has them
    :param stats_window_size: number of episodes that ``rollout/`` statistics are averaged over
    :param tensorboard_log: folder for TensorBoard; None: no logging
    :param policy_kwargs: arguments of the policy
    :param verbose: 0 for no output, 1 for info messages, 2 for debug messages
    :param seed: seed of everything random; never touches a global generator
    :param device: device of the networks
    :param env_kwargs: arguments of the environment, for example ``{"level": "hard"}``, where ``env`` is an id
    :param _init_setup_model: whether to build the networks on creation
    :raises ValueError: for settings out of range, unsupported spaces and environments of unknown horizon
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
        "CandidatePolicy": CandidatePolicy,
    }

    def __init__(
        self,
        policy: str | type[TurnPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 3e-3,
        n_groups: int = 16,
        group_size: int = 8,
        n_epochs: int = 4,
        batch_size: int | None = None,
        micro_batch_size: int | None = None,
        gamma: float = 1.0,
        clip_range: float | Schedule = 0.2,
        clip_range_high: float | Schedule | None = None,
        factor_clip: float | Schedule = 0.2,
        advantage_estimator: AdvantageEstimator = "group_mean",
        normalize_advantage: Normalization | bool = "batch",
        advantage_clip: float | None = None,
        ratio_level: RatioLevel | None = None,
        update_rule: str | UpdateRule = "clip",
        ent_coef: float | Schedule = 0.0,
        kl_coef: float | Schedule = 0.0,
        reference_kl_coef: float | Schedule = 0.0,
        target_kl: float | None = None,
        max_grad_norm: float | None = 0.5,
        max_turns: int | None = None,
        turn_policies: Sharing | None = None,
        update_order: UpdateOrder | Sequence[int] = "reverse",
        n_sweeps: int = 1,
        schedule: ScheduleName = "sweep",
        schedule_kwargs: dict[str, Any] | None = None,
        independent_noise: bool = False,
        use_masking: bool = True,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        env_kwargs: dict[str, Any] | None = None,
        _init_setup_model: bool = True,
    ) -> None:
        arguments = locals()
        policy_class = find_policy_class(policy, self.policy_aliases)
        check_arguments(stats_window_size, tensorboard_log, policy_kwargs, verbose, seed, device)
        defaults = policy_class.default_settings
        given = {
            name: defaults.get(name) if arguments[name] is None else arguments[name]
            for name in TrainingSettings.names()
        }
        get_rule(TrainingSettings.at(1.0, given))  # before an environment is made
        vars(self).update(given)
        if env is None:
            check_env_kwargs(env_kwargs, env, makes_env=False)
        else:
            env = policy_class.make_env(env, n_groups * group_size, policy_kwargs or {}, env_kwargs)
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate if callable(learning_rate) else float(learning_rate),  # SB3 takes no np.float32
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            support_multi_env=True,
            seed=None if seed is None else int(seed),  # Gymnasium takes no np.int64
        )
        # Filled by _setup_model(), which load() calls again on a model that has them already.
        self.n_turns: int | None = None
        self.declared_turns: int | None = None
        self.starts_checked = False
        self.n_iterations = 0
        self.masked = False
        self.stages: Stages | None = None
        if _init_setup_model:
            self._setup_model()

    def train(self) -> None:
        """Update the turn policies with the episodes in the rollout buffer (arXiv:2602.06554, Algorithm 1)."""
        settings, buffer = self.current_settings(), self.rollout_buffer
        self.policy.set_training_mode(True)
        update_learning_rate(self.policy.optimizer, settings.learning_rate)
        advantages, degenerate = estimate_advantages(
            buffer.rewards,
            buffer.reached,
            settings.gamma,
            settings.advantage_estimator,
            settings.normalize_advantage,
            settings.advantage_clip,
        )
        of_turns = th.as_tensor(advantages.reshape(len(advantages), -1), dtype=th.float32, device=self.device)
        update = SequentialUpdate(
            self.policy,
            buffer.turn_batches,
            of_turns.expand(len(buffer.turn_batches), -1),
            get_rule(settings),
            settings,
            self.streams.updates,
        )
        order = self._turn_order(settings)
        for _ in range(settings.n_sweeps):
            update.begin_sweep(order)
            for turns in order:
                update.maximise(turns)  # eq. 6, with M = A * F (eq. 7)
                update.carry_over(turns)  # eq. 8: F is multiplied by the ratios of these turns
        self._log(settings, update.stats(), degenerate)

    def _turn_order(self, settings: TrainingSettings) -> list[list[int]]:
        """Return the turns to update, first to last, in blocks that are updated together."""
        n_reached = len(self.rollout_buffer.turn_batches)
        if self.stages is None or self.stages.finished:
            return turn_order(n_reached, settings.update_order, self.streams.updates)
        return self.stages.update_order(n_reached)

    def _log(self, settings: TrainingSettings, stats: dict[int, TurnStats], degenerate: NDArray[np.bool_]) -> None:
        """Record what an update did; goes on to the next stage of a staged schedule."""
        buffer = self.rollout_buffer
        self._n_updates += settings.n_sweeps * get_rule(settings).n_passes(settings)
        # Without the episodes that were dropped.
        returns = np.ma.array(discounted_returns(buffer.rewards, settings.gamma), mask=~buffer.reached[0])
        present = buffer.reached[: len(degenerate)].any(axis=-1)
        self.logger.record("rollout/group_reward_std", float(returns.std(axis=1).mean()))
        self.logger.record("rollout/degenerate_group_fraction", float(degenerate[present].mean()))
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/learning_rate", settings.learning_rate)
        self.logger.record("train/clip_range", settings.clip_range)
        self.logger.record("train/ent_coef", settings.ent_coef)
        record_turn_stats(self.logger, stats, self.n_turns or 1)
        if self.stages is not None:
            record_stage(self.logger, self.stages, buffer.reached)
            if not self.stages.finished:
                self.stages.advance(self.num_timesteps, float(returns.mean()), trained=len(stats) > 0)

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        """Begin a staged schedule too."""
        total_timesteps, callback = super()._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        settings = self.current_settings()
        if settings.schedule == "staged" and (self.stages is None or reset_num_timesteps):
            assert self.n_turns is not None
            stage_settings = StageSettings(**(settings.schedule_kwargs or {}))
            self.stages = Stages(stage_settings, self.n_turns, self.num_timesteps, total_timesteps)
        return total_timesteps, callback

    def _act(
        self, obs: Any, turns: NDArray[np.int64], masks: th.Tensor | None, envs: NDArray[np.int64]
    ) -> tuple[th.Tensor, th.Tensor]:
        if self.stages is None or self.stages.finished:
            return super()._act(obs, turns, masks, envs)
        return act_in_stage(self.policy, self.stages, obs, turns, self.streams.actions, masks, envs)
