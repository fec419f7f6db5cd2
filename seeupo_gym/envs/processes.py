"""Environments in processes of their own (SB3's ``SubprocVecEnv``): whose worker failed, of what, and in what time."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stable_baselines3.common.vec_env import VecEnv

# A worker that is gone ends its process within this time; one that hangs gets as much to end.
_SECONDS = 5.0
_LONGEST = 20_000
_TRACEBACK = "Traceback (most recent call last)"


class WorkerError(RuntimeError):
    """A process that plays an environment died, or takes too long; the others were ended."""


class WorkerNotes:
    """
    Files in which the workers of a vector environment leave the traceback of what ends them.

    They are removed together with the vector environment.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="seeupo_gym_workers_"))

    def record(self, make: Callable[[], Any], index: int) -> Callable[[], Any]:
        """
        Let a worker write down the traceback that Python prints at its end.

        :param make: makes the environment, in the worker
        :param index: number of the worker
        :return: the function that the worker is to call
        """
        path = self._path(index)

        def make_and_record() -> Any:
            sys.stderr = _Recorder(sys.stderr, path)
            return make()

        return make_and_record

    def read(self, index: int) -> str:
        """
        Read what a worker left.

        :param index: number of the worker
        :return: its last traceback; empty if there is none
        """
        with suppress(OSError):
            return self._path(index).read_text(encoding="utf-8", errors="replace")
        return ""

    def remove(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, index: int) -> Path:
        return self.folder / f"worker_{index}.txt"


class _Recorder:
    """A stream that also writes the last traceback that passes into a file."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream, self._path = stream, path
        self._text = ""

    def write(self, text: str) -> int:
        if self._text or _TRACEBACK in text:
            self._text = (self._text + text)[-_LONGEST:]
            with suppress(OSError):
                self._path.write_text(self._text, encoding="utf-8")
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def watch_workers(env: VecEnv, timeout: float | None = None, notes: WorkerNotes | None = None) -> None:
    """
    Have a vector environment say which worker died or hangs, where SB3 raises a bare EOFError or waits for ever.

    :param env: vector environment, wrapped or not; one without processes, or that is watched already, is left as it is
    :param timeout: the most seconds that a worker may take for an answer; None: any
    :param notes: where the workers leave tracebacks; None: nowhere but on the standard error
    """
    base: Any = env.unwrapped
    if not hasattr(base, "remotes") or not hasattr(base, "processes") or isinstance(base.remotes[0], _WatchedPipe):
        return
    workers = _Workers(base, timeout, notes)
    base.remotes = tuple(_WatchedPipe(remote, index, workers) for index, remote in enumerate(base.remotes))
    if notes is not None:
        weakref.finalize(base, notes.remove)


def make_watched(make: Callable[..., VecEnv], factories: list[Any], timeout: float | None) -> VecEnv:
    """
    Make a vector environment with processes that is watched from the beginning.

    :param make: SB3's class
    :param factories: a function for each environment, which makes it in its process
    :param timeout: the most seconds that a worker may take for an answer; None: any
    :return: the vector environment
    :raises WorkerError: if an environment cannot be made
    """
    notes = WorkerNotes()
    try:
        env = make([notes.record(factory, index) for index, factory in enumerate(factories)])
    except (EOFError, OSError) as error:  # SB3 asks for spaces and render modes
        told = {index: text.strip() for index in range(len(factories)) if (text := notes.read(index))}
        notes.remove()
        index, text = next(iter(told.items()), ("", "what was printed on the standard error may tell why"))
        raise WorkerError(f"environment {index} could not be made in its process:\n\n{text}") from error
    watch_workers(env, timeout, notes)
    return env


class _Workers:
    """Processes of a vector environment, which end together."""

    def __init__(self, env: Any, timeout: float | None, notes: WorkerNotes | None) -> None:
        self._env: Any = weakref.proxy(env)
        self._notes = notes
        self.timeout = timeout
        self.error: WorkerError | None = None

    def died(self, index: int) -> WorkerError:
        """End the others after the death of one."""
        process = self._env.processes[index]
        process.join(_SECONDS)
        return self._end(f"the process of environment {index} {describe_exit(process.exitcode)}", index)

    def hangs(self, index: int) -> WorkerError:
        """End all after one took too long."""
        return self._end(
            f"the process of environment {index} has not answered within {self.timeout:g} seconds (step_timeout)", index
        )

    def _end(self, what: str, index: int) -> WorkerError:
        for process in self._env.processes:
            process.terminate()
        for process in self._env.processes:
            process.join(_SECONDS)
            if process.is_alive():  # deaf to SIGTERM
                process.kill()
                process.join()
        self._env.waiting, self._env.closed = False, True
        told = self._notes.read(index).strip() if self._notes is not None else ""
        cause = f"\n\nIn that process:\n\n{told}" if told else "; what it printed on the standard error may tell why"
        self.error = WorkerError(f"{what}, and those of the other environments were ended: make a new one{cause}")
        return self.error


class _WatchedPipe:
    """The connection to one worker."""

    def __init__(self, connection: Any, index: int, workers: _Workers) -> None:
        self._connection, self._index, self._workers = connection, index, workers

    def send(self, message: Any) -> None:
        self._check()
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._workers.died(self._index) from error

    def recv(self) -> Any:
        self._check()
        try:
            timeout = self._workers.timeout
            if timeout is not None and not self._connection.poll(timeout):
                raise self._workers.hangs(self._index)
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._workers.died(self._index) from error

    def _check(self) -> None:
        if self._workers.error is not None:
            raise self._workers.error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def describe_exit(exit_code: int | None) -> str:
    """
    Say how a process ended.

    :param exit_code: its exit code, negative for a signal; None: it has not ended
    """
    if exit_code is None:
        return "has closed its connection"
    if exit_code >= 0:
        return f"died (exit code {exit_code})"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"was killed by signal {-exit_code}"
