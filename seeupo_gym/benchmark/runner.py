"""Processes that do the jobs of a benchmark."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import numpy as np
import torch as th

from seeupo_gym.benchmark.jobs import Job, run_job

_DONE, _FAILED = "done", "failed"


class Bar(Protocol):
    """Part of a progress bar that the runner uses."""

    def update(self, n: float) -> Any: ...

    def close(self) -> None: ...


@dataclass
class _Worker:
    job: Job
    process: BaseProcess
    connection: Connection
    steps: int = 0
    outcome: tuple[str, str] | None = None


class Runner:
    """
    Runs jobs in processes. Every worker has a pipe of its own, so that one that dies cannot damage another's pipe.

    :param jobs: jobs, in the order in which they start
    :param n_workers: number of processes at a time
    :param bar: progress bar, updated with every job's environment steps
    :param finished: function that is called when a job ends, with the job and its traceback, or None if it succeeded
    """

    def __init__(
        self, jobs: Iterable[Job], n_workers: int, bar: Bar, finished: Callable[[Job, str | None], None]
    ) -> None:
        self._waiting = list(jobs)
        self._n_workers = n_workers
        self._bar = bar
        self._finished = finished
        self._process_class = _process_class()
        self._workers: dict[Connection, _Worker] = {}

    def run(self) -> None:
        """Do the jobs. On any exception, including Ctrl-C, end the workers first."""
        try:
            while self._waiting or self._workers:
                while self._waiting and len(self._workers) < self._n_workers:
                    self._start(self._waiting.pop(0))
                for connection in wait(list(self._workers)):
                    assert isinstance(connection, Connection)
                    self._receive(self._workers[connection])
        finally:
            for worker in self._workers.values():
                worker.process.terminate()
            for worker in self._workers.values():
                worker.process.join()

    def _start(self, job: Job) -> None:
        receiver, sender = multiprocessing.Pipe(duplex=False)
        arguments = (job, sender, dict(os.environ))
        process = self._process_class(target=_work, args=arguments, name=job.name, daemon=True)
        with _ctrl_c_blocked():
            process.start()
        sender.close()  # the worker has its own copy; ours would hide that it died
        self._workers[receiver] = _Worker(job, process, receiver)

    def _receive(self, worker: _Worker) -> None:
        try:
            message = worker.connection.recv()
        except EOFError:
            self._finish(worker)
            return
        if isinstance(message, int):
            steps = min(message, worker.job.total_timesteps)
            self._bar.update(steps - worker.steps)
            worker.steps = steps
        else:
            worker.outcome = message

    def _finish(self, worker: _Worker) -> None:
        worker.process.join()
        del self._workers[worker.connection]
        worker.connection.close()
        self._bar.update(worker.job.total_timesteps - worker.steps)
        kind, text = worker.outcome or (_FAILED, f"the process ended with exit code {worker.process.exitcode}")
        self._finished(worker.job, None if kind == _DONE else text)


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Block Ctrl-C, which reaches all processes of a terminal: the runner ends the workers, without tracebacks."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _process_class() -> type[BaseProcess]:
    """
    Return the class of processes that share no state with this one or with each other.

    Importing torch takes seconds. So on Linux workers are forked from a server that has imported it and done nothing
    else. On macOS this fails, as system libraries do not survive a fork. In Python 3.10 it fails, as the server would
    import modules of the current folder that this process does not see.
    """
    if sys.platform == "linux" and sys.version_info >= (3, 11):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "torch._dynamo"])  # torch's optimizers import the latter
        resource_tracker.ensure_running()  # the server would start it, which unblocks Ctrl-C
        # OSError: the name of the folder for temporary files is too long for a socket.
        with suppress(OSError), _ctrl_c_blocked(), _variables(PYTHONPATH=os.pathsep.join(sys.path), PYTHONSAFEPATH="1"):
            forkserver.ensure_running()
            return context.Process
    return multiprocessing.get_context("spawn").Process


@contextmanager
def _variables(**values: str) -> Iterator[None]:
    """Set environment variables for processes that are started within the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _work(job: Job, connection: Connection, environment: Mapping[str, str]) -> None:
    """Do a job in a worker process and send the result: the main function of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A new process would have these, but one that is forked from a server has not: the present variables, and a state
    # of the global generator of its own, for environments that use it.
    os.environ.clear()
    os.environ.update(environment)
    np.random.seed()  # noqa: NPY002
    # Processes that share the cores would only wait for each other's threads.
    th.set_num_threads(1)
    try:
        run_job(job, connection.send)
        connection.send((_DONE, ""))
    except BrokenPipeError:
        pass  # the parent has ended, so nobody waits for the result
    except Exception:
        connection.send((_FAILED, traceback.format_exc()))
    finally:
        connection.close()
