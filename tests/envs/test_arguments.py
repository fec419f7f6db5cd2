"""Arguments of a wrong type or value are refused by name, those of NumPy are taken for Python's own."""

import re

import gymnasium as gym
import numpy as np
import pytest

from seeupo_gym import make_vec
from seeupo_gym.envs.arguments import check_choice, check_count, check_flag, check_number


def test_choices():
    check_choice("game", "a", ("a", "b"))
    for value in ("c", None, ["a"], 3, float("nan")):
        with pytest.raises(ValueError, match=re.escape(f"game must be one of 'a', 'b', got {value!r}")):
            check_choice("game", value, {"a": 1, "b": 2})


def test_counts():
    for value in (3, np.int8(3), np.uint64(3)):
        assert type(check_count("wait", value)) is int
    assert check_count("wait", 0, least=0) == 0
    with pytest.raises(ValueError, match="wait must be an integer from 0 to 3, got 4"):
        check_count("wait", 4, least=0, most=3)
    for value in (0, True, 3.0, np.float64(3.0), "3", None):
        with pytest.raises(ValueError, match=re.escape(f"wait must be an integer of at least 1, got {value!r}")):
            check_count("wait", value)


def test_numbers():
    for value in (0, 0.25, np.float32(0.25), np.int8(0)):
        assert type(check_number("noise", value, least=0.0, below=0.5)) is float
    assert check_number("timeout", 10**6, least=1.0) == 1e6
    for value in (0.5, -0.1, float("nan"), float("inf"), True, "0.1", None, [0.1]):
        message = re.escape(f"noise must be a finite number of at least 0 and below 0.5, got {value!r}")
        with pytest.raises(ValueError, match=message):
            check_number("noise", value, least=0.0, below=0.5)
    with pytest.raises(ValueError, match=r"timeout must be a finite number of at least 1, got inf"):
        check_number("timeout", float("inf"), least=1.0)


def test_flags():
    assert check_flag("flat", True) is check_flag("flat", np.True_) is True
    assert check_flag("flat", False) is False
    for value in ("no", 0, None):
        with pytest.raises(ValueError, match=f"flat must be True or False, got {value!r}"):
            check_flag("flat", value)


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("CoordinationTrap", "turns", 2.5),
        ("CoordinationTrap", "arms", None),
        ("ContextChain", "turns", 3.0),
        ("ContextChain", "actions", True),
        ("ContextChain", "reward", None),
        ("ToolChain", "level", ["easy"]),
        ("ToolChain", "flat", "no"),
        ("GarnetTree", "states", "8"),
        ("GarnetTree", "coins", 1.0),
        ("GarnetTree", "instance", 1.5),
        ("GuessNumber", "range", 24.0),
        ("GuessNumber", "noise", "0.1"),
        ("Mastermind", "pegs", 2.5),
        ("Mastermind", "flat", 1),
        ("Blocksworld", "blocks", "4"),
        ("Blocksworld", "spread", "no"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused_by_name(name, argument, value):
    with pytest.raises(ValueError, match=re.escape(f"{argument} must be ")) as caught:
        gym.make(f"seeupo_gym/{name}-v0", **{argument: value})
    assert str(caught.value).endswith(f"got {value!r}")


def test_a_number_of_environments_is_an_integer():
    with pytest.raises(ValueError, match=r"n_envs must be an integer from 1 to 100000, got 2\.0"):
        make_vec("seeupo_gym/ToolChain-v0", 2.0)


def test_integers_of_numpy_do_not_overflow():
    # The length of an observation is more than 127.
    env, same = (gym.make("seeupo_gym/ContextChain-v0", turns=n, actions=n) for n in (np.int8(100), 100))
    assert env.observation_space == same.observation_space
    assert env.reset(seed=1)[0].tolist() == same.reset(seed=1)[0].tolist()
