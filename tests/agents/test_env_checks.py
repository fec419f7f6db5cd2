"""What is checked of the training environment while it is used."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from seeupo_gym import SeeUPO
from seeupo_gym.baselines import evaluate
from seeupo_gym.benchmark.watch import watch_episode


class Late(gym.Env):
    """Its episodes have seven turns, whatever it declares."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(3)

    def __init__(self, max_turns=None):
        if max_turns is not None:
            self.max_turns = max_turns

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 0.0, self.steps == 7, False, {}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Late(5),
        lambda: DummyVecEnv([lambda: Late(5)] * 2),
        pytest.param(lambda: SubprocVecEnv([lambda: Late(5)] * 2), marks=pytest.mark.process),
    ],
)
@pytest.mark.parametrize("max_turns", [None, 2, 9])
def test_a_declared_length_that_does_not_hold_is_refused(make, max_turns):
    env = make()
    model = SeeUPO("MlpPolicy", env, n_groups=2, group_size=2, max_turns=max_turns, seed=0)
    with pytest.raises(RuntimeError, match=r"environment 0.* has not ended after 5 turns, .* declares to be the most"):
        model.learn(1)
    env.close()


@pytest.mark.parametrize("declared", [7, 8, None])
def test_a_declared_length_that_holds_is_fine(declared):
    model = SeeUPO("MlpPolicy", Late(declared), n_groups=2, group_size=2, max_turns=3, seed=0).learn(1)
    assert model.num_timesteps == 28


def test_another_environment_has_another_length():
    model = SeeUPO("MlpPolicy", Late(7), n_groups=2, group_size=2, seed=0).learn(1)
    model.set_env(Late(5))
    with pytest.raises(RuntimeError, match="not ended after 5 turns"):
        model.learn(1)


VECTOR = r"is a vector environment of Gymnasium.*: make one with seeupo_gym.make_vec\(id, n_envs\)"


@pytest.mark.parametrize("kind", ["sync", "vector_entry_point"])
def test_vector_environments_of_gymnasium_are_told_from_those_of_sb3(kind, tmp_path):
    env = gym.make_vec("CartPole-v1", 2, vectorization_mode=kind)
    model = SeeUPO("MlpPolicy", "CartPole-v1", n_groups=2, group_size=2, max_turns=3, seed=0)
    model.save(tmp_path / "model")
    for use in (
        lambda: SeeUPO("MlpPolicy", env, max_turns=3),
        lambda: model.set_env(env),
        lambda: SeeUPO.load(tmp_path / "model", env=env),
        lambda: evaluate(model, env),
    ):
        with pytest.raises(ValueError, match=VECTOR):
            use()
    env.close()


@pytest.mark.parametrize("given", [Late, lambda: Late(5), 5, ["CartPole-v1"], spaces.Discrete(2)])
def test_what_is_no_environment_is_refused(given):
    with pytest.raises(ValueError, match="env must be an environment, a vector environment of SB3 or a registered id"):
        SeeUPO("MlpPolicy", given)


@pytest.mark.parametrize("make", [lambda: Late(5), lambda: DummyVecEnv([lambda: Late(5)] * 2)])
def test_evaluation_ends_where_an_episode_is_longer_than_declared(make):
    model = SeeUPO("MlpPolicy", Late(7), n_groups=2, group_size=2, seed=0)
    for play in (lambda: evaluate(model, make(), 3), lambda: list(watch_episode(model, make()))):
        with pytest.raises(RuntimeError, match="not ended after 5 turns"):
            play()
    assert evaluate(model, Late(7), 3).lengths.tolist() == [7, 7, 7]
