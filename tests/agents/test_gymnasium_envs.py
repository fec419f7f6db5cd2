"""Gymnasium's own environments, as anyone would use them."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FlattenObservation, TimeLimit
from stable_baselines3.common.evaluation import evaluate_policy

from seeupo_gym import SeeUPO, make_vec

SETTINGS = dict(n_groups=2, group_size=3, n_epochs=2, seed=0)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "n_turns"),
    [
        ("FrozenLake-v1", {}, 100),
        ("Taxi-v4", dict(turn_policies="shared"), 200),
        ("CartPole-v1", dict(max_turns=50), 50),
        ("Pendulum-v1", dict(turn_policies="shared"), 200),
    ],
)
def test_registered_ids(env_id, kwargs, n_turns):
    model = SeeUPO("MlpPolicy", env_id, **SETTINGS, **kwargs).learn(50)
    assert model.n_turns == n_turns
    assert len(model.ep_info_buffer) >= 6
    assert all(np.isfinite(info["r"]) for info in model.ep_info_buffer)
    evaluate_policy(model, model.env, n_eval_episodes=1)


def test_blackjack_through_flatten_observation():
    with pytest.raises(ValueError, match=r"Tuple.*FlattenObservation"):
        SeeUPO("MlpPolicy", "Blackjack-v1", max_turns=10)
    env = FlattenObservation(gym.make("Blackjack-v1"))
    with pytest.raises(ValueError, match="max_turns="):
        SeeUPO("MlpPolicy", env)
    model = SeeUPO("MlpPolicy", env, max_turns=10, **SETTINGS).learn(30)
    assert model.n_turns == 10


def test_time_limit_is_the_horizon():
    env = TimeLimit(gym.make("CartPole-v1"), 7)
    assert SeeUPO("MlpPolicy", env, **SETTINGS).learn(10).n_turns == 7


def test_truncated_episode_counts_what_was_paid_and_is_not_bootstrapped():
    env = TimeLimit(gym.make("CartPole-v1"), 5)
    model = SeeUPO("MlpPolicy", env, **SETTINGS).learn(10)
    np.testing.assert_array_equal(model.rollout_buffer.rewards.sum(axis=0), 5.0)


@pytest.mark.slow
def test_cart_pole_is_learned():
    env = make_vec("CartPole-v1", 8)
    model = SeeUPO("MlpPolicy", env, n_groups=4, group_size=8, seed=0, turn_policies="shared", gamma=1.0)
    model.learn(60_000)
    mean, _ = evaluate_policy(model, gym.make("CartPole-v1"), n_eval_episodes=10, warn=False)
    assert mean > 150
