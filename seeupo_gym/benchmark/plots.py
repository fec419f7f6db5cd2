"""Learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seeupo_gym.benchmark.environments import env_name
from seeupo_gym.benchmark.figures import COLOURS, new_figure
from seeupo_gym.benchmark.results import Row, read_rows
from seeupo_gym.system.files import open_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Line styles keep curves apart that lie on each other, and in print.
_STYLES = ("-", "--", "-.", ":")


def plot_learning_curves(results: str | Path | Sequence[Row], out: str | Path) -> list[Path]:
    """
    Draw the learning curves, in one PNG for each environment.

    :param results: a ``results.csv``, or its rows
    :param out: folder for the pictures
    :return: the files
    :raises ImportError: if matplotlib is missing
    """
    rows = read_rows(Path(results)) if isinstance(results, (str, Path)) else list(results)
    Path(out).mkdir(parents=True, exist_ok=True)
    paths = []
    for env_id in dict.fromkeys(row["environment"] for row in rows):
        path = Path(out) / f"learning_curve_{env_name(env_id)}.png"
        with open_atomically(path) as file:
            learning_curve_figure(rows, env_id).savefig(file, format="png", dpi=150)
        paths.append(path)
    return paths


def learning_curve_figure(rows: Sequence[Row], env_id: str) -> Figure:
    """
    Draw the curves of one environment: for each algorithm the mean over seeds, and a band from the worst to the best.

    :param rows: rows of a tidy table
    :param env_id: id of the environment
    :return: the figure; no state of pyplot is touched
    :raises ImportError: if matplotlib is missing
    """
    figure, (axes,) = new_figure()
    from matplotlib.ticker import EngFormatter

    rows = [row for row in rows if row["environment"] == env_id]
    normalized = all(row["normalized_score"] is not None for row in rows)
    column = "normalized_score" if normalized else "score"
    if normalized:
        for level, label, height in ((1.0, "expert", "bottom"), (0.0, "random", "top")):
            axes.axhline(level, color="0.45", linewidth=1.0, zorder=1)
            axes.annotate(
                label,
                (1.0, level),
                xycoords=("axes fraction", "data"),
                xytext=(-4, 2 if height == "bottom" else -2),
                textcoords="offset points",
                ha="right",
                va=height,
                color="0.35",
                fontsize="small",
            )
    for i, algorithm in enumerate(dict.fromkeys(row["algorithm"] for row in rows)):
        steps, curves = _curves([row for row in rows if row["algorithm"] == algorithm], column)
        colour, style = COLOURS[i % len(COLOURS)], _STYLES[i % len(_STYLES)]
        n_seeds = f"{len(curves)} seed{'s' if len(curves) > 1 else ''}"
        axes.fill_between(steps, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.18, linewidth=0)
        axes.plot(steps, curves.mean(axis=0), style, color=colour, linewidth=2.0, label=f"{algorithm} ({n_seeds})")
    axes.set_title(env_name(env_id))
    axes.set_xlabel("environment steps")
    axes.set_ylabel("normalised score" if normalized else "mean return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.margins(x=0.0)
    if normalized:
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, -0.1), max(high, 1.1))
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        title="line: mean over seeds; band: worst to best seed",
        title_fontsize="small",
    )
    return figure


def _curves(rows: Sequence[Row], column: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """
    Interpolate the curves of all seeds on one grid of steps, shapes (points,) and (seeds, points).

    It is needed because seeds are evaluated at about, but not exactly, the same numbers of steps.
    """
    by_seed: dict[Any, list[Row]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], []).append(row)
    grid = np.unique([row["timesteps"] for row in rows]).astype(np.float64)
    curves = [np.interp(grid, [r["timesteps"] for r in seed], [r[column] for r in seed]) for seed in by_seed.values()]
    return grid, np.array(curves)
