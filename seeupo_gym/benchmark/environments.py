"""Environments of a benchmark: their names, and checks that they can be made here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from seeupo_gym.system.errors import origin


def env_name(env_id: str) -> str:
    """
    Shorten an id to what follows its namespace and module, for folders and titles.

    :param env_id: ``"[module:][namespace/]name"``
    :return: the name
    """
    return env_id.rsplit(":", 1)[-1].rsplit("/", 1)[-1]


def check_env(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> None:
    """
    Make an environment once, so that a wrong id or argument raises an error before training.

    :param env_id: a registered Gymnasium id
    :param env_kwargs: its arguments
    :raises ValueError: with one line that says what is wrong
    :raises Exception: what an environment raises that was given no arguments
    """
    try:
        gym.make(env_id, **(env_kwargs or {})).close()
    except (gym.error.Error, TypeError, ValueError, ImportError) as error:
        faulty = isinstance(error, (TypeError, ValueError)) and origin(error) not in ("gymnasium", "seeupo_gym")
        if faulty and not env_kwargs:  # nobody gave it anything
            raise
        given = f" with {dict(env_kwargs)}" if env_kwargs else ""
        raise ValueError(f"cannot make the environment {env_id!r}{given}: {error}") from error


def missing_packages(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> str:
    """
    Name the package that an environment needs and that is not installed.

    :param env_id: a registered Gymnasium id
    :param env_kwargs: its arguments
    :return: one line that says what to install; empty if the environment can be made, or fails for another reason
    """
    try:
        check_env(env_id, env_kwargs)
    except ValueError as error:
        return " ".join(str(error.__cause__).split()) if isinstance(error.__cause__, ImportError) else ""
    return ""
