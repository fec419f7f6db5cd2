"""Group-relative advantages: no critic, the members of a group are each other's baseline."""

from __future__ import annotations

from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from seeupo_gym.agents.method.settings import AdvantageEstimator, Normalization

ADVANTAGE_ESTIMATORS = get_args(AdvantageEstimator)
NORMALIZATIONS = get_args(Normalization)

# Returns of one group that differ by less than this share of their size are equal up to float32 rounding.
_EQUAL_RETURNS = 1e-6
# So are differences below the smallest normal float32, whose squares would underflow.
_SMALLEST_SPREAD = float(np.finfo(np.float32).tiny)


class GroupAdvantages(NamedTuple):
    """Advantages of a batch of groups."""

    advantages: NDArray[np.float64]
    """One per member, shape (..., groups, group_size); 0 for members that are absent."""
    degenerate: NDArray[np.bool_]
    """Groups whose returns are all equal and so carry no signal, shape (..., groups)."""


def group_relative_advantages(
    returns: NDArray[np.float64],
    normalize: str = "batch",
    leave_one_out: bool = False,
    present: NDArray[np.bool_] | None = None,
) -> GroupAdvantages:
    """
    Estimate group-relative advantages: GRAE (arXiv:2602.06554, eq. 9).

    The advantage of an episode is its return less the mean of its group: ``A_i = R_i - mean(R_group)``. It is
    exactly 0 in a group whose returns are all equal.

    :param returns: ``R_i``, shape (..., groups, group_size); each index of the leading axes is a batch of its own
    :param normalize: ``"batch"`` divides by the standard deviation of all advantages of the batch (whose mean
        is 0 by construction), which takes many groups to be unbiased; ``"group"`` by that of the group's
        returns, as GRPO does, which breaks the guarantee of monotonic improvement; ``"none"`` leaves them as
        they are. Standard deviations are those of the population (``ddof=0``).
    :param leave_one_out: take the mean of the other members (RLOO, arXiv:2402.14740), which is the same as
        multiplying by ``G / (G - 1)``, for G the number of members
    :param present: which members there are, same shape; None: all
    :return: advantages and which groups are degenerate
    :raises ValueError: for an unknown normalisation
    """
    if normalize not in NORMALIZATIONS:
        raise ValueError(f"normalize_advantage must be one of {NORMALIZATIONS}, got {normalize!r}")
    if present is None:
        present = np.ones(returns.shape, dtype=bool)
    count = present.sum(axis=-1)
    highest = np.where(present, returns, -np.inf).max(axis=-1, initial=-np.inf)
    lowest = np.where(present, returns, np.inf).min(axis=-1, initial=np.inf)
    size = np.where(present, np.abs(returns), 0.0).max(axis=-1, initial=0.0)
    degenerate = highest - lowest <= np.maximum(_EQUAL_RETURNS * size, _SMALLEST_SPREAD)  # also where fewer than two
    used = present & ~degenerate[..., None]
    mean = _mean(returns, present, axis=-1)
    advantages = np.where(used, returns - mean, 0.0)
    if leave_one_out:
        advantages *= (count / np.maximum(count - 1, 1))[..., None]
    if normalize == "group":
        std = np.sqrt(_mean((returns - mean) ** 2, present, axis=-1))
        advantages /= np.where(degenerate[..., None], 1.0, std)
    elif normalize == "batch":
        std = np.sqrt(_mean(advantages**2, present, axis=(-2, -1)))
        advantages /= np.where(std == 0.0, 1.0, std)
    return GroupAdvantages(advantages, degenerate)


def discounted_returns(rewards: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """
    Compute the returns of whole episodes, ``R_i = sum_t gamma^t r_{i,t}``.

    :param rewards: ``r_{i,t}``, shape (turns, groups, group_size); 0 where an episode is over
    :param gamma: discount factor
    :return: shape (groups, group_size)
    """
    returns: NDArray[np.float64] = np.tensordot(gamma ** np.arange(len(rewards), dtype=np.float64), rewards, axes=1)
    return returns


def estimate_advantages(
    rewards: NDArray[np.float64],
    reached: NDArray[np.bool_],
    gamma: float,
    estimator: str = "group_mean",
    normalize: str = "batch",
    clip: float | None = None,
) -> GroupAdvantages:
    """
    Estimate the advantages of every turn of every episode, by one of the estimators:

    - ``"group_mean"``: GRAE on the whole return ``R_i = sum_t gamma^t r_{i,t}``, the same at all turns
    - ``"leave_one_out"``: the same against the mean of the other members
    - ``"reward_to_go"``: ``sum_{s >= t} gamma^(s - t) r_{i,s}``, at each turn less the mean of the group's
      members that reached the turn, and normalised over those. Less variance, as the past plays no part, but
      turn t's expected gradient is scaled by a number that is the smaller, the fewer members reach it: its
      direction changes only where turns or states share parameters. For gamma < 1 it is the gradient of no
      objective. See docs/theory.md.

    :param rewards: ``r_{i,t}``, shape (turns, groups, group_size); 0 where an episode is over
    :param reached: which episodes reached which turn, same shape
    :param gamma: discount factor
    :param estimator: one of ``ADVANTAGE_ESTIMATORS``
    :param normalize: see :func:`group_relative_advantages`
    :param clip: bound of the advantages' absolute value after normalisation; None: none
    :return: advantages, shape (turns, groups, group_size), or (1, groups, group_size) where they are the same at
        all turns, and which groups are degenerate
    :raises ValueError: for an unknown estimator or normalisation
    """
    if estimator == "reward_to_go":
        returns = rewards.copy()
        for turn in range(len(rewards) - 2, -1, -1):
            returns[turn] += gamma * returns[turn + 1]
        result = group_relative_advantages(returns, normalize, present=reached)
    elif estimator in ADVANTAGE_ESTIMATORS:
        returns = discounted_returns(rewards, gamma)[None]
        result = group_relative_advantages(returns, normalize, estimator == "leave_one_out", reached[:1])
    else:
        raise ValueError(f"advantage_estimator must be one of {ADVANTAGE_ESTIMATORS}, got {estimator!r}")
    if clip is None:
        return result
    return GroupAdvantages(result.advantages.clip(-clip, clip), result.degenerate)


def _mean(values: NDArray[np.float64], present: NDArray[np.bool_], axis: int | tuple[int, ...]) -> NDArray[np.float64]:
    """Compute the mean of the values that are present, 0 where none is, with the axes kept."""
    total = np.where(present, values, 0.0).sum(axis=axis, keepdims=True)
    return np.asarray(total / np.maximum(present.sum(axis=axis, keepdims=True), 1))
