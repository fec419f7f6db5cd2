"""Other processes, as tests harm them and wait for them."""

import os
import signal
import time
from pathlib import Path

import pytest
from stable_baselines3.common.vec_env import SubprocVecEnv

# One of the classes of vector environments that a test is parametrized with.
IN_PROCESSES = pytest.param(SubprocVecEnv, marks=pytest.mark.process)


def freeze(*pids):
    """Stop processes, and wait until all of their threads have: until then, one of these may still answer."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
            while thread.read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.01)
