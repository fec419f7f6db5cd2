"""Evaluation on whole episodes from held-out seeds."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from numpy.typing import NDArray
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from seeupo_gym.agents.method.staged import Stages
from seeupo_gym.agents.policies.turn_policy import TurnPolicy
from seeupo_gym.envs.episodes import EpisodeLanes
from seeupo_gym.envs.task import HELD_OUT_SEED, MAX_SEED, bare_task_env
from seeupo_gym.envs.vector import make_vec

# Lanes of a native environment cost almost nothing. Each lane of any other is an environment.
_MAX_NATIVE_LANES = 1000
_MAX_OTHER_LANES = 8


@dataclass(frozen=True)
class Evaluation:
    """
    Results of all episodes, in the order of their seeds. Episodes whose environment crashed are left out.

    :param returns: undiscounted return, shape (episodes,)
    :param lengths: number of turns, shape (episodes,)
    :param successes: ``info["is_success"]`` at the end, shape (episodes,); None if the environment has none
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    successes: NDArray[np.bool_] | None

    @property
    def mean_return(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def mean_length(self) -> float:
        """Mean number of turns."""
        return float(self.lengths.mean())

    @property
    def success_rate(self) -> float | None:
        """Fraction of episodes that ended in success."""
        return None if self.successes is None else float(self.successes.mean())


def evaluate(
    model: BaseAlgorithm,
    env_id: str,
    n_episodes: int = 100,
    first_seed: int = HELD_OUT_SEED,
    deterministic: bool = True,
    **env_kwargs: Any,
) -> Evaluation:
    """
    Play whole episodes with a model, from seeds that training never draws.

    The episodes run in an environment of their own; the model's training state stays as it is, also its
    policy's mode and torch's global generator, from which SB3's algorithms draw their actions.

    :param model: a SeeUPO or SB3 model; masks are passed to it if it was trained with them
    :param env_id: a registered Gymnasium id
    :param n_episodes: number of episodes, at least 1
    :param first_seed: episode ``i`` starts from the seed ``first_seed + i``; seeds below ``HELD_OUT_SEED``
        may have been trained on
    :param deterministic: whether to take the most likely actions
    :param env_kwargs: arguments of the environment
    :return: the result of every episode
    :raises ValueError: if ``n_episodes`` is less than 1, or seeds are outside of [0, 2**63)
    :raises RuntimeError: if all episodes crashed
    """
    if n_episodes < 1:
        raise ValueError(f"n_episodes must be at least 1, got {n_episodes}")
    check_seeds(first_seed, n_episodes)
    probe = gym.make(env_id, **env_kwargs)
    max_lanes = _MAX_OTHER_LANES if bare_task_env(probe) is None else _MAX_NATIVE_LANES
    probe.close()
    n_lanes = min(n_episodes, max_lanes)
    policy = model.policy
    if isinstance(policy, TurnPolicy):
        env = policy.make_vec(env_id, n_lanes, model.policy_kwargs, env_kwargs)
    else:
        env = make_vec(env_id, n_lanes, **env_kwargs)
    was_training = model.policy.training
    devices = [model.device] if model.device.type == "cuda" else []
    try:
        with th.random.fork_rng(devices=devices):
            return _play(model, env, first_seed + np.arange(n_episodes), deterministic)
    finally:
        env.close()
        model.policy.set_training_mode(was_training)


def check_seeds(first_seed: int, n_episodes: int) -> None:
    """
    Refuse seeds that no environment has.

    :param first_seed: seed of the first episode
    :param n_episodes: number of episodes; each has the next seed
    :raises ValueError: if one is outside of [0, 2**63)
    """
    if not 0 <= first_seed <= MAX_SEED + 1 - n_episodes:
        raise ValueError(f"seeds must be in [0, 2**63), got {first_seed} for the first of {n_episodes} episodes")


def uses_masks(model: BaseAlgorithm) -> bool:
    """
    Return True if a model was trained with invalid-action masks.

    :param model: any SB3 model
    :return: True for sb3-contrib's MaskablePPO, and for SeeUPO and its subclasses if their environment had masks and
        they used them
    """
    return bool(getattr(model, "masked", type(model).__name__.startswith("Maskable")))


def stage_note(model: BaseAlgorithm) -> str | None:
    """
    Say which turns of a model of the staged schedule are not trained yet, as its results do not include them.

    :param model: any SB3 model
    :return: one sentence; None if there is nothing to say
    """
    stages: Stages | None = getattr(model, "stages", None)
    return None if stages is None else stages.note()


def _play(model: BaseAlgorithm, env: VecEnv, seeds: NDArray[np.int64], deterministic: bool) -> Evaluation:
    returns = np.zeros(len(seeds), dtype=np.float64)
    lengths = np.zeros(len(seeds), dtype=np.int64)
    successes: dict[int, bool] = {}
    crashed: set[int] = set()
    masked = uses_masks(model) and is_masking_supported(env)
    with EpisodeLanes(env, seeds) as lanes:
        obs, state, episode_start = lanes.reset(), None, np.ones(env.num_envs, dtype=bool)
        while lanes.running:
            arguments: dict[str, Any] = {}
            if masked:
                masks = np.array(get_action_masks(env), dtype=bool).reshape(env.num_envs, -1)
                masks[~lanes.active] = True  # a finished lane may have no valid action
                arguments["action_masks"] = masks
            actions, state = model.predict(obs, state, episode_start, deterministic, **arguments)
            obs, rewards, dones, infos = env.step(actions)
            active = np.flatnonzero(lanes.active)
            episodes = lanes.episodes[active]
            returns[episodes] += rewards[active]
            lengths[episodes] += 1
            for lane in active[dones[active]]:
                if infos[lane].get("crashed"):
                    crashed.add(int(lanes.episodes[lane]))
                elif "is_success" in infos[lane]:
                    successes[int(lanes.episodes[lane])] = bool(infos[lane]["is_success"])
            obs, episode_start = lanes.advance(obs, dones), dones
    kept = [i for i in range(len(seeds)) if i not in crashed]
    if crashed:
        warnings.warn(f"{len(crashed)} of {len(seeds)} episodes crashed and are left out of the results", stacklevel=3)
    if not kept:
        raise RuntimeError("all episodes crashed, so there is nothing to report; see the environment's warnings")
    known = len(successes) == len(kept)
    return Evaluation(returns[kept], lengths[kept], np.array([successes[i] for i in kept]) if known else None)
