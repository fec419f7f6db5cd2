"""Collection: whole groups of episodes through any SB3 vector environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from seeupo_gym.agents.checks import StartCheck, check_finite
from seeupo_gym.agents.method.staged import act_in_stage
from seeupo_gym.agents.policies.turns import observed_turns
from seeupo_gym.agents.rollout import GroupRolloutBuffer
from seeupo_gym.envs.episodes import EpisodeLanes
from seeupo_gym.envs.info_keys import CRASHED, MALFORMED, episode_statistics, read_flag
from seeupo_gym.envs.masks import read_masks
from seeupo_gym.envs.task import Lanes

if TYPE_CHECKING:
    from seeupo_gym.agents.group_algorithm import GroupAlgorithm

# An episode of an environment without a known horizon is taken to be endless beyond this many times max_turns.
_ENDLESS = 100


def collect_groups(model: GroupAlgorithm, env: VecEnv, callback: BaseCallback, buffer: GroupRolloutBuffer) -> bool:
    """
    Collect ``n_groups * group_size`` whole episodes with the current policy, in SB3's order of calls.

    An episode whose environment reports ``info["seeupo_gym/crashed"]`` (a program it depends on died) is
    dropped: its steps are counted, but it is no member of its group and not in the statistics.

    :param model: the algorithm; its step count, statistics and last observations are kept current
    :param env: the training environment
    :param callback: called at every vector step
    :param buffer: filled with the episodes
    :return: False if the callback stopped training
    """
    model.policy.set_training_mode(False)
    buffer.reset()
    callback.on_rollout_start()
    n_taken = n_used = 0
    malformed: list[bool] = []
    start_check = None if model.starts_checked else StartCheck(model.group_size)
    seeds, noise_seeds = model.streams.episode_seeds(model.n_groups, model.group_size, model.independent_noise)
    with EpisodeLanes(env, seeds, noise_seeds) as lanes:
        obs = lanes.reset()
        while lanes.running:
            acting, turns = lanes.acting, lanes.turns.copy()
            envs = np.arange(env.num_envs)[acting]
            check_finite("observation", obs, envs, turns, model.num_timesteps)
            _check_turns(model, obs, turns, lanes)
            if start_check is not None:
                starting = np.flatnonzero(lanes.active & (turns == 0))
                vec_normalize = model.get_vec_normalize_env()
                raw_obs = obs if vec_normalize is None else vec_normalize.get_original_obs()
                start_check.see(raw_obs, starting, lanes.episodes[starting])
            masks = read_masks(env, model.action_space, envs, turns[acting]) if model.masked else None
            obs_rows = _rows(obs, acting)
            with th.no_grad():
                sampled, log_probs = _act(model, obs_as_tensor(obs_rows, model.device), turns[acting], masks, envs)
            actions = _env_actions(model.action_space, sampled, acting, env.num_envs)
            n_steps = lanes.n_steps
            new_obs, rewards, dones, infos = env.step(actions)
            model.num_timesteps += n_steps
            callback.update_locals(locals())
            if not callback.on_step():
                return False

            used = np.flatnonzero(lanes.active)
            check_finite("reward", rewards, used, turns, model.num_timesteps)
            reporting = [lane for lane in used.tolist() if infos[lane]]
            crashed = [lane for lane in reporting if read_flag(infos[lane], CRASHED, lane, turns[lane])]
            if crashed:
                buffer.drop(lanes.episodes[crashed].tolist())
                reporting = [lane for lane in reporting if lane not in crashed]
            told = [read_flag(infos[lane], MALFORMED, lane, turns[lane]) for lane in reporting]
            malformed += [flag for flag in told if flag is not None]
            ended = [lane for lane in reporting if dones[lane]]
            statistics = [episode_statistics(infos[lane], lane, turns[lane]) for lane in ended]
            model._update_info_buffer(statistics, dones[ended])
            used_rows = _positions(lanes.active, acting)
            buffer.add(
                lanes.episodes[used],
                turns[used],
                _rows(obs_rows, used_rows),
                sampled[used_rows],
                log_probs[used_rows],
                rewards[used],
                None if masks is None else masks[used_rows],
            )
            n_taken += n_steps
            n_used += len(used)
            obs = lanes.advance(new_obs, dones)
            model._last_obs, model._last_episode_starts = obs, dones
    model.starts_checked = True
    buffer.finish()
    model.logger.record("rollout/unused_step_fraction", 1.0 - n_used / n_taken)
    if malformed:
        model.logger.record("rollout/malformed_fraction", float(np.mean(malformed)))
    callback.update_locals(locals())
    callback.on_rollout_end()
    return True


def _act(
    model: GroupAlgorithm,
    obs: Any,
    turns: NDArray[np.int64],
    masks: NDArray[np.bool_] | None,
    envs: NDArray[np.int64],
) -> tuple[th.Tensor, th.Tensor]:
    mask_tensor = None if masks is None else th.as_tensor(masks, device=model.device)
    if model.stages is not None and not model.stages.finished:
        return act_in_stage(model.policy, model.stages, obs, turns, model.streams.actions, mask_tensor, envs)
    actions, log_probs = model.policy(obs, turns, model.streams.actions, mask_tensor, envs)
    return actions, log_probs


def _rows(obs: Any, rows: Lanes) -> Any:
    return {key: value[rows] for key, value in obs.items()} if isinstance(obs, dict) else obs[rows]


def _positions(used: NDArray[np.bool_], acting: Lanes) -> Lanes:
    """Where the used lanes stand among the acting ones; a slice, and so no copy, if they are all of them."""
    among_acting = used[acting]
    return slice(None) if among_acting.all() else np.flatnonzero(among_acting)


def _check_turns(model: GroupAlgorithm, obs: Any, turns: NDArray[np.int64], lanes: EpisodeLanes) -> None:
    used = lanes.active
    longest = int(np.argmax(np.where(used, turns, -1)))
    assert model.n_turns is not None
    if not model.horizon_known and turns[longest] >= _ENDLESS * model.n_turns:
        raise RuntimeError(
            f"the episode of environment {longest} has not ended after {turns[longest]} turns, {_ENDLESS} times "
            "max_turns: wrap the environment with gymnasium.wrappers.TimeLimit"
        )
    observed = observed_turns(obs, model.observation_space)
    if observed is not None and np.any(observed[used] != turns[used]):
        lane = int(np.flatnonzero(used & (observed != turns))[0])
        raise ValueError(
            f'the entry "turn" of the observation of environment {lane} is {observed[lane]} at turn {turns[lane]}: '
            "it must count the steps of the episode from 0 (and stay out of VecNormalize), or have another name"
        )


def _env_actions(space: spaces.Space[Any], sampled: th.Tensor, acting: Lanes, n_envs: int) -> NDArray[Any]:
    """Actions for all environments: the sampled ones clipped to a Box, zeros for parked lanes."""
    actions: NDArray[Any] = sampled.cpu().numpy()
    if isinstance(space, spaces.Box):
        actions = np.clip(actions, space.low, space.high)
    if isinstance(acting, slice):
        return actions
    full = np.zeros((n_envs, *actions.shape[1:]), dtype=actions.dtype)
    full[acting] = actions
    return full
