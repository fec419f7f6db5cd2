"""Files of results: written atomically, merged into one table, compared before a run is continued."""

from __future__ import annotations

import csv
import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from pathlib import Path
from typing import Any

from seeupo_gym.system.files import write_atomically

RESULT_FILE, MODEL_FILE = "result.json", "model.zip"
# Saved instead of the model when training was stopped or failed: nothing that was learned is lost.
MODEL_SO_FAR_FILE = "model_so_far.zip"
CSV_FILE, JSON_FILE = "results.csv", "results.json"

# The columns of the tidy table: one row for every evaluation of every run.
COLUMNS = (
    "algorithm",
    "environment",
    "seed",
    "timesteps",
    "score",
    "normalized_score",
    "success_rate",
    "episode_length",
    "wall_time",
)
Row = dict[str, Any]

_PACKAGES = ("seeupo-gym", "gymnasium", "numpy", "torch", "stable-baselines3", "sb3-contrib", "tensorboard")


class SettingsDifferError(ValueError):
    """A folder has results that were made with other settings."""


def versions() -> dict[str, str]:
    """
    Collect versions that a result may depend on.

    :return: versions of Python, of the platform and of the packages
    """
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def to_plain(value: Any) -> Any:
    """
    Convert settings to types that JSON can hold, so that equal settings compare equal after reading them back.

    :param value: any value; a class or a function becomes its full name, an object its attributes
    :return: nested dictionaries, lists, strings, numbers, booleans and None
    """
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if repr(value) == object.__repr__(value) and hasattr(value, "__dict__"):
        return {"class": to_plain(type(value)), **to_plain(vars(value))}
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))  # addresses in memory differ from run to run


def write_json(path: Path, content: Any) -> None:
    """
    Write JSON atomically.

    :param path: the file
    :param content: a value that :func:`to_plain` converts
    """
    write_atomically(path, json.dumps(to_plain(content), indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """
    Read a JSON object.

    :param path: the file
    :return: its content
    :raises ValueError: if the file is missing or is no JSON object; says which file
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"cannot read {path}: it is not a JSON object")
    return content


def read_results(out: Path) -> list[dict[str, Any]]:
    """
    Read the results of all finished runs in a folder.

    :param out: the folder of a benchmark
    :return: contents of the ``result.json`` files, by environment, algorithm and seed
    :raises ValueError: if a file is not of the right form; names the file
    """
    results = []
    for path in _result_files(out):
        results.append(read_json(path))
        lacking = [key for key in ("settings", "evaluations") if key not in results[-1]]
        if lacking:
            raise ValueError(f"{path} lacks the entry {lacking[0]!r}: remove it, and the run is done again")
    return sorted(results, key=lambda r: (r["settings"]["env_id"], r["settings"]["algorithm"], r["settings"]["seed"]))


def _result_files(out: Path) -> list[Path]:
    return sorted(out.glob(f"*/*/seed_*/{RESULT_FILE}"))


def tidy_rows(results: Iterable[Mapping[str, Any]]) -> list[Row]:
    """
    Make a table of the evaluations of all runs.

    :param results: contents of ``result.json`` files
    :return: rows with the entries of :data:`COLUMNS`
    """
    rows = []
    for result in results:
        settings = result["settings"]
        run = {"algorithm": settings["algorithm"], "environment": settings["env_id"], "seed": settings["seed"]}
        rows += [{**run, **{name: row[name] for name in COLUMNS[3:]}} for row in result["evaluations"]]
    return rows


def merge_results(out: Path) -> list[dict[str, Any]]:
    """
    Write ``results.csv`` and ``results.json`` from the results of all finished runs.

    :param out: the folder of a benchmark
    :return: the results
    """
    results = read_results(out)
    table = StringIO()
    writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(tidy_rows(results))
    write_atomically(out / CSV_FILE, table.getvalue())
    write_json(out / JSON_FILE, {"results": results})
    return results


def read_rows(path: Path) -> list[Row]:
    """
    Read a tidy table.

    :param path: a ``results.csv``
    :return: its rows, with numbers as numbers and None for empty cells
    """
    text_columns = ("algorithm", "environment")
    with path.open(encoding="utf-8", newline="") as file:
        return [
            {k: v if k in text_columns else float(v) if v else None for k, v in row.items()}
            for row in csv.DictReader(file)
        ]


def check_same_settings(out: Path, settings: Sequence[Mapping[str, Any]]) -> None:
    """
    Refuse to mix runs that cannot be compared.

    Runs in one environment must share everything but the algorithm and the seed. Runs of one algorithm in one
    environment must share everything but the seed.

    :param out: the folder of a benchmark
    :param settings: settings of the runs that are to be added
    :raises SettingsDifferError: if runs cannot be compared; says what differs and what to do
    """
    for result in read_results(out):
        old = result["settings"]
        for new in settings:
            differences = _incomparable(old, to_plain(new))
            if differences:
                raise SettingsDifferError(
                    f"{out} holds results of {old['algorithm']} on {old['environment']} that were made with other "
                    f"settings: {'; '.join(differences)}. Choose another folder (--out), or let the new results "
                    f"replace them (--overwrite)"
                )


def discard_incomparable(out: Path, settings: Mapping[str, Any]) -> None:
    """
    Remove the results that cannot be compared with a run.

    :param out: the folder of a benchmark
    :param settings: the run's settings
    """
    for path in _result_files(out):
        if _incomparable(read_json(path)["settings"], to_plain(settings)):
            path.unlink()


def _incomparable(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """List the differences of two runs that keep them out of one table."""
    if new["environment"] != old["environment"]:
        return []
    return differences(old, new, {"seed"} if new["algorithm"] == old["algorithm"] else {"seed", *_OF_ALGORITHM})


_OF_ALGORITHM = ("algorithm", "entry_point", "policy", "n_envs", "algorithm_settings")


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], ignored: Iterable[str] = (), prefix: str = ""
) -> list[str]:
    """
    Say what differs between two settings.

    :param old: what :func:`to_plain` made of the earlier ones
    :param new: the same of those now
    :param ignored: names that do not count
    :param prefix: where these settings are within others
    :return: one text for each difference
    """
    found = []
    for key in sorted({*old, *new} - set(ignored)):
        before, now = old.get(key, "not set"), new.get(key, "not set")
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found += differences(before, now, (), f"{prefix}{key}.")
        elif before != now:
            found.append(f"{prefix}{key} was {before!r}, now {now!r}")
    return found
