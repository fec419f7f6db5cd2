"""Entries of info and of observations that belong to the environment: none of them is taken for something else."""

from decimal import Decimal

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from seeupo_gym import SeedQueue, SeeUPO
from seeupo_gym.baselines import evaluate
from seeupo_gym.benchmark.watch import watch_episode
from seeupo_gym.envs.info_keys import read_flag

ROAD, REPORTS = "RoadForTests-v0", "ReportsForTests-v0"
SMALL = dict(n_groups=2, group_size=2, seed=0, device="cpu")


class Road(gym.Env):
    """One turn: slow pays 0, fast 1, and into the wall -100, which the environment calls a crash."""

    max_turns = 1
    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), [0.0, 1.0, -100.0][action], True, False, {"crashed": action == 2}


class Reports(gym.Env):
    """Two turns, with an entry of info of one's own at each of them."""

    max_turns = 2
    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

    def __init__(self, key, value):
        self.key, self.value = key, value

    def reset(self, *, seed=None, options=None):
        self.turn = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.turn += 1
        return np.zeros(1, np.float32), 1.0, self.turn == 2, False, {self.key: self.value}


@pytest.fixture(autouse=True)
def _registered():
    gym.register(ROAD, Road, disable_env_checker=True)
    gym.register(REPORTS, Reports, disable_env_checker=True)
    yield
    del gym.registry[ROAD], gym.registry[REPORTS]


def test_a_collision_is_no_dead_program_in_training():
    model = SeeUPO("MlpPolicy", Road(), seed=0, learning_rate=1e-2, ent_coef=0.1, device="cpu").learn(128)
    assert model.rollout_buffer.reached.all(), "no episode is left out"
    assert model.rollout_buffer.rewards.min() == -100
    assert np.mean([info["r"] for info in model.ep_info_buffer]) < -10
    model.learn(2432, reset_num_timesteps=False)
    obs, _ = model.policy.obs_to_tensor(np.zeros(1, np.float32))
    assert model.policy.get_distribution(obs, 0).distribution.probs[0, 2] < 0.01, "nor does it learn to crash"


def test_a_collision_is_no_dead_program_in_evaluation():
    model = SeeUPO("MlpPolicy", Road(), **SMALL)
    model.policy.turns[0].action_net.bias.data[:] = th.tensor([0.0, 0.0, 50.0])
    assert evaluate(model, ROAD, 5).returns.tolist() == [-100.0] * 5


@pytest.mark.parametrize("value", [True, 1, 1.0, np.True_, np.float32(1), np.array([1]), np.array(1.0)])
def test_one_boolean_is_taken_in_any_type(value):
    assert read_flag({"is_success": value}, "is_success", 0, 0) is True
    assert read_flag({"is_success": 1 - value if value is not True else False}, "is_success", 0, 0) is False


ODD = ["no", np.nan, [True, False], np.ones(2), 0.7, {}, [[1], [1, 2]], Decimal("0.5")]


@pytest.mark.parametrize("value", ODD, ids=str)
def test_a_success_of_another_type_is_refused_by_name(value):
    def refused(turn="1"):
        return pytest.raises(ValueError, match=rf"info\['is_success'\] of environment 0 at turn {turn} must be True")

    with refused():
        SeeUPO("MlpPolicy", Reports("is_success", value), **SMALL).learn(1)
    model = SeeUPO("MlpPolicy", Reports("is_success", True), **SMALL)
    with refused():
        evaluate(model, REPORTS, 1, key="is_success", value=value)
    with refused():
        list(watch_episode(model, REPORTS, key="is_success", value=value))


def test_no_success_is_not_said():
    model = SeeUPO("MlpPolicy", Reports("is_success", None), **SMALL).learn(1)
    assert len(model.ep_success_buffer) == 0
    result = evaluate(model, REPORTS, 3, key="is_success", value=None)
    assert result.successes is None
    assert "success" not in list(watch_episode(model, REPORTS, key="is_success", value=None))[-1]


@pytest.mark.parametrize("value", [3, "pilot", {"number": 3}, {"r": "good", "l": None}, [1, 2]], ids=str)
def test_an_environment_may_call_anything_its_episode(value):
    model = SeeUPO("MlpPolicy", Reports("episode", value), **SMALL).learn(1)
    assert [(info["r"], info["l"]) for info in model.ep_info_buffer] == [(2.0, 2)] * 4
    assert model.logger.name_to_value == {}, "the log was written"
    alone = DummyVecEnv([lambda: SeedQueue(Reports("episode", value))])  # nobody writes the entry anew
    assert len(SeeUPO("MlpPolicy", alone, **SMALL).learn(1).ep_info_buffer) == 0


def test_what_an_environment_calls_malformed_is_no_message():
    model = SeeUPO("MlpPolicy", Reports("malformed", "a little"), **SMALL)
    _, callback = model._setup_learn(1, None)
    model.collect_rollouts(model.env, callback, model.rollout_buffer)
    assert "rollout/malformed_fraction" not in model.logger.name_to_value
    with pytest.raises(ValueError, match=r"info\['seeupo_gym/malformed'\] of environment 0 at turn 0"):
        SeeUPO("MlpPolicy", Reports("seeupo_gym/malformed", "a little"), **SMALL).learn(1)


class WhoseTurn(gym.Env):
    """A game of two, whose observation tells whose turn it is."""

    max_turns = 3
    observation_space = spaces.Dict({"turn": spaces.Discrete(2), "board": spaces.Box(0, 1, (1,))})
    action_space = spaces.Discrete(2)

    def _obs(self):
        return {"turn": self.move % 2, "board": np.zeros(1, np.float32)}

    def reset(self, *, seed=None, options=None):
        self.move = 0
        return self._obs(), {}

    def step(self, action):
        self.move += 1
        return self._obs(), 0.0, self.move == 3, False, {}


def test_a_turn_that_counts_something_else_is_an_error():
    env = DummyVecEnv([lambda: SeedQueue(Monitor(WhoseTurn()))] * 2)
    model = SeeUPO("MultiInputPolicy", env, **SMALL)
    with pytest.raises(ValueError, match=r'entry "turn" .* of environment 0 is 0 at turn 2: .* or have another name'):
        model.learn(1)
