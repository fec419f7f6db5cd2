"""Checks of what an environment offers, with messages that say what to do."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

# FrozenLake's; above, networks take seconds to make, and each is trained by what little reaches its turn.
_MANY_NETWORKS = 100

_SUPPORTED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_FLATTEN = "wrap the environment with gymnasium.wrappers.FlattenObservation"
_ENCODE = "encode it as a Box with gymnasium.wrappers.TransformObservation"


def check_update_order(update_order: str | Sequence[int], n_turns: int) -> None:
    """
    Refuse a list of turns that is no permutation of them.

    :param update_order: a word, or turns counted from 0, first to last
    :param n_turns: number of turns
    :raises ValueError: says what the list must hold
    """
    if not isinstance(update_order, str) and sorted(update_order) != list(range(n_turns)):
        raise ValueError(f"update_order must hold each of the turns 0 to {n_turns - 1} once, got {list(update_order)}")


def warn_of_many_networks(turn_policies: str, n_turns: int) -> None:
    """
    Warn of a network for each of a great many turns.

    :param turn_policies: "separate" or "shared"
    :param n_turns: number of turns
    """
    if turn_policies == "separate" and n_turns > _MANY_NETWORKS:
        warnings.warn(
            f"{n_turns} turns get {n_turns} networks, each trained by its turn alone: pass "
            'turn_policies="shared" for one network, or a smaller max_turns, whose last network plays all turns beyond',
            stacklevel=2,
        )


def check_spaces(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
    """
    Refuse spaces that the policies cannot handle.

    :param observation_space: Box, Discrete, MultiDiscrete, MultiBinary, or a flat Dict of those
    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary
    :raises ValueError: with the wrapper that helps
    """
    nested = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {"": observation_space}
    for key, space in nested.items():
        where = f" (entry {key!r})" if key else ""
        if not isinstance(space, _SUPPORTED):
            cure = _FLATTEN if isinstance(space, (spaces.Tuple, spaces.Dict)) else _ENCODE
            raise ValueError(f"SeeUPO does not support the observation space {type(space).__name__}{where}: {cure}")
        several = isinstance(space, spaces.MultiDiscrete) and len(space.shape) != 1
        number = isinstance(space, spaces.Box) and space.shape == ()
        if several or number or _starts_elsewhere(space):
            raise ValueError(
                f"SeeUPO does not support the observation space {space}{where}: discrete observations must start at 0, "
                f"MultiDiscrete ones have one dimension and Box ones at least one; {_FLATTEN}"
            )
    if not isinstance(action_space, _SUPPORTED):
        raise ValueError(
            f"SeeUPO does not support the action space {type(action_space).__name__}: wrap the environment with "
            "gymnasium.wrappers.TransformAction so that its actions are Box, Discrete, MultiDiscrete or MultiBinary"
        )
    several = isinstance(action_space, (spaces.MultiDiscrete, spaces.MultiBinary)) and len(action_space.shape) != 1
    if several or _starts_elsewhere(action_space):
        raise ValueError(
            f"SeeUPO does not support the action space {action_space}: discrete actions must start at 0, and "
            "MultiDiscrete and MultiBinary ones have one dimension; wrap the environment with "
            "gymnasium.wrappers.TransformAction"
        )


def _starts_elsewhere(space: spaces.Space[Any]) -> bool:
    """Return True if the numbers of a discrete space are not counted from 0, as SB3 takes them to be."""
    return bool(np.any(getattr(space, "start", 0)))
