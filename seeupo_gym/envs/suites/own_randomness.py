"""Random states of their own for games that use the global generators of Python and numpy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


class OwnRandomness:
    """
    Random states of one environment, which replace the global ones of Python and numpy within a ``with`` block.

    Games of others seed the global generators at every reset, and draw from them during play. After the block the
    global generators are as they were before it. In the next block the environment's go on where they stopped.
    """

    def __init__(self) -> None:
        self._own: tuple[Any, Any] | None = None
        self._callers: tuple[Any, Any] | None = None

    def __enter__(self) -> None:
        self._callers = self._get()
        if self._own is not None:
            self._set(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = self._get()
        assert self._callers is not None
        self._set(self._callers)
        self._callers = None

    @staticmethod
    def _get() -> tuple[Any, Any]:
        return random.getstate(), np.random.get_state()  # noqa: NPY002 (the legacy generator is what games seed)

    @staticmethod
    def _set(states: tuple[Any, Any]) -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
