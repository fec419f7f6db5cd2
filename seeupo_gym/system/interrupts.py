"""Signals that end a process, as interrupts that leave time to save."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# A process that is told to end, and one whose terminal is gone. Windows has no SIGHUP.
_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Interrupted(KeyboardInterrupt):
    """
    An interrupt by another signal than that of Ctrl-C.

    :param signum: the signal
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """
    Tell the exit code of a process that an interrupt ended, as shells have it.

    :param interrupt: the interrupt
    :return: 128 and the number of the signal
    """
    return 128 + getattr(interrupt, "signum", int(signal.SIGINT))


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise an interrupt in the body, as Ctrl-C does, unless they are ignored (``nohup``)."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Interrupted(signum)

    with _handlers({s: interrupt for s in _SIGNALS if signal.getsignal(s) is signal.SIG_DFL}):
        yield


class HeldInterrupts:
    """Puts interrupts off until something is done; a second one is not put off."""

    def __init__(self) -> None:
        self._earlier: dict[int, Any] = {}
        self._waiting: tuple[int, FrameType | None] | None = None

    def hold(self) -> None:
        """Put the first interrupt off from now on."""
        if self._earlier or threading.current_thread() is not threading.main_thread():
            return
        for signum in (signal.SIGINT, *_SIGNALS):
            if callable(signal.getsignal(signum)):
                self._earlier[signum] = signal.signal(signum, self._receive)

    def release(self) -> None:
        """
        Put interrupts off no longer.

        :raises KeyboardInterrupt: if there was one
        """
        waiting, self._waiting = self._waiting, None
        for signum, handler in self._earlier.items():
            signal.signal(signum, handler)
        earlier, self._earlier = self._earlier, {}
        if waiting is not None:
            earlier[waiting[0]](*waiting)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        if self._waiting is not None:
            self.release()
        else:
            self._waiting = (signum, frame)


@contextmanager
def _handlers(handlers: dict[int, Any]) -> Iterator[None]:
    """Handle signals in the body; in another thread than the main one, which has no say in it, as before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    try:
        yield
    finally:
        for signum, handler in earlier.items():
            signal.signal(signum, handler)
