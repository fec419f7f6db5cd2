"""State that the seed of a reset does not fix is found, and the training environment is not touched by the search."""

import random
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from helpers.generators import global_states
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from seeupo_gym import SeedQueue, SeeUPO
from seeupo_gym.envs import ENV_IDS
from seeupo_gym.envs.hidden_state import find_hidden_state

WARNING = r"differ in the {}.*: members of a group play different tasks.*self\.np_random"


class Words(gym.Env):
    """Its word is drawn at a reset, by a generator to choose; it shows up in what is chosen."""

    observation_space, action_space, max_turns = spaces.Box(0, 100, (1,)), spaces.Discrete(3), 4
    n_made = 0

    def __init__(self, draw=lambda env: random.randrange(100), shown="reward", masked=False):
        self.draw, self.shown, self.n_resets = draw, shown, 0
        if masked:
            self.action_masks = lambda: np.array([False, True, False])
        self.masked = masked

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.word, self.turn = self.draw(self), 0
        self.n_resets += 1
        return self.see(), {}

    def see(self):
        return np.array([self.word if self.shown == "observation" and self.turn > 1 else 0], dtype=np.float32)

    def step(self, action):
        assert action == 1 or not self.masked
        self.turn += 1
        done = self.turn >= 4 or (self.shown == "end" and self.turn > self.word % 3)
        return self.see(), float(self.word if self.shown == "reward" else 0), done, False, {}


def global_numpy(env):
    return np.random.randint(100)  # noqa: NPY002


def counted(env):
    return env.n_resets % 100


@pytest.mark.parametrize("shown", ["reward", "end", "observation"])
@pytest.mark.parametrize("draw", [lambda env: random.randrange(100), global_numpy, counted])
@pytest.mark.parametrize("masked", [False, True])
def test_what_the_seed_does_not_fix_is_found(draw, shown, masked):
    assert shown in find_hidden_state(Monitor(Words(draw, shown, masked)), 3)
    model = SeeUPO("MlpPolicy", Words(draw, shown, masked), n_groups=2, group_size=2, seed=0)
    with pytest.warns(UserWarning, match=WARNING.format(shown)):
        model.learn(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(1)  # it was said once


@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, pytest.param(SubprocVecEnv, marks=pytest.mark.process)])
def test_it_is_found_in_vector_environments(vec_env_cls):
    env = vec_env_cls([lambda: SeedQueue(Words())] * 2)
    with pytest.warns(UserWarning, match=WARNING.format("reward")):
        SeeUPO("MlpPolicy", env, n_groups=2, group_size=2, seed=0).learn(1)
    env.close()


@pytest.mark.parametrize("env_id", [*ENV_IDS, "FrozenLake-v1", "CartPole-v1", "Taxi-v4", "Blackjack-v1"])
def test_environments_whose_seed_fixes_all_are_not_suspected(env_id):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's, of older versions
        env = gym.make(env_id)
    assert find_hidden_state(env, 5) is None


def test_what_the_seed_fixes_is_not_suspected():
    assert find_hidden_state(Words(lambda env: int(env.np_random.integers(100))), 5) is None


def test_neither_the_environment_nor_global_generators_are_touched(capsys):
    class Loud(Words):
        def reset(self, **kwargs):
            print("reset")
            warnings.warn("reset", stacklevel=1)
            return super().reset(**kwargs)

    env = Loud(global_numpy)
    before = global_states()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_hidden_state(env, 5) is not None
    assert env.n_resets == 0
    assert not hasattr(env, "word")
    assert global_states() == before
    assert capsys.readouterr().out == ""


def test_an_environment_that_cannot_be_copied_or_must_not_be_is_left_alone():
    class Held(Words):
        def __deepcopy__(self, memo):
            raise TypeError("cannot be copied")

    class Program(Words):
        starts_programs = True

    class Broken(Words):
        def step(self, action):
            raise ZeroDivisionError

    for env in (Held(), Program(), Broken()):
        assert find_hidden_state(env, 5) is None
        assert env.n_resets == 0
