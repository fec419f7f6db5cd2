"""Claim 3: clipping and normalisation with whole-return advantages, in a single turn."""

from __future__ import annotations

import numpy as np

from seeupo_gym.theory.bandits import LOTTERY, Bandit, batch_normalised_gradient, expected_parts, logit_gradient
from seeupo_gym.theory.checks import TOLERANCE, Check
from seeupo_gym.theory.mdp import Array, softmax
from seeupo_gym.theory.surrogates import ascend_clipped, clipped_value, exact_parts, maximise_clipped

_EPS = (0.1, 0.2, 0.5)
_STEP_SIZES = (0.1, 1.0, 10.0)


def lottery_rows(group_size: int = 8, eps: float = 0.2) -> list[Check]:
    """
    Check that noise pulls ratios back into the clip range: one arm pays 0, the other -1 or, one time in ten, 20.

    :param group_size: G
    :param eps: clip range
    :return: rows that compare whole-return advantages with exact ones; the better arm starts with probability 0.2
    """

    def parts(policy: Array, exact: bool) -> tuple[Array, Array]:
        if not exact:
            return expected_parts(LOTTERY, policy, group_size)
        advantage = LOTTERY.means - policy @ LOTTERY.means
        return exact_parts(policy, (group_size - 1) / group_size * advantage)

    old = np.array([0.8, 0.2])
    maxima, ascents, counts = [], [], []
    for exact in (False, True):
        policy, count = old, 0
        maxima.append(float(maximise_clipped(old, *parts(old, exact), eps)[1]))
        ascents.append(float(ascend_clipped(old, *parts(old, exact), eps, 0.1, 64)[1]))
        while policy[1] < 0.99:
            policy, count = maximise_clipped(policy, *parts(policy, exact), eps), count + 1
        counts.append(count)
    rows = []
    for name, (noisy, exact_value), slower in (
        ("lottery, p = 0.2, G = 8: p at the surrogate's maximum", maxima, maxima[0] < maxima[1]),
        ("  p after 64 gradient steps of 0.1 on it", ascents, ascents[0] < ascents[1]),
        ("  maximisations until p > 0.99", counts, counts[0] > counts[1]),
    ):
        measured = f"whole returns {noisy:.4g}, exact advantages {exact_value:.4g}"
        numbers = {"whole_returns": noisy, "exact_advantages": exact_value}
        rows.append(Check(name, measured, numbers, "whole returns: slower", bool(slower)))
    return rows


def lower_bound_rows(generator: np.random.Generator, n: int) -> list[Check]:
    """
    Check that in a single turn the expected surrogate is a lower bound of the improvement: its maximum cannot lower J.

    :param generator: source of randomness
    :param n: number of random bandits with three arms, of three heavy-tailed payoffs each
    :return: rows
    """
    excess, gains, losses = [], [], dict.fromkeys(_STEP_SIZES, 0)
    for _ in range(n):
        bandit = Bandit(generator.standard_normal((3, 3)) ** 3, generator.dirichlet(np.ones(3), 3))
        old, size = softmax(generator.standard_normal(3)), int(generator.integers(2, 5))
        up, down = expected_parts(bandit, old, size)
        for eps in _EPS:
            new = maximise_clipped(old, up, down, eps)
            value = clipped_value(new / old, up, down, eps) - clipped_value(np.ones(3), up, down, eps)
            gains.append((new - old) @ bandit.means)
            excess.append(value - (size - 1) / size * gains[-1])
        for step_size in _STEP_SIZES:
            gain = (ascend_clipped(old, up, down, 0.2, step_size, 10) - old) @ bandit.means
            losses[step_size] += bool(gain < -TOLERANCE)
    worst, lowered = float(np.max(excess)), int(np.sum(np.array(gains) < -TOLERANCE))
    bound = "random bandits: surrogate less (G-1)/G of the improvement"
    maximum = "  maximising the surrogate (eps 0.1, 0.2, 0.5) lowers J"
    ascent, counts = "  10 gradient steps of 0.1/1/10 on it (eps 0.2) lower J", "/".join(map(str, losses.values()))
    return [
        Check(bound, f"at most {worst:.1e}", {"worst": worst}, "at most 0", worst < TOLERANCE),
        Check(maximum, f"{lowered} of {len(gains):,}", {"lowered": lowered}, "0", lowered == 0),
        Check(ascent, f"{counts} of {n:,} each", {str(size): count for size, count in losses.items()}),
    ]


def normalisation_rows() -> list[Check]:
    """
    Check division by the standard deviation of the group, as GRPO does it, and of the batch.

    :return: rows about the lottery, and about two contexts of different scale with shared logits
    """
    old = np.array([0.5, 0.5])
    slopes = {
        kind: np.array([logit_gradient(expected_parts(LOTTERY, old, size, kind), old) for size in range(2, 9)])
        for kind in ("none", "group")
    }
    changes = (softmax(np.log(old) + 0.01 * slopes["group"]) - old) @ LOTTERY.means
    batches = {str(n): float(batch_normalised_gradient(LOTTERY, old, 2, n)[1]) for n in (1, 4, 8, 16, 24)}
    by_batch = ", ".join(f"{value:+.3f}" for value in batches.values())
    return [
        _sign("lottery, p = 0.5, G = 2..8: slope towards the better arm", slopes["none"][:, 1], 1),
        _sign("  divided by the group's standard deviation", slopes["group"][:, 1], -1),
        _sign("  change of J by one step of 0.01 along it", changes, -1),
        Check("  by that of a batch of 1, 4, 8, 16, 24 groups of 2", by_batch, batches),
        _context_row(old),
    ]


def _sign(claim: str, values: Array, sign: int) -> Check:
    measured = f"{values.min():+.4f} to {values.max():+.4f}"
    numbers = {"values": values.tolist()}
    return Check(claim, measured, numbers, "positive" if sign > 0 else "negative", bool((sign * values > 0).all()))


def _context_row(old: Array) -> Check:
    """Check two contexts with shared logits: A pays 10 and B 0 in 40% of the episodes, A 0 and B 1 in the others."""
    contexts = {0.4: Bandit(np.array([[10.0], [0.0]]), np.ones((2, 1))), 0.6: Bandit(np.eye(2)[:, 1:], np.ones((2, 1)))}
    slope = {
        kind: float(sum(w * logit_gradient(expected_parts(c, old, 4, kind), old)[0] for w, c in contexts.items()))
        for kind in ("none", "group")
    }
    measured = f"plain {slope['none']:+.3f}, by the group's std {slope['group']:+.3f}"
    holds = slope["none"] > 0 > slope["group"]
    claim = "two contexts, 10 for A (40%) or 1 for B, same logits: slope of A"
    return Check(claim, measured, slope, "opposite signs", holds)
