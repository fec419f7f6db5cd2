"""Group-relative advantages: no critic, the members of a group are each other's baseline."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NORMALIZATIONS = ("batch", "group", "none")

# Returns of one group that differ by less than this share of their size are equal up to float32 rounding.
_EQUAL_RETURNS = 1e-6
# So are differences below the smallest normal float32, whose squares would underflow.
_SMALLEST_SPREAD = float(np.finfo(np.float32).tiny)


class GroupAdvantages(NamedTuple):
    """Advantages of a batch of groups."""

    advantages: NDArray[np.float64]
    """One per episode, shape (groups, group_size)."""
    degenerate: NDArray[np.bool_]
    """Groups whose returns are all equal and so carry no signal, shape (groups,)."""


def group_relative_advantages(returns: NDArray[np.float64], normalize: str = "batch") -> GroupAdvantages:
    """
    Group-relative advantage estimation, GRAE (arXiv:2602.06554, eq. 9).

    The advantage of an episode is its return less the mean of its group: ``A_i = R_i - mean(R_group)``. It is
    exactly 0 in a group whose returns are all equal.

    :param returns: ``R_i = sum_t gamma^t r_{i,t}``, shape (groups, group_size)
    :param normalize: ``"batch"`` divides by the standard deviation of all advantages of the batch (whose mean
        is 0 by construction); ``"group"`` by that of the group's returns, as GRPO does, which breaks the
        guarantee of monotonic improvement; ``"none"`` leaves them as they are. Standard deviations are
        those of the population (``ddof=0``).
    :return: advantages and which groups are degenerate
    """
    if normalize not in NORMALIZATIONS:
        raise ValueError(f"normalize_advantage must be one of {NORMALIZATIONS}, got {normalize!r}")
    spread = returns.max(axis=1) - returns.min(axis=1)
    degenerate = spread <= np.maximum(_EQUAL_RETURNS * np.abs(returns).max(axis=1), _SMALLEST_SPREAD)
    advantages = returns - returns.mean(axis=1, keepdims=True)
    advantages[degenerate] = 0.0
    if normalize == "none" or degenerate.all():
        return GroupAdvantages(advantages, degenerate)
    if normalize == "batch":
        return GroupAdvantages(advantages / advantages.std(), degenerate)
    std = np.where(degenerate, 1.0, returns.std(axis=1))
    return GroupAdvantages(advantages / std[:, None], degenerate)
