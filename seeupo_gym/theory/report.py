"""The run of ``seeupo-gym theory``: all claims in one table, with ``results.json`` and plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from seeupo_gym.system.files import write_atomically
from seeupo_gym.theory.checks import Check, random_batch
from seeupo_gym.theory.mdp import Array
from seeupo_gym.theory.rows_blocks import block_rows
from seeupo_gym.theory.rows_gradients import discount_rows, gradient_rows, optimum_rows
from seeupo_gym.theory.rows_optimality import (
    BUDGETS,
    convergence_rows,
    coordination_rows,
    greedy_rows,
    staged_rows,
    tied_rows,
)
from seeupo_gym.theory.rows_surrogates import lottery_rows, lower_bound_rows, normalisation_rows
from seeupo_gym.theory.rows_sweeps import factor_rows, factor_trap_row, monotone_rows, order_row

HEADER = ("", "claim", "measured", "expected", "verdict")
NOTE = """\
(Sweeps that lower J: by clipped maximisation with eps 0.1/0.2/0.5, exponentiated steps of 0.1/1/10, gradient steps of
1/10/100. By method: reverse with exact F/reverse with F in [0.8, 1.2]/forward with exact F/simultaneous. Claim 8: MDPs
where an update lowers the joint surrogate: greedy, exponentiated steps and gradient steps as above.)"""
SHAPES = ((2, 3, 3), (3, 3, 3), (4, 3, 2))
"""T, S and A of the random MDPs; a third of them has each shape."""

# Enumerating all groups of trajectories takes milliseconds for each tiny MDP. More MDPs would show nothing new.
_MAX_TINY = 20

RESULTS_FILE = "results.json"


@dataclass(frozen=True)
class TheoryRun:
    """
    The results of :func:`run_theory`.

    :param checks: rows, each with the number of its claim
    :param paths: files that were written
    """

    checks: list[tuple[int, Check]]
    paths: list[Path]

    @property
    def failed(self) -> bool:
        """True if a claim does not hold."""
        return any(check.holds is False for _, check in self.checks)

    def table(self) -> list[list[str]]:
        """Make the cells below ``HEADER``; the number of a claim is in its first row."""
        numbers = [number for number, _ in self.checks]
        first = [i == 0 or numbers[i - 1] != number for i, number in enumerate(numbers)]
        return [
            [str(number) if new else "", check.claim, check.measured, check.expected, check.verdict]
            for new, (number, check) in zip(first, self.checks, strict=True)
        ]


def run_theory(
    n_mdps: int,
    seed: int,
    out: str | Path,
    plots: bool = True,
    report: Callable[[str], None] | None = None,
) -> TheoryRun:
    """
    Check all claims.

    :param n_mdps: number of random MDPs, at least 3
    :param seed: seed of everything that is drawn
    :param out: folder for ``results.json`` and the plots
    :param plots: whether to draw plots
    :param report: called with a line about each claim before it is checked
    :return: rows and files
    :raises ValueError: if ``n_mdps`` is too small
    """
    if n_mdps < len(SHAPES):
        raise ValueError(f"--mdps must be at least {len(SHAPES)}, one for each size of MDP, got {n_mdps}")
    say, out = report or (lambda text: None), Path(out)
    # One generator for each claim, so that no claim depends on the draws of another one.
    mdps, tiny, bandits, policies, samples, blocks = (np.random.default_rng([seed, i]) for i in range(6))
    counts = [len(part) for part in np.array_split(np.arange(n_mdps), len(SHAPES))]
    batches = [random_batch(mdps, n, shape) for n, shape in zip(counts, SHAPES, strict=True)]
    n_tiny = min(n_mdps, _MAX_TINY)
    checks: list[tuple[int, Check]] = []

    def add(number: int, *groups: Sequence[Check]) -> None:
        checks.extend((number, check) for group in groups for check in group)

    say("claims 1 and 2: optima and gradients")
    add(1, optimum_rows(tiny, n_tiny, batches))
    add(2, gradient_rows(tiny, n_tiny), discount_rows(batches[-1]))
    say("claims 3 and 4: clipping, normalisation, factors")
    add(3, lottery_rows(), lower_bound_rows(bandits, n_mdps), normalisation_rows())
    add(4, factor_rows(policies, batches))
    say("claim 5: monotone improvement")
    add(5, monotone_rows(batches, "nothing"), [order_row(batches), factor_trap_row()], monotone_rows(batches, "states"))
    say("claim 6: convergence")
    greedy, greedy_gaps = greedy_rows(batches)
    limited, limited_gaps = convergence_rows(batches)
    trap, trap_returns = coordination_rows()
    staged, staged_gaps = staged_rows(samples, batches)
    add(6, greedy, limited, trap, staged)
    say("claim 7: shared parameters")
    add(7, monotone_rows(batches, "turns"), tied_rows(batches))
    say("claim 8: several sweeps over the same data")
    add(8, block_rows(blocks, batches))

    out.mkdir(parents=True, exist_ok=True)
    paths = [out / RESULTS_FILE]
    curves: dict[str, dict[str, Array]] = {
        "greedy_gap_by_sweep": greedy_gaps,
        "gap_by_sweep": limited_gaps,
        "trap_return_by_sweep": {name: run[:, None] for name, run in trap_returns.items()},
        "sampled_gap_by_budget": staged_gaps,
    }
    content = {
        "n_mdps": n_mdps,
        "seed": seed,
        "budgets": BUDGETS,
        "checks": [{"number": number, **asdict(check), "verdict": check.verdict} for number, check in checks],
        "mean_curves": {k: {name: c.mean(axis=1).tolist() for name, c in v.items()} for k, v in curves.items()},
    }
    write_atomically(paths[0], json.dumps(content, indent=1) + "\n")
    if plots:
        from seeupo_gym.theory.plots import plot_gaps, plot_returns, plot_staged

        paths += [
            plot_returns(limited_gaps, trap_returns, out / "theory_return.png"),
            plot_gaps(greedy_gaps, limited_gaps, out / "theory_gap.png"),
            plot_staged(BUDGETS, staged_gaps, out / "theory_staged.png"),
        ]
    return TheoryRun(checks, paths)
