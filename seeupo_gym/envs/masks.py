"""Invalid-action masks: which part of an environment they come from, and what they must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from seeupo_gym.envs.vector import TaskVecEnv

_NAME = "action_masks"


def has_masks(env: VecEnv) -> bool:
    """
    Tell whether an environment, or a wrapper of it, has ``action_masks()``.

    :param env: vector environment
    """
    source = _source(env)
    return True if isinstance(source, VecEnvWrapper) and _has_method(source) else source.has_attr(_NAME)


def read_masks(
    env: VecEnv, action_space: spaces.Space[Any], envs: NDArray[np.int64], turns: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """
    Ask the outermost wrapper that has ``action_masks()``, or else the environments, which actions are valid now.

    :param env: vector environment
    :param action_space: Discrete, MultiDiscrete or MultiBinary
    :param envs: the environments to ask, as one whose episode is over may have no answer
    :param turns: the turn that each of them is at, for messages
    :return: shape (len(envs), sum of choices)
    :raises ValueError: for what is no mask, and for one that leaves no valid choice
    """
    source = _source(env)
    if _has_method(source):
        given = source.action_masks()  # type: ignore[attr-defined]
        if len(given) != env.num_envs:
            raise ValueError(
                f"{_NAME}() of {type(source).__name__} must have a row for each of the {env.num_envs} environments, "
                f"got {len(given)}"
            )
        rows = given[envs] if isinstance(given, np.ndarray) else [given[i] for i in envs]
    else:
        rows = source.env_method(_NAME, indices=envs.tolist())
    return check_masks(rows, action_space, lambda row: f"{_NAME}() of environment {envs[row]} at turn {turns[row]}")


def check_masks(rows: Any, action_space: spaces.Space[Any], where: Callable[[int], str]) -> NDArray[np.bool_]:
    """
    Refuse what is no mask, and masks that leave no valid choice.

    :param rows: a mask for each environment; see :func:`as_mask`
    :param action_space: Discrete, MultiDiscrete or MultiBinary
    :param where: names a row in messages
    :return: shape (environments, sum of choices)
    :raises ValueError: names the row
    """
    sizes = _n_choices(action_space)
    n = int(sizes.sum())
    if isinstance(rows, np.ndarray) and rows.dtype == bool and rows.shape[1:] == (n,):
        masks = rows
    else:
        masks = np.array([as_mask(row, action_space, where(i)) for i, row in enumerate(rows)]).reshape(-1, n)
    valid = np.logical_or.reduceat(masks, np.cumsum(sizes) - sizes, axis=1).all(axis=1)
    if not valid.all():
        raise ValueError(
            f"{where(int(np.argmin(valid)))} allows no action: at least one choice must be valid in every state where "
            "an action is asked for"
        )
    return masks


def as_mask(given: Any, action_space: spaces.Space[Any], where: str) -> NDArray[np.bool_]:
    """
    Make a mask of what an environment gave.

    :param given: booleans, or integers 0 and 1
    :param action_space: Discrete, MultiDiscrete or MultiBinary
    :param where: names the mask in the message
    :return: shape (sum of choices,)
    :raises ValueError: for anything else, such as the numbers 0 and -inf that others add to logits
    """
    n = int(_n_choices(action_space).sum())
    try:
        mask = np.asarray(given)
    except (ValueError, TypeError):  # rows of different lengths, or tensors of a GPU
        mask = np.empty(0)
    boolean = mask.dtype.kind == "b" or (mask.dtype.kind in "iu" and bool(((mask == 0) | (mask == 1)).all()))
    if not boolean or mask.size != n:
        raise ValueError(
            f"{where} must be {n} booleans (or integers 0 and 1) in a row, one for each choice of {action_space}, True "
            f"for the valid ones; got {given!r}"
        )
    return mask.astype(bool).ravel()


def _n_choices(action_space: spaces.Space[Any]) -> NDArray[np.int64]:
    """How many choices each component of an action has."""
    if isinstance(action_space, spaces.Discrete):
        return np.array([action_space.n])
    if isinstance(action_space, spaces.MultiDiscrete):
        return action_space.nvec.ravel()
    if isinstance(action_space, spaces.MultiBinary):
        return np.full(int(np.prod(action_space.shape)), 2)
    raise ValueError(f"there are no masks for the action space {action_space}")


def _source(env: VecEnv) -> VecEnv:
    """Find the outermost part of a vector environment that has masks of its own or an own way to ask for them."""
    while isinstance(env, VecEnvWrapper) and not _has_method(env):
        if type(env).env_method is not VecEnvWrapper.env_method:
            break
        env = env.venv
    return env


def _has_method(env: VecEnv) -> bool:
    """Whether the method is this part's own: a wrapper lends every attribute of what it wraps."""
    if isinstance(env, TaskVecEnv):
        return True
    return hasattr(type(env), _NAME) or _NAME in vars(env)
