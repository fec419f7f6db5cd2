"""Gymnasium's toy text environments with SeeUPO, and masks that an environment puts into its info."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FlattenObservation
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import DummyVecEnv

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.envs.views.info_action_mask import InfoActionMask

SETTINGS = dict(n_groups=2, group_size=4, n_epochs=1, turn_policies="shared", seed=0)


def run(env, **settings):
    """Two iterations; warns (an error in tests) if the members of a group start from different states."""
    model = SeeUPO("MlpPolicy", env, **{**SETTINGS, **settings})
    for iteration in (1, 2):
        model.learn(1, reset_num_timesteps=False)
        assert len(model.ep_info_buffer) == 8 * iteration
    return model


@pytest.mark.parametrize(
    ("env_id", "kwargs", "horizon"),
    [("FrozenLake-v1", {}, 100), ("Taxi-v4", {}, 200), ("CliffWalking-v1", {"max_episode_steps": 30}, 30)],
)
def test_seeupo_runs_and_finds_the_horizon(env_id, kwargs, horizon):
    model = run(make_vec(env_id, 4, **kwargs))
    assert model.n_turns == horizon
    assert not model.masked
    assert max(info["l"] for info in model.ep_info_buffer) <= horizon


def test_cliff_walking_needs_a_limit():
    with pytest.raises(ValueError, match="max_turns"):
        run(make_vec("CliffWalking-v1", 4))


def test_blackjack_is_flattened_and_needs_max_turns():
    # A hand cannot have more than 21 cards; 22 turns bound it for certain.
    env = FlattenObservation(gym.make("Blackjack-v1", max_episode_steps=22))
    model = run(env, turn_policies="separate")
    assert model.n_turns == 22
    with pytest.raises(ValueError, match="FlattenObservation"):
        run(gym.make("Blackjack-v1"))


def make_taxi():
    return InfoActionMask(gym.make("Taxi-v4", max_episode_steps=20))


def test_masks_of_the_info_are_those_of_the_environment():
    env = make_taxi()
    _, info = env.reset(seed=0)
    np.testing.assert_array_equal(env.action_masks(), info["action_mask"])
    seen = {tuple(env.action_masks())}
    for action in (0, 1, 2, 3):
        *_, info = env.step(action)
        np.testing.assert_array_equal(env.action_masks(), info["action_mask"])
        seen.add(tuple(env.action_masks()))
    assert len(seen) > 1


class OnlyAllowed(gym.Wrapper):
    """Fails at an action that the mask rules out."""

    def step(self, action):
        assert self.env.get_wrapper_attr("action_masks")()[action]
        return self.env.step(action)


def test_seeupo_and_maskable_ppo_obey_the_masks():
    model = run(OnlyAllowed(make_taxi()))
    assert model.masked
    MaskablePPO("MlpPolicy", OnlyAllowed(make_taxi()), n_steps=64, n_epochs=1, device="cpu").learn(64)


def test_without_masks_the_same_check_fails():
    with pytest.raises(AssertionError):
        run(OnlyAllowed(make_taxi()), use_masking=False)


def test_mistakes_are_refused():
    with pytest.raises(ValueError, match="Discrete action space"):
        InfoActionMask(gym.make("Pendulum-v1"))
    with pytest.raises(ValueError, match=r"info\['action_mask'\] at turn 0 must be 2 booleans .*; got None"):
        InfoActionMask(gym.make("CartPole-v1")).reset(seed=0)


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Taxi-v4", "CliffWalking-v1"])
def test_seeds_are_honoured(env_id):
    env, other = gym.make(env_id), gym.make(env_id)
    env.reset(seed=3)
    other.reset(seed=3)
    env.action_space.seed(0)
    for _ in range(20):
        action = env.action_space.sample()
        result = env.step(action)
        assert result[:4] == other.step(action)[:4]
        if result[2]:
            break


def test_members_of_a_group_start_from_the_same_taxi():
    env = DummyVecEnv([make_taxi] * 2)
    env._seeds = [5, 5]
    first, second = env.reset()
    assert first == second
    starts = {gym.make("Taxi-v4").reset(seed=seed)[0] for seed in range(20)}
    assert len(starts) > 10
