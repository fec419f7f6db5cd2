"""A vector environment in which episodes run, and which nobody else may reset or step meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from seeupo_gym.envs.replaced_methods import ReplacedMethods, is_replaced


class SoleUse:
    """
    Refuses resets and steps of a vector environment by anyone but its owner.

    Others would end or change the episodes that run, unnoticed; and in an environment with a queue of seeds their own
    would never end. So they get an error, at the call itself.

    The methods of these objects are replaced: of the vector environment as it is given; of the innermost one, which its
    wrappers may call as they like; and of the single environments in a ``DummyVecEnv``, which others may hold without
    it.

    :param env: the vector environment, wrapped or not
    :param methods: gives the methods back
    :raises RuntimeError: if another one is the owner
    """

    def __init__(self, env: VecEnv, methods: ReplacedMethods) -> None:
        self._env = env
        self._methods = methods
        self._depth = 0
        self._resetting = False
        self._stepped = False
        base = env.unwrapped
        if is_replaced(base, "reset"):
            _refuse("used")
        self._guard(env, "reset", self._check_reset)
        self._guard(env, "step_async", self._check_step)
        self._guard(env, "step_wait", lambda: None)
        if base is not env:
            self._guard(base, "reset", lambda: _refuse("reset"))
            self._guard(base, "step_async", lambda: _refuse("stepped"))
        for single in base.envs if isinstance(base, DummyVecEnv) else []:
            self._guard(single.unwrapped, "reset", lambda: _refuse("reset"))

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

        def guarded(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if self._depth == 0:
                check()
            self._depth += 1
            try:
                return method(*args, **kwargs)
            finally:
                self._depth -= 1

        self._methods.replace(owner, name, guarded)


def _refuse(done: str) -> NoReturn:
    raise RuntimeError(
        f"the environment was to be {done} by other code while training or an evaluation plays episodes in it, which "
        "would end or change these: give each evaluation, such as that of an EvalCallback, an environment of its own"
    )
