"""A vector environment may write its observations into the same arrays at every step: rows are what was seen."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

from seeupo_gym import SeedQueue, SeeUPO
from seeupo_gym.envs.episodes import EpisodeLanes


class Walk(gym.Env):
    """Ends after 2 to 4 turns, by the seed; every observation is another one."""

    max_turns = 4
    action_space = spaces.Discrete(2)

    def __init__(self, as_dict=False):
        self.as_dict = as_dict
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = spaces.Dict({"walk": box}) if as_dict else box

    def _obs(self):
        obs = self.np_random.normal(size=3).astype(np.float32)
        return {"walk": obs} if self.as_dict else obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 5))
        return self._obs(), {}

    def step(self, action):
        self.left -= 1
        return self._obs(), float(action), self.left == 0, False, {}


class Reusing(DummyVecEnv):
    """Gives the same arrays at every ``period``-th step."""

    period = 1

    def __init__(self, env_fns):
        super().__init__(env_fns)
        self.arrays, self.n_given = [None] * self.period, 0

    def _reused(self, obs):
        i, self.n_given = self.n_given % self.period, self.n_given + 1
        if self.arrays[i] is None:
            self.arrays[i] = obs
        elif isinstance(obs, dict):
            for key, value in obs.items():
                self.arrays[i][key][:] = value
        else:
            self.arrays[i][:] = obs
        return self.arrays[i]

    def reset(self):
        return self._reused(super().reset())

    def step_wait(self):
        obs, rewards, dones, infos = super().step_wait()
        return self._reused(obs), rewards, dones, infos


class TwoArrays(Reusing):
    period = 2


def rows(vec_env_cls, wrap, as_dict, stacked):
    env = vec_env_cls([lambda: wrap(Walk(as_dict))] * 3)
    env = VecFrameStack(env, 2) if stacked else env
    policy = "MultiInputPolicy" if as_dict else "MlpPolicy"
    model = SeeUPO(policy, env, n_groups=4, group_size=2, seed=0, device="cpu").learn(1)
    parts = [
        (b.observations["walk"] if as_dict else b.observations, b.actions) for b in model.rollout_buffer.turn_batches
    ]
    return parts, model.rollout_buffer.rewards


@pytest.mark.parametrize("vec_env_cls", [Reusing, TwoArrays])
@pytest.mark.parametrize("wrap", [SeedQueue, lambda env: env])
@pytest.mark.parametrize(("as_dict", "stacked"), [(False, False), (True, False), (False, True)])
def test_rows_are_what_was_seen(vec_env_cls, wrap, as_dict, stacked):
    expected, got = (rows(cls, wrap, as_dict, stacked) for cls in (DummyVecEnv, vec_env_cls))
    np.testing.assert_array_equal(got[1], expected[1])
    for (got_obs, got_actions), (obs, actions) in zip(got[0], expected[0], strict=True):
        assert th.equal(got_obs, obs)
        assert th.equal(got_actions, actions)


@pytest.mark.parametrize("as_dict", [False, True])
def test_what_the_lanes_return_is_the_caller_s_to_keep(as_dict):
    env = Reusing([lambda: Walk(as_dict)])
    seen, kept = [], []
    with EpisodeLanes(env, np.arange(3)) as lanes:
        kept.append(lanes.reset())
        while lanes.running:
            seen.append(str(kept[-1]))
            obs, _, dones, _ = env.step(np.zeros(1, int))
            kept.append(lanes.advance(obs, dones))
    assert [str(obs) for obs in kept[:-1]] == seen
    assert len(set(seen)) == len(seen)
