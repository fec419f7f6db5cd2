"""Same seed, same result, bit for bit; and no global generator is touched."""

import random

import numpy as np
import pytest
import torch as th
from helpers.generators import global_states
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from seeupo_gym import SeeUPO, make_vec

CHAIN = "seeupo_gym/ContextChain-v0"


def train(env, seed=0, **kwargs):
    model = SeeUPO("MlpPolicy", env, n_groups=4, group_size=4, seed=seed, **kwargs).learn(200)
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach()


@pytest.mark.parametrize("env_id", [CHAIN, "seeupo_gym/ToolChain-v0", "FrozenLake-v1"])
@pytest.mark.parametrize("kwargs", [{}, dict(batch_size=5, update_order="random", independent_noise=True)])
def test_same_seed_same_weights(env_id, kwargs):
    first, second = (train(env_id, **kwargs) for _ in range(2))
    assert th.equal(first, second)
    assert not th.equal(first, train(env_id, seed=1, **kwargs))


@pytest.mark.parametrize("env_id", [CHAIN, "FrozenLake-v1"])
@pytest.mark.process
def test_dummy_and_subproc_give_the_same(env_id):
    outcomes = []
    for vec_env_cls in (DummyVecEnv, SubprocVecEnv):
        env = make_vec(env_id, 2, vec_env_cls=vec_env_cls)
        outcomes.append(train(env))
        env.close()
    assert th.equal(*outcomes)


def test_result_does_not_depend_on_earlier_use_of_the_environment():
    env = make_vec(CHAIN, 4)
    env.reset()
    for _ in range(9):
        env.step(np.zeros(4, dtype=int))
    assert th.equal(train(env), train(make_vec(CHAIN, 4)))


def test_global_generators_are_neither_seeded_nor_used():
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002
    th.manual_seed(3)
    before = global_states()
    first = train(CHAIN)
    assert global_states() == before
    th.manual_seed(4)
    assert th.equal(first, train(CHAIN)), "and their state has no influence"


def test_without_a_seed_runs_differ():
    assert not th.equal(train(CHAIN, seed=None), train(CHAIN, seed=None))


def test_number_of_torch_threads_is_restored():
    before = th.get_num_threads()
    train(CHAIN)
    assert th.get_num_threads() == before
