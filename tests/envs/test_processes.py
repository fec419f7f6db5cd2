"""Environments in processes: which worker failed, of what, within what time, and that no process is left."""

import gc
import multiprocessing
import os
import signal
import threading
import time
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.baselines import evaluate
from seeupo_gym.envs.processes import WorkerError, describe_exit, watch_workers

pytestmark = pytest.mark.process


class Failing(gym.Env):
    """Two turns; the environment of a seed that is 1 modulo 4 fails at its second turn."""

    observation_space, action_space, max_turns = spaces.Box(0, 1, (1,)), spaces.Discrete(2), 2

    def __init__(self, fault, number=1):
        self.fault, self.number = fault, number
        if fault == "made" and number == 1:
            raise ZeroDivisionError("no such thing")

    def reset(self, *, seed=None, options=None):
        self.turn = 0
        if self.fault == "reset" and self.number == 1:
            raise ZeroDivisionError("no such thing")
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.turn += 1
        info = {}
        if self.number == 1 and self.turn == 2:
            if self.fault == "step":
                raise ZeroDivisionError("no such thing")
            if self.fault == "exit":
                os._exit(3)
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "hang":
                time.sleep(600)
            if self.fault == "info":
                info = {"lock": threading.Lock()}
        return np.zeros(1, np.float32), 0.0, self.turn == 2, False, info


def own(fault, n_envs=2):
    """Make the vector environment of somebody who knows nothing of this package."""
    return SubprocVecEnv([partial(Failing, fault, number) for number in range(n_envs)])


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    assert multiprocessing.active_children() == []


TRACEBACK = r"In that process:\n\n(.|\n)*{}"
FAULTS = {
    "reset": (r"environment 1 died \(exit code 1\)", "ZeroDivisionError: no such thing"),
    "step": (r"environment 1 died \(exit code 1\)", "ZeroDivisionError: no such thing"),
    "info": (r"environment 1 died \(exit code 1\)", "cannot pickle '_thread.lock' object"),
    "exit": (r"environment 1 died \(exit code 3\)", None),
    "kill": ("environment 1 was killed by SIGKILL", None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_training_says_which_environment_failed(fault):
    env = own(fault)
    model = SeeUPO("MlpPolicy", env, n_groups=2, group_size=2, max_turns=2, seed=0)
    with pytest.raises(WorkerError, match=FAULTS[fault][0] + ", and those of the other environments were ended"):
        model.learn(100)
    with pytest.raises(WorkerError, match=FAULTS[fault][0]):
        env.reset()
    env.close()


@pytest.fixture
def registered():
    def register(fault):
        gym.register("Failing-v0", partial(Failing, fault))
        return gym.spec("Failing-v0")

    yield register
    del gym.registry["Failing-v0"]


@pytest.mark.parametrize(("algorithm", "fault"), [(SeeUPO, "reset"), (SeeUPO, "info"), (PPO, "step")])
def test_make_vec_shows_the_traceback_whoever_uses_it(algorithm, fault, registered):
    env = make_vec(registered(fault), 2, vec_env_cls=SubprocVecEnv)
    settings = {"n_groups": 2, "group_size": 2} if algorithm is SeeUPO else {"n_steps": 8, "batch_size": 8}
    with pytest.raises(WorkerError, match=TRACEBACK.format(FAULTS[fault][1])):
        algorithm("MlpPolicy", env, **settings).learn(100)
    env.close()


def test_an_environment_that_cannot_be_made_shows_its_traceback(registered):
    spec = registered("made")
    with pytest.raises(WorkerError, match=r"environment 0 could not be made in its process:(.|\n)*no such thing"):
        make_vec(spec, 2, vec_env_cls=SubprocVecEnv)
    for process in multiprocessing.active_children():
        process.join(5)


def test_a_worker_that_hangs_is_ended_after_the_time_that_was_given(registered):
    cls = partial(SubprocVecEnv, start_method="forkserver")
    env = make_vec(registered("hang"), 2, vec_env_cls=cls, step_timeout=60)
    env.reset()
    env.unwrapped.remotes[0]._workers.timeout = 0.5  # the start takes longer
    env.step(np.zeros(2, dtype=int))
    with pytest.raises(WorkerError, match=r"environment 0 has not answered within 0.5 seconds \(step_timeout\)"):
        env.step(np.zeros(2, dtype=int))
    env.close()


def test_evaluation_says_it_too():
    model = SeeUPO("MlpPolicy", Failing("none"), n_groups=2, group_size=2, seed=0)
    with pytest.raises(WorkerError, match=FAULTS["step"][0]):
        evaluate(model, own("step"), 3)


def test_what_works_goes_on_working(registered):
    env = make_vec(registered("none"), 2, vec_env_cls=SubprocVecEnv, step_timeout=60)
    watch_workers(env)  # once more
    folder = env.unwrapped.remotes[0]._workers._notes.folder
    assert folder.is_dir()
    SeeUPO("MlpPolicy", env, n_groups=2, group_size=2, seed=0).learn(20)
    assert env.get_attr("max_turns") == [2, 2]
    env.close()
    del env
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step_timeout": 0, "vec_env_cls": SubprocVecEnv}, "step_timeout must be a finite number above 0"),
        ({"step_timeout": 1}, "step_timeout is for environments in processes"),
        ({"step_timeout": 1, "vec_env_cls": DummyVecEnv}, "step_timeout is for environments in processes"),
    ],
)
def test_wrong_time_limits_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_vec("CartPole-v1", 2, **arguments)


def test_exits_are_described():
    assert describe_exit(-signal.SIGTERM) == "was killed by SIGTERM"
    assert describe_exit(0) == "died (exit code 0)"
    assert describe_exit(None) == "has closed its connection"
    assert describe_exit(-77) == "was killed by signal 77"
