"""Processes that are killed while they save, at random moments: no file is ever broken, and none is lost."""

import json
import multiprocessing
import os
import sys

import numpy as np
import pytest
from helpers.docs import ROOT
from helpers.processes import run
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.benchmark.jobs import load_model
from seeupo_gym.cli import main

TRAP = "seeupo_gym/CoordinationTrap-v0"
# The longest time a process lives; it saves many times in it.
SECONDS = 0.5

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="it would take minutes"),
]
# A fast run shows that the test works; how often it must hold is up to the slow one.
n_kills = pytest.mark.parametrize("n_kills", [5, pytest.param(100, marks=pytest.mark.slow)])


def kill_at_random_moments(target, folder, n_kills, check):
    """Run ``target(folder, started)`` again and again, kill it, and look at what it leaves."""
    context, rng = multiprocessing.get_context("fork"), np.random.default_rng(0)
    for _ in range(n_kills):
        started = context.Event()
        process = context.Process(target=_quietly, args=(target, folder, started))
        process.start()
        assert started.wait(60)
        process.join(rng.uniform(0.0, SECONDS))
        process.kill()
        process.join()
        assert process.exitcode == -9, "it ended by itself"
        check(folder)


def _quietly(target, folder, started):
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.dup2(null, sys.stderr.fileno())
    target(folder, started)


def _save_in_a_loop(folder, started):
    model = SeeUPO("MlpPolicy", make_vec(TRAP, 4), n_groups=2, group_size=2, seed=0)
    evaluation = EvalCallback(make_vec(TRAP, 1), eval_freq=3, n_eval_episodes=1, best_model_save_path=folder, verbose=0)
    while True:
        evaluation.best_mean_reward = -np.inf  # there is a new best one all the time
        model.learn(16, callback=[CheckpointCallback(2, folder / "checkpoints"), evaluation])
        model.save(folder / "model")  # over itself: the only copy
        started.set()


def _loads(folder):
    paths = sorted(folder.rglob("*.zip"))
    assert folder / "model.zip" in paths
    assert folder / "best_model.zip" in paths
    for path in paths:
        SeeUPO.load(path)


@n_kills
def test_saved_models_survive(tmp_path, n_kills):
    kill_at_random_moments(_save_in_a_loop, tmp_path, n_kills, _loads)
    SeeUPO.load(tmp_path / "model").save(tmp_path / "model")
    assert list(tmp_path.glob(".*")) == [], "what was being written is cleared"


TRAIN = ["train", "seeupo", TRAP, "--steps", "64", "--evals", "1", "--episodes", "1", "--checkpoint-every", "16"]
TRAIN += ["--set", "n_groups=2", "--set", "group_size=2", "--set", "n_envs=4", "--no-progress"]


def _train_in_a_loop(folder, started):
    while True:
        assert main([*TRAIN, "--overwrite", "--out", str(folder)]) == 0
        started.set()


def _a_model_is_there(folder):
    run = folder / "CoordinationTrap-v0/seeupo/seed_0"
    for path in run.rglob("*.zip"):
        load_model(path)
    assert load_model(run / "model.zip")[0].num_timesteps == 64, "that of one run or the next"
    if (run / "result.json").exists():
        assert json.loads((run / "result.json").read_text())["timesteps"] == 64


@n_kills
def test_trained_models_survive(tmp_path, n_kills):
    kill_at_random_moments(_train_in_a_loop, tmp_path, n_kills, _a_model_is_there)
    assert main([*TRAIN, "--resume", "--out", str(tmp_path)]) == 0


def test_the_benchmark_of_kills_runs(tmp_path):
    out = run(sys.executable, ROOT / "benchmarks/kills.py", "--kills", "3", cwd=tmp_path)
    assert "| kills | 3 | 3 |" in out
    assert "| broken files, or lost ones | 0 | 0 |" in out
