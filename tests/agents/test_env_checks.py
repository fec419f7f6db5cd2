"""What is checked of the training environment while it is used."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from seeupo_gym import SeeUPO


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
