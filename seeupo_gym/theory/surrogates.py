"""
The expected clipped surrogate of one turn, as an exact function of the policy.

Whole-return advantages M vary for the same action. So ``E[min(rho M, clip(rho) M)]`` (arXiv:2602.06554, eq. 6, in
expectation) is not ``min(rho A, clip(rho) A)`` with A = E[M]. It depends on M only through two numbers for each action,
the expected positive and negative parts of M, times the probability of the action::

    up_a = E[max(M, 0) 1{a}],   down_a = E[max(-M, 0) 1{a}],   up_a - down_a = pi_old(a) A(a)
    L = sum_a up_a min(rho_a, 1 + eps) - down_a max(rho_a, 1 - eps),   rho_a = pi(a) / pi_old(a)

Hence the slope in rho_a is ``up`` below the clip range, ``up - down`` inside, and ``-down`` above it. The exact
advantage would give 0 on the side that it pushes to; the noise instead pulls ratios back into the range. As L is below
its unclipped form, it is a lower bound of the improvement, whatever the noise: ``L <= sum_a pi(a) A(a)``.

All arrays have shape (..., A); leading axes are states.
"""

from __future__ import annotations

import numpy as np

from seeupo_gym.theory.mdp import Array, softmax


def exact_parts(policy: Array, advantage: Array) -> tuple[Array, Array]:
    """Compute up and down of an advantage without noise."""
    return policy * np.maximum(advantage, 0.0), policy * np.maximum(-advantage, 0.0)


def clipped_value(ratio: Array, up: Array, down: Array, eps: float) -> Array:
    """
    Compute the expected surrogate L of the module's docstring.

    :param ratio: rho
    :param up: expected positive part of M
    :param down: expected negative part of M
    :param eps: clip range
    :return: shape (...)
    """
    return np.asarray((up * np.minimum(ratio, 1.0 + eps) - down * np.maximum(ratio, 1.0 - eps)).sum(axis=-1))


def maximise_clipped(old: Array, up: Array, down: Array, eps: float) -> Array:
    """
    Find a policy that maximises the expected surrogate exactly.

    L is concave and piecewise linear in each action's probability, so the steepest pieces get probability first: below
    the clip range (slope up / pi_old), inside ((up - down) / pi_old), above (-down / pi_old).

    :param old: the policy that collected, shape (..., A)
    :param up: expected positive part of M
    :param down: expected negative part of M
    :param eps: clip range
    :return: shape (..., A); the old policy where no action has any advantage
    """
    share = np.divide(1.0, old, out=np.zeros_like(old), where=old > 0.0)
    slopes = np.concatenate([up * share, (up - down) * share, -down * share], axis=-1)
    room = np.concatenate([old * (1.0 - eps), old * 2.0 * eps, (old > 0.0) * 1.0], axis=-1)
    steepest = np.argsort(-slopes, axis=-1, kind="stable")
    room = np.take_along_axis(room, steepest, axis=-1)
    filled = np.clip(1.0 - (np.cumsum(room, axis=-1) - room), 0.0, room)
    pieces = np.empty_like(filled)
    np.put_along_axis(pieces, steepest, filled, axis=-1)
    new = pieces.reshape(*old.shape[:-1], 3, -1).sum(axis=-2)
    return np.where(((up > 0.0) | (down > 0.0)).any(axis=-1, keepdims=True), new, old)


def ascend_clipped(old: Array, up: Array, down: Array, eps: float, step_size: float, n_steps: int) -> Array:
    """
    Ascend the gradient of the expected surrogate, in the logits of a softmax.

    :param old: the policy that collected, shape (..., A)
    :param up: expected positive part of M
    :param down: expected negative part of M
    :param eps: clip range
    :param step_size: learning rate
    :param n_steps: number of gradient steps
    :return: shape (..., A)
    """
    logits, policy = np.log(old), old
    for _ in range(n_steps):
        ratio = policy / old
        slope = np.where(ratio < 1.0 + eps, up, 0.0) - np.where(ratio > 1.0 - eps, down, 0.0)  # d L / d rho
        gradient = slope * ratio
        logits = logits + step_size * (gradient - policy * gradient.sum(axis=-1, keepdims=True))
        policy = softmax(logits)
    return policy
