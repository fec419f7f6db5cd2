"""Invalid-action masks for environments that put them into their info, as Gymnasium's Taxi does."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.envs.masks import as_mask


class InfoActionMask(gym.Wrapper[Any, Any, Any, Any]):
    """
    Wrapper that offers ``info["action_mask"]`` as ``action_masks()``, where SeeUPO and MaskablePPO look for it.

    :param env: environment with a ``Discrete`` action space and a mask in the info of every reset and step
    :param key: the mask's entry of ``info``
    :raises ValueError: for another action space; at a reset or step if the entry is no mask
    """

    def __init__(self, env: gym.Env[Any, Any], key: str = "action_mask") -> None:
        super().__init__(env)
        if not isinstance(env.action_space, spaces.Discrete):
            raise ValueError(f"InfoActionMask needs a Discrete action space, got {env.action_space}")
        self._key = key
        self._mask: NDArray[np.bool_] = np.ones(int(env.action_space.n), dtype=bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode of the environment."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._turn = 0
        self._mask = self._read(info)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._turn += 1
        self._mask = self._read(info)
        return obs, reward, terminated, truncated, info

    def _read(self, info: dict[str, Any]) -> NDArray[np.bool_]:
        return as_mask(info.get(self._key), self.action_space, f"info[{self._key!r}] at turn {self._turn}")

    def action_masks(self) -> NDArray[np.bool_]:
        """Return a mask of the actions that are valid now, shape (actions,)."""
        return self._mask
