"""The look that all figures of this package share; matplotlib is imported when a figure is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind people can tell apart, without its yellow and black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")


def check_matplotlib() -> None:
    """
    Refuse to go on without matplotlib.

    :raises ImportError: if matplotlib is missing; says what to install
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error


def new_figure(n_axes: int = 1, width: float = 7.0) -> tuple[Figure, list[Axes]]:
    """
    Make a figure with axes side by side. No state of pyplot is touched.

    :param n_axes: number of axes
    :param width: width in inches
    :return: the figure and its axes
    :raises ImportError: if matplotlib is missing
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 4.5), layout="constrained")
    all_axes = [figure.add_subplot(1, n_axes, i + 1) for i in range(n_axes)]
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
    return figure, all_axes
