"""Every bad value of every argument of the tasks and of ``make_vec`` is refused by the argument's name."""

import inspect
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import load_env_creator
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from seeupo_gym import make_vec
from seeupo_gym.envs import ENTRY_POINTS
from seeupo_gym.envs.vector import MAX_ENVS, MAX_PROCESSES

NAN, INF = float("nan"), float("inf")
HUGE = (10**9, 10**30)
ODD = ([2], (2,), {}, np.array([1, 2]), np.array(2), b"easy", object(), len, NAN, INF, -INF)

# By the annotation of an argument; None is bad where it is not the default.
BAD = {
    "int": (-1, 0, 2.0, 2.5, "3", "", True, *HUGE, *ODD),
    "bool": ("no", "True", 0, 1, 2.0, *ODD),
    "str": ("", "none", 0, True, 2.5, *ODD),
    "float": (-0.1, 0.5, "0.1", True, False, *HUGE, *ODD),
}
# These have no bound that a seed could exceed by chance.
GOOD = {("GarnetTree-v0", "instance"): (0, 10**9)}


def cases():
    for name, entry_point in ENTRY_POINTS.items():
        cls = load_env_creator(entry_point)
        for argument, parameter in inspect.signature(cls).parameters.items():
            kind, _, none = parameter.annotation.partition(" | ")
            values = [*BAD[kind], *([] if none else [None])]
            good = GOOD.get((name, argument), ())
            for i, value in enumerate(values):
                if not any(value is number or (type(value) is int and value == number) for number in good):
                    yield pytest.param(cls, argument, value, id=f"{name}-{argument}-{i}-{type(value).__name__}")


@pytest.mark.parametrize(("cls", "argument", "value"), list(cases()))
def test_bad_value_of_a_task(cls, argument, value):
    with pytest.raises((ValueError, TypeError), match=rf"\b{argument} must be .*, got ") as caught:
        cls(**{argument: value})
    assert str(caught.value).endswith(repr(value))


def test_the_table_has_every_argument():
    arguments = {(case.values[0].__name__, case.values[1]) for case in cases()}
    expected = {
        (cls.__name__, argument)
        for cls in map(load_env_creator, ENTRY_POINTS.values())
        for argument in inspect.signature(cls).parameters
    }
    assert arguments == expected
    assert len(expected) > 40


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("Mastermind", {"pegs": 6, "colours": 8}, "colours ** pegs, the number of codes, must be at most 4096"),
        ("Mastermind", {"pegs": 13, "colours": 2}, "pegs must be an integer from 1 to 12, got 13"),
        ("GarnetTree", {"states": 256, "branching": 256, "actions": 12, "turns": 1000}, "turns * states * actions"),
        ("GarnetTree", {"states": 4, "coins": 4}, "coins must be an integer from 1 to 3, got 4"),
        ("GarnetTree", {"states": 4, "branching": 5}, "branching must be an integer from 1 to 4, got 5"),
        ("GuessNumber", {"feedback": "warmth", "noise": 0.1}, "noise must be 0 with feedback 'warmth', got 0.1"),
    ],
)
def test_values_that_do_not_go_together(name, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        gym.make(f"seeupo_gym/{name}-v0", **arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("CoordinationTrap", {"turns": 1000, "arms": 1000}),
        ("ContextChain", {"turns": 1000, "actions": 1000}),
        ("GuessNumber", {"turns": 1000, "range": 500, "noise": np.float32(0.25)}),
        ("GuessNumber", {"noise": 0}),
        ("Mastermind", {"turns": 1000, "pegs": 12, "colours": 2}),
        ("GarnetTree", {"turns": 1000, "states": 64, "actions": 6, "branching": 3, "instance": 10**9}),
    ],
)
def test_the_largest_values_are_taken(name, arguments):
    env = gym.make(f"seeupo_gym/{name}-v0", **arguments)
    assert env.reset(seed=0)[0] in env.observation_space


TASK, OTHER = "seeupo_gym/ContextChain-v0", "CartPole-v1"
BAD_OF_MAKE_VEC = {
    "env_id": (None, 3, NAN, b"CartPole-v1", gym.Env, lambda: gym.make(OTHER), ["CartPole-v1"]),
    "n_envs": (None, *BAD["int"]),
    "seed": (-1, 2.0, 2.5, "3", True, 10**30, 2**63, *ODD),
    "vec_env_cls": ("SubprocVecEnv", True, gym.Env, DummyVecEnv([lambda: gym.make(OTHER)]), *ODD),
    "render_mode": (True, 3, *ODD),
}


@pytest.mark.parametrize(
    ("env_id", "argument", "value"),
    [
        pytest.param(env_id, argument, value, id=f"{env_id}-{argument}-{i}")
        for env_id in (TASK, OTHER)
        for argument, values in BAD_OF_MAKE_VEC.items()
        for i, value in enumerate(values)
    ],
)
def test_bad_value_of_make_vec(env_id, argument, value):
    with pytest.raises(ValueError, match=rf"^{argument} must be .*, got ") as caught:
        make_vec(**{"env_id": env_id, argument: value})
    assert str(caught.value).endswith(repr(value))


def test_too_many_environments():
    for env_id in (TASK, OTHER):
        with pytest.raises(ValueError, match=f"n_envs must be an integer from 1 to {MAX_ENVS}, got {MAX_ENVS + 1}"):
            make_vec(env_id, MAX_ENVS + 1)
    with pytest.raises(ValueError, match=f"n_envs must be an integer from 1 to {MAX_PROCESSES}, got"):
        make_vec(OTHER, MAX_PROCESSES + 1, vec_env_cls=SubprocVecEnv)
    # An observation of 3,000 numbers.
    with pytest.raises(ValueError, match="n_envs must be an integer from 1 to 89478, got 100000"):
        make_vec(TASK, 100_000, turns=1000, actions=1000)


def test_the_last_seed_is_the_largest_there_is():
    make_vec(TASK, 2, 2**63 - 2)
    with pytest.raises(ValueError, match=f"seed must be an integer from 0 to {2**63 - 2}, got {2**63 - 1}"):
        make_vec(TASK, 2, 2**63 - 1)
