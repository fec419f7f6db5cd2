"""Expectations of group-relative policy gradients, by enumerating all groups of trajectories."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from seeupo_gym.agents.method.advantages import estimate_advantages
from seeupo_gym.theory.mdp import Array, Mdp, Paths, action_values, state_distributions

Estimator = Callable[[Array, NDArray[np.bool_]], Array]
"""Function from rewards and a mask of the turns that were reached, each of shape (groups, G, T), to advantages."""


def policy_gradient(mdp: Mdp, policy: Array) -> Array:
    """
    Compute the gradient of J with respect to the logits (Sutton et al. 2000)::

        dJ / d logits[t,s,a] = d_t(s) pi_t(a|s) (Q_t(s,a) - V_t(s))

    :param mdp: the MDPs
    :param policy: shape (..., T, S, A)
    :return: shape (..., T, S, A)
    """
    q = action_values(mdp, policy)
    advantage = q - (policy * q).sum(axis=-1, keepdims=True)
    return np.asarray(state_distributions(mdp, policy)[..., None] * policy * advantage)


def package_estimator(name: str, gamma: float = 1.0) -> Estimator:
    """
    Make an estimator of :func:`~seeupo_gym.agents.method.advantages.estimate_advantages`, which training uses.

    :param name: "group_mean" (GRAE, arXiv:2602.06554, eq. 9), "leave_one_out" or "reward_to_go"
    :param gamma: discount factor
    :return: the estimator, without normalisation
    """

    def estimate(rewards: Array, reached: NDArray[np.bool_]) -> Array:
        by_turn = np.moveaxis(rewards, 2, 0), np.moveaxis(reached, 2, 0)
        advantages = estimate_advantages(*by_turn, gamma, name, "none").advantages
        return np.asarray(np.broadcast_to(np.moveaxis(advantages, 0, 2), rewards.shape))

    return estimate


def centred_rewards_to_go(rewards: Array, reached: NDArray[np.bool_]) -> Array:
    """
    Centre rewards turn by turn, over the members that reached the turn, and then sum them from turn t on.

    So the number of baselines that an episode is charged depends on when it stops (see the issue verl#7244).
    """
    count = np.maximum(reached.sum(axis=1, keepdims=True), 1)
    centred = np.where(reached, rewards - (rewards * reached).sum(axis=1, keepdims=True) / count, 0.0)
    return np.asarray(np.cumsum(centred[:, :, ::-1], axis=2)[:, :, ::-1])


def group_gradient(mdp: Mdp, policy: Array, group_size: int, estimator: Estimator) -> Array:
    """
    Compute the expectation of the group-relative REINFORCE gradient::

        E[ (1/G) sum_i sum_t A_{i,t} grad log pi_t(a_{i,t} | s_{i,t}) ]

    over groups of G independent episodes from one initial state, by enumerating all G-tuples of trajectories.

    :param mdp: one MDP, a batch of length 1
    :param policy: shape (1, T, S, A)
    :param group_size: G
    :param estimator: advantages of a group
    :return: gradient with respect to the logits, shape (T, S, A)
    """
    n_turns, n_states, n_actions = mdp.shape
    paths = Paths(mdp)
    probability = paths.probability(policy)[0]
    steps = np.unravel_index(np.arange(probability.size), (n_states, n_actions) * n_turns)
    states, actions = np.stack(steps[::2], axis=1), np.stack(steps[1::2], axis=1)
    turns = np.arange(n_turns)
    rewards = mdp.rewards[0, turns, states, actions]
    reached = states < n_states - mdp.stopping
    expected = np.zeros((n_turns, n_states, n_actions))
    for start in np.flatnonzero(mdp.start[0]):
        members = np.flatnonzero((states[:, 0] == start) & (probability > 0.0))
        groups = members[np.indices((len(members),) * group_size).reshape(group_size, -1).T]
        weight = (probability[groups] / mdp.start[0, start]).prod(axis=1) * mdp.start[0, start]
        terms = estimator(rewards[groups], reached[groups]) * weight[:, None, None] / group_size
        # d log pi(a|s) / d logits[s, .] is one at a, less pi(.|s): sum the terms by (t, s, a) first.
        index = (turns * n_states + states[groups]) * n_actions + actions[groups]
        total = np.bincount(index.ravel(), terms.ravel(), expected.size).reshape(expected.shape)
        expected += total - policy[0] * total.sum(axis=-1, keepdims=True)
    return expected


def reached_turn_scale(mdp: Mdp, policy: Array, group_size: int) -> Array:
    """
    Compute the expected gradient of "reward_to_go" with gamma 1.

    Given that member i reached turn t, the number n of members that reached it is 1 + Binomial(G-1, p), independent of
    the action of i there. Only the member's own share 1/n of the baseline does not average out. So each turn's gradient
    is scaled by ::

        c_t(s_0) = 1 - E[1/n] = 1 - (1 - (1-p)^G) / (G p),   p = P(turn t is reached | s_0)

    :param mdp: one MDP, a batch of length 1
    :param policy: shape (1, T, S, A)
    :param group_size: G
    :return: the scaled gradient, shape (T, S, A)
    """
    n_states = mdp.shape[1]
    each = Mdp(np.eye(n_states), mdp.transitions, mdp.rewards)  # a batch with every state as the initial one
    visits = state_distributions(each, policy)
    p = visits[:, :, : n_states - mdp.stopping].sum(axis=2)
    scale = 1.0 - np.divide(1.0 - (1.0 - p) ** group_size, group_size * p, out=np.ones_like(p), where=p > 0.0)
    return np.asarray(np.einsum("k,kt,ktsa->tsa", mdp.start[0], scale, policy_gradient(each, policy)))
