"""Vector environments of ToolChain, native or not, and the seeds of their lanes."""

import numpy as np

from helpers import TOOL
from seeupo_gym import make_vec
from seeupo_gym.envs.vector import TaskVecEnv


def make_native(n_envs=3, seed=None, **kwargs):
    return make_vec(TOOL, n_envs, seed, **kwargs)


def task_of(env, lane):
    """The task that runs a lane, and the lane's row in it."""
    if isinstance(env.unwrapped, TaskVecEnv):
        return env.unwrapped.task, lane
    return env.get_attr("task")[lane], 0


def seeds_of(env, name="task_seeds"):
    rows = [task_of(env, lane) for lane in range(env.num_envs)]
    return np.array([getattr(task, name)[row] for task, row in rows]).astype(np.int64)


def no_submit(n):
    return np.zeros((n, 2), dtype=int)
