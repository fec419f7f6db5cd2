"""Other processes, as tests harm them and wait for them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stable_baselines3.common.vec_env import SubprocVecEnv

# One of the classes of vector environments that a test is parametrized with.
IN_PROCESSES = pytest.param(SubprocVecEnv, marks=pytest.mark.process)


def run(*command, **settings):
    """
    Run a program to its end, and fail with what it wrote if it fails.

    :param command: its path and arguments
    :param settings: for ``subprocess.run``
    :return: what it wrote to its standard output
    """
    command = [str(part) for part in command]
    # The limit is for what hangs.
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600, **settings)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_python(code, **settings):
    """Run code in a Python of its own; see :func:`run`."""
    return run(sys.executable, "-c", code, **settings)


def freeze(*pids):
    """Stop processes, and wait until all of their threads have: until then, one of these may still answer."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
            while thread.read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.01)
