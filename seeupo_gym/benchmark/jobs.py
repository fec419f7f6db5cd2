"""One job of a benchmark: one algorithm trains on one environment with one seed, and is evaluated on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure

from seeupo_gym.baselines.registry import AlgorithmSpec
from seeupo_gym.benchmark.environments import env_name
from seeupo_gym.benchmark.evaluation import evaluate
from seeupo_gym.benchmark.results import (
    MODEL_FILE,
    MODEL_INFO_FILE,
    MODEL_SO_FAR_FILE,
    RESULT_FILE,
    read_json,
    versions,
    write_json,
)
from seeupo_gym.envs.reference import normalize, reference_scores
from seeupo_gym.envs.task import HELD_OUT_SEED

# Called with the environment steps taken so far.
ProgressReport = Callable[[int], None]

# A report at every vector step would cost more than the step.
_REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class Job:
    """
    One run.

    :param spec: algorithm and its settings
    :param env_id: a registered Gymnasium id
    :param seed: seed of environments and algorithm
    :param total_timesteps: environment steps to train for; training stops at the first point it can after them
    :param out: folder of the benchmark
    :param n_evals: evaluations after the one before training, at equally spaced numbers of steps
    :param n_eval_episodes: held-out episodes of each evaluation
    :param env_kwargs: arguments of the environment
    """

    spec: AlgorithmSpec
    env_id: str
    seed: int
    total_timesteps: int
    out: Path
    n_evals: int = 20
    n_eval_episodes: int = 100
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``environment/algorithm/seed_0``: how the job is called, and its folder in the benchmark's."""
        return f"{env_name(self.env_id)}/{self.spec.name}/seed_{self.seed}"

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.out / self.name

    def settings(self) -> dict[str, Any]:
        """
        Everything that decides the result, with all defaults written out.

        :return: what ``result.json`` holds under "settings"
        """
        return {
            "algorithm": self.spec.name,
            "entry_point": self.spec.entry_point,
            "policy": self.spec.policy,
            "n_envs": self.spec.n_envs,
            "algorithm_settings": self.spec.all_settings(),
            "environment": env_name(self.env_id),
            "env_id": self.env_id,
            "env_kwargs": dict(self.env_kwargs),
            "seed": self.seed,
            "total_timesteps": self.total_timesteps,
            "n_evals": self.n_evals,
            "n_eval_episodes": self.n_eval_episodes,
            "first_eval_seed": HELD_OUT_SEED,
        }

    def clear(self) -> None:
        """Remove what an earlier attempt left in the folder."""
        for pattern in (RESULT_FILE, MODEL_FILE, MODEL_INFO_FILE, "model_so_far.*", "events.out.tfevents.*"):
            for path in self.folder.glob(pattern):
                path.unlink()


class EvaluationCallback(BaseCallback):
    """
    Evaluates whenever ``num_timesteps`` passes one of equally spaced points, and before training.

    Unlike with SB3's ``EvalCallback`` the number of environments plays no part. The evaluation that ends a
    run is :meth:`evaluate`, called after the last update. Results also go to TensorBoard, under ``eval/``.

    :param job: what to evaluate on, and when
    :param report: told how many steps are taken
    """

    def __init__(self, job: Job, report: ProgressReport | None = None) -> None:
        super().__init__()
        self.job = job
        self.rows: list[dict[str, Any]] = []
        self.training_seconds = 0.0
        self._reference = reference_scores(job.env_id, **job.env_kwargs)
        self._report = report
        self._n_points_passed = 0
        self._clock = self._reported = time.perf_counter()

    def _on_training_start(self) -> None:
        self._clock = time.perf_counter()
        self.evaluate()

    def _on_step(self) -> bool:
        job = self.job
        n_passed = self.num_timesteps * job.n_evals // job.total_timesteps
        if self._n_points_passed < n_passed:
            self._n_points_passed = n_passed
            if n_passed < job.n_evals:
                self.evaluate()
        if self._report is not None and time.perf_counter() - self._reported > _REPORT_SECONDS:
            self._reported = time.perf_counter()
            self._report(self.num_timesteps)
        return True

    def evaluate(self) -> None:
        """Evaluate the model as it is now."""
        self.training_seconds += time.perf_counter() - self._clock
        job = self.job
        result = evaluate(self.model, job.env_id, job.n_eval_episodes, **job.env_kwargs)
        score = result.mean_return
        row = {
            "timesteps": self.model.num_timesteps,
            "score": score,
            "normalized_score": None if self._reference is None else normalize(score, self._reference),
            "success_rate": result.success_rate,
            "episode_length": result.mean_length,
            "wall_time": round(self.training_seconds, 3),
        }
        self.rows.append(row)
        # Not through logger.dump(), which would write the algorithm's half-collected values too.
        values = {f"eval/{name}": row[name] for name in ("score", "normalized_score", "success_rate", "episode_length")}
        values = {name: value for name, value in values.items() if value is not None}
        stages = getattr(self.model, "stages", None)
        if stages is not None:  # of the staged schedule, whose early turns are not trained yet
            values["eval/stage_turn"] = stages.turn
        for output in self.logger.output_formats:
            output.write(values, dict.fromkeys(values, ()), self.model.num_timesteps)
        self._clock = time.perf_counter()


def run_job(job: Job, report: ProgressReport | None = None) -> dict[str, Any]:
    """
    Train and evaluate, and write TensorBoard events, the model and, last of all, ``result.json``.

    When training is interrupted or fails, the model as it was then is saved as ``model_so_far.zip``.

    :param job: what to do
    :param report: called now and then with the number of environment steps taken
    :return: the content of ``result.json``
    """
    model = job.spec.make_model(job.env_id, job.seed, job.env_kwargs)
    job.clear()  # not before it is known that there can be a new result
    job.folder.mkdir(parents=True, exist_ok=True)
    logger = configure(str(job.folder), ["tensorboard"])
    callback = EvaluationCallback(job, report)
    try:
        model.set_logger(logger)
        started = time.perf_counter()
        model.learn(job.total_timesteps, callback=callback, **_learn_arguments(model))
        callback.evaluate()
        wall_time = time.perf_counter() - started
    except BaseException:  # Ctrl-C too
        save_model(model, job.folder / MODEL_SO_FAR_FILE, job.spec, job.env_id, job.env_kwargs)
        raise
    finally:
        logger.close()
        if model.env is not None:
            model.env.close()
    save_model(model, job.folder / MODEL_FILE, job.spec, job.env_id, job.env_kwargs)
    result = {
        "settings": job.settings(),
        "timesteps": model.num_timesteps,
        "wall_time": round(wall_time, 3),
        "training_time": round(callback.training_seconds, 3),
        "steps_per_second": round(model.num_timesteps / callback.training_seconds, 1),
        "reference_scores": reference_scores(job.env_id, **job.env_kwargs),
        "evaluations": callback.rows,
        "versions": versions(),
    }
    write_json(job.folder / RESULT_FILE, result)
    return result


def _learn_arguments(model: BaseAlgorithm) -> dict[str, Any]:
    """MaskablePPO is told when it learns, not when it is made, that its environment has no masks; else it refuses."""
    asks = "use_masking" in signature(model.learn).parameters
    return {"use_masking": model.env is not None and is_masking_supported(model.env)} if asks else {}


def save_model(
    model: BaseAlgorithm, path: Path, spec: AlgorithmSpec, env_id: str, env_kwargs: Mapping[str, Any]
) -> None:
    """
    Save a model, and beside it a JSON file that says how to load it and what it plays.

    :param model: the model
    :param path: ``.zip`` file to write; the other one has the ending ``.json``
    :param spec: the algorithm
    :param env_id: the environment it was trained on
    :param env_kwargs: the environment's arguments
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    model.save(path)
    info = {"algorithm": spec.name, "entry_point": spec.entry_point, "env_id": env_id, "env_kwargs": env_kwargs}
    write_json(path.with_suffix(".json"), {**info, "timesteps": model.num_timesteps, "versions": versions()})


def load_model(path: Path) -> tuple[BaseAlgorithm, dict[str, Any]]:
    """
    Load a model that :func:`save_model` saved.

    :param path: its ``.zip`` file, also without the ending
    :return: the model, and the content of the JSON file
    :raises ValueError: if a file is missing or not what it should be; says which
    """
    path = path if path.suffix == ".zip" else path.with_name(f"{path.name}.zip")
    if not path.is_file():
        raise ValueError(f"there is no model {path}")
    info = read_json(path.with_suffix(".json"))
    lacking = [key for key in ("algorithm", "entry_point", "env_id", "env_kwargs", "timesteps") if key not in info]
    if lacking:
        raise ValueError(f"{path.with_suffix('.json')} lacks the entry {lacking[0]!r}")
    spec = AlgorithmSpec(info["algorithm"], info["entry_point"])
    try:
        model = spec.load_class().load(path, device="cpu")
    except (AssertionError, KeyError) as error:  # SB3's, for a zip file that is no model
        raise ValueError(f"{path} is no model of {spec.name}: {error}") from error
    return model, info
