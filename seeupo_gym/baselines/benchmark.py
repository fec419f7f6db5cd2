"""The benchmark: algorithms x environments x seeds, each a process of its own, on equal environment steps."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch as th

from seeupo_gym.agents import SeeUPO
from seeupo_gym.baselines.jobs import Job, run_job
from seeupo_gym.baselines.registry import AlgorithmSpec, check_env, env_name, get_algorithm
from seeupo_gym.baselines.results import RESULT_FILE, check_same_settings, merge_results
from seeupo_gym.envs.task import HELD_OUT_SEED

# PPO and A2C know no invalid-action masks, so in a benchmark SeeUPO and its subclasses get none either.
EQUAL_CONDITIONS: dict[str, Any] = {"use_masking": False}

_DONE, _FAILED = "done", "failed"


class Bar(Protocol):
    """What the runner needs of a progress bar."""

    def update(self, n: float) -> Any: ...

    def close(self) -> None: ...


@dataclass
class BenchmarkRun:
    """
    What a call of :func:`run_benchmark` did.

    :param results: contents of the ``result.json`` files of all finished runs in the folder
    :param finished: names of the jobs that ran now
    :param kept: names of the jobs that were finished before, with the same settings
    :param failures: name of each job that failed -> traceback
    """

    results: list[dict[str, Any]] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def run_benchmark(
    algorithms: Sequence[str],
    env_ids: Sequence[str],
    seeds: Sequence[int],
    total_timesteps: int,
    out: str | Path,
    n_evals: int = 20,
    n_eval_episodes: int = 100,
    n_workers: int | None = None,
    progress: bool = True,
    overwrite: bool = False,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    env_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    report: Callable[[str], None] | None = None,
) -> BenchmarkRun:
    """
    Train every algorithm on every environment with every seed, and evaluate on held-out seeds on the way.

    All runs get the same number of environment steps; training ends at the first point at which an algorithm
    can stop after them, and the real number is recorded. For equal conditions SeeUPO and its subclasses run with
    ``use_masking=False`` unless their settings say otherwise, as PPO and A2C know no invalid-action masks.
    "maskable_ppo", as its name says, uses the masks of environments that have them.

    Under ``out`` each run has a folder ``environment/algorithm/seed_0`` with TensorBoard events, ``model.zip``
    and ``result.json``; ``results.csv`` and ``results.json`` hold all runs and are rewritten whenever one
    finishes. A benchmark that was stopped continues: finished runs are kept, the others start anew.

    Worker processes import the main module anew, so a script must call this below ``if __name__ == "__main__":``.

    :param algorithms: names of registered algorithms
    :param env_ids: registered Gymnasium ids; of packages that must be imported first as ``"module:id"``
    :param seeds: seeds of the runs, at least 0
    :param total_timesteps: environment steps of each run
    :param out: folder for all files
    :param n_evals: evaluations of a run after the one before training
    :param n_eval_episodes: episodes of each evaluation
    :param n_workers: processes at a time; None: as many as there are cores
    :param progress: whether to show a progress bar on stderr (needs tqdm)
    :param overwrite: discard the earlier results of these environments
    :param settings: algorithm -> constructor arguments (and ``n_envs``) that differ from the registry's
    :param env_kwargs: environment id -> its arguments
    :param report: called with one text for each job that failed, when it fails
    :return: results and failures
    :raises SettingsDifferError: if ``out`` holds results of these environments with other settings
    :raises ValueError: for unknown names and numbers out of range
    """
    stray = sorted((set(settings or {}) - set(algorithms)) | (set(env_kwargs or {}) - set(env_ids)))
    if stray:
        raise ValueError(f"there are settings for {stray[0]!r}, which takes no part in this benchmark")
    specs = [_on_equal_conditions(name).with_settings((settings or {}).get(name, {})) for name in algorithms]
    jobs = plan_jobs(specs, env_ids, seeds, total_timesteps, Path(out), n_evals, n_eval_episodes, env_kwargs or {})
    if n_workers is not None and n_workers < 1:
        raise ValueError(f"n_workers must be at least 1, got {n_workers}")
    if overwrite:
        _discard_results(Path(out), {env_name(env_id) for env_id in env_ids})
    check_same_settings(Path(out), [job.settings() for job in jobs])
    missing = [job for job in jobs if not (job.folder / RESULT_FILE).is_file()]
    bar = progress_bar(total_timesteps * len(jobs), total_timesteps * (len(jobs) - len(missing)), progress)
    run = BenchmarkRun(kept=[job.name for job in jobs if job not in missing])
    runner = _Runner(missing, n_workers or min(_n_cores(), max(1, len(missing))), bar, report or (lambda text: None))
    try:
        runner.run(run)
    finally:
        bar.close()
        run.results = merge_results(Path(out))
    return run


def _on_equal_conditions(algorithm: str) -> AlgorithmSpec:
    spec = get_algorithm(algorithm)
    if not issubclass(spec.load_class(), SeeUPO):
        return spec
    return replace(spec, settings={**EQUAL_CONDITIONS, **spec.settings})


def plan_jobs(
    specs: Sequence[AlgorithmSpec],
    env_ids: Sequence[str],
    seeds: Sequence[int],
    total_timesteps: int,
    out: Path,
    n_evals: int,
    n_eval_episodes: int,
    env_kwargs: Mapping[str, Mapping[str, Any]],
) -> list[Job]:
    """
    Lay out the jobs of :func:`run_benchmark`, whose arguments these are, and check them.

    :return: jobs, the seeds of one algorithm and environment next to each other
    :raises ValueError: for unknown environments and numbers out of range
    """
    names = {"algorithm": [spec.name for spec in specs], "environment": [env_name(env_id) for env_id in env_ids]}
    for kind, values in {**names, "seed": seeds}.items():
        if not values:
            raise ValueError(f"at least one {kind} is needed")
        repeated = [value for value in values if values.count(value) > 1]
        if repeated:
            raise ValueError(f"the {kind} {repeated[0]!r} is given more than once: its runs would share their folders")
    for name, value in (
        ("total_timesteps", total_timesteps),
        ("n_evals", n_evals),
        ("n_eval_episodes", n_eval_episodes),
    ):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if min(seeds) < 0 or max(seeds) >= HELD_OUT_SEED:
        raise ValueError(f"seeds must be numbers from 0 to {HELD_OUT_SEED - 1}, got {list(seeds)}")
    for env_id in env_ids:
        check_env(env_id, env_kwargs.get(env_id))
    return [
        Job(spec, env_id, seed, total_timesteps, out, n_evals, n_eval_episodes, dict(env_kwargs.get(env_id, {})))
        for env_id in env_ids
        for spec in specs
        for seed in seeds
    ]


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _discard_results(out: Path, env_names: set[str]) -> None:
    for name in env_names:
        for path in out.glob(f"{name}/*/seed_*/{RESULT_FILE}"):
            path.unlink()


class _NoBar:
    def update(self, n: float) -> None: ...

    def close(self) -> None: ...


def progress_bar(total: int, done: int, show: bool) -> Bar:
    """
    Make a bar on stderr that counts environment steps.

    :param total: steps at its end
    :param done: steps that were taken before
    :param show: if False, a bar that shows nothing
    :return: the bar
    :raises ImportError: if it is to be shown and tqdm is missing
    """
    if not show:
        return _NoBar()
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("the progress bar needs tqdm: pip install tqdm (or switch it off)") from error
    bar: Bar = tqdm(total=total, initial=done, unit="step", unit_scale=True, smoothing=0.05, dynamic_ncols=True)
    return bar


@dataclass
class _Worker:
    job: Job
    process: BaseProcess
    connection: Connection
    steps: int = 0
    outcome: tuple[str, str] | None = None


class _Runner:
    """Runs jobs in processes; every worker has a pipe of its own, so that one that dies cannot spoil the others'."""

    def __init__(self, jobs: list[Job], n_workers: int, bar: Bar, report: Callable[[str], None]) -> None:
        self._waiting = list(jobs)
        self._n_workers = n_workers
        self._bar = bar
        self._report = report
        self._process_class = _process_class()
        self._workers: dict[Connection, _Worker] = {}

    def run(self, run: BenchmarkRun) -> None:
        try:
            while self._waiting or self._workers:
                while self._waiting and len(self._workers) < self._n_workers:
                    self._start(self._waiting.pop(0))
                for connection in wait(list(self._workers)):
                    assert isinstance(connection, Connection)
                    self._receive(self._workers[connection], run)
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

    def _receive(self, worker: _Worker, run: BenchmarkRun) -> None:
        try:
            message = worker.connection.recv()
        except EOFError:
            self._finish(worker, run)
            return
        if isinstance(message, int):
            steps = min(message, worker.job.total_timesteps)
            self._bar.update(steps - worker.steps)
            worker.steps = steps
        else:
            worker.outcome = message

    def _finish(self, worker: _Worker, run: BenchmarkRun) -> None:
        worker.process.join()
        del self._workers[worker.connection]
        worker.connection.close()
        self._bar.update(worker.job.total_timesteps - worker.steps)
        job = worker.job
        kind, text = worker.outcome or (_FAILED, f"the process ended with exit code {worker.process.exitcode}")
        if kind == _DONE:
            run.finished.append(job.name)
            merge_results(job.out)
        else:
            run.failures[job.name] = text
            self._report(f"{job.name} failed:\n{text.rstrip()}")


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Ctrl-C reaches all processes of a terminal; a worker is to end by our hand, without a traceback of its own."""
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

    Importing torch takes seconds, so on Linux workers are forked from a server that has done nothing else. System
    libraries of macOS do not survive a fork.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn").Process
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # torch's optimizers import the latter
    return context.Process


def _work(job: Job, connection: Connection, environment: Mapping[str, str]) -> None:
    """Main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a new process would have, and one that is forked from a server has not: the variables as they are now,
    # and a global generator, for environments that use it, that is not in the same state as that of every other run.
    os.environ.clear()
    os.environ.update(environment)
    np.random.seed()  # noqa: NPY002
    # Processes that share the cores would only wait for each other's threads.
    th.set_num_threads(1)
    try:
        run_job(job, connection.send)
        connection.send((_DONE, ""))
    except BrokenPipeError:
        pass  # the parent is gone, and nobody waits for the result
    except Exception:
        connection.send((_FAILED, traceback.format_exc()))
    finally:
        connection.close()
