"""Model files of the command line and the benchmark: one file that says by itself how to load it and what it plays."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any, cast

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from seeupo_gym.agents.saving import SavedAlgorithm
from seeupo_gym.agents.unpickling import UntrustedError, check_weights, read_entries
from seeupo_gym.baselines.registry import AlgorithmSpec, algorithm_names, get_algorithm
from seeupo_gym.benchmark.results import read_json, to_plain, versions
from seeupo_gym.envs import ENV_IDS
from seeupo_gym.system.files import open_atomically

INFO_MEMBER = "seeupo_gym.json"
_ENTRIES = ("algorithm", "entry_point", "env_id", "env_kwargs", "timesteps")


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
    info = {
        "algorithm": spec.name,
        "entry_point": spec.entry_point,
        "env_id": env_id,
        "env_kwargs": env_kwargs,
        "timesteps": model.num_timesteps,
        "versions": versions(),
        "run": run or {},
    }
    with open_atomically(path) as file:
        model.save(cast(BufferedIOBase, file))
        with zipfile.ZipFile(file, "a") as archive:
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
    try:
        with zipfile.ZipFile(path) as archive:
            within = archive.read(INFO_MEMBER) if INFO_MEMBER in archive.namelist() else None
        info: Any = read_json(path.with_suffix(".json")) if within is None else json.loads(within)
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no model, or damaged: {error}") from error
    lacking = [key for key in _ENTRIES if key not in info]
    if lacking:
        place = path.with_suffix(".json") if within is None else f"{INFO_MEMBER} in {path}"
        raise ValueError(f"{place} lacks the entry {lacking[0]!r}")
    return {"run": {}, **info}


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
    try:
        if not trusted:
            _check_names(info)
        algorithm_class = spec.load_class()
        if issubclass(algorithm_class, SavedAlgorithm):
            return algorithm_class.load(path, env=env, device=device, trusted=trusted), info
        file = BytesIO(path.read_bytes())
        entries = read_entries(file, algorithm_class, trusted=trusted)
        model = algorithm_class.load(file, env=env, device=device, custom_objects=entries)
        check_weights(model)
    except ImportError:  # a package that this model needs: no fault of the file
        raise
    except UntrustedError as error:
        raise UntrustedError(f"{path} is not to be trusted: {error}") from error
    except Exception as error:  # damaged data can make anything fail
        raise ValueError(f"{path} is no model of {spec.name}, or damaged: {type(error).__name__}: {error}") from error
    return model, info


def _check_names(info: Mapping[str, Any]) -> None:
    """Refuse what would import a module that the file names, or give arguments to an environment of others."""
    name, entry_point, env_id = info["algorithm"], info["entry_point"], info["env_id"]
    if name not in algorithm_names() or get_algorithm(name).entry_point != entry_point:
        raise UntrustedError(f"its algorithm {name!r}, {entry_point!r}, is none that is registered")
    if ":" in env_id:
        raise UntrustedError(f"its environment {env_id!r} names a module to import")
    if info["env_kwargs"] and env_id not in ENV_IDS:
        raise UntrustedError(f"it has arguments for an environment that is not of this package: {info['env_kwargs']}")
