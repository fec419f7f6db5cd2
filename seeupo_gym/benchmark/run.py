"""The benchmark: algorithms x environments x seeds, each run in a process of its own, with equal numbers of steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seeupo_gym.agents import SeeUPO
from seeupo_gym.baselines.registry import AlgorithmSpec, get_algorithm
from seeupo_gym.benchmark.environments import check_env, env_name
from seeupo_gym.benchmark.jobs import Job
from seeupo_gym.benchmark.results import (
    RESULT_FILE,
    check_same_settings,
    discard_incomparable,
    merge_results,
)
from seeupo_gym.benchmark.runner import Bar, Runner
from seeupo_gym.envs.task import HELD_OUT_SEED
from seeupo_gym.system.files import locked

# PPO and A2C have no invalid-action masks, so in a benchmark SeeUPO and its subclasses get none either.
EQUAL_CONDITIONS: dict[str, Any] = {"use_masking": False}


@dataclass
class BenchmarkRun:
    """
    The results of a call of :func:`run_benchmark`.

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

    All runs get the same number of environment steps. Training ends at the first point after them at which an algorithm
    can stop, and the real number is recorded. For equal conditions SeeUPO and its subclasses run with
    ``use_masking=False`` unless their settings say otherwise, as PPO and A2C have no invalid-action masks.
    "maskable_ppo" uses the masks of environments that have them.

    In ``out`` each run has a folder ``environment/algorithm/seed_0`` with TensorBoard events, ``model.zip`` and
    ``result.json``. ``results.csv`` and ``results.json`` have all runs, and are rewritten whenever one finishes. A
    benchmark that was stopped can be continued: finished runs are kept, the others start anew.

    Worker processes import the main module anew, so a script must call this below ``if __name__ == "__main__":``.

    :param algorithms: names of registered algorithms
    :param env_ids: registered Gymnasium ids; ``"module:id"`` if a module must be imported to register it
    :param seeds: seeds of the runs, at least 0
    :param total_timesteps: environment steps of each run
    :param out: folder for all files
    :param n_evals: number of evaluations of a run, without the one before training
    :param n_eval_episodes: number of episodes of each evaluation
    :param n_workers: number of processes at a time; None: number of cores
    :param progress: whether to show a progress bar on stderr (needs tqdm)
    :param overwrite: whether to do all runs anew; when the first of them has finished, results that cannot be compared
        with it are removed
    :param settings: algorithm -> constructor arguments (and ``n_envs``) that differ from the registry's
    :param env_kwargs: environment id -> its arguments
    :param report: function that is called with a text whenever a job fails
    :return: results and failures
    :raises SettingsDifferError: if ``out`` holds results of these environments with other settings
    :raises ValueError: for unknown names and numbers out of range, and if another benchmark is writing to ``out``
    """
    seeds = [int(seed) for seed in seeds]
    stray = sorted((set(settings or {}) - set(algorithms)) | (set(env_kwargs or {}) - set(env_ids)))
    if stray:
        raise ValueError(f"there are settings for {stray[0]!r}, which takes no part in this benchmark")
    specs = [_on_equal_conditions(name).with_settings((settings or {}).get(name, {})) for name in algorithms]
    jobs = plan_jobs(specs, env_ids, seeds, total_timesteps, Path(out), n_evals, n_eval_episodes, env_kwargs or {})
    if n_workers is not None and n_workers < 1:
        raise ValueError(f"n_workers must be at least 1, got {n_workers}")
    run = BenchmarkRun()

    def finished(job: Job, failure: str | None) -> None:
        if failure is None:
            run.finished.append(job.name)
            if overwrite:
                discard_incomparable(Path(out), job.settings())
            merge_results(Path(out))
        else:
            run.failures[job.name] = failure
            if report is not None:
                report(f"{job.name} failed:\n{failure.rstrip()}")

    with locked(out):
        if not overwrite:
            check_same_settings(Path(out), [job.settings() for job in jobs])
        missing = [job for job in jobs if overwrite or not (job.folder / RESULT_FILE).is_file()]
        run.kept = [job.name for job in jobs if job not in missing]
        for job in missing:
            with locked(job.folder):  # not by a process of a benchmark that was killed
                pass
        bar = progress_bar(total_timesteps * len(jobs), total_timesteps * (len(jobs) - len(missing)), progress)
        try:
            Runner(missing, n_workers or min(_n_cores(), max(1, len(missing))), bar, finished).run()
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
    Make and check the jobs of :func:`run_benchmark`, which has the same arguments.

    :return: jobs; the seeds of one algorithm and environment are next to each other
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


class _NoBar:
    def update(self, n: float) -> None: ...

    def close(self) -> None: ...


def progress_bar(total: int, done: int, show: bool) -> Bar:
    """
    Make a progress bar on stderr that counts environment steps.

    :param total: number of steps at its end
    :param done: number of steps that were taken before
    :param show: whether to show it; if False, the bar does nothing
    :return: the bar
    :raises ImportError: if the bar is shown and tqdm is missing
    """
    if not show:
        return _NoBar()
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("the progress bar needs tqdm: pip install tqdm (or switch it off)") from error
    bar: Bar = tqdm(total=total, initial=done, unit="step", unit_scale=True, smoothing=0.05, dynamic_ncols=True)
    return bar
