"""The folder of one run: whatever ends it, and whenever, what was learned is in one of its files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

from seeupo_gym.benchmark.job import Job
from seeupo_gym.benchmark.models import load_model, read_info, save_model
from seeupo_gym.benchmark.results import (
    MODEL_FILE,
    MODEL_SO_FAR_FILE,
    RESULT_FILE,
    SettingsDifferError,
    differences,
    read_json,
    to_plain,
    write_json,
)
from seeupo_gym.system.errors import DamagedFileError

CHECKPOINTS = "checkpoints"
_CHECKPOINT = re.compile(r"model_(\d+)_steps\.zip")


class RunFolder:
    """
    Writes and finds the files of one run.

    What an earlier run left stays until the first file of this one stands.

    :param job: the run; its folder is locked
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.path = job.folder
        self._earlier_is_there = True

    def trained(self) -> Path | None:
        """Return the model that an earlier run left, or else its last state, if there is one that can be loaded."""
        model = self.path / MODEL_FILE
        return model if _loads(model) else self.last_state()

    def last_state(self) -> Path | None:
        """Return the last state of a run that is not over, if there is one that can be loaded."""
        return next((path for path in self._unfinished() if _loads(path)), None)

    def finished(self) -> dict[str, Any] | None:
        """
        Return the content of ``result.json``, if the run is over.

        :raises SettingsDifferError: if it is that of other settings
        """
        path = self.path / RESULT_FILE
        if not path.is_file() or self.trained() != self.path / MODEL_FILE:
            return None
        result = read_json(path)
        self._check_settings(path, result.get("settings", {}))
        return result

    def resume(self, model: BaseAlgorithm) -> tuple[BaseAlgorithm, dict[str, Any]]:
        """
        Go on from the last state of an earlier run.

        :param model: a new model, with the environment
        :return: the model that was saved, and where its run was; the new one and {} if nothing was saved
        :raises SettingsDifferError: if it was saved by a run with other settings
        """
        for path in self._unfinished():
            run = read_info(path)["run"]
            if not run:
                raise ValueError(
                    f"{path} was saved by an older version of this command, without what it takes to go on: load it in "
                    "a script and call learn(..., reset_num_timesteps=False), or start anew (--overwrite)"
                )
            self._check_settings(path, run["settings"])
            try:
                saved, _ = load_model(path, model.env, model.device)
            except DamagedFileError as error:
                warnings.warn(f"left out: {error}", stacklevel=2)
                continue
            self._earlier_is_there = False
            return saved, run
        return model, {}

    def save_checkpoint(self, model: BaseAlgorithm, run: Mapping[str, Any]) -> None:
        """
        Save a state to go on from, and remove the oldest one if there are too many.

        :param model: the model
        :param run: where the run is
        """
        path = self.path / CHECKPOINTS / f"model_{model.num_timesteps}_steps.zip"
        self._save(model, path, run)
        self._discard_earlier(but=path)
        for old in self._checkpoints()[self.job.keep_checkpoints :]:
            old.unlink()

    def save_so_far(self, model: BaseAlgorithm, run: Mapping[str, Any]) -> None:
        """
        Save the state of a run that is ended before its time.

        :param model: the model
        :param run: where the run is
        """
        path = self.path / MODEL_SO_FAR_FILE
        self._save(model, path, run)
        self._discard_earlier(but=path)

    def finish(self, model: BaseAlgorithm, result: Mapping[str, Any]) -> None:
        """
        Save the trained model and, last of all, the result.

        :param model: the model
        :param result: the content of ``result.json``
        """
        (self.path / RESULT_FILE).unlink(missing_ok=True)  # never one that is not this model's
        self._save(model, self.path / MODEL_FILE, {"settings": self.job.settings()})
        self._discard_earlier()
        (self.path / MODEL_SO_FAR_FILE).unlink(missing_ok=True)
        write_json(self.path / RESULT_FILE, result)

    def _save(self, model: BaseAlgorithm, path: Path, run: Mapping[str, Any]) -> None:
        save_model(model, path, self.job.spec, self.job.env_id, self.job.env_kwargs, run)
        path.with_suffix(".json").unlink(missing_ok=True)  # what older versions wrote about an older model

    def _unfinished(self) -> list[Path]:
        """Files with states to go on from, the last state first."""
        steps = {}
        for path in [self.path / MODEL_SO_FAR_FILE, *self._checkpoints()]:
            if path.is_file():
                try:
                    steps[path] = read_info(path)["timesteps"]
                except ValueError as error:
                    warnings.warn(f"left out: {error}", stacklevel=2)
        return sorted(steps, key=lambda path: -int(steps[path]))

    def _checkpoints(self) -> list[Path]:
        """Checkpoints, the last one first."""
        found = [(path, _CHECKPOINT.fullmatch(path.name)) for path in (self.path / CHECKPOINTS).glob("*.zip")]
        steps = {path: int(match[1]) for path, match in found if match}
        return sorted(steps, key=lambda path: -steps[path])

    def _discard_earlier(self, but: Path | None = None) -> None:
        """Remove what an earlier run left, except its model, which is replaced by the next one."""
        if not self._earlier_is_there:
            return
        for path in [self.path / RESULT_FILE, self.path / MODEL_SO_FAR_FILE, *self._checkpoints()]:
            if path != but:
                path.unlink(missing_ok=True)
        self._earlier_is_there = False

    def _check_settings(self, path: Path, settings: Mapping[str, Any]) -> None:
        differing = differences(settings, to_plain(self.job.settings()))
        if differing:
            raise SettingsDifferError(
                f"{path} is of a run with other settings: {'; '.join(differing)}. Give those of before, choose another "
                "folder (--out), or start anew (--overwrite)"
            )


def _loads(path: Path) -> bool:
    try:
        load_model(path)
    except ValueError:
        return False
    except ImportError:  # it is sound, though not of use here
        pass
    return True
