"""Model files of the command line and the benchmark: one file that says by itself how to load it and what it plays."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Mapping
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any, cast

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from seeupo_gym.agents.saved_state import check_state, check_weights
from seeupo_gym.agents.saving import SavedAlgorithm
from seeupo_gym.agents.unpickling import read_entries
from seeupo_gym.baselines.registry import AlgorithmSpec, algorithm_names, get_algorithm
from seeupo_gym.benchmark.results import read_json, to_plain, versions
from seeupo_gym.envs import ENV_IDS
from seeupo_gym.envs.arguments import check_count, check_number
from seeupo_gym.system.errors import UntrustedError, damage_is_told, in_one_line, origin
from seeupo_gym.system.files import open_atomically

INFO_MEMBER = "seeupo_gym.json"
_ENTRIES = {"algorithm": str, "entry_point": str, "env_id": str, "env_kwargs": dict, "timesteps": int}


def save_model(
    model: BaseAlgorithm,
    path: Path,
    spec: AlgorithmSpec,
    env_id: str,
    env_kwargs: Mapping[str, Any],
    run: Mapping[str, Any] | None = None,
) -> None:
    """
    Save a model with what it takes to load it, which is in the archive as ``seeupo_gym.json``.

    :param model: any SB3 model
    :param path: ``.zip`` file to write
    :param spec: the algorithm
    :param env_id: the environment it was trained on
    :param env_kwargs: the environment's arguments
    :param run: where the run is that trains it, for one that goes on from the file; None: nothing
    :raises OSError: if the file cannot be written; what was there before is unchanged
    """
    info: dict[str, Any] = {
        "algorithm": spec.name,
        "entry_point": spec.entry_point,
        "env_id": env_id,
        "env_kwargs": env_kwargs,
        "versions": versions(),
        "run": run or {},
    }
    with open_atomically(path) as file:
        model.save(cast(BufferedIOBase, file))
        with zipfile.ZipFile(file, "a") as archive:
            # Those of the state that is saved, which may be earlier than the running model's.
            info["timesteps"] = json.loads(archive.read("data"))["num_timesteps"]
            archive.writestr(INFO_MEMBER, json.dumps(to_plain(info), indent=2))


def read_info(path: Path) -> dict[str, Any]:
    """
    Read what :func:`save_model` wrote about a model; older versions did so in a JSON file beside it.

    :param path: its ``.zip`` file
    :return: algorithm, environment, number of steps and versions; "run" is {} where nothing was saved of it
    :raises ValueError: if a file is missing or not what it should be; says which
    """
    if not path.is_file():
        raise ValueError(f"there is no model {path}")
    with damage_is_told(path, "model"):
        with zipfile.ZipFile(path) as archive:
            within = archive.read(INFO_MEMBER) if INFO_MEMBER in archive.namelist() else None
        info: Any = read_json(path.with_suffix(".json")) if within is None else json.loads(within)
        _check_info(info, path.with_suffix(".json").name if within is None else INFO_MEMBER)
    return {"run": {}, **info}


def _check_info(info: Any, place: str) -> None:
    """Refuse a description that lacks something, or holds it in another form."""
    if not isinstance(info, dict):
        raise ValueError(f"{place} is no JSON object")
    for name, kind in _ENTRIES.items():
        if name not in info:
            raise ValueError(f"{place} lacks the entry {name!r}")
        if type(info[name]) is not kind:
            raise ValueError(f"the entry {name!r} of {place} must be of type {kind.__name__}, got {info[name]!r}")
    run = info.get("run", {})
    if not isinstance(run, dict) or (run and not isinstance(run.get("settings"), dict)):
        raise ValueError(f"the entry 'run' of {place} does not say the settings of the run")
    if "evaluations" in run:  # a state to go on from
        rows = run["evaluations"]
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"the evaluations in {place} are no list of rows")
        for row in rows:
            check_count(f"timesteps of the evaluations in {place}", row.get("timesteps"), least=0)
            for name in ("score", "episode_length", "wall_time"):
                check_number(f"{name} of the evaluations in {place}", row.get(name))
        for name in ("training_time", "wall_time"):
            check_number(f"{name} in {place}", run.get(name), least=0.0)


def load_model(
    path: Path, env: Any = None, device: th.device | str = "cpu", trusted: bool = True
) -> tuple[BaseAlgorithm, dict[str, Any]]:
    """
    Load a model that :func:`save_model` saved.

    :param path: its ``.zip`` file, also without the ending
    :param env: environment to go on in; None: none
    :param device: device of the networks
    :param trusted: False: take only data from the file, and execute nothing in it; see docs/trust.md
    :return: the model, and what :func:`read_info` gives
    :raises ValueError: if a file is missing or not what it should be; says which
    """
    path = path if path.suffix == ".zip" else path.with_name(f"{path.name}.zip")
    info = read_info(path)
    spec = AlgorithmSpec(info["algorithm"], info["entry_point"])
    with damage_is_told(path, f"model of {spec.name}"):
        if not trusted:
            _check_names(info)
        algorithm_class = spec.load_class()
        if not issubclass(algorithm_class, BaseAlgorithm):
            raise ValueError(f"{spec.entry_point} is no algorithm")
    with warnings.catch_warnings(record=True) as caught:
        model = _load(path, algorithm_class, env, device, trusted)
    for warning in caught:  # not those about a file that is refused
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return model, info


def _load(
    path: Path, algorithm_class: type[BaseAlgorithm], env: Any, device: th.device | str, trusted: bool
) -> BaseAlgorithm:
    try:
        if issubclass(algorithm_class, SavedAlgorithm):
            return algorithm_class.load(path, env, device, trusted=trusted)
        with damage_is_told(path, f"model of {algorithm_class.__name__}"):
            content = path.read_bytes()
            entries = read_entries(BytesIO(content), algorithm_class, trusted=trusted)
            model = algorithm_class.load(BytesIO(content), None, device, custom_objects=entries)
            check_weights(model)
            check_state(model)
        if env is None:
            return model
        return algorithm_class.load(BytesIO(content), env, device, custom_objects=entries)
    except ValueError as error:
        if origin(error) != "stable_baselines3":
            raise
        raise ValueError(f"{path} does not fit the environment as it is now: {in_one_line(error)}") from error


def _check_names(info: Mapping[str, Any]) -> None:
    """Refuse what would import a module that the file names, or give arguments to an environment of others."""
    name, entry_point, env_id = info["algorithm"], info["entry_point"], info["env_id"]
    if name not in algorithm_names() or get_algorithm(name).entry_point != entry_point:
        raise UntrustedError(f"its algorithm {name!r}, {entry_point!r}, is none that is registered")
    if ":" in env_id:
        raise UntrustedError(f"its environment {env_id!r} names a module to import")
    if info["env_kwargs"] and env_id not in ENV_IDS:
        raise UntrustedError(f"it has arguments for an environment that is not of this package: {info['env_kwargs']}")
