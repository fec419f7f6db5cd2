"""Checks of what a Gymnasium environment returns; an error names the environment, the turn and what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import Parameter, signature
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.env_util import is_wrapped, unwrap_wrapper
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from seeupo_gym.envs.replaced_methods import ReplacedMethods

# Types of rewards that need no further look.
_NUMBERS = frozenset({float, int, np.float64, np.float32, np.int64})

# Characters of a value in a message.
_SHOWN = 80
_STEP = "(observation, reward, terminated, truncated, info)"


class AnswerChecks:
    """
    Refuses what an environment returns if no algorithm can make sense of it, though SB3 might convert it.

    ``DummyVecEnv`` writes what it gets into arrays: there ``terminated="no"`` is True, ``None`` is False, and an
    observation of one number fills a row. What means the same in the array is taken: numbers of any kind, arrays of no
    dimension, 0 and 1 for flags, lists for arrays.

    :param env: the environment
    :param index: its number in the vector environment
    """

    def __init__(self, env: gym.Env[Any, Any], index: int) -> None:
        self._called = f"environment {index} ({env_name(env)})"
        self._turn = 0
        space = env.observation_space
        self._find_fault = fault_finder(space)
        # Of an observation that needs no further look.
        plain = isinstance(space, spaces.Box)
        self._shape, self._dtype = space.shape if plain else None, space.dtype if plain else None

    def reset(self, answer: Any) -> Any:
        """
        Check what ``reset`` returned.

        :param answer: what it returned
        :return: the same
        :raises ValueError: if it is not an observation and a dictionary
        """
        self._turn = 0
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise ValueError(f"reset() of {self._called} must return (observation, info), got {_shown(answer)}")
        obs, info = answer
        if not isinstance(info, dict):
            raise ValueError(f"the info that reset() of {self._called} returns must be a dict, got {_shown(info)}")
        fault = self._find_fault(obs)
        if fault is not None:
            raise ValueError(f"{self._called} returned a wrong observation at turn 0: it {fault}")
        return answer

    def step(self, answer: Any) -> Any:
        """
        Check what ``step`` returned.

        :param answer: what it returned
        :return: the same
        :raises ValueError: if it is not an observation, a number, two flags and a dictionary
        """
        self._turn = turn = self._turn + 1
        if type(answer) is tuple and len(answer) == 5:
            obs, reward, terminated, truncated, info = answer
            # The usual case takes a glance.
            if (
                type(obs) is np.ndarray
                and obs.dtype is self._dtype
                and obs.shape == self._shape
                and (type(reward) is float or type(reward) in _NUMBERS)
                and (type(terminated) is bool or type(terminated) is np.bool_)
                and (type(truncated) is bool or type(truncated) is np.bool_)
                and type(info) is dict
            ):
                return answer
        self._look_closer(answer, turn - 1)
        return answer

    def _look_closer(self, answer: Any, turn: int) -> None:
        if not isinstance(answer, (tuple, list)) or len(answer) != 5:
            raise ValueError(f"step() of {self._called} at turn {turn} must return {_STEP}, got {_shown(answer)}")
        obs, reward, terminated, truncated, info = answer
        fault = self._find_fault(obs)
        if fault is not None:
            raise ValueError(f"{self._called} returned a wrong observation at turn {turn + 1}: it {fault}")
        if not _is_number(reward):
            self._refuse("reward", reward, turn, "one real number, as float has")
        if not _is_flag(terminated):
            self._refuse("terminated", terminated, turn, "True or False")
        if not _is_flag(truncated):
            self._refuse("truncated", truncated, turn, "True or False")
        if not isinstance(info, dict):
            self._refuse("info", info, turn, "a dict")

    def _refuse(self, field: str, value: Any, turn: int, expected: str) -> None:
        raise ValueError(f"{self._called} returned {field}={_shown(value)} at turn {turn}: it must be {expected}")


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """
    An environment whose answers are checked; see :class:`AnswerChecks`.

    :param env: the environment
    :param index: its number in the vector environment
    """

    def __init__(self, env: gym.Env[Any, Any], index: int = 0) -> None:
        super().__init__(env)
        self._checks = AnswerChecks(env, index)
        self._check_step = self._checks.step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and check what it returns; options are passed on if there are any."""
        checked: tuple[Any, dict[str, Any]] = self._checks.reset(
            self.env.reset(seed=seed, **({"options": options} if options else {}))
        )
        return checked

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and check what it returns."""
        return self._check_step(self.env.step(action))  # type: ignore[no-any-return]


def check_answers(env: VecEnv, methods: ReplacedMethods) -> None:
    """
    Check what the environments in a ``DummyVecEnv`` return, all but those in a :class:`CheckedEnv`.

    :param env: the vector environment, wrapped or not; in one of another kind nothing is checked
    :param methods: gives their methods back
    """
    base = env.unwrapped
    for index, single in enumerate(base.envs if isinstance(base, DummyVecEnv) else []):
        if is_wrapped(single, CheckedEnv):
            continue
        monitor = unwrap_wrapper(single, Monitor)
        checked = single if monitor is None else monitor.env  # Monitor would stumble over a wrong reward first
        checks = AnswerChecks(checked, index)
        for name in ("reset", "step"):
            methods.replace(checked, name, partial(_check_answer, getattr(checks, name)))


@contextmanager
def checked_answers(env: VecEnv) -> Iterator[None]:
    """
    Check what environments return as long as the context lasts; see :func:`check_answers`.

    :param env: the vector environment
    """
    methods = ReplacedMethods()
    check_answers(env, methods)
    try:
        yield
    finally:
        methods.restore()


def _check_answer(check: Callable[[Any], Any], method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return check(method(*args, **kwargs))


def check_is_env(env: Any) -> None:
    """
    Refuse what is neither an environment nor one of SB3's vector environments.

    :param env: what was given as an environment
    :raises ValueError: says what it is, and what to pass
    """
    if isinstance(env, (gym.Env, VecEnv)):
        return
    if isinstance(env, gym.vector.VectorEnv):
        raise ValueError(
            f"{env} is a vector environment of Gymnasium, and SB3 has vector environments of its own: make one with "
            "seeupo_gym.make_vec(id, n_envs)"
        )
    raise ValueError(f"env must be an environment, a vector environment of SB3 or a registered id, got {env!r}")


def check_takes_seeds(env: gym.Env[Any, Any]) -> None:
    """
    Refuse an environment that cannot be reset with a seed.

    :param env: the environment
    :raises ValueError: if its ``reset``, or that of one of its wrappers, does not take it
    """
    layer: Any = env
    while layer is not None:
        try:
            parameters = signature(layer.reset).parameters
        except (TypeError, ValueError):  # not of Python
            return
        if "seed" not in parameters and all(p.kind is not Parameter.VAR_KEYWORD for p in parameters.values()):
            raise ValueError(
                f"reset() of {type(layer).__name__} takes no seed, so that no two episodes could start alike: declare "
                "it as reset(self, *, seed=None, options=None), and begin it with super().reset(seed=seed)"
            )
        layer = layer.env if isinstance(layer, gym.Wrapper) else None


def env_name(env: gym.Env[Any, Any]) -> str:
    """
    Name an environment in messages.

    :param env: any environment
    :return: the id that it is registered by, else its class
    """
    inner = env.unwrapped
    spec = getattr(inner, "spec", None)
    return type(inner).__name__ if spec is None else str(spec.id)


def lane_name(env: VecEnv, lane: int) -> str:
    """
    Name one of the environments of a vector environment in messages.

    :param env: the vector environment, wrapped or not
    :param lane: the number of the environment
    """
    base = env.unwrapped
    name = env_name(base.envs[lane]) if isinstance(base, DummyVecEnv) else type(getattr(base, "task", base)).__name__
    return f"environment {lane} ({name})"


def fault_finder(space: spaces.Space[Any]) -> Callable[[Any], str | None]:
    """
    Make a function that looks at observations.

    :param space: their space
    :return: gets an observation, and returns what it should have been; None for one that is right
    """
    if isinstance(space, spaces.Dict):
        return partial(_fault_of_dict, {key: fault_finder(entry) for key, entry in space.spaces.items()})
    if isinstance(space, spaces.Box):
        return partial(_fault_of_array, space.shape, space.dtype, None, None)
    if isinstance(space, spaces.Discrete):
        return partial(_fault_of_number, int(space.start), int(space.start + space.n - 1))
    if isinstance(space, spaces.MultiDiscrete):
        return partial(_fault_of_array, space.shape, space.dtype, space.start, space.start + space.nvec - 1)
    if isinstance(space, spaces.MultiBinary):
        return partial(_fault_of_array, space.shape, space.dtype, 0, 1)
    return lambda _: None


def _fault_of_dict(finders: Mapping[str, Callable[[Any], str | None]], value: Any) -> str | None:
    if not isinstance(value, Mapping):
        return f"must be a dict with the keys {list(finders)}, and is {_shown(value)}"
    for key, find_fault in finders.items():
        if key not in value:
            return f"lacks the key {key!r}, and has {list(value)}"
        fault = find_fault(value[key])
        if fault is not None:
            return f"has an entry {key!r} that {fault}"
    return None


def _fault_of_number(low: int, high: int, value: Any) -> str | None:
    if type(value) is int and low <= value <= high:
        return None
    return _fault_of_array((), np.dtype(np.int64), low, high, value)


def _fault_of_array(shape: tuple[int, ...], dtype: np.dtype[Any], low: Any, high: Any, value: Any) -> str | None:
    array = value
    if not (type(value) is np.ndarray and value.shape == shape and value.dtype is dtype):
        array = _as_array(value)
        if array.dtype.kind not in "biuf":
            return f"must consist of numbers, and is {_shown(value)}"
        if array.shape != shape:
            return f"must have the shape {shape}, and has {array.shape}"
        if dtype.kind in "iu":
            if array.dtype.kind == "f" and not np.array_equal(array, np.floor(array)):
                return f"must consist of integers, and is {_shown(value)}"
            if low is None:
                low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if low is not None and (np.any(array < low) or np.any(array > high)):
        return f"must be from {low} to {high}, and is {_shown(value)}"
    return None


def _as_array(value: Any) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # rows of different lengths, tensors on other devices
        return np.array(None)


def _is_number(value: Any) -> bool:
    array = _as_array(value)
    return array.shape == () and array.dtype.kind in "biuf"


def _is_flag(value: Any) -> bool:
    array = _as_array(value)
    return array.shape == () and array.dtype.kind in "biu" and array in (0, 1)


def _shown(value: Any) -> str:
    """Show a value of any length in a message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({type(value).__name__})"
