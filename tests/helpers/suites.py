"""What every environment of a suite promises as a ``TextSuiteEnv``; each suite's tests check it on one of theirs."""

import os
import pickle
import random
import signal

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from helpers.generators import global_states
from seeupo_gym import SeeUPO
from seeupo_gym.envs.info_keys import CRASHED


def check_wrong_calls(env, message):
    """
    Check what is refused, of an environment that was not reset yet.

    :param message: one that its first episode may begin with
    """
    with pytest.raises(gym.error.ResetNeeded):
        env.step(message)
    with pytest.raises(ValueError, match="no reset options, got \\['level'\\]"):
        env.reset(options={"level": "hard"})
    with pytest.raises(ValueError, match=f"seed must be at most {env.max_seed}"):
        env.reset(seed=env.max_seed + 1)
    env.reset(seed=env.max_seed)
    for action in (3, None, message.encode(), [message]):
        with pytest.raises(ValueError, match=f"must be a str, got {type(action).__name__}"):
            env.step(action)
    assert not env.step(message)[3], "the episode goes on as if nothing had been"


def check_transcript(env, *messages):
    """Check what ``render_mode="ansi"`` shows of an episode that begins with some messages."""
    shown = [env.reset(seed=0)[0]]
    for message in messages:
        shown += [f"Agent: {message}", env.step(message)[0]]
    assert env.render() == "\n".join(shown)


def check_global_generators_stay(play):
    """Check that playing neither seeds nor uses the generators that all programs share."""
    random.seed(11)
    np.random.seed(11)  # noqa: NPY002
    before = global_states()
    play()
    assert global_states() == before


def copy_of_the_arguments(env, message):
    """Pickle an environment in mid-episode; the copy has its arguments alone, and can begin an episode of its own."""
    copy = pickle.loads(pickle.dumps(env))
    with pytest.raises(gym.error.ResetNeeded):
        copy.step(message)
    return copy


def check_crash(env, message, cause, **more):
    """
    Check the end of an episode whose program dies or hangs at a message.

    :param cause: pattern of what the warning says first
    :param more: what ``info`` has besides, at least
    :return: what the agent reads
    """
    with pytest.warns(RuntimeWarning, match=f"{cause}.*tried once more"):
        text, reward, terminated, truncated, info = env.step(message)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert {**info, **more, CRASHED: True, "is_success": False} == info
    assert env.observation_space.contains(text)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(message)
    return text


def check_fork_leaves_alone(env, message):
    """Check that a fork of this process, which closes its copy of an environment as its exit does, ends nothing."""
    env.reset(seed=0)
    child = os.fork()
    if not child:
        signal.alarm(20)
        env.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not env.step(message)[3]


def check_groups_start_alike(env, policy="MlpPolicy", n_groups=2, group_size=2, n_steps=24):
    """
    Let SeeUPO learn for a while.

    :return: the model
    """
    model = SeeUPO(policy, env, n_groups=n_groups, group_size=group_size, seed=0)
    # A warning, which is an error here, would say that the members of a group do not start alike.
    model.learn(n_steps)
    assert model.num_timesteps >= n_steps
    return model


def check_worker_processes_play_the_same(make, actions):
    """Check that an environment shows the same in a process of its own."""

    def shown(vec_env_cls):
        env = vec_env_cls([make])
        env.seed(3)
        observations = [env.reset(), *(env.step(np.array([action]))[0] for action in actions)]
        env.close()
        return np.array(observations)

    np.testing.assert_array_equal(shown(SubprocVecEnv), shown(DummyVecEnv))
