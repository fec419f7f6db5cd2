"""Checks of the arguments of environments; each error names the argument, what it may be, and what it was."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """
    Check an argument.

    :param name: its name
    :param value: its value
    :param choices: the values there are
    :raises ValueError: for another value
    """
    if value not in tuple(choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_count(name: str, value: Any, least: int = 1, most: int | None = None) -> None:
    """
    Check an argument that counts something.

    :param name: its name
    :param value: its value
    :param least: the smallest value there is
    :param most: the largest one, None: there is none
    :raises ValueError: for another value
    """
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be an integer {limits}, got {value!r}")
