"""Ctrl-C while a model learns: it gets through, and leaves behind what there was."""

import os
import signal
from multiprocessing import parent_process

import gymnasium as gym
import pytest
import torch as th
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from seeupo_gym import SeeUPO
from seeupo_gym.envs.vector import SeedQueue

TRAP = "seeupo_gym/CoordinationTrap-v0"
SMALL = dict(n_groups=2, group_size=2, n_epochs=1, seed=0)


def make_env():
    import seeupo_gym  # noqa: F401  (registers the ids in a worker)

    if parent_process() is not None:  # a worker listens to Ctrl-C also where the tests run in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return SeedQueue(Monitor(gym.make(TRAP)))


def interrupt_at(monkeypatch, vec_env_cls, method, n_calls, before=lambda env: None):
    """Raise KeyboardInterrupt in place of a method of the environment's, at a call of it."""
    original, calls = getattr(vec_env_cls, method), []

    def interrupted(env, *args, **kwargs):
        calls.append(method)
        if len(calls) == n_calls:
            before(env)
            raise KeyboardInterrupt
        return original(env, *args, **kwargs)

    monkeypatch.setattr(vec_env_cls, method, interrupted)


def end_workers(env):
    """Send Ctrl-C to the workers, as a terminal does."""
    for process in env.processes:
        os.kill(process.pid, signal.SIGINT)
    for process in env.processes:
        process.join(30)
        assert process.exitcode is not None, "the worker should end by Ctrl-C"


@pytest.mark.parametrize("method", ["step_async", "step_wait", "reset", "env_method"])
def test_ctrl_c_of_a_terminal_is_an_interrupt(monkeypatch, method):
    """The workers end by it too, and what speaks to them then must not hide it."""
    env = SubprocVecEnv([make_env] * 2, start_method="fork")
    model = SeeUPO("MlpPolicy", env, **SMALL)
    interrupt_at(monkeypatch, SubprocVecEnv, method, 2, before=end_workers)
    with pytest.raises(KeyboardInterrupt):
        model.learn(64)


@pytest.mark.parametrize("method", ["step_async", "step_wait"])
@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])
def test_training_goes_on_after_an_interrupt(monkeypatch, vec_env_cls, method):
    """Of this process alone: the answers that its workers still owe are not taken for others."""
    env = vec_env_cls([make_env] * 2, **({} if vec_env_cls is DummyVecEnv else {"start_method": "fork"}))
    model = SeeUPO("MlpPolicy", env, **SMALL).learn(16)
    interrupt_at(monkeypatch, vec_env_cls, method, 3)
    with pytest.raises(KeyboardInterrupt):
        model.learn(64)
    monkeypatch.undo()
    seen = []
    model.learn(32, callback=lambda given, _: seen.append((given["rewards"].shape, given["dones"].dtype)) or True)
    assert set(seen) == {((2,), th.zeros(0, dtype=th.bool).numpy().dtype)}
    assert model.num_timesteps == 32
    env.close()


def test_gradients_and_threads_are_as_they_were():
    """Whenever the interrupt comes: here, where others have just changed them."""
    n_threads = th.get_num_threads()

    def interrupt(given, _):
        th.set_grad_enabled(False)
        th.set_num_threads(n_threads + 1)
        raise KeyboardInterrupt

    model = SeeUPO("MlpPolicy", TRAP, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        model.learn(64, callback=interrupt)
    try:
        assert th.is_grad_enabled()
        assert th.get_num_threads() == n_threads
    finally:
        th.set_grad_enabled(True)
        th.set_num_threads(n_threads)
