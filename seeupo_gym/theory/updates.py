"""Sweeps over the turns, on exact expectations: in any order, with the factor of eq. 8 exact, clipped or left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from seeupo_gym.theory.mdp import Array, Mdp, Paths, action_values, expected_return, greedy, softmax
from seeupo_gym.theory.surrogates import maximise_clipped

EXACT, PAPER, NO_FACTOR = np.inf, 0.2, 0.0
"""Values of ``factor_clip``: the product of ratios as it is, clipped as in the paper, and clipped to 1."""


Tie = Literal["nothing", "states", "turns"]
"""A constraint on policies: none; all states of a turn share one, so the turn is blind to them; all turns share one."""


class TurnData(NamedTuple):
    """Data of the update of one turn, each of shape (n, S, A), or (n, 1, A) if states are tied."""

    old: Array
    """The policy that collected the data."""
    current: Array
    """The policy to start from: the old one, unless it is tied to a turn that was updated before."""
    up: Array
    """``E_old[F max(R - b, 0) 1{s,a}]``."""
    down: Array
    """``E_old[F max(b - R, 0) 1{s,a}]``."""
    mass: Array
    """``d_old(s) pi_old(a|s)``."""

    @property
    def advantage(self) -> Array:
        """``E_old[F (R - b) | s,a]``. In reverse order it is Q of the mixed policy, up to a constant of the state."""
        known = self.mass > 1e-200
        return np.divide(self.up - self.down, self.mass, out=np.zeros_like(self.mass), where=known)


Improve = Callable[[TurnData], Array]


def clipped_maximum(eps: float) -> Improve:
    """Make the update that maximises the expected clipped surrogate of eq. 6."""
    return lambda turn: maximise_clipped(turn.old, turn.up, turn.down, eps)


def exponentiated_step(step_size: float) -> Improve:
    """Make the update ``pi proportional to pi exp(step_size Q)``: the natural gradient of a softmax (Kakade 2001)."""
    return lambda turn: _reweight(turn.current, step_size * turn.advantage)


def gradient_step(step_size: float) -> Improve:
    """Make the update by one plain gradient step on the turn's surrogate, in the logits."""

    def improve(turn: TurnData) -> Array:
        weighted = (turn.up - turn.down) * _ratio(turn.current, turn.old)
        gradient = weighted - turn.current * weighted.sum(axis=-1, keepdims=True)
        return _reweight(turn.current, step_size * gradient)

    return improve


def greedy_step(turn: TurnData) -> Array:
    """Take the best action of each state, and avoid actions that the data lack."""
    return greedy(np.where(turn.mass > 0.0, turn.advantage, -np.inf))


def _reweight(policy: Array, exponent: Array) -> Array:
    return softmax(np.log(policy, out=np.full_like(policy, -np.inf), where=policy > 0.0) + exponent)


def _ratio(new: Array, old: Array) -> Array:
    return np.divide(new, old, out=np.ones_like(new), where=old > 0.0)


def update_factor(factor: Array, ratio: Array, factor_clip: float) -> Array:
    """Apply eq. 8 (arXiv:2602.06554): ``F <- clip(F clip(rho, 1 - delta, 1 + delta), 1 - delta, 1 + delta)``."""
    low, high = 1.0 - factor_clip, 1.0 + factor_clip
    return np.clip(factor * np.clip(ratio, low, high), low, high)


def baseline(paths: Paths, probability: Array) -> Array:
    """Compute ``E[R | s_0]`` along the paths, the mean of an infinitely large group: (n, (S A)^T)."""
    total = paths.gather(probability * paths.returns, 0).sum(axis=2, keepdims=True)
    chance = paths.gather(probability, 0).sum(axis=2, keepdims=True)
    mean = np.divide(total, chance, out=np.zeros_like(total), where=chance > 0.0)
    return paths.spread(np.repeat(mean, paths.n_actions, axis=2), 0)


def joint_surrogate(paths: Paths, old: Array, new: Array) -> Array:
    """
    Compute the joint surrogate ``E_old[rho_1 ... rho_T (R - b)]``, which in expectation is ``J(new) - J(old)``.

    :param paths: the trajectories of n MDPs
    :param old: the policy that collected, shape (n, T, S, A)
    :param new: the policy of the ratios, same shape
    :return: shape (n,)
    """
    weighted = paths.probability(old)
    weighted = weighted * (paths.returns - baseline(paths, weighted))
    for turn in range(paths.n_turns):
        weighted = weighted * paths.spread(_ratio(new[:, turn], old[:, turn]), turn)
    return np.asarray(weighted.sum(axis=1))


def block_updates(
    paths: Paths,
    policy: Array,
    order: Sequence[int],
    improve: Improve,
    factor_clip: float,
    tie: Tie = "nothing",
    weights: Array | None = None,
    n_sweeps: int = 1,
    later_turns: bool = True,
) -> Iterator[Array]:
    """
    Make the updates of one iteration of Algorithm 1 (arXiv:2602.06554), one turn after the other.

    Each turn improves on ``E_old[rho_t F (R - b)]``. F is the product of the ratios of the turns that were updated
    before. From the second sweep on it has also the ratios of the turns still to come, as the sweep before left them.

    :param paths: the trajectories of n MDPs
    :param policy: the policy that collects, shape (n, T, S, A)
    :param order: turns, first to last
    :param improve: the update of one turn
    :param factor_clip: delta of eq. 8; also ``EXACT``, or ``NO_FACTOR``, with which the order has no effect and all
        turns are in effect updated at the same time
    :param tie: the states or turns that share a policy, in ``policy`` and after an update
    :param weights: shares of the paths in a sample, shape (n, (S A)^T); None: their exact probabilities
    :param n_sweeps: how often all turns are updated, always with the same data
    :param later_turns: whether F has the ratios of the turns still to come; without them it starts at 1 in each sweep
    :return: the policy after the update of each turn, shape (n, T, S, A): one array, which the next update changes
    """
    new = policy.copy()
    probability = paths.probability(policy) if weights is None else weights
    advantage = paths.returns - baseline(paths, probability)
    ones = np.ones_like(probability)

    def multiply(factor: Array, turn: int) -> Array:
        return update_factor(factor, paths.spread(_ratio(new[:, turn], policy[:, turn]), turn), factor_clip)

    for index in range(n_sweeps):
        later = dict.fromkeys(order, ones)
        if index > 0 and later_turns:
            for after, turn in pairwise(reversed(order)):
                later[turn] = multiply(later[after], after)
        factor = ones
        for turn in order:
            weighted = probability * update_factor(factor, later[turn], factor_clip) * advantage
            parts = [
                paths.gather(part, turn)
                for part in (np.maximum(weighted, 0.0), np.maximum(-weighted, 0.0), probability)
            ]
            old, current = policy[:, turn], new[:, turn]
            if tie == "states":
                old, current, parts = old[:, :1], current[:, :1], [part.sum(axis=1, keepdims=True) for part in parts]
            improved = improve(TurnData(old, current, *parts))
            if tie == "turns":
                new[:] = improved[:, None]
            else:
                new[:, turn] = improved
            yield new
            if turn != order[-1]:  # no turn uses the ratios of the last one
                factor = multiply(factor, turn)


def sweep(
    paths: Paths,
    policy: Array,
    order: Sequence[int],
    improve: Improve,
    factor_clip: float,
    tie: Tie = "nothing",
    weights: Array | None = None,
) -> Array:
    """
    Make one iteration of Algorithm 1 with a single sweep, see :func:`block_updates`.

    :param paths: the trajectories of n MDPs
    :param policy: the policy that collects, shape (n, T, S, A)
    :param order: turns, first to last
    :param improve: the update of one turn
    :param factor_clip: delta of eq. 8, ``EXACT`` or ``NO_FACTOR``
    :param tie: the states or turns that share a policy, in ``policy`` and after the sweep
    :param weights: shares of the paths in a sample, shape (n, (S A)^T); None: their exact probabilities
    :return: the new policy, shape (n, T, S, A)
    """
    return list(block_updates(paths, policy, order, improve, factor_clip, tie, weights))[-1]


def greedy_sweep(mdp: Mdp, policy: Array, order: Sequence[int], simultaneous: bool = False) -> Array:
    """
    Maximise each turn exactly: it takes the best action by the exact Q of the policies of the other turns.

    :param mdp: the MDPs
    :param policy: shape (..., T, S, A)
    :param order: turns, first to last
    :param simultaneous: whether all turns use the Q of the policy before the sweep (policy iteration, Howard 1960)
    :return: the new policy, shape (..., T, S, A)
    """
    new = policy.copy()
    for turn in order:
        q = action_values(mdp, policy if simultaneous else new)
        new[..., turn, :, :] = greedy(q[..., turn, :, :])
    return new


def factor_estimates(mdp: Mdp, paths: Paths, old: Array, new: Array, factor_clip: float) -> tuple[Array, Array]:
    """
    Estimate the return with turns t, ..., T-1 replaced (arXiv:2602.06554, eq. 4), and compute it exactly::

        E_old[ rho_t F_{>t} (R - b) ] + E_old[b] = J(old before t, new from t on)

    :param mdp: n MDPs
    :param paths: their trajectories
    :param old: the policy that collected, shape (n, T, S, A)
    :param new: the policy that replaces it from the last turn on, same shape
    :param factor_clip: delta of eq. 8 for the factor F
    :return: estimates and exact returns, each of shape (T + 1, n): for t = T (nothing replaced), T-1, ..., 0
    """
    probability = paths.probability(old)
    b = baseline(paths, probability)
    base = (probability * b).sum(axis=1)
    factor = np.ones_like(probability)
    estimates, exact, mixed = [base], [expected_return(mdp, old)], old.copy()
    for turn in range(paths.n_turns - 1, -1, -1):
        ratio = paths.spread(_ratio(new[:, turn], old[:, turn]), turn)
        estimates.append((probability * ratio * factor * (paths.returns - b)).sum(axis=1) + base)
        mixed[:, turn] = new[:, turn]
        exact.append(expected_return(mdp, mixed))
        factor = update_factor(factor, ratio, factor_clip)
    return np.array(estimates), np.array(exact)


def iterate(mdp: Mdp, policy: Array, step: Callable[[Array], Array], n_sweeps: int) -> tuple[Array, Array]:
    """
    Make a number of sweeps, one after the other.

    :param mdp: n MDPs
    :param policy: the first policy, shape (n, T, S, A)
    :param step: function that makes one sweep
    :param n_sweeps: number of sweeps
    :return: the return before and after each sweep, shape (n_sweeps + 1, n), and the last policy
    """
    returns = [expected_return(mdp, policy)]
    for _ in range(n_sweeps):
        policy = step(policy)
        returns.append(expected_return(mdp, policy))
    return np.array(returns), policy
