"""Rows of the table of claims, and the random MDPs that they are about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from seeupo_gym.theory.mdp import Array, Mdp, Paths, random_mdps, softmax

TOLERANCE = 1e-10


@dataclass(frozen=True)
class Check:
    """
    One row of the table.

    :param claim: the quantity or claim; indented if it continues the row before
    :param measured: the result, as text
    :param numbers: the result, for ``results.json``
    :param expected: the claimed result
    :param holds: whether the result is the claimed one; None: nothing is claimed, and the result is only reported
    """

    claim: str
    measured: str
    numbers: dict[str, Any]
    expected: str = ""
    holds: bool | None = None

    @property
    def verdict(self) -> str:
        """The row's last cell."""
        return "reported" if self.holds is None else "holds" if self.holds else "FAILS"


def must_vanish(claim: str, errors: Array, what: str = "error") -> Check:
    """Make a row for numbers, of any shape, that must be 0 up to rounding."""
    worst = float(np.abs(errors).max())
    return Check(claim, f"largest {what} {worst:.1e}", {"worst": worst}, f"below {TOLERANCE:.0e}", worst < TOLERANCE)


class Batch(NamedTuple):
    """Random MDPs of one shape, and a random policy for each."""

    mdp: Mdp
    policy: Array
    """Shape (n, T, S, A)."""
    paths: Paths


def random_batch(generator: np.random.Generator, n: int, shape: tuple[int, int, int], stopping: bool = False) -> Batch:
    """
    Draw MDPs by :func:`~seeupo_gym.theory.mdp.random_mdps`, and policies whose logits are standard normal.

    :param generator: source of randomness
    :param n: number of MDPs
    :param shape: T, S, A
    :param stopping: whether episodes can end early
    :return: a batch
    """
    mdp = random_mdps(generator, n, *shape, stopping=stopping)
    return Batch(mdp, softmax(generator.standard_normal((n, *shape))), Paths(mdp))
