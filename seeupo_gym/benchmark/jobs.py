"""One job of a benchmark: an algorithm trains in an environment with a seed, and is evaluated on the way."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import signature
from typing import Any

from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure

from seeupo_gym.agents.group_algorithm import GroupAlgorithm
from seeupo_gym.agents.turn_logging import purge_events
from seeupo_gym.benchmark.evaluation import evaluate
from seeupo_gym.benchmark.folder import RunFolder
from seeupo_gym.benchmark.job import Job
from seeupo_gym.benchmark.models import load_model, save_model
from seeupo_gym.benchmark.results import versions
from seeupo_gym.envs.reference import normalize, reference_scores
from seeupo_gym.envs.task import HELD_OUT_SEED
from seeupo_gym.system.files import locked
from seeupo_gym.system.interrupts import HeldInterrupts

__all__ = ["EvaluationCallback", "Job", "load_model", "run_job", "save_model"]

REPLACE, RESUME, REFUSE = "replace", "resume", "refuse"

# Function that is called with the number of environment steps taken so far.
ProgressReport = Callable[[int], None]

# A report at every vector step would cost more than the step.
_REPORT_SECONDS = 0.2


class EvaluationCallback(BaseCallback):
    """
    Callback that evaluates before training, and whenever ``num_timesteps`` passes one of equally spaced points.

    Unlike with SB3's ``EvalCallback`` the number of environments has no effect. The last evaluation of a run is
    :meth:`evaluate`, which is called after the last update. Results also go to TensorBoard, under ``eval/``.

    :param job: the job, which says when and on what to evaluate
    :param report: function that is called with the number of steps taken
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

    def resume(self, run: Mapping[str, Any], start: int) -> None:
        """
        Go on with what an earlier run measured.

        :param run: its rows under "evaluations", and its "training_time"
        :param start: environment steps at which training goes on; what came after them is forgotten
        """
        self.rows = [row for row in run["evaluations"] if row["timesteps"] <= start]
        self.training_seconds = run["training_time"]
        self._n_points_passed = start * self.job.n_evals // self.job.total_timesteps

    def seconds_so_far(self) -> float:
        """Seconds of training, without those of evaluations."""
        return self.training_seconds + time.perf_counter() - self._clock

    def _on_training_start(self) -> None:
        self._clock = time.perf_counter()
        if not self.rows:
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
        self.training_seconds = self.seconds_so_far()
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
        if stages is not None:  # with the staged schedule, early turns are not trained yet
            values["eval/stage_turn"] = stages.turn
        for output in self.logger.output_formats:
            output.write(values, dict.fromkeys(values, ()), self.model.num_timesteps)
        self._clock = time.perf_counter()


class _SavingCallback(BaseCallback):
    """
    Saves checkpoints between iterations, and lets an update be finished before an interrupt ends the training.

    :param job: says how often
    :param save: saves one
    """

    def __init__(self, job: Job, save: Callable[[], None]) -> None:
        super().__init__()
        self._every = job.checkpoint_every
        self._save = save
        self._n_passed = 0
        self._interrupts = HeldInterrupts()

    def _on_training_start(self) -> None:
        self._n_passed = self.num_timesteps // self._every if self._every else 0

    def _on_rollout_start(self) -> None:
        self.release()
        if self._every and self._n_passed < self.num_timesteps // self._every:
            self._n_passed = self.num_timesteps // self._every
            try:
                self._save()
            except OSError as error:  # a full disk may have room again when the training is over
                warnings.warn(f"no checkpoint: {error}; training goes on", stacklevel=2)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self._interrupts.hold()

    def _on_training_end(self) -> None:
        self.release()

    def release(self) -> None:
        """
        Put interrupts off no longer.

        :raises KeyboardInterrupt: if one was put off
        """
        self._interrupts.release()


def run_job(job: Job, report: ProgressReport | None = None, earlier: str = REPLACE) -> dict[str, Any]:
    """
    Train and evaluate, and write TensorBoard events, the model and, last of all, ``result.json``.

    If training is interrupted or fails, the model of that moment is saved as ``model_so_far.zip``.

    :param job: the job
    :param report: function that is called now and then with the number of environment steps taken
    :param earlier: treatment of what an earlier run left in the folder. "replace": it stays until the first file of
        this run stands. "resume": go on from its last state; if it is finished, there is nothing to do. "refuse": raise
    :return: the content of ``result.json``
    :raises ValueError: if the algorithm refuses the settings, another run is writing to the folder, the one to go on
        from had other settings, or there is one that is not to be replaced
    """
    model = job.spec.make_model(job.env_id, job.seed, job.env_kwargs)  # what it refuses changes nothing in the folder
    env = model.env
    try:
        with locked(job.folder):
            folder = RunFolder(job)
            run: dict[str, Any] = {}
            if earlier == REFUSE and (path := folder.trained()) is not None:
                raise ValueError(
                    f"there is a trained model, {path}: choose another folder (--out), go on with it (--resume) or "
                    "pass --overwrite"
                )
            if earlier == RESUME:
                result = folder.finished()
                if result is not None:
                    return result
                model, run = folder.resume(model)
            if not run:
                for events in job.folder.glob("events.out.tfevents.*"):
                    events.unlink()
            return _train(job, folder, model, run, report)
    finally:
        if env is not None:
            with suppress(EOFError, OSError):  # its processes may be gone, by the same Ctrl-C
                env.close()


def _train(
    job: Job, folder: RunFolder, model: BaseAlgorithm, run: dict[str, Any], report: ProgressReport | None
) -> dict[str, Any]:
    """Do the job with a model that is new, or was saved when the run was where ``run`` says."""
    callback = EvaluationCallback(job, report)
    start, earlier_seconds, started = model.num_timesteps, run.get("wall_time", 0.0), time.perf_counter()

    def state() -> dict[str, Any]:
        return {
            "settings": job.settings(),
            "evaluations": callback.rows,
            "training_time": callback.seconds_so_far(),
            "wall_time": earlier_seconds + time.perf_counter() - started,
        }

    saving = _SavingCallback(job, lambda: folder.save_checkpoint(model, state()))
    logger = configure(str(job.folder), ["tensorboard"])
    try:
        model.set_logger(logger)
        if run:
            callback.resume(run, start)
            purge_events(logger, start)
            if not isinstance(model, GroupAlgorithm):  # whose random streams are not saved: not the same once more
                model.set_random_seed((job.seed + start) % HELD_OUT_SEED)
        if start < job.total_timesteps:
            model.learn(
                job.total_timesteps - start,
                callback=[callback, saving],
                reset_num_timesteps=not run,
                **_learn_arguments(model),
            )
        callback.evaluate()
    except BaseException:  # Ctrl-C too
        if model.num_timesteps > start:
            folder.save_so_far(model, state())
            if report is not None:
                report(model.num_timesteps)
        raise
    finally:
        logger.close()
        saving.release()
    result = {
        "settings": job.settings(),
        "timesteps": model.num_timesteps,
        "wall_time": round(state()["wall_time"], 3),
        "training_time": round(callback.training_seconds, 3),
        "steps_per_second": round(model.num_timesteps / callback.training_seconds, 1),
        "reference_scores": reference_scores(job.env_id, **job.env_kwargs),
        "evaluations": callback.rows,
        "versions": versions(),
    }
    folder.finish(model, result)
    return result


def _learn_arguments(model: BaseAlgorithm) -> dict[str, Any]:
    """Tell MaskablePPO, which asks when it learns, not when it is made, whether its environment has masks."""
    asks = "use_masking" in signature(model.learn).parameters
    return {"use_masking": model.env is not None and is_masking_supported(model.env)} if asks else {}
