"""
The entries of ``info`` that training and evaluation read, and checks of what they hold.

``info`` belongs to the environment. A name that nobody else has is used for what only this package knows; SB3's
``is_success``, and ``episode`` of its ``Monitor``, are read at the end of an episode alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

CRASHED = "seeupo_gym/crashed"
"""True at the end of an episode whose program died: the episode is left out of groups, statistics and results."""

MALFORMED = "seeupo_gym/malformed"
"""Tells at every step of a text environment whether the message meant nothing."""

SUCCESS = "is_success"


def read_flag(info: Mapping[str, Any], key: str, env: int, turn: int) -> bool | None:
    """
    Read an entry that is true or false.

    :param info: what a step returned
    :param key: name of the entry
    :param env: number of the environment, for the message
    :param turn: turn of the step, counted from 0, for the message
    :return: its value; None if there is none
    :raises ValueError: if it is anything else than one boolean, 0 or 1
    """
    value = info.get(key)
    if value is None or isinstance(value, bool):
        return value
    entry = np.asarray(value, dtype=object)
    if entry.size != 1 or entry.item() not in (0, 1):
        raise ValueError(
            f"info[{key!r}] of environment {env} at turn {turn} must be True or False, got {value!r}: rename the entry "
            "if it means something else"
        )
    return bool(entry.item())


def episode_statistics(info: Mapping[str, Any], env: int, turn: int) -> dict[str, Any]:
    """
    Pick what SB3's statistics take of the last ``info`` of an episode.

    :param info: what the last step returned
    :param env: number of the environment, for the message
    :param turn: turn of the step, counted from 0, for the message
    :return: "is_success", and "episode" if it is what ``Monitor`` writes; an environment's own entry is none of that
    :raises ValueError: if "is_success" is not true or false
    """
    statistics: dict[str, Any] = {}
    episode = info.get("episode")
    if isinstance(episode, dict):
        numbers = (int, float, np.number)
        if isinstance(episode.get("r"), numbers) and isinstance(episode.get("l"), numbers):
            statistics["episode"] = episode
    success = read_flag(info, SUCCESS, env, turn)
    if success is not None:
        statistics[SUCCESS] = success
    return statistics
