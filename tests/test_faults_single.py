"""Faults of a single environment are refused by its name, the turn and what is wrong; what means the same is taken."""

import copy
from decimal import Decimal
from fractions import Fraction

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.envs.episodes import EpisodeLanes

NAN = float("nan")
OBSERVATION = np.zeros(2, np.float32)
SPACES = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "image": spaces.Box(0, 255, (2,), np.uint8),
    "discrete": spaces.Discrete(4),
    "several": spaces.MultiDiscrete([3, 4]),
    "bits": spaces.MultiBinary(2),
    "dict": spaces.Dict({"place": spaces.Box(-1, 1, (2,), np.float32), "kind": spaces.Discrete(3)}),
}
RIGHT = {
    "box": OBSERVATION,
    "image": np.array([0, 255], np.uint8),
    "discrete": 3,
    "several": np.array([2, 3]),
    "bits": np.array([0, 1], np.int8),
    "dict": {"place": OBSERVATION, "kind": 2},
}


class Faulty(gym.Env):
    """Three turns; the answer of the second step, or of a reset, is another one than it should be."""

    max_turns = 3

    def __init__(self, space="box", step=None, reset=None):
        self.observation_space = SPACES[space]
        self.action_space = spaces.Discrete(2)
        self.space, self.wrong_step, self.wrong_reset = space, step, reset

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return (copy.deepcopy(RIGHT[self.space]), {}) if self.wrong_reset is None else self.wrong_reset

    def step(self, action):
        self.turn += 1
        answer = (copy.deepcopy(RIGHT[self.space]), 1.0, self.turn == 3, False, {})
        return self.wrong_step(answer) if self.turn == 2 and self.wrong_step is not None else answer


gym.register("FaultyForTests-v0", entry_point=Faulty)

# How the environment is handed over -> what its second environment is called.
MAKERS = {
    "alone": (lambda **kwargs: Faulty(**kwargs), r"environment 0 \(Faulty\)"),
    "monitored": (lambda **kwargs: Monitor(Faulty(**kwargs)), r"environment 0 \(Faulty\)"),
    "dummy": (
        lambda **kwargs: DummyVecEnv([lambda: Faulty(kwargs.get("space", "box")), lambda: Faulty(**kwargs)]),
        r"environment 1 \(Faulty\)",
    ),
    "sb3": (lambda **kwargs: make_vec_env("FaultyForTests-v0", 2, env_kwargs=kwargs), r"environment 0 \(FaultyForT"),
    "ours": (lambda **kwargs: make_vec("FaultyForTests-v0", 2, **kwargs), r"environment 0 \(FaultyForTests-v0\)"),
}


def play(maker, **kwargs):
    """Play four episodes as training does; return all that it gets of the environment."""
    env, shown = SeeUPO._wrap_env(MAKERS[maker][0](**kwargs)), []
    with EpisodeLanes(env, np.arange(4)) as lanes:
        obs = lanes.reset()
        while lanes.running:
            obs, rewards, dones, _ = env.step(np.zeros(env.num_envs, int))
            shown.append((obs, rewards.tolist(), dones.tolist()))
            obs = lanes.advance(obs, dones)
    return str(shown)


def replace(position, value):
    return lambda answer: (*answer[:position], value, *answer[position + 1 :])


class Unprintable:
    def __repr__(self):
        return "x" * 10_000


NO_NUMBERS = (None, "no", "1.5", [1.0], (1.0,), np.ones(1), np.ones(2), 1j, Decimal("1.5"), {}, object(), Unprintable())
NO_FLAGS = (None, "no", "", NAN, 1.0, 2, -1, [True], np.array([True]), np.array([True, False]), {}, object())
NO_DICTS = (None, [], (), "no", 3, [("is_success", True)], object())
WRONG = [
    *((1, value, "reward=.* at turn 1: it must be one real number") for value in (*NO_NUMBERS, Fraction(1, 2))),
    *((2, value, "terminated=.* at turn 1: it must be True or False") for value in NO_FLAGS),
    *((3, value, "truncated=.* at turn 1: it must be True or False") for value in NO_FLAGS),
    *((4, value, "info=.* at turn 1: it must be a dict") for value in NO_DICTS),
]


@pytest.mark.filterwarnings("ignore")  # Gymnasium and NumPy have their own to say
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    ("position", "value", "message"), [pytest.param(*case, id=f"{case[0]}-{i}") for i, case in enumerate(WRONG)]
)
def test_wrong_field(maker, position, value, message):
    with pytest.raises(ValueError, match=f"{MAKERS[maker][1]}.* returned {message}") as caught:
        play(maker, step=replace(position, value))
    assert len(str(caught.value)) < 300


WRONG_OBSERVATIONS = {
    "box": (
        None,
        0.5,
        [0.1],
        np.zeros(1),
        np.zeros(3),
        np.zeros((1, 2)),
        "no",
        ["a", "b"],
        [None, 1],
        {},
        [[1], [2, 3]],
    ),
    "image": (np.array([0, 256]), np.array([-1, 0]), np.array([0.5, 1.0]), np.array([NAN, 1.0]), np.zeros(3, np.uint8)),
    "discrete": (4, -1, 1.5, NAN, None, "3", np.array([3]), [3], {}),
    "several": (np.array([3, 0]), np.array([0, -1]), np.array([0.5, 1]), np.zeros(3, int), None),
    "bits": (np.array([2, 0]), np.array([0.5, 1]), np.array([True]), None),
    "dict": (
        None,
        [OBSERVATION, 2],
        {"place": OBSERVATION},
        {"place": OBSERVATION, "kinds": 2},
        {"place": OBSERVATION, "kind": 3},
        {"place": np.zeros(3), "kind": 2},
        {"place": None, "kind": 2},
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    ("space", "value"),
    [
        pytest.param(space, value, id=f"{space}-{i}")
        for space, values in WRONG_OBSERVATIONS.items()
        for i, value in enumerate(values)
    ],
)
def test_wrong_observation(maker, space, value):
    with pytest.raises(ValueError, match=f"{MAKERS[maker][1]}.* returned a wrong observation at turn 2: it "):
        play(maker, space=space, step=replace(0, value))


WRONG_STEPS = {
    "old": lambda answer: (*answer[:3], answer[4]),
    "six": lambda answer: (*answer, {}),
    "observation": lambda answer: answer[0],
    "nothing": lambda answer: None,
    "five numbers": lambda answer: np.zeros(5),
    "dict": lambda answer: dict(zip("abcde", answer, strict=True)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("maker", ["alone", "monitored", "dummy"])  # the others have Gymnasium's own checks inside
@pytest.mark.parametrize("step", WRONG_STEPS)
def test_wrong_answer_of_step(maker, step):
    message = r"at turn 1 must return \(observation, reward, terminated, truncated, info\), got"
    with pytest.raises(ValueError, match=rf"step\(\) of {MAKERS[maker][1]}.* {message}"):
        play(maker, step=WRONG_STEPS[step])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    ("position", "values"),
    [
        (1, (1, True, np.float64(1), np.float32(1), np.int8(1), np.array(1.0), np.bool_(True), th.tensor(1.0))),
        (2, (np.bool_(False), 0, np.array(False), np.int64(0), th.tensor(False))),
        (0, ([0.0, 0.0], (0, 0), np.zeros(2), np.zeros(2, int), th.zeros(2))),
    ],
)
def test_what_means_the_same_is_taken(maker, position, values):
    usual = play(maker)
    for value in values:
        assert play(maker, step=replace(position, value)) == usual, repr(value)


@pytest.mark.filterwarnings("ignore:.*render_mode='rgb_array'")
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("space", SPACES)
def test_every_space_has_right_observations(maker, space):
    play(maker, space=space)


def test_a_nested_environment_s_own_errors_are_left_alone():
    def fail(_):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        play("alone", step=fail)


@pytest.mark.parametrize("maker", ["alone", "monitored"])
def test_reset_without_options(maker):
    class Short(Faulty):
        def reset(self, seed=None):
            return super().reset(seed=seed)

    env = Short() if maker == "alone" else Monitor(Short())
    SeeUPO("MlpPolicy", env, n_groups=2, group_size=2, seed=0, device="cpu").learn(1)
