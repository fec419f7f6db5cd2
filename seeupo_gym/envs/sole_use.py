"""A vector environment in which episodes run, and which nobody else may reset or step meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv


class SoleUse:
    """
    Refuses resets and steps of a vector environment by anyone but its owner, between :meth:`begin` and :meth:`end`.

    Others would end or change the episodes that run, unnoticed; and in an environment with a queue of seeds their own
    would never end. So they get an error, at the call itself.

    Meanwhile the methods of these objects are replaced: of the vector environment as it was given; of the innermost
    one, whose wrappers may call it as they like; and of the single environments in a ``DummyVecEnv``, which others may
    hold without it.

    :param env: the vector environment, wrapped or not
    """

    def __init__(self, env: VecEnv) -> None:
        self._env = env
        self._replaced: list[tuple[Any, str]] = []
        self._depth = 0
        self._resetting = False
        self._stepped = False

    def begin(self) -> None:
        """
        Refuse others from now on.

        :raises RuntimeError: if another one is the owner
        """
        env, base = self._env, self._env.unwrapped
        if getattr(base.reset, "is_guarded", False):
            _refuse("used")
        self._guard(env, "reset", self._check_reset)
        self._guard(env, "step_async", self._check_step)
        self._guard(env, "step_wait", lambda: None)
        if base is not env:
            self._guard(base, "reset", lambda: _refuse("reset"))
            self._guard(base, "step_async", lambda: _refuse("stepped"))
        for single in base.envs if isinstance(base, DummyVecEnv) else []:
            self._guard(single.unwrapped, "reset", lambda: _refuse("reset"))

    def end(self) -> None:
        """Let everybody use the environment again."""
        for owner, name in self._replaced:
            del vars(owner)[name]
        self._replaced = []
        self._depth = 0
        self._stepped = False

    def reset(self) -> Any:
        """Reset the environment, as its owner, and return the observations."""
        self._resetting = True
        try:
            return self._env.reset()
        finally:
            self._resetting = False

    def step_is_over(self) -> None:
        """Tell that the owner knows of the last step and may take another one."""
        self._stepped = False

    def _check_reset(self) -> None:
        if not self._resetting:
            _refuse("reset")

    def _check_step(self) -> None:
        if self._stepped:
            _refuse("stepped")
        self._stepped = True

    def _guard(self, owner: Any, name: str, check: Callable[[], None]) -> None:
        """Have a method call ``check`` first, unless another guarded one is calling it."""
        if name in vars(owner):  # somebody has replaced it already
            return
        method = getattr(type(owner), name)

        def guarded(this: Any, *args: Any, **kwargs: Any) -> Any:
            if this is not owner:  # a copy that was made meanwhile
                return method(this, *args, **kwargs)
            if self._depth == 0:
                check()
            self._depth += 1
            try:
                return method(this, *args, **kwargs)
            finally:
                self._depth -= 1

        guarded.__name__ = name  # by which a bound method is pickled
        guarded.is_guarded = True  # type: ignore[attr-defined]
        vars(owner)[name] = MethodType(guarded, owner)
        self._replaced.append((owner, name))


def _refuse(done: str) -> None:
    raise RuntimeError(
        f"the environment was to be {done} by other code while training or an evaluation plays episodes in it, which "
        "would end or change these: give each evaluation, such as that of an EvalCallback, an environment of its own"
    )
