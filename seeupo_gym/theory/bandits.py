"""Single-turn tasks with random payoffs: the effects of groups, clipping and normalisation, by enumerating groups."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from seeupo_gym.agents.method.advantages import group_relative_advantages
from seeupo_gym.theory.mdp import Array


@dataclass(frozen=True)
class Bandit:
    """
    A bandit with A arms, each of which has K possible payoffs.

    :param payoffs: shape (A, K)
    :param chances: their probabilities, shape (A, K)
    """

    payoffs: Array
    chances: Array

    @property
    def means(self) -> Array:
        """Expected payoff of each arm, shape (A,)."""
        return np.asarray((self.payoffs * self.chances).sum(axis=1))


# The first arm pays 0. The second pays 1.1 on average: -1 nine times out of ten, 20 otherwise.
LOTTERY = Bandit(np.array([[0.0, 0.0], [-1.0, 20.0]]), np.array([[1.0, 0.0], [0.9, 0.1]]))


def multisets(chances: Array, size: int) -> tuple[NDArray[np.intp], Array]:
    """
    Enumerate the outcomes of a number of independent draws whose order does not matter.

    :param chances: probability of each outcome, shape (n,)
    :param size: number of draws
    :return: the outcomes, shape (multisets, size), and their multinomial probabilities, shape (multisets,)
    """
    drawn = np.array(list(combinations_with_replacement(range(len(chances)), size)), dtype=np.intp)
    counts = (drawn[:, :, None] == np.arange(len(chances))).sum(axis=1)
    factorial = np.cumprod(np.maximum(np.arange(size + 1.0), 1.0))
    return drawn, factorial[size] / factorial[counts].prod(axis=1) * (chances**counts).prod(axis=1)


def expected_parts(bandit: Bandit, policy: Array, group_size: int, normalize: str = "none") -> tuple[Array, Array]:
    """
    Compute the expected positive and negative parts of each arm's group-relative advantages, ``E[max(+-M, 0) 1{a}]``.

    :param bandit: the task
    :param policy: shape (A,)
    :param group_size: G
    :param normalize: as in :func:`~seeupo_gym.agents.method.advantages.group_relative_advantages`: "none" or "group"
    :return: up and down, each of shape (A,), see :mod:`~seeupo_gym.theory.surrogates`
    """
    groups, advantages, weight = _groups(bandit, policy, group_size, normalize)
    arms, shares = groups // bandit.payoffs.shape[1], advantages * weight[:, None] / group_size
    up = np.bincount(arms.ravel(), np.maximum(shares, 0.0).ravel(), len(policy))
    down = np.bincount(arms.ravel(), np.maximum(-shares, 0.0).ravel(), len(policy))
    return up.astype(np.float64), down.astype(np.float64)


def logit_gradient(parts: tuple[Array, Array], policy: Array) -> Array:
    """Compute the REINFORCE gradient ``E[M (1{a} - pi(a))]`` with respect to the logits, shape (A,)."""
    weighted = parts[0] - parts[1]
    return np.asarray(weighted - policy * weighted.sum())


def batch_normalised_gradient(bandit: Bandit, policy: Array, group_size: int, n_groups: int) -> Array:
    """
    Compute the expected REINFORCE gradient if advantages are divided by the standard deviation of their batch.

    All batches of groups are enumerated.

    :param bandit: the task
    :param policy: shape (A,)
    :param group_size: G
    :param n_groups: number of groups in the batch; 1 is division by the standard deviation of the group
    :return: gradient with respect to the logits, shape (A,)
    """
    groups, advantages, weight = _groups(bandit, policy, group_size, "none")
    arms = groups // bandit.payoffs.shape[1] == np.arange(len(policy))[:, None, None]
    pushes = (arms * advantages).mean(axis=2).T  # of each kind of group, shape (kinds, A)
    batches, chance = multisets(weight, n_groups)
    std = np.sqrt((advantages**2).mean(axis=1)[batches].mean(axis=1))
    scale = np.divide(chance, std, out=np.zeros_like(std), where=std > 0.0)
    weighted = scale @ pushes[batches].mean(axis=1)
    return np.asarray(weighted - policy * weighted.sum())


def _groups(bandit: Bandit, policy: Array, group_size: int, normalize: str) -> tuple[NDArray[np.intp], Array, Array]:
    """Enumerate all possible groups: outcomes arm * K + payoff, advantages, each (groups, G), and probabilities."""
    chances = (policy[:, None] * bandit.chances).ravel()
    possible = np.flatnonzero(chances)
    drawn, weight = multisets(chances[possible], group_size)
    groups = possible[drawn]
    advantages = group_relative_advantages(bandit.payoffs.ravel()[groups], normalize).advantages
    return groups, advantages, weight
