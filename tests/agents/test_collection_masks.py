"""Masks of invalid actions in the collection."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers.rollouts import collect
from stable_baselines3.common.vec_env import DummyVecEnv

from seeupo_gym import SeedQueue, SeeUPO


class MaskedEnv(gym.Env):
    """Only action ``turn`` is valid; any other one is an error."""

    max_turns = 3

    def __init__(self, action_space=None, dead_end=False):
        self.observation_space = spaces.Discrete(4)
        self.action_space = action_space or spaces.Discrete(3)
        self.dead_end = dead_end

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return 0, {}

    def action_masks(self):
        mask = np.arange(3) == self.turn
        if self.dead_end and self.turn == 1:
            mask[:] = False
        return mask if isinstance(self.action_space, spaces.Discrete) else np.concatenate([mask, [False, True]])

    def step(self, action):
        expected = self.turn if isinstance(self.action_space, spaces.Discrete) else [self.turn, 1]
        assert np.array_equal(action, expected), f"invalid action {action} at turn {self.turn}"
        self.turn += 1
        return self.turn, float(self.np_random.random()), self.turn == 3, False, {}


@pytest.mark.parametrize("action_space", [spaces.Discrete(3), spaces.MultiDiscrete([3, 2])])
def test_masks_are_respected_and_stored(action_space):
    env = DummyVecEnv([lambda: MaskedEnv(action_space)] * 4)
    model = SeeUPO("MlpPolicy", env, n_groups=2, group_size=4, seed=0)
    for turn, batch in enumerate(collect(model).turn_batches):
        first = batch.actions if batch.actions.ndim == 1 else batch.actions[:, 0]
        assert (first == turn).all()
        assert batch.action_masks[:, turn].all()
        th.testing.assert_close(batch.log_probs, th.zeros(8), atol=1e-6, rtol=0)
    model.learn(50)


def test_masks_of_multi_binary_actions():
    class Env(MaskedEnv):
        def action_masks(self):
            return np.array([True, False, False, True])  # first bit must be 0, second must be 1

        def step(self, action):
            assert action.tolist() == [0, 1]
            self.turn += 1
            return self.turn, 0.0, self.turn == 3, False, {}

    model = SeeUPO("MlpPolicy", Env(spaces.MultiBinary(2)), n_groups=2, group_size=2, seed=0)
    model.learn(20)


def test_masks_can_be_switched_off():
    model = SeeUPO("MlpPolicy", MaskedEnv(), n_groups=2, group_size=4, seed=0, use_masking=False)
    with pytest.raises(AssertionError, match="invalid action"):
        model.learn(100)


def test_all_false_mask_is_an_error():
    env = DummyVecEnv([MaskedEnv, lambda: MaskedEnv(dead_end=True)])
    model = SeeUPO("MlpPolicy", env, n_groups=2, group_size=2, seed=0)
    with pytest.raises(ValueError, match=r"environment 1 at turn 1 allows no action"):
        model.learn(10)


class Unmasked(MaskedEnv):
    """The same spaces, and every action is valid."""

    action_masks = property()

    def step(self, action):
        self.turn += 1
        return self.turn, 0.0, self.turn == 3, False, {}


@pytest.mark.parametrize(("first", "then"), [(MaskedEnv, Unmasked), (Unmasked, MaskedEnv)])
def test_masks_of_another_environment_must_be_there_as_in_the_first(first, then, tmp_path):
    model = SeeUPO("MlpPolicy", first(), n_groups=2, group_size=2, seed=0).learn(1)
    model.set_env(first())
    model.learn(1)
    model.save(tmp_path / "model")
    model.set_env(then())
    for other in (model, SeeUPO.load(tmp_path / "model", env=then())):
        with pytest.raises(ValueError, match=r"action_masks\(\), and this one has .*make a new model"):
            other.learn(1)


def test_a_parked_lane_is_not_asked_for_masks():
    class Env(MaskedEnv):
        n_asked = 0
        starts_programs = True  # a copy would count too

        def action_masks(self):
            assert self.turn < 3, "the episode is over"
            Env.n_asked += 1
            return super().action_masks()

    env = DummyVecEnv([lambda: SeedQueue(Env())] * 3)
    model = SeeUPO("MlpPolicy", env, n_groups=2, group_size=2, seed=0).learn(1)
    assert Env.n_asked == model.num_timesteps == 4 * 3, "once for each action"


def test_wrong_mask_shape_is_an_error():
    class Env(MaskedEnv):
        def action_masks(self):
            return np.ones(5, dtype=bool)

    with pytest.raises(ValueError, match="must be 3 booleans"):
        SeeUPO("MlpPolicy", Env(), seed=0).learn(10)
