"""The turn of an observation, and the number of turns of an environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from seeupo_gym.envs.arguments import check_count

TURN_KEY = "turn"


def observed_turns(observation: Any, space: spaces.Space[Any]) -> NDArray[np.int64] | None:
    """
    Read the turn from a Dict observation.

    :param observation: one observation or a batch, as the environment returned it
    :param space: the observation space
    :return: turns counted from 0, shape (batch,); None if the space has no integer entry "turn" of size one
    """
    entry = space.spaces.get(TURN_KEY) if isinstance(space, spaces.Dict) else None
    if isinstance(entry, spaces.Discrete):
        return np.asarray(observation[TURN_KEY], dtype=np.int64).reshape(-1)
    if isinstance(entry, spaces.Box) and entry.dtype.kind in "iu" and int(np.prod(entry.shape)) == 1:
        return np.asarray(observation[TURN_KEY], dtype=np.int64).reshape(-1)
    return None


def find_horizon(env: VecEnv) -> int | None:
    """
    Find the largest number of turns of an episode.

    :param env: vector environment
    :return: the smallest of the environment's attribute ``max_turns``, ``max_episode_steps`` of its spec and the limit
        of its outermost ``TimeLimit``; None if there is none of them
    :raises ValueError: if one of them is not a whole number of at least 1
    """

    def attribute(name: str) -> Any:
        return env.get_attr(name, indices=0)[0] if env.has_attr(name) else None

    limits = {
        "max_turns": attribute("max_turns"),
        "spec.max_episode_steps": getattr(attribute("spec"), "max_episode_steps", None),
        "_max_episode_steps": attribute("_max_episode_steps"),
    }
    known = [check_count(f"the environment's {name}", limit) for name, limit in limits.items() if limit is not None]
    return min(known, default=None)
