"""An SB3 algorithm that learns from whole groups of episodes: their collection, and the loop of training."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from inspect import signature
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
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from seeupo_gym.agents.checks import check_spaces, check_update_order, warn_of_many_networks
from seeupo_gym.agents.env_checks import RolloutChecks, check_finite
from seeupo_gym.agents.method.rules import get_rule
from seeupo_gym.agents.method.settings import TrainingSettings
from seeupo_gym.agents.method.threads import SMALL_MATRIX, keep_torch_state, one_torch_thread
from seeupo_gym.agents.policies.turn_policy import TurnPolicy
from seeupo_gym.agents.policies.turns import find_horizon
from seeupo_gym.agents.progress import ProgressBar
from seeupo_gym.agents.rollout import GroupRolloutBuffer, env_actions, positions, select_lanes
from seeupo_gym.agents.saving import SavedAlgorithm
from seeupo_gym.agents.streams import RandomStreams
from seeupo_gym.agents.turn_logging import record_hparams, record_progress, write_layout
from seeupo_gym.envs.arguments import check_count
from seeupo_gym.envs.episodes import EpisodeLanes, drop_late_answers
from seeupo_gym.envs.hidden_state import warn_of_hidden_state
from seeupo_gym.envs.info_keys import CRASHED, MALFORMED, episode_statistics, read_flag
from seeupo_gym.envs.masks import has_masks, read_masks
from seeupo_gym.envs.processes import watch_workers
from seeupo_gym.envs.vector import SeedQueue

SelfGroupAlgorithm = TypeVar("SelfGroupAlgorithm", bound="GroupAlgorithm")

# The networks are made for these settings, so they cannot change afterwards.
_FIXED = ("max_turns", "turn_policies", "use_masking")


class GroupAlgorithm(SavedAlgorithm):
    """
    The part of :class:`~seeupo_gym.agents.SeeUPO` that does not depend on how policies are updated.

    It collects whole groups of episodes, owns the random streams, and has ``learn``, ``predict``, ``save`` and
    ``load``. A subclass has the settings of :class:`~seeupo_gym.agents.method.settings.TrainingSettings` as attributes,
    and :meth:`train`.
    """

    rollout_buffer: GroupRolloutBuffer
    streams: RandomStreams
    n_turns: int | None
    max_turns: int | None
    turn_policies: str
    use_masking: bool
    n_iterations: int
    # The most turns of an episode, as the training environment says; None: it does not.
    declared_turns: int | None

    def current_settings(self) -> TrainingSettings:
        """
        Read the settings as they are now, whoever has set them: the constructor, ``load`` or a callback.

        :return: the settings, with schedules at the remaining progress
        :raises ValueError: for settings out of range, and for those that cannot change once the model is made
        """
        given = {name: getattr(self, name) for name in TrainingSettings.names()}
        settings = TrainingSettings.at(self._current_progress_remaining, given)
        rule = get_rule(settings)
        if self.n_turns is not None:
            check_update_order(settings.update_order, self.n_turns)
        for name, made in self._made_with.items():
            now = self._per_component(settings) if name == "ratio_level" else getattr(settings, name)
            if made != now:
                raise ValueError(
                    f"{name} cannot change to {getattr(settings, name)!r} once the model is made, as its networks are "
                    "made for it: make a new model (set_parameters takes over weights of equal shapes)"
                )
        if rule.second_derivatives and self.policy_class.first_derivatives_only:
            raise ValueError(
                f"update_rule={settings.update_rule!r} needs second derivatives, which {self.policy_class.__name__} "
                'does not have: use "clip", "kl_penalty" or "reinforce"'
            )
        return settings

    @staticmethod
    def _per_component(settings: TrainingSettings) -> bool:
        """Return True where the update takes the log-probabilities of an action's components one by one."""
        return get_rule(settings).ratio_level(settings) != "joint"

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        check_spaces(env.observation_space, env.action_space)
        if isinstance(env, VecEnv):
            watch_workers(env)
        if isinstance(env, gym.Env) and not is_wrapped(env, SeedQueue):
            if monitor_wrapper and not is_wrapped(env, Monitor):
                env = Monitor(env)
            env = SeedQueue(env)
        return BaseAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    def _setup_model(self) -> None:
        self._made_with: dict[str, Any] = {}
        settings = self.current_settings()
        self._setup_lr_schedule()
        if self.n_turns is None:
            self._resolve_environment()
        elif settings.max_turns not in (None, self.n_turns):
            raise ValueError(
                f"max_turns cannot change to {settings.max_turns}: the saved model has {self.n_turns} turns"
            )
        assert self.n_turns is not None
        if "streams" in self.__dict__:
            self.streams.place(self.device)
        else:
            self.set_random_seed(self.seed)
        # Initialisers draw from torch's global generator: lend it to them, and give it back as it was.
        with th.random.fork_rng(devices=[]), one_torch_thread():
            th.default_generator.manual_seed(self.streams.init_seed)
            unknown = sorted(set(self.policy_kwargs) - set(signature(self.policy_class).parameters))
            if unknown:
                raise ValueError(f"policy_kwargs has {unknown[0]!r}, which {self.policy_class.__name__} does not take")
            policy: TurnPolicy = self.policy_class(
                self.observation_space,
                self.action_space,
                self.lr_schedule,
                n_policies=1 if settings.turn_policies == "shared" else self.n_turns,
                use_masking=self.masked,
                per_component=self._per_component(settings),
                **self.policy_kwargs,
            )
        self.policy = policy.to(self.device)
        self.policy.generator = self.streams.predictions
        self.rollout_buffer = GroupRolloutBuffer(settings.n_groups, settings.group_size, self.device, policy.token_mask)
        self._made_with = {name: getattr(settings, name) for name in _FIXED}
        self._made_with["ratio_level"] = self._per_component(settings)

    def _resolve_environment(self) -> None:
        """Learn the number of turns, and whether there are masks, from the environment."""
        if self.env is None:
            raise ValueError("env is None: a new model needs an environment, whose spaces its networks are made for")
        self.declared_turns = find_horizon(self.env)
        self.n_turns = self.max_turns or self.declared_turns
        if self.n_turns is None:
            raise ValueError(
                "the environment does not say how many turns an episode can have, and SeeUPO needs a policy for each: "
                "pass max_turns=..., or wrap the environment with gymnasium.wrappers.TimeLimit"
            )
        check_update_order(self.current_settings().update_order, self.n_turns)
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
        self._iteration_start = None
        if "policy" in self.__dict__:
            self.policy.generator = self.streams.predictions
        if seed is not None:
            self.action_space.seed(seed)
            if self.env is not None:
                self.env.seed(seed)

    def collect_rollouts(self, env: VecEnv, callback: BaseCallback, rollout_buffer: GroupRolloutBuffer) -> bool:
        """
        Collect ``n_groups * group_size`` whole episodes with the current policy, in SB3's order of calls.

        An episode whose environment reports ``info["seeupo_gym/crashed"]`` (a program it depends on died) is dropped:
        its steps are counted, but it is no member of its group and not in the statistics.

        :param env: the training environment
        :param callback: called at every vector step
        :param rollout_buffer: filled with the episodes
        :return: False if the callback stopped training
        """
        self._begin_iteration()
        self.policy.set_training_mode(False)
        callback.on_rollout_start()
        settings = self.current_settings()
        rollout_buffer.reset(settings.n_groups, settings.group_size)
        n_taken = n_used = 0
        malformed: list[bool] = []
        own_limit = self.n_turns if self.declared_turns is None else None
        checks = RolloutChecks(env, settings.group_size, own_limit, self.starts_checked)
        seeds, noise_seeds = self.streams.episode_seeds(
            settings.n_groups, settings.group_size, settings.independent_noise
        )
        if not self.starts_checked:
            warn_of_hidden_state(env, int(seeds[0]))
        with EpisodeLanes(env, seeds, noise_seeds, self.declared_turns) as lanes:
            obs = lanes.reset()
            while lanes.running:
                acting, turns = lanes.acting, lanes.turns.copy()
                envs = np.arange(env.num_envs)[acting]
                checks.see_observations(obs, envs, lanes, self.num_timesteps)
                masks = read_masks(env, self.action_space, envs, turns[acting]) if self.masked else None
                obs_rows = select_lanes(obs, acting)
                with th.no_grad():
                    mask_tensor = None if masks is None else th.as_tensor(masks, device=self.device)
                    obs_tensor = obs_as_tensor(obs_rows, self.device)
                    sampled, log_probs = self._act(obs_tensor, turns[acting], mask_tensor, envs)
                actions = env_actions(self.action_space, sampled, acting, env.num_envs)
                n_steps = lanes.n_steps
                new_obs, rewards, dones, infos = env.step(actions)
                self.num_timesteps += n_steps
                callback.update_locals(locals())
                if not callback.on_step():
                    return False

                used = np.flatnonzero(lanes.active)
                check_finite("reward", rewards, used, turns, self.num_timesteps)
                reporting = [lane for lane in used.tolist() if infos[lane]]
                dying = [lane for lane in reporting if CRASHED in infos[lane]]
                crashed = [lane for lane in dying if read_flag(infos[lane], CRASHED, lane, turns[lane])]
                if crashed:
                    rollout_buffer.drop(lanes.episodes[crashed].tolist())
                    reporting = [lane for lane in reporting if lane not in crashed]
                telling = [lane for lane in reporting if MALFORMED in infos[lane]]
                told = [read_flag(infos[lane], MALFORMED, lane, turns[lane]) for lane in telling]
                malformed += [flag for flag in told if flag is not None]
                ended = [lane for lane in reporting if dones[lane]]
                statistics = [episode_statistics(infos[lane], lane, turns[lane]) for lane in ended]
                self._update_info_buffer(statistics, dones[ended])
                used_rows = positions(lanes.active, acting)
                rollout_buffer.add(
                    lanes.episodes[used],
                    turns[used],
                    select_lanes(obs_rows, used_rows),
                    sampled[used_rows],
                    log_probs[used_rows],
                    rewards[used],
                    None if masks is None else masks[used_rows],
                )
                n_taken += n_steps
                n_used += len(used)
                obs = lanes.advance(new_obs, dones)
                self._last_obs, self._last_episode_starts = obs, dones
        self.starts_checked = True
        rollout_buffer.finish()
        self.logger.record("rollout/unused_step_fraction", 1.0 - n_used / n_taken)
        if malformed:
            self.logger.record("rollout/malformed_fraction", float(np.mean(malformed)))
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _act(
        self, obs: Any, turns: NDArray[np.int64], masks: th.Tensor | None, envs: NDArray[np.int64]
    ) -> tuple[th.Tensor, th.Tensor]:
        """Choose actions, with their log-probabilities, for rows of the environments ``envs``."""
        actions, log_probs = self.policy(obs, turns, self.streams.actions, masks, envs)
        return actions, log_probs

    @abstractmethod
    def train(self) -> None:
        """Update the policies with the episodes in the rollout buffer."""

    @keep_torch_state
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
        :param reset_num_timesteps: whether to start counting steps and iterations from 0, and a staged schedule from
            the last turn; False goes on in mid-stage, from the beginning of an iteration that was broken off
        :param progress_bar: whether to show a progress bar (needs tqdm and rich)
        :return: the trained model
        :raises ValueError: if there is no environment, or it is not like the one the model was made for
        """
        if isinstance(total_timesteps, float) and total_timesteps % 1 == 0:  # 1e5
            total_timesteps = int(total_timesteps)
        total_timesteps = check_count("total_timesteps", total_timesteps, least=0)
        if log_interval is not None:
            check_count("log_interval", log_interval)
        if self.env is None:
            raise ValueError("the model has no environment to learn in: call set_env(...), or pass env=... to load")
        drop_late_answers(self.env)
        self.current_settings()
        self.declared_turns = find_horizon(self.env)
        if reset_num_timesteps:
            self.n_iterations = 0
        else:
            self._return_to_iteration_start()
        self._iteration_start = None
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name or type(self).__name__, progress_bar
        )
        if self.masked != self._takes_masks_of(self.env):
            had, has = ("with", "none") if self.masked else ("without", "them")
            raise ValueError(
                f"the model was made for an environment {had} action_masks(), and this one has {has}: make a new model "
                "for it, as policies cannot change that"
            )
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
                self._iteration_start = None
                self.n_iterations += 1
                self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
                # The last iteration overshoots: a schedule must end where it ends, not go on below zero.
                self._current_progress_remaining = max(0.0, self._current_progress_remaining)
                self.train()
                if log_interval is not None and self.n_iterations % log_interval == 0:
                    self.dump_logs(self.n_iterations)
        callback.on_training_end()
        return self

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        added = [*self.policy.callbacks(), *([ProgressBar()] if progress_bar else [])]
        if added:
            given = callback if isinstance(callback, list) else [callback]
            callback = [*(c if isinstance(c, BaseCallback) else ConvertCallback(c) for c in given), *added]
        return super()._init_callback(callback)

    def dump_logs(self, iteration: int = 0) -> None:
        """
        Write the log.

        :param iteration: number of iterations since counting began
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

    def set_env(self, env: GymEnv | str, force_reset: bool = True, env_kwargs: dict[str, Any] | None = None) -> None:
        """
        Set another training environment; see SB3.

        :param env: environment with the same spaces, and the same number of environments, or what the constructor
            makes one of
        :param force_reset: whether to reset it before training
        :param env_kwargs: arguments of the environment, for an id
        """
        made = self.policy_class.make_env(env, self.n_groups * self.group_size, self.policy_kwargs, env_kwargs)
        super().set_env(made, force_reset)
        self.starts_checked = False
