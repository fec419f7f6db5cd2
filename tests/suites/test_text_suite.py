"""What the environments of suites have in common, on a suite that is nothing but that."""

import copy
import string

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from seeupo_gym.envs.suites.text_suite import CrashError, TextSuiteEnv


class Echo(TextSuiteEnv):
    """Says what it hears, in capitals; "end" ends the episode, and "crash" is what the world does then."""

    max_observation, max_message, max_seed = 40, 30, 2**32 - 1

    def __init__(self, turns=3, render_mode=None):
        super().__init__(turns, render_mode)
        self.crashes_at_start = self.n_clean_ups = 0

    def _begin(self, seed):
        if self.crashes_at_start > 0:
            self.crashes_at_start -= 1
            raise CrashError("nobody there")
        return f"seed {seed} \u2713", {"seed": seed}

    def _play(self, message):
        if message == "crash":
            raise CrashError("it died \u2713")
        done = message == "end" or self._is_last_turn
        return message.upper(), 0.5, done, {"is_success": message == "end"} if done else {}

    def _crash_info(self):
        return {"turn": self._turns_taken}

    def _clean_up(self):
        self.n_clean_ups += 1


@pytest.fixture
def env():
    return Echo()


def test_checker(env):
    check_env(env, skip_render_check=True)


def test_an_episode(env):
    assert env.reset(seed=4) == ("seed 4 ?", {"seed": 4})
    assert env.step("one") == ("ONE", 0.5, False, False, {})
    assert env.step("two") == ("TWO", 0.5, False, False, {})
    assert env.step("three") == ("THREE", 0.5, True, False, {"is_success": False})
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\) before step\(\)"):
        env.step("four")
    env.reset()
    assert env.step("end")[2:] == (True, False, {"is_success": True})


def test_observations_are_cut_and_in_the_charset(env):
    env.reset(seed=0)
    text = env.step("\u00fc\ud800" + 100 * "x")[0]
    assert text == "??" + 38 * "X"
    assert env.observation_space.contains(text)


def test_resets_without_a_seed_follow_the_last_seed(env):
    env.reset(seed=5)
    drawn = [env.reset()[1]["seed"] for _ in range(5)]
    env.reset(seed=5)
    assert [env.reset()[1]["seed"] for _ in range(5)] == drawn
    assert len(set(drawn)) == 5
    env.reset(seed=6)
    assert [env.reset()[1]["seed"] for _ in range(5)] != drawn


def test_transcript():
    env = Echo(turns=9, render_mode="ansi")
    env.reset(seed=1)
    env.step("caf\u00e9" + 100 * "x")
    env.step("a")
    assert env.render() == f"seed 1 ?\nAgent: caf?{26 * 'x'}\nCAF?{36 * 'X'}\nAgent: a\nA"
    assert set(env.render()) <= set(string.printable)
    env.reset(seed=2)
    assert env.render() == "seed 2 ?"
    assert Echo().render() is None


def test_a_crash_truncates_and_the_next_reset_goes_on(env):
    env.reset(seed=0)
    env.step("a")
    with pytest.warns(RuntimeWarning, match="it died .; it is tried once more") as caught:
        step = env.step("crash")
    assert caught[0].filename == __file__
    assert step == ("it died ?", 0.0, False, True, {"turn": 2, "seeupo_gym/crashed": True, "is_success": False})
    assert env.n_clean_ups == 1
    with pytest.raises(gym.error.ResetNeeded):
        env.step("a")
    env.reset(seed=1)
    # A regular end in between makes the next crash a first one.
    assert env.step("end")[2]
    env.reset(seed=2)
    with pytest.warns(RuntimeWarning, match="it died"):
        env.step("crash")
    env.reset(seed=3)
    env.step("a")
    with pytest.raises(RuntimeError, match=r"it died ., for the second time in a row: it is not tried again"):
        env.step("crash")
    assert env.n_clean_ups == 3


def test_an_episode_ended_from_outside_makes_the_next_crash_a_first_one():
    env = gym.wrappers.TimeLimit(Echo(turns=9), 2)
    for _ in range(2):
        env.reset()
        with pytest.warns(RuntimeWarning, match="tried once more"):
            assert env.step("crash")[4]["seeupo_gym/crashed"]
        env.reset()
        env.step("a")
        assert env.step("b")[3]
    env.reset()
    with pytest.warns(RuntimeWarning, match="tried once more"):
        env.step("crash")
    env.reset()
    env.reset()
    with pytest.raises(RuntimeError, match="for the second time"):
        env.step("crash")


def test_a_crash_at_reset_is_tried_again_at_once(env):
    env.crashes_at_start = 1
    with pytest.warns(RuntimeWarning, match="nobody there; it is tried once more"):
        assert env.reset(seed=7)[1] == {"seed": 7}
    assert env.step("end")[2]
    env.crashes_at_start = 2
    with (
        pytest.warns(RuntimeWarning, match="nobody there"),
        pytest.raises(RuntimeError, match="nobody there, for the second time"),
    ):
        env.reset(seed=8)
    with pytest.raises(gym.error.ResetNeeded):
        env.step("a")


def test_a_copy_goes_on_by_itself(env):
    env.reset(seed=0)
    env.step("a")
    other = copy.deepcopy(env)
    assert other.step("b") == env.step("b")
    assert env.step("c")[2]
    assert other.step("c")[2]


def test_wrong_calls(env):
    with pytest.raises(gym.error.ResetNeeded):
        env.step("a")
    with pytest.raises(ValueError, match=r"Echo has no reset options, got \['level'\]"):
        env.reset(options={"level": 3})
    with pytest.raises(ValueError, match="seed must be at most 4294967295, got 4294967296"):
        env.reset(seed=2**32)
    env.reset(seed=2**32 - 1)
    for message in (3, None, b"a"):
        with pytest.raises(ValueError, match="a message must be a str"):
            env.step(message)
    assert env.step("a")[2] is False  # none of them took a turn


def test_wrong_arguments():
    for turns in (0, -1, True, 2.0, "3", None):
        with pytest.raises(ValueError, match=f"turns must be an integer of at least 1, got {turns!r}"):
            Echo(turns)
    with pytest.raises(TypeError, match="render_mode must be None or one of"):
        Echo(render_mode="human")
