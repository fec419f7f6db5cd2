"""What a policy thinks, in words."""

import re

import gymnasium as gym
import numpy as np
import pytest
from helpers import TOOL, TRAP
from helpers.jobs import SMALL

from seeupo_gym.baselines import get_algorithm
from seeupo_gym.benchmark.watch import describe_policy

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("env_id", "kwargs", "pattern"),
    [
        (TRAP, {}, r"\d: \d+%, \d: \d+%, \d: \d+%"),
        (TOOL, {}, r"\d: \d+%, \d: \d+%, \d: \d+% \| \d: \d+%, \d: \d+%, \d: \d+%"),
        ("Pendulum-v1", {"max_turns": 2}, r"-?[\d.e-]+ ± 1"),
    ],
)
@pytest.mark.parametrize("algorithm", ["seeupo", "ppo"])
def test_policies_are_described(algorithm, env_id, kwargs, pattern):
    settings = {**SMALL, "n_envs": 1, **kwargs} if algorithm == "seeupo" else {"n_envs": 2, "batch_size": 64}
    model = get_algorithm(algorithm).with_settings(settings).make_model(env_id, 0)
    obs, _ = gym.make(env_id).reset(seed=0)
    masks = None
    if env_id == TOOL and algorithm == "seeupo":
        masks = np.array([True] * 4 + [False] + [True] * 3)
    text = describe_policy(model, obs, 1, masks)
    assert re.fullmatch(pattern, text)
