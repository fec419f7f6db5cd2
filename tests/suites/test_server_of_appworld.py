"""AppWorld's adapter: what it sends, a server that is gone, and who has a server; with the stand-in alone."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from helpers.appworld import TASKS, Refused, Stub, World, complete
from helpers.processes import IN_PROCESSES
from helpers.suites import (
    check_crash,
    check_groups_start_alike,
    copy_of_the_arguments,
)
from stable_baselines3.common.vec_env import DummyVecEnv

from seeupo_gym.envs.suites.appworld import AppWorldEnv

ENV_ID = "seeupo_gym/AppWorld-v0"


# --- What is sent, and what is done about a server that is gone: the stand-in alone


def test_what_is_sent(stub, stubbed):
    stubbed.reset(seed=0)
    stubbed.step(complete(2))
    stubbed.reset(seed=1)
    stubbed.close()
    start = {"experiment_name": f"seeupo_gym-127.0.0.1-{stub.server_port}", "max_interactions": 4, "timeout_seconds": 1}
    assert stub.requests == [
        ("initialize", {"task_id": "abc1_1", **start}),
        ("execute", {"task_id": "abc1_1", "code": complete(2)}),
        ("task_completed", {"task_id": "abc1_1"}),
        ("evaluate", {"task_id": "abc1_1", "suppress_errors": True}),
        ("initialize", {"task_id": "abc2_1", **start}),
        ("close", {"task_id": "abc2_1"}),
    ]


def test_importing_and_making_one_opens_nothing(stub, monkeypatch):
    AppWorldEnv(stub.url, tasks=["abc1_1"]).close()
    assert stub.requests == []
    # Nor does a proxy come in between.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    env = AppWorldEnv(stub.url, tasks=["abc1_1"])
    assert env.reset(seed=0)[1]["task_id"] == "abc1_1"
    env.close()


def test_long_outputs_are_cut(stub, stubbed):
    stubbed.reset(seed=0)
    stub.faults.append(lambda: json.dumps({"output": "y" * 300_000}).encode())
    text = stubbed.step("print('y' * 300_000)")[0]
    assert len(text) == 100_000
    assert text.endswith("yyy\n[300,000 characters, cut]")


def raise_refused(status):
    raise Refused(status)


# What may go wrong with a request: what is done in place of an answer, and what the warning says.
FAULTS = {
    "another task": (lambda: raise_refused(500), "refused 'execute': HTTP 500, Internal Server Error"),
    "no JSON": (lambda: b"<html>", "gave no answer to 'execute' .JSONDecodeError"),
    "no output": (lambda: b"{}", "gave no answer to 'execute' .KeyError"),
    "another type": (lambda: b'{"output": 3}', "answered 'execute' with int, not str"),
    "no answer": (lambda: 1 / 0, "gave no answer to 'execute' .RemoteDisconnected"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_that_fails_truncates_the_episode(stub, stubbed, fault):
    action, cause = FAULTS[fault]
    stubbed.reset(seed=0)
    # What is refused is followed by the empty program, which is refused as well.
    stub.faults += [action, action]
    check_crash(stubbed, "print(1)", cause)
    stub.faults.clear()
    assert stubbed.reset(seed=1)[0].startswith("What is 2 plus 2?")


@pytest.mark.parametrize("route", ["task_completed", "evaluate"])
def test_a_verdict_that_fails_truncates_the_episode(stub, stubbed, route):
    stubbed.reset(seed=0)
    for _ in range(3):
        stubbed.step("print(1)")
    stub.faults += [None] * (1 if route == "task_completed" else 2) + [lambda: raise_refused(500)]
    check_crash(stubbed, "print(1)", f"refused '{route}'")


def test_a_server_that_hangs(stub, stubbed):
    stubbed.reset(seed=0)
    stubbed.server.wait = 0.2
    stub.faults.append(lambda: time.sleep(0.5) or b"{}")
    check_crash(stubbed, "print(1)", "TimeoutError: timed out")
    stubbed.server.wait = 10
    assert stubbed.reset(seed=0)[1]["task_id"] == "abc1_1"


def test_a_server_that_dies_and_comes_back():
    stub = Stub()
    env = AppWorldEnv(stub.url, tasks=list(TASKS), turns=1)
    env.reset(seed=0)
    stub.stop()
    check_crash(env, "print(1)", "Connection refused")
    stub = Stub(stub.server_port)
    env.reset(seed=1)
    assert env.step(complete(4))[1] == 1.0
    # A regular end in between makes the next crash a first one; one that has lost the task is noticed like a dead one.
    env.reset(seed=0)
    stub.world = World()
    check_crash(env, "print(1)", "refused 'execute'")
    stub.stop()
    with pytest.raises(RuntimeError, match=r"Connection refused.*for the second time"):
        env.reset(seed=0)
    env.close()


def test_a_dead_server_is_tried_once_more_at_reset(stub, stubbed):
    stubbed.reset(seed=0)
    stub.faults.append(lambda: 1 / 0)
    with pytest.warns(RuntimeWarning, match="gave no answer to 'initialize'.*tried once more"):
        assert stubbed.reset(seed=1)[1]["task_id"] == "abc2_1"


def test_no_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env = AppWorldEnv(f"http://127.0.0.1:{free.getsockname()[1]}", tasks=["abc1_1"])
        with pytest.raises(RuntimeError, match="start one with `appworld serve environment") as error:
            env.reset(seed=0)
    assert "\n" not in str(error.value)
    env.close()


def test_a_task_that_the_server_does_not_have(stub):
    env = AppWorldEnv(stub.url, tasks=["abc1_1", "abc9_1"])
    with pytest.raises(RuntimeError, match="task 'abc9_1'; the server's log says why"):
        env.reset(seed=1)
    assert env.reset(seed=0)[1]["task_id"] == "abc1_1"
    env.close()


# --- One environment a server


@pytest.mark.process
def test_a_server_is_of_one_environment(stub, stubbed):
    stubbed.reset(seed=0)
    other = AppWorldEnv(stub.url.replace("127.0.0.1", "localhost"), tasks=list(TASKS))
    with pytest.raises(RuntimeError, match="in use by another environment"):
        other.reset(seed=1)
    code = f"from seeupo_gym.envs.suites.appworld import *; AppWorldEnv({stub.url!r}, tasks=['abc1_1']).reset(seed=0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "in use by another environment" in done.stderr
    assert stubbed.step(complete(2))[1] == 1.0
    stubbed.close()
    assert other.reset(seed=1)[1]["task_id"] == "abc2_1"
    # It is given back with the environment too.
    del other
    stubbed.reset(seed=0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.process
def test_forks_neither_keep_the_server_nor_give_it_back(stub):
    env = AppWorldEnv(stub.url, tasks=list(TASKS))
    env.reset(seed=0)
    other = AppWorldEnv(stub.url, tasks=list(TASKS))
    child = os.fork()
    if not child:
        signal.alarm(20)
        del env  # as its exit does
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(RuntimeError, match="in use by another environment"):
        other.reset(seed=1)
    child = os.fork()
    if not child:
        signal.alarm(20)
        signal.pause()
    try:
        env.close()
        assert other.reset(seed=1)[1]["task_id"] == "abc2_1"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        other.close()


def test_a_copy_has_the_arguments_only(stub, stubbed):
    stubbed.reset(seed=0)
    copy = copy_of_the_arguments(stubbed, "print(1)")
    stubbed.close()
    assert copy.reset(seed=2)[1]["task_id"] == "abc3_1"
    copy.close()
    copy.close()


class Choices(gym.Wrapper):
    """Three answers to choose from, and the task as a number: SB3's vector environments hold no texts."""

    observation_space = spaces.Box(0.0, 3.0, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        _, info = self.env.reset(seed=seed, options=options)
        self.number = np.float32([TASKS[info["task_id"]]])
        return self.number, info

    def step(self, action):
        return self.number, *self.env.step(complete(2 * (int(action) + 1)))[1:]


def make_choices(url):
    return Choices(gym.make("seeupo_gym:" + ENV_ID, url=url, tasks=list(TASKS), turns=2))


@pytest.fixture
def factories():
    stubs = [Stub() for _ in range(2)]
    # A lambda would not be pickled, but cloudpickle takes it to the workers.
    yield [lambda url=stub.url: make_choices(url) for stub in stubs]
    for stub in stubs:
        stub.stop()


@pytest.mark.parametrize("vec_env_class", [DummyVecEnv, IN_PROCESSES])
def test_vector_environments(factories, vec_env_class):
    env = vec_env_class(factories)
    env.seed(1)
    assert env.reset().ravel().tolist() == [2, 3]
    _, rewards, dones, infos = env.step(np.array([1, 1]))
    assert rewards.tolist() == [1.0, 0.5]
    assert dones.all()
    assert [info["is_success"] for info in infos] == [True, False]
    env.close()


def test_groups_of_one_task(factories):
    env = DummyVecEnv(factories)
    check_groups_start_alike(env, n_steps=16)
    env.close()
