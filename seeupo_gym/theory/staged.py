"""Backward induction from samples, turn by turn with a fresh budget each (PSDP, Bagnell et al. 2003)."""

from __future__ import annotations

import numpy as np

from seeupo_gym.theory.mdp import Array, Mdp, Paths, greedy, state_distributions
from seeupo_gym.theory.updates import EXACT, greedy_step, sweep


def staged_policy(generator: np.random.Generator, mdp: Mdp, n_episodes: int) -> Array:
    """
    Train the turns in stages, the last one first.

    A turn is trained on episodes that are played uniformly up to and including the turn, and then by the finished
    greedy continuation. It takes the action with the highest mean reward-to-go. Then comes the turn before it.

    Tabular episodes are independent, so the numbers of episodes that take each way are multinomial. They are drawn as
    such, which has the same distribution as playing the episodes one by one, at no cost per episode.

    :param generator: source of randomness
    :param mdp: n MDPs
    :param n_episodes: episodes for each turn
    :return: a deterministic policy, shape (n, T, S, A)
    """
    n_turns, n_states, n_actions = mdp.shape
    n = len(mdp.start)
    uniform = np.full((n, n_turns, n_states, n_actions), 1.0 / n_actions)
    visits = state_distributions(mdp, uniform)
    policy = uniform.copy()
    for turn in range(n_turns - 1, -1, -1):
        pairs = (visits[:, turn, :, None] * uniform[:, turn]).reshape(n, -1)
        tried = generator.multinomial(n_episodes, pairs).reshape(n, n_states, n_actions)
        total = tried * mdp.rewards[:, turn]
        if turn + 1 < n_turns:
            where = generator.multinomial(tried, mdp.transitions[:, turn])  # numbers of episodes, (n, S, A, next S)
        for later in range(turn + 1, n_turns):
            reward = (policy[:, later] * mdp.rewards[:, later]).sum(axis=-1)
            total = total + np.einsum("nsap,np->nsa", where, reward)
            if later + 1 < n_turns:
                step = np.einsum("nsa,nsap->nsp", policy[:, later], mdp.transitions[:, later])
                where = generator.multinomial(where, step[:, None, None]).sum(axis=3)
        mean = np.divide(total, tried, out=np.full(total.shape, -np.inf), where=tried > 0)
        policy[:, turn] = greedy(mean)
    return policy


def sampled_sweep(generator: np.random.Generator, paths: Paths, n_episodes: int) -> Array:
    """
    Make one reverse sweep on one sample of episodes, which are played uniformly.

    Each turn takes the action with the highest mean of ``F (R - b)``, with the factor not clipped. The turns share the
    data, and pay for it with the variance of the weights F.

    :param generator: source of randomness
    :param paths: the trajectories of n MDPs
    :param n_episodes: episodes in all
    :return: a deterministic policy, shape (n, T, S, A)
    """
    shape = (paths.n, paths.n_turns, paths.n_states, paths.n_actions)
    uniform = np.full(shape, 1.0 / paths.n_actions)
    counts = generator.multinomial(n_episodes, paths.probability(uniform))
    order = range(paths.n_turns - 1, -1, -1)
    return sweep(paths, uniform, order, greedy_step, EXACT, weights=counts / n_episodes)
