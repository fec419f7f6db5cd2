"""The mechanics behind SeeUPO: an SB3 algorithm that collects groups of episodes and updates turn by turn."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv

from seeupo_gym.agents.checks import check_spaces, check_update_order, warn_of_many_networks
from seeupo_gym.agents.collection import collect_groups
from seeupo_gym.agents.method.advantages import discounted_returns, estimate_advantages
from seeupo_gym.agents.method.sequential import UpdateSettings, sequential_update, turn_order
from seeupo_gym.agents.method.staged import Stages, StageSettings
from seeupo_gym.agents.method.threads import SMALL_MATRIX, one_torch_thread
from seeupo_gym.agents.policies.turn_policy import TurnPolicy
from seeupo_gym.agents.policies.turns import find_horizon
from seeupo_gym.agents.progress import ProgressBar
from seeupo_gym.agents.rollout import GroupRolloutBuffer
from seeupo_gym.agents.saving import SavedAlgorithm
from seeupo_gym.agents.streams import RandomStreams
from seeupo_gym.agents.turn_logging import (
    record_hparams,
    record_progress,
    record_stage,
    record_turn_stats,
    write_layout,
)
from seeupo_gym.envs.masks import has_masks
from seeupo_gym.envs.vector import SeedQueue

SelfGroupAlgorithm = TypeVar("SelfGroupAlgorithm", bound="GroupAlgorithm")


class GroupAlgorithm(SavedAlgorithm):
    """
    What :class:`~seeupo_gym.agents.SeeUPO` does; its constructor has the settings.

    See ``docs/architecture.md`` for how an iteration's data flows.
    """

    rollout_buffer: GroupRolloutBuffer
    streams: RandomStreams
    stages: Stages | None
    n_turns: int | None

    # The settings; see SeeUPO.
    n_epochs: int
    batch_size: int | None
    micro_batch_size: int | None
    gamma: float
    clip_range: float | Schedule
    clip_range_high: float | Schedule | None
    factor_clip: float | Schedule
    advantage_estimator: str
    normalize_advantage: str
    advantage_clip: float | None
    ratio_level: str
    update_rule: str
    ent_coef: float | Schedule
    kl_coef: float
    reference_kl_coef: float
    target_kl: float | None
    max_grad_norm: float | None
    max_turns: int | None
    turn_policies: str
    update_order: str | Sequence[int]
    schedule: str
    schedule_kwargs: dict[str, Any] | None
    independent_noise: bool
    use_masking: bool

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
        if "streams" in self.__dict__:
            self.streams.place(self.device)
        else:
            self.set_random_seed(self.seed)
        # Initialisers draw from torch's global generator: lend it to them, and give it back as it was.
        with th.random.fork_rng(devices=[]), one_torch_thread():
            th.default_generator.manual_seed(self.streams.init_seed)
            policy: TurnPolicy = self.policy_class(
                self.observation_space,
                self.action_space,
                self.lr_schedule,
                n_turns=1 if self.turn_policies == "shared" else self.n_turns,
                use_masking=self.masked,
                per_component=self.ratio_level != "joint" and self.update_rule != "reinforce",
                **self.policy_kwargs,
            )
        self.policy = policy.to(self.device)
        self.policy.generator = self.streams.predictions
        self.rollout_buffer = GroupRolloutBuffer(self.n_groups, self.group_size, self.device, policy.token_mask)

    def _resolve_environment(self) -> None:
        """Learn the number of turns, and whether there are masks, from the environment."""
        if self.env is None:
            raise ValueError("env is None: a new model needs an environment, whose spaces its networks are made for")
        horizon = find_horizon(self.env)
        self.horizon_known = horizon is not None
        self.n_turns = self.max_turns or horizon
        if self.n_turns is None:
            raise ValueError(
                "the environment does not say how many turns an episode can have, and SeeUPO needs a policy for each: "
                "pass max_turns=..., or wrap the environment with gymnasium.wrappers.TimeLimit"
            )
        check_update_order(self.update_order, self.n_turns)
        warn_of_many_networks(self.turn_policies, self.n_turns)
        self.masked = self._takes_masks_of(self.env)

    def _takes_masks_of(self, env: VecEnv) -> bool:
        return self.use_masking and not isinstance(self.action_space, spaces.Box) and has_masks(env)

    def set_random_seed(self, seed: int | None = None) -> None:
        """
        Restart all random streams of the algorithm: group seeds, actions, minibatches and the samples of ``predict``.

        Unlike SB3's method, it leaves the global generators of Python, numpy and torch alone.

        :param seed: seed; None: fresh entropy
        """
        self.streams = RandomStreams(seed, self.device)
        if "policy" in self.__dict__:
            self.policy.generator = self.streams.predictions
        if seed is not None:
            self.action_space.seed(seed)
            if self.env is not None:
                self.env.seed(seed)

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: GroupRolloutBuffer,
        n_rollout_steps: int | None = None,
    ) -> bool:
        """
        Collect ``n_groups * group_size`` whole episodes with the current policy.

        :param env: the training environment
        :param callback: called at every vector step
        :param rollout_buffer: filled with the episodes
        :param n_rollout_steps: for callers that know SB3's method; whole episodes take as many steps as they take
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
        self.policy.record(self.logger, buffer)
        if self.stages is not None:
            record_stage(self.logger, self.stages, buffer.reached)
            if not self.stages.finished:
                self.stages.advance(self.num_timesteps, float(returns.mean()), trained=len(stats) > 0)

    def _update_settings(self, progress_remaining: float) -> UpdateSettings:
        return UpdateSettings(
            rule=self.update_rule,
            ratio_level=self.ratio_level,
            n_epochs=self.n_epochs,
            batch_size=self.batch_size,
            micro_batch_size=self.micro_batch_size,
            clip_low=self._clip_low(progress_remaining),
            clip_high=self._clip_high(progress_remaining),
            factor_clip=self._factor_clip(progress_remaining),
            ent_coef=self._ent_coef(progress_remaining),
            kl_coef=self.kl_coef,
            reference_kl_coef=self.reference_kl_coef,
            target_kl=self.target_kl,
            max_grad_norm=self.max_grad_norm,
        )

    def learn(
        self: SelfGroupAlgorithm,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfGroupAlgorithm:
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
        if self.env is None:
            raise ValueError("the model has no environment to learn in: call set_env(...), or pass env=... to load")
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name or type(self).__name__, progress_bar
        )
        if self.masked != self._takes_masks_of(self.env):
            had, has = ("with", "none") if self.masked else ("without", "them")
            raise ValueError(
                f"the model was made for an environment {had} action_masks(), and this one has {has}: make a new model "
                "for it, as policies cannot change that"
            )
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
                # The last iteration overshoots: a schedule must end where it ends, not go on below zero.
                self._current_progress_remaining = max(0.0, self._current_progress_remaining)
                self.train()
                if log_interval is not None and iteration % log_interval == 0:
                    self.dump_logs(iteration)
        callback.on_training_end()
        return self

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        if progress_bar:
            given = callback if isinstance(callback, list) else [callback]
            callbacks = [c if isinstance(c, BaseCallback) else ConvertCallback(c) for c in given]
            callback = [*callbacks, ProgressBar()]
        return super()._init_callback(callback)

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
        Get actions for observations; see :meth:`TurnPolicy.predict` for where the turn comes from.

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

        :param env: environment with the same spaces, and the same number of environments, or what the constructor
            makes one of
        :param force_reset: whether to reset it before training
        """
        made = self.policy_class.make_env(env, self.n_groups * self.group_size, self.policy_kwargs)
        super().set_env(made, force_reset)
        self.starts_checked = False
