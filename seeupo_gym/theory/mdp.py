"""
Tabular finite-horizon MDPs, solved exactly: by dynamic programming, and by enumerating all trajectories.

Arrays have any leading axes for a batch of MDPs; T turns, S states, A actions. A policy is an array of
probabilities, shape (..., T, S, A). Episodes are undiscounted; :func:`discounted` moves a discount into the rewards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Mdp:
    """
    One MDP, or a batch of them.

    :param start: distribution of the initial state, shape (..., S)
    :param transitions: P(s' | t, s, a), shape (..., T, S, A, S); those of the last turn have no effect
    :param rewards: R(t, s, a), shape (..., T, S, A)
    :param stopping: whether the last state means that the episode is over
    """

    start: Array
    transitions: Array
    rewards: Array
    stopping: bool = False

    def __getitem__(self, k: int) -> Mdp:
        """Take the k-th MDP of a batch, as a batch of length 1."""
        part = slice(k, k + 1)
        return replace(self, start=self.start[part], transitions=self.transitions[part], rewards=self.rewards[part])

    @property
    def shape(self) -> tuple[int, int, int]:
        """T, S and A."""
        n_turns, n_states, n_actions = self.rewards.shape[-3:]
        return n_turns, n_states, n_actions


def random_mdps(
    generator: np.random.Generator, n: int, n_turns: int, n_states: int, n_actions: int, stopping: bool = False
) -> Mdp:
    """
    Draw random MDPs. Rewards are standard normal. Transitions are uniformly distributed (Dirichlet) in every other MDP;
    in the rest they are deterministic, so that some states cannot be reached.

    :param generator: source of randomness
    :param n: number of MDPs
    :param n_turns: T
    :param n_states: S
    :param n_actions: A
    :param stopping: make the last state the end of the episode, where action 0 leads at any turn
    :return: a batch, with one leading axis
    """
    shape = (n, n_turns, n_states, n_actions)
    live = n_states - stopping
    start, transitions = np.zeros((n, n_states)), np.zeros((*shape, n_states))
    start[:, :live] = generator.dirichlet(np.ones(live), n)
    transitions[..., :live] = generator.dirichlet(np.ones(live), shape)
    transitions[1::2] = np.eye(n_states)[transitions[1::2].argmax(axis=-1)]
    rewards = generator.standard_normal(shape)
    if stopping:
        over = np.eye(n_states)[-1]
        transitions[:, :, :, 0], transitions[:, :, -1] = over, over
        rewards[:, :, -1] = 0.0
    return Mdp(start, transitions, rewards, stopping)


def softmax(logits: Array) -> Array:
    """Compute the softmax over the last axis; a logit may be -inf."""
    exponential = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(exponential / exponential.sum(axis=-1, keepdims=True))


def greedy(values: Array) -> Array:
    """Put all probability on the best action, the first among equals; shape (..., A)."""
    return np.asarray(np.eye(values.shape[-1])[values.argmax(axis=-1)])


def discounted(mdp: Mdp, gamma: float) -> Mdp:
    """Multiply the rewards by ``gamma^t``: the undiscounted return is then the discounted return of the given MDP."""
    return replace(mdp, rewards=mdp.rewards * gamma ** np.arange(mdp.shape[0], dtype=np.float64)[:, None, None])


def state_distributions(mdp: Mdp, policy: Array) -> Array:
    """
    Compute state probabilities by the forward recursion ``d_{t+1}(s') = sum_{s,a} d_t(s) pi_t(a|s) P(s'|t,s,a)``.

    :param mdp: the MDPs
    :param policy: shape (..., T, S, A)
    :return: probability of each state at each turn, shape (..., T, S)
    """
    visits = [mdp.start]
    for turn in range(mdp.shape[0] - 1):
        step = policy[..., turn, :, :, None] * mdp.transitions[..., turn, :, :, :]
        visits.append(np.einsum("...s,...sap->...p", visits[-1], step))
    return np.stack(np.broadcast_arrays(*visits), axis=-2)


def action_values(mdp: Mdp, policy: Array | None) -> Array:
    """
    Compute Q by the backward recursion ``Q_t(s,a) = R(t,s,a) + sum_s' P(s'|t,s,a) V_{t+1}(s')``.

    ``V`` is ``sum_a pi(a|s) Q``, or ``max_a Q`` for the optimum (Bellman 1957).

    :param mdp: the MDPs
    :param policy: shape (..., T, S, A); None: the optimal one
    :return: Q, shape (..., T, S, A)
    """
    values: list[Array] = []
    for turn in range(mdp.shape[0] - 1, -1, -1):
        q = mdp.rewards[..., turn, :, :]
        if values:
            after = values[0]
            best = after.max(axis=-1) if policy is None else (policy[..., turn + 1, :, :] * after).sum(axis=-1)
            q = q + np.einsum("...sap,...p->...sa", mdp.transitions[..., turn, :, :, :], best)
        values.insert(0, q)
    return np.stack(np.broadcast_arrays(*values), axis=-3)


def expected_return(mdp: Mdp, policy: Array | None) -> Array:
    """
    Compute the return J.

    :param mdp: the MDPs
    :param policy: shape (..., T, S, A); None: the optimal one
    :return: shape (...)
    """
    first = action_values(mdp, policy)[..., 0, :, :]
    values = first.max(axis=-1) if policy is None else (policy[..., 0, :, :] * first).sum(axis=-1)
    return np.asarray((mdp.start * values).sum(axis=-1))


def deterministic_policies(n_turns: int, n_states: int, n_actions: int) -> Array:
    """Enumerate all deterministic policies, for brute force: shape (A^(T S), T, S, A)."""
    choices = np.indices((n_actions,) * (n_turns * n_states)).reshape(n_turns, n_states, -1)
    return np.asarray(np.eye(n_actions)[np.moveaxis(choices, -1, 0)])


class Paths:
    """
    All trajectories ``(s_0, a_0, ..., s_{T-1}, a_{T-1})`` of a batch of MDPs.

    :param mdp: MDPs with one leading axis of length n
    """

    chance: Array
    """Probability of each path without the policy's part, ``mu(s_0) prod_t P(s_{t+1}|t,s_t,a_t)``: (n, (S A)^T)."""
    returns: Array
    """``sum_t R(t,s_t,a_t)``, same shape."""

    def __init__(self, mdp: Mdp) -> None:
        self.n_turns, self.n_states, self.n_actions = mdp.shape
        self.n, self.pairs = len(mdp.start), self.n_states * self.n_actions
        first = np.broadcast_to(mdp.start[:, :, None], (self.n, self.n_states, self.n_actions))
        self.chance = self.spread(first, 0)
        for turn in range(self.n_turns - 1):
            # Axes: what came before, (s_t, a_t), s_{t+1}, and a_{t+1} with all that follows.
            grid = self.chance.reshape(self.n, self.pairs**turn, self.pairs, self.n_states, -1)
            step = mdp.transitions[:, turn].reshape(self.n, 1, self.pairs, self.n_states, 1)
            self.chance = (grid * step).reshape(self.n, -1)
        self.returns = sum((self.spread(mdp.rewards[:, t], t) for t in range(self.n_turns)), np.zeros(()))

    def spread(self, table: Array, turn: int) -> Array:
        """
        Look up a table along the paths.

        :param table: a value for each state and action of a turn, shape (n, S, A)
        :param turn: the turn
        :return: ``table[s_t, a_t]`` of each path, shape (n, (S A)^T)
        """
        shape = (self.n, self.pairs**turn, self.pairs, self.pairs ** (self.n_turns - turn - 1))
        return np.broadcast_to(table.reshape(self.n, 1, self.pairs, 1), shape).reshape(self.n, -1)

    def gather(self, values: Array, turn: int) -> Array:
        """
        Sum over all paths through each state and action of a turn.

        :param values: shape (n, (S A)^T)
        :param turn: the turn
        :return: shape (n, S, A)
        """
        grid = values.reshape(self.n, self.pairs**turn, self.pairs, -1)
        return np.asarray(grid.sum(axis=(1, 3)).reshape(self.n, self.n_states, self.n_actions))

    def probability(self, policy: Array) -> Array:
        """
        Compute the probability of each path.

        :param policy: shape (n, T, S, A)
        :return: shape (n, (S A)^T)
        """
        probability = self.chance
        for turn in range(self.n_turns):
            probability = probability * self.spread(policy[:, turn], turn)
        return probability
