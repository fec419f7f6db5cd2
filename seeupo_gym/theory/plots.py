"""The plots of ``seeupo-gym theory``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seeupo_gym.benchmark.figures import COLOURS, new_figure
from seeupo_gym.system.files import open_atomically
from seeupo_gym.theory.mdp import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colours of the learning curves, in an order in which neighbours belong together.
_COLOURS = tuple(COLOURS[i] for i in (0, 4, 1, 2, 3, 5))
# Lines on top of each other stay visible by their dashes.
_DASHES = ("-", "--", "-.", ":", (0, (6, 2)), (0, (1, 2, 4, 2)))
_ZERO = 1e-12


def plot_returns(gaps: Mapping[str, Array], trap_returns: Mapping[str, Array], path: Path) -> Path:
    """
    Draw the return by sweep, for exponentiated steps of 1.

    :param gaps: gap to the optimum of the random MDPs by update and method, shape (sweeps + 1, n)
    :param trap_returns: return of the coordination trap by method, shape (sweeps + 1,)
    :param path: file to write
    :return: the file
    """
    figure, (left, right) = new_figure(2, width=10.0)
    name = "exponentiated 1, "
    shares = {key.removeprefix(name): 1.0 - gap / gap[0] for key, gap in gaps.items() if key.startswith(name)}
    _lines(left, {k: v[:16] for k, v in shares.items()})
    left.set(title="random MDPs (band: 10% to 90% of them)", xlabel="sweep", ylabel="return (first 0, optimum 1)")
    _lines(right, {k: v[:41, None] for k, v in trap_returns.items()})
    right.set(title="coordination trap (safe 0.6, optimum 1)", xlabel="sweep", ylabel="return")
    return _save(figure, left, path)


def plot_gaps(greedy: Mapping[str, Array], limited: Mapping[str, Array], path: Path) -> Path:
    """
    Draw the mean gap to the optimum by sweep, on a logarithmic scale.

    :param greedy: gaps with exact inner maximisation by order, shape (sweeps + 1, n)
    :param limited: gaps with steps of limited size by update and method, shape (sweeps + 1, n)
    :param path: file to write
    :return: the file
    """
    figure, (axes,) = new_figure()
    chosen = ("reverse, exact F", "simultaneous (no F)")
    curves = {"greedy, reverse": greedy["reverse"], "greedy, forward or simultaneous": greedy["simultaneous"]}
    curves |= {k: gap for k, gap in limited.items() if k.endswith(chosen)}
    _lines(axes, {k: np.maximum(gap.mean(axis=1, keepdims=True), _ZERO) for k, gap in curves.items()})
    axes.set(yscale="log", xlabel="sweep", ylabel=f"mean gap to the optimum (0 drawn at {_ZERO:.0e})")
    return _save(figure, axes, path, columns=2)


def plot_staged(budgets: Sequence[int], gaps: Mapping[str, Array], path: Path) -> Path:
    """
    Draw the mean gap to the optimum by number of episodes.

    :param budgets: episodes per turn
    :param gaps: gaps by method, shape (budgets, samples)
    :param path: file to write
    :return: the file
    """
    figure, (axes,) = new_figure()
    means = {name: np.maximum(gap.mean(axis=1, keepdims=True), _ZERO) for name, gap in gaps.items()}
    _lines(axes, means, np.asarray(budgets, dtype=np.float64))
    axes.set(xscale="log", yscale="log", xlabel="episodes per turn", ylabel="mean gap to the optimum")
    return _save(figure, axes, path)


def _lines(axes: Axes, curves: Mapping[str, Array], x: Array | None = None) -> None:
    """Draw the mean over the last axis, and a band from the 10% to the 90% quantile."""
    for (name, values), colour, dashes in zip(curves.items(), _COLOURS, _DASHES, strict=False):
        steps = np.arange(len(values), dtype=np.float64) if x is None else x
        if values.shape[1] > 1:
            low, high = np.quantile(values, (0.1, 0.9), axis=1)
            axes.fill_between(steps, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(steps, values.mean(axis=1), linestyle=dashes, color=colour, linewidth=2.0, label=name)


def _save(figure: Figure, axes: Axes, path: Path, columns: int = 4) -> Path:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)
    with open_atomically(path) as file:
        figure.savefig(file, format="png", dpi=150)
    return path
