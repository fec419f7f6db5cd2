"""An episode that is longer than its environment declares is an error, and no endless loop."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.vec_env import DummyVecEnv

from seeupo_gym import SeedQueue, make_vec
from seeupo_gym.envs.episodes import EpisodeLanes


class Counting(gym.Env):
    """Ends after ``length`` turns; None: never."""

    max_turns = 5
    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, length=None):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.turn += 1
        return np.zeros(1, np.float32), 0.0, self.turn == self.length, False, {}


def play(env, max_turns):
    lengths = []
    with EpisodeLanes(env, np.arange(4), max_turns=max_turns) as lanes:
        lanes.reset()
        while lanes.running:
            obs, _, dones, _ = env.step(np.zeros(env.num_envs, int))
            lengths += (lanes.turns[dones & lanes.active] + 1).tolist()
            lanes.advance(obs, dones)
    return lengths


each_wrap = pytest.mark.parametrize("wrap", [SeedQueue, lambda env: env])


@each_wrap
@pytest.mark.parametrize("length", [6, None])
def test_a_longer_episode_names_the_environment_and_the_turn(wrap, length):
    env = DummyVecEnv([lambda n=n: wrap(Counting(n)) for n in (5, length, 3)])
    message = r"episode of environment 1 \(Counting\) has not ended after 5 turns, which the environment declares.*Time"
    with pytest.raises(RuntimeError, match=message):
        play(env, 5)
    env.reset()  # the queue is left


@each_wrap
def test_what_holds_is_no_error(wrap):
    env = DummyVecEnv([lambda n=n: wrap(Counting(n)) for n in (5, 1, 3)])
    assert sorted(play(env, 5)) == [1, 3, 5, 5]
    limited = DummyVecEnv([lambda: wrap(TimeLimit(Counting(), 4))])
    assert play(limited, 4) == [4] * 4
    assert play(make_vec("seeupo_gym/ContextChain-v0", 3), 6) == [6] * 4
    assert play(env, None) != []
