"""Evaluation on whole episodes from held-out seeds."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from seeupo_gym.agents.method.staged import Stages
from seeupo_gym.agents.policies.turns import find_horizon
from seeupo_gym.benchmark.playing import choose_actions, playing_env, uses_masks
from seeupo_gym.envs.episodes import EpisodeLanes
from seeupo_gym.envs.info_keys import CRASHED, SUCCESS, read_flag
from seeupo_gym.envs.task import HELD_OUT_SEED, MAX_SEED


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
    env: str | gym.Env[Any, Any] | VecEnv,
    n_episodes: int = 100,
    first_seed: int = HELD_OUT_SEED,
    deterministic: bool = True,
    **env_kwargs: Any,
) -> Evaluation:
    """
    Play whole episodes with a model, from seeds that training never draws.

    The model plays as it was trained: with its masks and turns, and with the wrappers of its training environment,
    such as ``VecFrameStack``, and the statistics of ``VecNormalize``, which do not change. Returns are those of the
    environment, not normalised. The model's training state stays as it is, also its policy's mode and torch's global
    generator, from which SB3's algorithms draw their actions.

    :param model: a SeeUPO or SB3 model
    :param env: a registered Gymnasium id, an environment, or a vector environment; what it lacks of the wrappers that
        the model was trained in is put around it, and its own ``VecNormalize`` is used if it has one
    :param n_episodes: number of episodes, at least 1
    :param first_seed: episode ``i`` starts from the seed ``first_seed + i``; seeds below ``HELD_OUT_SEED``
        may have been trained on
    :param deterministic: whether to take the most likely actions
    :param env_kwargs: arguments of the environment, for an id
    :return: the result of every episode
    :raises ValueError: if ``n_episodes`` is less than 1, seeds are outside of [0, 2**63), or the environment is not
        what the model was trained in; says what to pass
    :raises RuntimeError: if all episodes crashed, or one is longer than the environment declares
    """
    if n_episodes < 1:
        raise ValueError(f"n_episodes must be at least 1, got {n_episodes}")
    check_seeds(first_seed, n_episodes)
    was_training = model.policy.training
    devices = [model.device] if model.device.type == "cuda" else []
    try:
        with playing_env(model, env, n_episodes, env_kwargs) as vec_env, th.random.fork_rng(devices=devices):
            return _play(model, vec_env, first_seed + np.arange(n_episodes), deterministic)
    finally:
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
    masked = uses_masks(model, env)
    with EpisodeLanes(env, seeds, max_turns=find_horizon(env)) as lanes:
        obs, memory, start = lanes.reset(), None, np.ones(env.num_envs, dtype=bool)
        while lanes.running:
            actions, memory, _ = choose_actions(model, env, lanes, obs, memory, start, deterministic, masked)
            obs, rewards, dones, infos = env.step(actions)
            active = np.flatnonzero(lanes.active)
            episodes = lanes.episodes[active]
            returns[episodes] += rewards[active]
            lengths[episodes] += 1
            for lane in active[dones[active]]:
                episode, info, turn = int(lanes.episodes[lane]), infos[lane], int(lanes.turns[lane])
                success = read_flag(info, SUCCESS, lane, turn)
                if read_flag(info, CRASHED, lane, turn):
                    crashed.add(episode)
                elif success is not None:
                    successes[episode] = success
            obs, start = lanes.advance(obs, dones), dones
    kept = [i for i in range(len(seeds)) if i not in crashed]
    if crashed:
        warnings.warn(f"{len(crashed)} of {len(seeds)} episodes crashed and are left out of the results", stacklevel=3)
    if not kept:
        raise RuntimeError("all episodes crashed, so there is nothing to report; see the environment's warnings")
    known = len(successes) == len(kept)
    return Evaluation(returns[kept], lengths[kept], np.array([successes[i] for i in kept]) if known else None)
