"""Checks of what an environment offers and returns, with messages that say what to do."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.agents.method.errors import NonFiniteError
from seeupo_gym.agents.policies.turns import observed_turns

# An episode of an environment without a known horizon is taken to be endless beyond this many times max_turns.
_ENDLESS = 100

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


def check_finite(what: str, given: Any, lanes: NDArray[np.int64], turns: NDArray[np.int64], step: int) -> None:
    """
    Refuse NaN and infinite numbers.

    :param what: "observation" or "reward"
    :param given: those of all environments; observations may be a dictionary
    :param lanes: the environments whose episodes are used
    :param turns: the turn of each environment: the one that was rewarded, or that the observation is for
    :param step: number of environment steps taken so far
    :raises NonFiniteError: names the environment, the turn and the step
    """
    named = {f"{what} {key!r}": values for key, values in given.items()} if isinstance(given, dict) else {what: given}
    for name, values in named.items():
        if values.dtype.kind != "f" or np.isfinite(values).all():
            continue
        wrong = ~np.isfinite(values[lanes]).reshape(len(lanes), -1).all(axis=1)
        if wrong.any():
            lane = int(lanes[np.argmax(wrong)])
            raise NonFiniteError(
                f"environment {lane} returned a non-finite {name} at turn {int(turns[lane])} (step {step}): "
                "training stopped before it could reach the policy; check the environment's arithmetic"
            )


def check_turns(
    obs: Any,
    observation_space: spaces.Space[Any],
    turns: NDArray[np.int64],
    used: NDArray[np.bool_],
    max_turns: int | None,
) -> None:
    """
    Refuse episodes that do not end, and observations whose entry "turn" is another number than that of the turn.

    :param obs: observations of all environments
    :param observation_space: of one environment
    :param turns: the turn of each environment, counted from 0
    :param used: the environments whose episodes are used
    :param max_turns: number of turn policies where the environment does not say how long an episode is; None: it does
    :raises RuntimeError: if an episode is much longer than ``max_turns``
    :raises ValueError: for another turn; both name the environment
    """
    longest = int(np.argmax(np.where(used, turns, -1)))
    if max_turns is not None and turns[longest] >= _ENDLESS * max_turns:
        raise RuntimeError(
            f"the episode of environment {longest} has not ended after {turns[longest]} turns, {_ENDLESS} times "
            "max_turns: wrap the environment with gymnasium.wrappers.TimeLimit"
        )
    observed = observed_turns(obs, observation_space)
    if observed is not None and np.any(observed[used] != turns[used]):
        lane = int(np.flatnonzero(used & (observed != turns))[0])
        raise ValueError(
            f'the entry "turn" of the observation of environment {lane} is {observed[lane]} at turn {turns[lane]}: '
            "it must count the steps of the episode from 0 (and stay out of VecNormalize), or have another name"
        )


class StartCheck:
    """
    Warns when ``reset(seed)`` does not reproduce the initial observation.

    :param group_size: episodes per group; episode ``e`` belongs to group ``e // group_size``
    """

    def __init__(self, group_size: int) -> None:
        self._group_size = group_size
        self._first: dict[int, list[NDArray[Any]]] = {}
        self._warned = False

    def see(self, obs: Any, lanes: NDArray[np.int64], episodes: NDArray[np.int64]) -> None:
        """
        Compare initial observations with the first ones seen of the same groups.

        :param obs: observations of all environments, as the environments gave them
        :param lanes: the environments that begin an episode
        :param episodes: which ones they begin
        """
        arrays = list(obs.values()) if isinstance(obs, dict) else [obs]
        for lane, group in zip(lanes.tolist(), (episodes // self._group_size).tolist(), strict=True):
            start = [array[lane] for array in arrays]
            first = self._first.setdefault(group, start)
            if not self._warned and any(not np.array_equal(a, b) for a, b in zip(first, start, strict=True)):
                self._warned = True
                warnings.warn(
                    "the environment's reset(seed=...) does not reproduce its initial observation: the members of a "
                    "group start from different states, so the group mean is no baseline for them and advantages "
                    "are noisy (in Gymnasium, draw all randomness from self.np_random after super().reset(seed=seed))",
                    stacklevel=2,
                )
