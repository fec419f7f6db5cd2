"""Small jobs of a benchmark, and algorithms for what goes wrong in them; the workers import these."""

import json
import os
import random
import signal
from pathlib import Path

import numpy as np
from sb3_contrib import TRPO, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, PPO

from helpers import TRAP
from seeupo_gym import SeeUPO
from seeupo_gym.baselines import GRPO, GSPO, REINFORCE, RLOO, REINFORCEPlusPlus, get_algorithm
from seeupo_gym.benchmark.jobs import Job

SMALL = {"n_groups": 4, "group_size": 4, "n_envs": 16}
SMALL_ACTOR_CRITIC = {"n_envs": 4, "n_steps": 16, "batch_size": 16}
# The registered algorithms.
CLASSES = {
    "seeupo": SeeUPO,
    "ppo": PPO,
    "a2c": A2C,
    "seeupo_staged": SeeUPO,
    "grpo": GRPO,
    "gspo": GSPO,
    "rloo": RLOO,
    "reinforce": REINFORCE,
    "reinforce_pp": REINFORCEPlusPlus,
    "trpo": TRPO,
    "recurrent_ppo": RecurrentPPO,
    "maskable_ppo": MaskablePPO,
}


class RaisingA2C(A2C):
    def train(self):
        raise RuntimeError("out of luck")


class HandingOnA2C(A2C):
    def __init__(self, *args, n_steps=7, **kwargs):
        super().__init__(*args, n_steps=n_steps, **kwargs)


class DyingA2C(A2C):
    def train(self):
        os._exit(7)


class TellingA2C(A2C):
    def __init__(self, *args, **kwargs):  # before SB3 seeds the global generators
        os.kill(os.getpid(), signal.SIGINT)
        told = {"variable": os.environ.get("SEEUPO_TEST"), "home": os.environ.get("HOME")}
        raise RuntimeError(json.dumps({**told, "draws": [np.random.rand(), random.random()]}))  # noqa: NPY002


def small_job(out, algorithm="seeupo", env_id=TRAP, total_timesteps=256, settings=SMALL, **kwargs):
    spec = get_algorithm(algorithm).with_settings(settings)
    return Job(spec, env_id, 0, total_timesteps, Path(out), **{"n_evals": 4, "n_eval_episodes": 10, **kwargs})
