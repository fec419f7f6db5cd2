"""A search for state that the seed of a reset does not fix, as a word that ``random`` draws."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from io import StringIO
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from seeupo_gym.envs.checked_env import CheckedEnv

# An episode is played this often, over so many steps, unless that takes too long. Where only a reward of 0 or 1 in one
# turn tells the difference, two plays often miss it.
_PLAYS, _STEPS, _SECONDS = 16, 5, 0.5
_LETTERS = 10  # of a message; those of up to a million take long to draw

_START = "observation at turn 0"


def warn_of_hidden_state(env: VecEnv, seed: int) -> None:
    """
    Warn where episodes of one seed and the same actions are not the same.

    The members of a group would play different tasks. A copy of the first environment plays, where one can be made; the
    training environment is not touched.

    :param env: vector environment
    :param seed: seed of the episodes, and of their actions
    """
    base, difference = env.unwrapped, None
    if env.has_attr("find_hidden_state"):  # a SeedQueue, which may be in a process of its own
        difference = env.env_method("find_hidden_state", seed, indices=0)[0]
    elif isinstance(base, DummyVecEnv):
        difference = find_hidden_state(base.envs[0], seed)
    if difference is not None:
        warnings.warn(
            f"episodes with the same reset(seed=...) and the same actions differ in the {difference}: "
            "members of a group play different tasks, so that the group mean is no baseline for them (draw all "
            "randomness from self.np_random after super().reset(seed=seed), none from Python's or NumPy's global "
            "generators)",
            stacklevel=2,
        )


def find_hidden_state(env: gym.Env[Any, Any], seed: int) -> str | None:
    """
    Play a few steps several times from one seed, with the same actions, and compare.

    :param env: any environment; a copy of it plays. One that says ``starts_programs = True`` is not copied
    :param seed: the seed
    :return: what differed first; None if nothing did, or the environment cannot be copied, or fails
    """
    while isinstance(env, (Monitor, CheckedEnv)):
        env = env.env
    if getattr(env.unwrapped, "starts_programs", False):
        return None
    with _unnoticed():
        try:
            return _compare(deepcopy(env), seed)
        except Exception:  # whatever goes wrong with a copy; what goes wrong with the environment, training will tell
            return None


def _compare(env: gym.Env[Any, Any], seed: int) -> str | None:
    actions: list[Any] = []
    end = time.monotonic() + _SECONDS
    first = list(_play(env, seed, actions))
    for _ in range(_PLAYS - 1):
        for (field, before), (_, now) in zip(first, _play(env, seed, actions), strict=False):
            if not _equal(before, now):
                return field if field != _START else None  # other starts are seen, and told, in the rollout itself
        if time.monotonic() > end:
            break
    return None


def _play(env: gym.Env[Any, Any], seed: int, actions: list[Any]) -> Iterator[tuple[str, Any]]:
    """Play an episode with these actions; where there are none yet, choose and add them."""
    rng = np.random.default_rng(seed)
    yield _START, deepcopy(env.reset(seed=seed)[0])
    for turn in range(_STEPS):
        if turn == len(actions):
            actions.append(_valid_action(env, rng))
        obs, reward, terminated, truncated, _ = env.step(actions[turn])
        yield f"reward at turn {turn}", reward
        yield f"end at turn {turn}", (terminated, truncated)
        if terminated or truncated:
            return
        yield f"observation at turn {turn + 1}", deepcopy(obs)


def _valid_action(env: gym.Env[Any, Any], rng: np.random.Generator) -> Any:
    space = deepcopy(env.action_space)
    space.seed(int(rng.integers(2**31)))
    if isinstance(space, spaces.Text):
        return space.sample(mask=(_LETTERS, None))
    try:
        mask = np.asarray(env.get_wrapper_attr("action_masks")(), dtype=np.int8)
    except AttributeError:
        return space.sample()
    if isinstance(space, spaces.MultiDiscrete):
        return space.sample(mask=tuple(np.split(mask, np.cumsum(space.nvec)[:-1])))
    return space.sample(mask=mask) if isinstance(space, spaces.Discrete) else space.sample()


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_equal(first[key], second[key]) for key in first)
    if isinstance(first, (tuple, list)):
        return len(first) == len(second) and all(map(_equal, first, second))
    floats = np.asarray(first).dtype.kind == np.asarray(second).dtype.kind == "f"
    return np.array_equal(first, second, equal_nan=floats)


@contextmanager
def _unnoticed() -> Iterator[None]:
    """Give the global generators back as they were, and show nothing of what the environment prints or warns of."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (the environment may use them)
    try:
        with (
            th.random.fork_rng(devices=[]),
            warnings.catch_warnings(),
            redirect_stdout(StringIO()),
            redirect_stderr(StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
