"""Tasks, which play an episode in each of their lanes."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from helpers import CHAIN, TOOL, TRAP
from seeupo_gym.envs import ENV_IDS


def _variants():
    for env_id in ENV_IDS:
        levels = gym.make(env_id).unwrapped.task.levels
        yield from ((env_id, {"level": level}) for level in levels) if levels else [(env_id, {})]
    yield TRAP, {"turns": 2, "arms": 5}
    yield CHAIN, {"turns": 3, "actions": 2, "reward": "all"}
    yield from ((TOOL, {"level": level, "flat": True}) for level in gym.make(TOOL).unwrapped.task.levels)


# Every task at every level, and some with other arguments.
VARIANTS = [
    pytest.param(env_id, kwargs, id="-".join([env_id.split("/")[1], *map(str, kwargs.values())]))
    for env_id, kwargs in _variants()
]
each_variant = pytest.mark.parametrize(("env_id", "kwargs"), VARIANTS)


def any_actions(space, rng, n=None):
    """Draw ``n`` actions, or a single one, whether they are valid or not."""
    choices = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return rng.integers(choices, size=None if n is None else (n, *np.shape(choices)))


def expert(task, lanes):
    """The policy of the task's own expert."""
    return task.expert_actions(lanes)


def play(task, policy=expert):
    """
    Play the episodes of all lanes to their ends, from where they are.

    :param policy: gives the actions of some lanes of a task
    :return: returns and successes
    """
    live, returns = np.arange(task.n_lanes), np.zeros(task.n_lanes)
    successes = np.zeros(task.n_lanes, dtype=bool)
    while live.size:
        rewards, dones, successes[live] = task.step(policy(task, live), live)
        returns[live] += rewards
        live = live[~dones]
    return returns, successes


def with_noise_of_their_own(task, first_turn):
    """
    Begin episodes of one task seed, whose lanes share what is random unless they have noise seeds of their own.

    :param first_turn: takes a turn of the task, and returns what came of it in each lane
    :return: the same, with a noise seed for each lane
    """

    def begin(noise_seeds):
        task.reset(np.full(task.n_lanes, 3), noise_seeds)
        observations = task.observe()
        assert (observations == observations[0]).all()
        return first_turn(task)

    shared = begin(None)
    assert (shared == shared[0]).all()
    own = begin(np.arange(task.n_lanes))
    np.testing.assert_array_equal(begin(np.arange(task.n_lanes)), own)
    return own
