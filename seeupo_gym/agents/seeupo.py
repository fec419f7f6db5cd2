"""SeeUPO behind the Stable-Baselines3 algorithm interface."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv

from seeupo_gym.agents.advantages import discounted_returns, estimate_advantages
from seeupo_gym.agents.checks import check_settings, check_spaces, check_update_order
from seeupo_gym.agents.collection import collect_groups
from seeupo_gym.agents.networks import n_components
from seeupo_gym.agents.policies import CnnPolicy, MlpPolicy, MultiInputPolicy, SeeUPOPolicy
from seeupo_gym.agents.progress import ProgressBar
from seeupo_gym.agents.rollout import GroupRolloutBuffer
from seeupo_gym.agents.sequential import UpdateSettings, sequential_update, turn_order
from seeupo_gym.agents.staged import Stages, StageSettings
from seeupo_gym.agents.streams import RandomStreams
from seeupo_gym.agents.threads import SMALL_MATRIX, one_torch_thread
from seeupo_gym.agents.turn_logging import (
    record_hparams,
    record_progress,
    record_stage,
    record_turn_stats,
    write_layout,
)
from seeupo_gym.agents.turns import find_horizon
from seeupo_gym.envs.task import TaskEnv
from seeupo_gym.envs.vector import SeedQueue, make_vec

SelfSeeUPO = TypeVar("SelfSeeUPO", bound="SeeUPO")


class SeeUPO(BaseAlgorithm):
    """
    Sequence-level Sequential Update Policy Optimization (SeeUPO), Hu et al., arXiv:2602.06554.

    Critic-free. Every turn of an episode has a policy of its own; episodes are sampled in groups that start
    from one initial state, and compared with their group; the turns are updated from the last to the first.
    See ``docs/architecture.md`` for how an iteration's data flows.

    Turns are counted from 0. A turn beyond ``max_turns`` is played by the last policy and trains it. A
    truncated episode is not bootstrapped, as there is no critic: its return is what was paid until then.
    ``learn`` takes whole iterations, so it overshoots ``total_timesteps`` by up to one.

    :param policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy", or a subclass of ``SeeUPOPolicy``
    :param env: environment, vector environment, or registered id. For an id of this package a native vector
        environment with ``n_groups * group_size`` lanes is made; see also ``seeupo_gym.make_vec``
    :param learning_rate: learning rate, or a function of the remaining progress (1 to 0)
    :param n_groups: groups per iteration (B), each from an initial state of its own
    :param group_size: episodes per group (G), at least 2. Neither depends on the number of environments
    :param n_epochs: passes over the episodes of a turn
    :param batch_size: minibatch size; None: all episodes of a turn at once
    :param gamma: discount factor; the guarantees hold for 1
    :param clip_range: clip range of the importance ratio, or a function of the remaining progress
    :param clip_range_high: upper clip range, if it is to differ from ``clip_range``; a float or a function
    :param factor_clip: clip range (delta) of the factor that carries updated turns over to the next one
    :param advantage_estimator: "group_mean" (GRAE), "leave_one_out", or "reward_to_go" of each turn, against the
        members that reached it; see :func:`~seeupo_gym.agents.advantages.estimate_advantages`
    :param normalize_advantage: "batch", "group" (as in GRPO; breaks the guarantee) or "none"
    :param advantage_clip: bound of the advantages' absolute value, for example 3; None: none
    :param ratio_level: importance ratio of an action with several components: "joint" (their product),
        "sequence" (its geometric mean, the ratio of the paper for responses of many tokens) or "token" (one ratio
        per component). They are the same for an action of one component
    :param update_rule: what a turn maximises: "clip" (the clipped surrogate), "reinforce" (the policy gradient
        without a ratio; one pass, whatever ``n_epochs`` is), "kl_penalty" (``rho * M`` less ``kl_coef`` times the
        KL) or "trust_region" (one natural-gradient step with a line search within ``target_kl``); see
        :func:`~seeupo_gym.agents.update_rules.surrogate`
    :param ent_coef: coefficient of the entropy bonus, or a function of the remaining progress; as advantages have
        a standard deviation of 1, it takes 0.1 or more to keep turns exploring that wait for others to improve
        (see docs/benchmarks.md)
    :param kl_coef: coefficient of a penalty on KL(pi_old || pi), pi_old the policy that collected (k3 form)
    :param target_kl: end the update of a turn when its approximate KL exceeds 1.5 times this; None: never. For
        "trust_region" it is the bound of the KL
    :param max_grad_norm: gradient clipping, for each turn by itself; None: none
    :param max_turns: number of turn policies; None: the environment's ``max_turns`` attribute or its spec's
        ``max_episode_steps``
    :param turn_policies: "separate" or "shared" (one network for all turns: fewer parameters, but updating a
        turn moves the turns updated before it, so that the guarantee is only approximate)
    :param update_order: "reverse" (backward induction), "forward", "random", "simultaneous" (all turns in one
        loss, no factors), or a permutation of the turns, first to last
    :param schedule: "sweep" (every iteration updates all turns) or "staged" (the last turn is trained first, from
        states that exploratory actions lead to; then it is frozen, and the turn before is trained, and so on)
    :param schedule_kwargs: for "staged"; see :class:`~seeupo_gym.agents.staged.StageSettings`
    :param independent_noise: reseed the transitions for each member of a group; by default its members share
        them, which is a valid baseline with less variance
    :param use_masking: use the environment's ``action_masks()`` if it has them
    :param stats_window_size: number of episodes that ``rollout/`` statistics are averaged over
    :param tensorboard_log: folder for TensorBoard; None: no logging
    :param policy_kwargs: arguments of the policy
    :param verbose: 0 for no output, 1 for info messages, 2 for debug messages
    :param seed: seed of everything random; never touches a global generator
    :param device: device of the networks
    :param _init_setup_model: whether to build the networks on creation
    :raises ValueError: for settings out of range, unsupported spaces and environments of unknown horizon
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    policy: SeeUPOPolicy
    rollout_buffer: GroupRolloutBuffer
    streams: RandomStreams

    def __init__(
        self,
        policy: str | type[SeeUPOPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 3e-3,
        n_groups: int = 16,
        group_size: int = 8,
        n_epochs: int = 4,
        batch_size: int | None = None,
        gamma: float = 1.0,
        clip_range: float | Schedule = 0.2,
        clip_range_high: float | Schedule | None = None,
        factor_clip: float | Schedule = 0.2,
        advantage_estimator: str = "group_mean",
        normalize_advantage: str = "batch",
        advantage_clip: float | None = None,
        ratio_level: str = "joint",
        update_rule: str = "clip",
        ent_coef: float | Schedule = 0.0,
        kl_coef: float = 0.0,
        target_kl: float | None = None,
        max_grad_norm: float | None = 0.5,
        max_turns: int | None = None,
        turn_policies: str = "separate",
        update_order: str | Sequence[int] = "reverse",
        schedule: str = "sweep",
        schedule_kwargs: dict[str, Any] | None = None,
        independent_noise: bool = False,
        use_masking: bool = True,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        self.n_groups = n_groups
        self.group_size = group_size
        self.n_epochs = n_epochs
        self.batch_size = batch_size
        self.gamma = gamma
        self.clip_range = clip_range
        self.clip_range_high = clip_range_high
        self.factor_clip = factor_clip
        self.advantage_estimator = advantage_estimator
        self.normalize_advantage = normalize_advantage
        self.advantage_clip = advantage_clip
        self.ratio_level = ratio_level
        self.update_rule = update_rule
        self.ent_coef = ent_coef
        self.kl_coef = kl_coef
        self.target_kl = target_kl
        self.max_grad_norm = max_grad_norm
        self.max_turns = max_turns
        self.turn_policies = turn_policies
        self.update_order = update_order
        self.schedule = schedule
        self.schedule_kwargs = schedule_kwargs
        self.independent_noise = independent_noise
        self.use_masking = use_masking
        check_settings(vars(self))
        if isinstance(env, str):
            made: gym.Env[Any, Any] = gym.make(env)
            env = make_vec(env, n_groups * group_size) if isinstance(made.unwrapped, TaskEnv) else made
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            support_multi_env=True,
            seed=seed,
        )
        # Filled by _setup_model(), which load() calls again on a model that has them already.
        self.n_turns: int | None = None
        self.horizon_known = True
        self.starts_checked = False
        self.masked = False
        self.stages: Stages | None = None
        if _init_setup_model:
            self._setup_model()

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        check_spaces(env.observation_space, env.action_space)
        if isinstance(env, gym.Env) and not is_wrapped(env, SeedQueue):
            if monitor_wrapper and not is_wrapped(env, Monitor):
                env = Monitor(env)
            env = SeedQueue(env)
        return BaseAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    def _setup_model(self) -> None:
        self._setup_lr_schedule()
        self._clip_low = FloatSchedule(self.clip_range)
        self._clip_high = FloatSchedule(self.clip_range if self.clip_range_high is None else self.clip_range_high)
        self._factor_clip = FloatSchedule(self.factor_clip)
        self._ent_coef = FloatSchedule(self.ent_coef)
        if self.n_turns is None:
            self._resolve_environment()
        assert self.n_turns is not None
        if "streams" not in self.__dict__ or self.streams.actions.device != self.device:
            self.set_random_seed(self.seed)
        length = n_components(self.action_space) if self.ratio_level == "sequence" else 1
        self.rollout_buffer = GroupRolloutBuffer(self.n_groups, self.group_size, length, self.device)
        # Initialisers draw from torch's global generator: lend it to them, and give it back as it was.
        with th.random.fork_rng(devices=[]), one_torch_thread():
            th.default_generator.manual_seed(self.streams.init_seed)
            policy = self.policy_class(
                self.observation_space,
                self.action_space,
                self.lr_schedule,
                n_turns=1 if self.turn_policies == "shared" else self.n_turns,
                use_masking=self.masked,
                per_component=self.ratio_level == "token" and self.update_rule != "reinforce",
                **self.policy_kwargs,
            )
        assert isinstance(policy, SeeUPOPolicy), "policy must be a subclass of seeupo_gym.agents.SeeUPOPolicy"
        self.policy = policy.to(self.device)
        self.policy.generator = self.streams.predict_generator(self.device)

    def _resolve_environment(self) -> None:
        """Learn the number of turns, and whether there are masks, from the environment."""
        horizon = None if self.env is None else find_horizon(self.env)
        self.horizon_known = horizon is not None
        self.n_turns = self.max_turns or horizon
        if self.n_turns is None:
            raise ValueError(
                "the environment does not say how many turns an episode can have, and SeeUPO needs a policy for each: "
                "pass max_turns=..., or wrap the environment with gymnasium.wrappers.TimeLimit"
            )
        check_update_order(self.update_order, self.n_turns)
        masks = self.env is not None and is_masking_supported(self.env)
        self.masked = self.use_masking and masks and not isinstance(self.action_space, spaces.Box)

    def set_random_seed(self, seed: int | None = None) -> None:
        """
        Restart all random streams of the algorithm: group seeds, actions and minibatches.

        Unlike SB3's method, it leaves the global generators of Python, numpy and torch alone.

        :param seed: seed; None: fresh entropy
        """
        self.streams = RandomStreams(seed, self.device)
        if seed is not None:
            self.action_space.seed(seed)
            if self.env is not None:
                self.env.seed(seed)

    def collect_rollouts(self, env: VecEnv, callback: BaseCallback, rollout_buffer: GroupRolloutBuffer) -> bool:
        """
        Collect ``n_groups * group_size`` whole episodes with the current policy.

        :param env: the training environment
        :param callback: called at every vector step
        :param rollout_buffer: filled with the episodes
        :return: False if the callback stopped training
        """
        return collect_groups(self, env, callback, rollout_buffer)

    def train(self) -> None:
        """Update the turn policies with the episodes in the rollout buffer."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        buffer = self.rollout_buffer
        n_reached = len(buffer.turn_batches)
        advantages, degenerate = estimate_advantages(
            buffer.rewards,
            buffer.reached,
            self.gamma,
            self.advantage_estimator,
            self.normalize_advantage,
            self.advantage_clip,
        )
        flat = advantages.reshape(len(advantages), -1)
        settings = self._update_settings(self._current_progress_remaining)
        if self.stages is None or self.stages.finished:
            order = turn_order(n_reached, self.update_order, self.streams.updates)
        else:
            order = self.stages.update_order(n_reached)
        stats = sequential_update(
            self.policy,
            buffer.turn_batches,
            th.as_tensor(flat, dtype=th.float32, device=self.device).expand(n_reached, -1),
            order,
            settings,
            self.streams.updates,
        )
        self._n_updates += settings.n_passes
        # Without the episodes that were dropped.
        returns = np.ma.array(discounted_returns(buffer.rewards, self.gamma), mask=~buffer.reached[0])
        present = buffer.reached[: len(degenerate)].any(axis=-1)
        self.logger.record("rollout/group_reward_std", float(returns.std(axis=1).mean()))
        self.logger.record("rollout/degenerate_group_fraction", float(degenerate[present].mean()))
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", settings.clip_low)
        self.logger.record("train/ent_coef", settings.ent_coef)
        record_turn_stats(self.logger, stats, self.n_turns or 1)
        if self.stages is not None:
            record_stage(self.logger, self.stages, buffer.reached)
            if not self.stages.finished:
                self.stages.advance(self.num_timesteps, float(returns.mean()), trained=len(stats) > 0)

    def _update_settings(self, progress_remaining: float) -> UpdateSettings:
        return UpdateSettings(
            rule=self.update_rule,
            n_epochs=self.n_epochs,
            batch_size=self.batch_size,
            clip_low=self._clip_low(progress_remaining),
            clip_high=self._clip_high(progress_remaining),
            factor_clip=self._factor_clip(progress_remaining),
            ent_coef=self._ent_coef(progress_remaining),
            kl_coef=self.kl_coef,
            target_kl=self.target_kl,
            max_grad_norm=self.max_grad_norm,
        )

    def learn(
        self: SelfSeeUPO,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfSeeUPO:
        """
        Train for whole iterations until ``total_timesteps`` environment steps are taken.

        :param total_timesteps: environment steps to take, used or not
        :param callback: callback(s) called at every vector step
        :param log_interval: iterations between two outputs of the log; None: none
        :param tb_log_name: name of the run in TensorBoard; None: that of the class
        :param reset_num_timesteps: whether to start counting from 0, and a staged schedule from the last turn; False
            goes on in mid-stage
        :param progress_bar: whether to show a progress bar (needs tqdm and rich)
        :return: the trained model
        """
        iteration = 0
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name or type(self).__name__, progress_bar
        )
        assert self.env is not None
        if self.schedule == "staged" and (self.stages is None or reset_num_timesteps):
            assert self.n_turns is not None
            stage_settings = StageSettings(**(self.schedule_kwargs or {}))
            self.stages = Stages(stage_settings, self.n_turns, self.num_timesteps, total_timesteps)
        if self._vec_normalize_env is not None and self._vec_normalize_env.norm_reward:
            warnings.warn(
                "VecNormalize scales rewards with statistics that change during a rollout, so the returns of a group "
                "are not comparable: use VecNormalize(..., norm_reward=False); SeeUPO normalises advantages itself",
                stacklevel=2,
            )
        write_layout(self.logger)
        record_hparams(self.logger, self)
        callback.on_training_start(locals(), globals())
        small = max(param.numel() for param in self.policy.parameters()) < SMALL_MATRIX
        with one_torch_thread(only_if=small and self.device.type == "cpu"):
            while self.num_timesteps < total_timesteps:
                if not self.collect_rollouts(self.env, callback, self.rollout_buffer):
                    break
                iteration += 1
                self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
                self.train()
                if log_interval is not None and iteration % log_interval == 0:
                    self.dump_logs(iteration)
        callback.on_training_end()
        return self

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        initialized = super()._init_callback(callback, progress_bar=False)
        if not progress_bar:
            return initialized
        with_bar = CallbackList([initialized, ProgressBar()])
        with_bar.init_callback(self)
        return with_bar

    def dump_logs(self, iteration: int = 0) -> None:
        """
        Write the log.

        :param iteration: number of iterations of this call of ``learn``
        """
        record_progress(self.logger, self, iteration)
        self.logger.dump(step=self.num_timesteps)

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
        action_masks: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[Any], tuple[NDArray[Any], ...] | None]:
        """
        Get actions for observations; see :meth:`SeeUPOPolicy.predict` for where the turn comes from.

        :param observation: one observation or a batch
        :param state: turn counters returned by the call before
        :param episode_start: which rows begin an episode
        :param deterministic: whether to take the most likely actions
        :param action_masks: valid choices
        :return: the actions, and the state for the next call
        """
        return self.policy.predict(observation, state, episode_start, deterministic, action_masks)

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """
        Set another training environment; see SB3.

        :param env: environment with the same spaces, and the same number of environments
        :param force_reset: whether to reset it before training
        """
        super().set_env(env, force_reset)
        self.starts_checked = False

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer"], []
