"""Checks of the arguments of environments; each error names the argument, what it may be, and what it was."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

# More turns or choices than this are a slip of the keyboard: observations and networks would fill the memory.
MAX_SIZE = 1000


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """
    Check an argument.

    :param name: its name
    :param value: its value
    :param choices: the values there are
    :raises ValueError: for another value
    """
    if not (isinstance(value, str) and value in choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_count(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """
    Check an argument that counts something.

    :param name: its name
    :param value: its value
    :param least: the smallest value there is
    :param most: the largest one, None: there is none
    :return: its value as Python's own integer: arithmetic with those of NumPy can overflow
    :raises ValueError: for another value
    """
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be an integer {limits}, got {value!r}")
    return int(value)


def check_number(
    name: str,
    value: Any,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> float:
    """
    Check an argument that measures something.

    :param name: its name
    :param value: its value
    :param least: the smallest value there is
    :param most: the largest one
    :param above: all values are greater than this
    :param below: all values are less than this
    :return: its value as Python's own float
    :raises ValueError: for another value, also if it is not finite
    """
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not least <= value <= most or not above < value < below:
        limits = {"of at least": least, "of at most": most, "above": above, "below": below}
        words = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit))
        raise ValueError(f"{name} must be a finite number{' ' if words else ''}{words}, got {value!r}")
    return float(value)


def check_env_kwargs(env_kwargs: Any, env: Any, makes_env: bool) -> dict[str, Any]:
    """
    Check the arguments of an environment that is to be made.

    :param env_kwargs: a dictionary, or None: none
    :param env: what was given as the environment
    :param makes_env: whether it is something that an environment is made of
    :return: the arguments
    :raises ValueError: for what is no dictionary, and for arguments of what is an environment already
    """
    if env_kwargs is None:
        return {}
    if not (isinstance(env_kwargs, Mapping) and all(isinstance(name, str) for name in env_kwargs)):
        raise ValueError(f"env_kwargs must be a dictionary of the environment's arguments, got {env_kwargs!r}")
    if env_kwargs and not makes_env:
        given = "no environment" if env is None else f"an environment that is made already, {env}"
        raise ValueError(
            f"env_kwargs ({', '.join(env_kwargs)}) are the arguments of an environment given by its id, and env is "
            f"{given}: pass the id, or make the environment with these arguments"
        )
    return dict(env_kwargs)


def check_flag(name: str, value: Any) -> bool:
    """
    Check an argument that is true or false.

    :param name: its name
    :param value: its value
    :return: its value as Python's own bool
    :raises ValueError: for another value
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)
