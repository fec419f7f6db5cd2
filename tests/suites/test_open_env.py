"""OpenEnv's sessions, against a real server of openenv-core with a small environment, in a process of its own."""

import random
import socket
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from helpers.suites import check_crash, check_groups_start_alike, check_wrong_calls, copy_of_the_arguments
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from seeupo_gym.envs.suites.open_env import OpenEnvEnv

pytest.importorskip("openenv.core.env_server")
pytest.importorskip("websockets.sync.client")

pytestmark = pytest.mark.process  # the server

ENV_ID = "seeupo_gym/OpenEnv-v0"
MAX_SESSIONS = 4
SERVER = f"""
import random, sys, time
import uvicorn
from pydantic import Field
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    text: str = Field(max_length=50)


class Hint(Observation):
    text: str
    tries: int = 0


class NumberEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.number = random.Random(seed).randrange(8)
        self.tries = 0
        return Hint(text=f"Guess a number from 0 to 7. \\u2713 {{self.number % 2}}")

    def step(self, action, timeout_s=None, **kwargs):
        self.tries += 1
        if action.text == "sleep":
            time.sleep(3)
        if action.text == "long":
            return Hint(text="x" * 300_000, reward=None)
        guess = int(action.text)
        if guess == self.number:
            return Hint(text="Right.", tries=self.tries, reward=1.0, done=True)
        return Hint(text="Higher." if guess < self.number else "Lower.", tries=self.tries, reward=-0.125)

    @property
    def state(self):
        return State(step_count=self.tries)


app = create_fastapi_app(NumberEnvironment, Guess, Hint, max_concurrent_envs={MAX_SESSIONS})
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""


def number(seed):
    return random.Random(seed).randrange(8)


def seed_of(wanted):
    return next(seed for seed in range(1000) if number(seed) == wanted)


def start(folder):
    """A server, when it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "server.py").write_text(SERVER)
    process = subprocess.Popen([sys.executable, folder / "server.py", str(port)])
    for _ in range(900):
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            time.sleep(0.2)
    return process, f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    process, url = start(tmp_path_factory.mktemp("openenv"))
    yield url
    process.kill()
    process.wait()


def make(url, **kwargs):
    return OpenEnvEnv(url, **{"action": "text", "observation": "text", "turns": 4, **kwargs})


@pytest.fixture
def env(url):
    env = make(url, render_mode="ansi")
    yield env
    env.close()


ACCEPTED = {"refused": False, "seeupo_gym/malformed": False}


def test_an_episode(env):
    seed = seed_of(5)
    text, info = env.reset(seed=seed)
    assert text == "Guess a number from 0 to 7. ? 1"
    assert info["observation"] == {"text": "Guess a number from 0 to 7. \u2713 1", "tries": 0}
    step = env.step("3")
    assert step == ("Higher.", -0.125, False, False, {"observation": {"text": "Higher.", "tries": 1}, **ACCEPTED})
    *step, info = env.step("5")
    assert step == ["Right.", 1.0, True, False]
    assert info == {"observation": {"text": "Right.", "tries": 2}, **ACCEPTED, "is_success": True}
    assert env.render() == f"{text}\nAgent: 3\nHigher.\nAgent: 5\nRight."
    with pytest.raises(gym.error.ResetNeeded):
        env.step("5")


def test_the_turn_limit_is_part_of_the_task(env):
    env.reset(seed=seed_of(5))
    ends = [env.step("4")[2:] for _ in range(4)]
    assert [end[:2] for end in ends] == [(False, False)] * 3 + [(True, False)]
    assert "is_success" not in ends[0][2]
    assert ends[-1][2]["is_success"] is False


def test_seeds_are_the_servers(env):
    def won(seed):
        env.reset(seed=seed)
        return env.step(str(number(seed)))[1] == 1.0

    assert all(won(seed) for seed in [*range(8), 2**63 - 1])
    assert len({number(seed) for seed in range(8)}) > 1

    def drawn():
        env.reset(seed=3)
        return [env.reset()[0] for _ in range(6)]

    assert drawn() == drawn()
    assert len(set(drawn())) == 2


@pytest.mark.parametrize(
    ("message", "reply"),
    [
        ("", "invalid literal for int"),
        ("five", "invalid literal for int() with base 10: 'five'"),
        ("9" * 60, "string_too_long"),
        ("9" * 1_000_000, "string_too_long"),
        ("\ud800", "invalid literal for int() with base 10: '?'"),
        ("\0", "invalid literal for int"),
    ],
)
def test_what_the_server_refuses_costs_a_turn(env, message, reply):
    env.reset(seed=seed_of(5))
    text, *step, info = env.step(message)
    assert text.startswith("Refused: ")
    assert reply in text
    assert env.observation_space.contains(text)
    assert step == [0.0, False, False]
    assert info == {"observation": {}, "refused": True, "seeupo_gym/malformed": True}
    assert env.step("5")[1] == 1.0


def test_long_observations_are_cut(env):
    env.reset(seed=0)
    text, reward, *_ = env.step("long")
    assert text == "x" * 100_000
    assert reward == 0.0
    assert env.observation_space.contains(text)


def parse(message):
    if not message.startswith("I guess "):
        raise ValueError("say 'I guess NUMBER'")
    return {"text": message.removeprefix("I guess ")}


def show(fields):
    return f"{fields['text']} ({fields['tries']} tries)"


def in_two(fields, reward):
    return fields.get("tries", 9) <= 2 and reward > 0


def test_functions_in_place_of_fields(url):
    env = make(url, action=parse, observation=show, success=in_two)
    env.reset(seed=seed_of(5))
    assert env.step("5")[0] == "Refused: say 'I guess NUMBER'"
    assert env.step("I guess 3")[0] == "Higher. (1 tries)"
    assert env.step("I guess 5")[4]["is_success"]
    env.reset(seed=seed_of(5))
    env.step("I guess 3")
    env.step("I guess 3")
    assert not env.step("I guess 5")[4]["is_success"]
    env.close()


def test_success_is_about_the_last_observation_whatever_is_refused_since(url):
    seen = []
    env = make(url, turns=2, success=lambda *last: seen.append(last) or True)
    env.reset(seed=seed_of(5))
    for _ in range(2):
        *_, info = env.step("five")
    assert (info["is_success"], info["observation"]) == (True, {})
    env.reset(seed=seed_of(5))
    env.step("3")
    env.step("five")
    assert seen == [
        ({"text": "Guess a number from 0 to 7. \u2713 1", "tries": 0}, 0.0),
        ({"text": "Higher.", "tries": 1}, -0.125),
    ]
    env.close()


def test_wrong_fields_and_functions(url):
    env = make(url, observation="message")
    with pytest.raises(ValueError, match=r"no field 'message', it has \['text', 'tries'\]"):
        env.reset(seed=0)
    env.close()
    env = make(url, action="message")
    env.reset(seed=0)
    assert "extra_forbidden" in env.step("5")[0]
    env.close()
    env = make(url, action=lambda message: {"text": object()})
    env.reset(seed=0)
    with pytest.raises(TypeError, match="JSON"):
        env.step("5")
    env.close()


def test_a_session_an_environment(url):
    first, second = make(url), make(url)
    first.reset(seed=seed_of(5))
    second.reset(seed=seed_of(2))
    assert first.step("3")[0] == "Higher."
    assert second.step("3")[0] == "Lower."
    first.close()
    assert second.step("2")[1] == 1.0
    second.close()


def test_no_session_left(url):
    envs = [make(url) for _ in range(MAX_SESSIONS + 1)]
    for env in envs[:-1]:
        env.reset(seed=0)
    with pytest.raises(RuntimeError, match=r"CAPACITY_REACHED.*has it a session left\?"):
        envs[-1].reset(seed=0)
    for env in envs:
        env.close()


def test_an_answer_that_does_not_come_truncates_the_episode(url):
    env = make(url, timeout=1)
    env.reset(seed=seed_of(5))
    check_crash(env, "sleep", "gave no answer to 'step' .TimeoutError")
    env.timeout = 60.0
    env.reset(seed=seed_of(5))
    assert env.step("5")[1] == 1.0
    env.close()


def test_a_server_that_dies(tmp_path):
    process, url = start(tmp_path)
    env = make(url)
    env.reset(seed=0)
    process.kill()
    process.wait()
    check_crash(env, "3", "gave no answer to 'step'")
    with pytest.raises(RuntimeError, match=r"no session with the OpenEnv server.*for the second time"):
        env.reset(seed=0)
    other = make(url)
    with pytest.raises(RuntimeError, match=r"no session .*is it running") as error:
        other.reset(seed=0)
    assert "\n" not in str(error.value)


def test_a_copy_has_the_arguments_only(env):
    env.reset(seed=seed_of(5))
    copy = copy_of_the_arguments(env, "5")
    copy.reset(seed=seed_of(2))
    assert copy.step("2")[1] == 1.0
    assert env.step("5")[1] == 1.0
    copy.close()


def test_checker(url):
    env = gym.make(ENV_ID, url=url, action="text", observation="text", turns=3)
    assert env.unwrapped.max_turns == 3
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": "127.0.0.1:8000"},
        {"url": "ws://127.0.0.1:8000"},
        {"url": 8000},
        {"action": ""},
        {"action": None},
        {"observation": 3},
        {"success": True},
        {"turns": 0},
        {"turns": True},
        {"timeout": 0},
        {"timeout": float("inf")},
        {"timeout": "60"},
    ],
)
def test_wrong_arguments(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be"):
        OpenEnvEnv(**arguments)


def test_wrong_calls(env):
    check_wrong_calls(env, "5")
    with pytest.raises(TypeError, match="render_mode"):
        OpenEnvEnv(render_mode="human")


class Numbers(gym.Wrapper):
    """The hints as numbers: SB3's vector environments hold no texts."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(8)

    def reset(self, *, seed=None, options=None):
        text, info = self.env.reset(seed=seed, options=options)
        return np.float32([0, int(text[-1])]), info

    def step(self, action):
        text, *rest = self.env.step(str(action))
        return np.float32([{"Higher.": 1, "Lower.": -1}.get(text, 0), 0]), *rest


@pytest.fixture
def factory(url):
    return lambda: Numbers(gym.make("seeupo_gym:" + ENV_ID, url=url, action="text", observation="text", turns=3))


@pytest.mark.parametrize("vec_env_class", [DummyVecEnv, SubprocVecEnv])
def test_vector_environments(factory, vec_env_class):
    env = vec_env_class([factory, factory])
    env.seed(3)
    assert env.reset()[:, 1].tolist() == [number(3) % 2, number(4) % 2]
    _, rewards, dones, infos = env.step(np.array([number(3), number(4)]))
    assert rewards.tolist() == [1.0, 1.0]
    assert dones.all()
    assert all(info["is_success"] for info in infos)
    env.close()


def test_groups_of_one_task(factory):
    env = DummyVecEnv([factory] * 4)
    check_groups_start_alike(env)
    env.close()
