"""
Processes that are killed with SIGKILL at random moments: what they leave is whole, and the work goes on from it.

Run it with ``python benchmarks/kills.py --kills 200``; it takes some minutes. So many kills hit the command
``seeupo-gym train``, and as many a script that saves all the time, by ``model.save`` and by SB3's callbacks. After each
kill everything that lies in the folder is read. It prints Markdown, which ``docs/trust.md`` holds, and fails where
anything is broken. It needs ``fork``, so it does not run on Windows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.benchmark.models import load_model, read_info
from seeupo_gym.cli import main

TRAP = "seeupo_gym/CoordinationTrap-v0"
SMALL = {"n_groups": 2, "group_size": 2}
STEPS = 640
# A checkpoint after each iteration of 16 steps: the run writes most of the time.
TRAIN = f"train seeupo {TRAP} --steps {STEPS} --evals 4 --episodes 2 --checkpoint-every 16 --no-progress".split()
TRAIN += ["--set", "n_envs=4", *(word for name, value in SMALL.items() for word in ("--set", f"{name}={value}"))]
# Every second run has the other one, so that an old model can be told from a new one.
RATES = (0.001, 0.002)
SAVE_SECONDS = 0.5
ROWS = {
    "kills": "kills",
    "writing": "of them in the middle of writing a file",
    "read": "files read afterwards",
    "broken": "broken files, or lost ones",
    "resumed": "runs that went on after a kill",
    "finished": "runs that came to their end",
    "differ": "of them that differ, in a weight or in a logged step, from a run without a kill",
    "leftovers": "temporary files that the next one to finish left behind",
}


def begin(target: Callable[..., Any], *arguments: Any, output: Path) -> Any:
    """
    Start a process.

    :param target: what it does
    :param arguments: its arguments
    :param output: file for what it prints
    :return: the process
    """
    output.write_text("")  # what the one before printed is not its

    def work() -> None:
        descriptor = os.open(output, os.O_WRONLY)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.exit(target(*arguments))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def killed(process: Any, seconds: float) -> bool:
    """
    Kill a process after some time.

    :param process: the process
    :param seconds: how long it lives
    :return: whether it was killed; False if it had ended by itself
    """
    process.join(seconds)
    process.kill()
    process.join()
    return bool(process.exitcode == -9)


def read_all(folder: Path, count: Counter[str], load: Callable[[Path], Any]) -> None:
    """
    Read all files of a folder.

    :param folder: the folder
    :param count: where the files are counted
    :param load: function that loads a model
    """
    count["writing"] += any(folder.rglob(".seeupo-*.tmp"))
    for path in sorted(folder.rglob("*.*")):
        if path.suffix not in (".zip", ".json") or path.name.startswith("."):
            continue
        count["read"] += 1
        try:
            if path.suffix == ".json":
                json.loads(path.read_text())
            else:
                load(path)
        except Exception as error:
            count["broken"] += 1
            print(f"broken: {path}: {type(error).__name__}: {error}", file=sys.stderr)


def save_in_a_loop(folder: Path, started: Any) -> None:
    """
    Save again and again, over the only copy.

    :param folder: where
    :param started: event that is set when all files are there
    """
    model = SeeUPO("MlpPolicy", make_vec(TRAP, 4), seed=0, n_groups=2, group_size=2)
    evaluation = EvalCallback(make_vec(TRAP, 1), eval_freq=3, n_eval_episodes=1, best_model_save_path=folder, verbose=0)
    while True:
        evaluation.best_mean_reward = -np.inf  # there is a new best one all the time
        model.learn(16, callback=[CheckpointCallback(2, folder / "checkpoints"), evaluation])
        model.save(folder / "model")
        started.set()


def kill_saves(folder: Path, n_kills: int, rng: np.random.Generator) -> Counter[str]:
    """
    Kill a script that saves all the time.

    :param folder: an empty folder
    :param n_kills: how often
    :param rng: generator of the moments
    :return: what happened
    """
    count: Counter[str] = Counter()
    while count["kills"] < n_kills:
        started = multiprocessing.get_context("fork").Event()
        process = begin(save_in_a_loop, folder, started, output=folder / "output.txt")
        started.wait(60)
        count["kills"] += killed(process, rng.uniform(0.0, SAVE_SECONDS))
        read_all(folder, count, SeeUPO.load)
        count["broken"] += sum(not (folder / f"{name}.zip").exists() for name in ("model", "best_model"))
    for name in ("model", "checkpoints/rl_model_16_steps"):  # the next one that saves there clears a folder
        SeeUPO.load(folder / name).save(folder / name)
    count["leftovers"] = len(list(folder.rglob(".seeupo-*.tmp")))
    return count


def outcome(run: Path) -> tuple[Any, ...]:
    """
    Collect what a run that is over has learned and logged.

    :param run: its folder
    :return: weights, and tag -> steps and values
    """
    model, _ = load_model(run / "model.zip")
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("time/")]
    logged = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).tolist(), logged


def kill_training(folder: Path, n_kills: int, rng: np.random.Generator) -> Counter[str]:
    """
    Kill ``seeupo-gym train``, go on with ``--resume`` until it is over, and begin anew with ``--overwrite``.

    :param folder: an empty folder
    :param n_kills: how often
    :param rng: generator of the moments
    :return: what happened
    """
    count: Counter[str] = Counter()
    output = folder / "output.txt"
    undisturbed, seconds = {}, 0.0
    for rate in RATES:
        out, begun = folder / f"rate_{rate}", time.perf_counter()
        process = begin(main, [*TRAIN, "--set", f"learning_rate={rate}", "--out", str(out)], output=output)
        process.join()
        assert process.exitcode == 0, output.read_text()
        seconds = max(seconds, time.perf_counter() - begun)
        undisturbed[rate] = outcome(out / "CoordinationTrap-v0/seeupo/seed_0")
    out = folder / "killed"
    run, rate, old_rate = out / "CoordinationTrap-v0/seeupo/seed_0", RATES[0], None
    while count["kills"] < n_kills or old_rate is None:
        goes_on = rate_of(last_checkpoint(run)) == rate
        way = "--resume" if goes_on or old_rate is None else "--overwrite"
        command = [*TRAIN, "--set", f"learning_rate={rate}", way, "--out", str(out)]
        process = begin(main, command, output=output)
        was_killed = killed(process, rng.uniform(0.0, seconds) if count["kills"] < n_kills else 600.0)
        count["resumed"] += goes_on
        count["kills"] += was_killed
        read_all(out, count, load_model)
        said = f"model: {run / 'model.zip'}" in output.read_text()
        now = rate_of(run / "model.zip")
        # The old model until the new one stands, and the new one where that was said.
        if now != rate and (said or not was_killed or now != old_rate):
            count["broken"] += 1
            print(f"model.zip is of {now}, after {old_rate} and in {rate}: {output.read_text()}", file=sys.stderr)
        if not was_killed:
            assert process.exitcode == 0, output.read_text()
            count["finished"] += 1
            count["differ"] += outcome(run) != undisturbed[rate]
            count["leftovers"] += len(list(out.rglob(".seeupo-*.tmp")))
            old_rate, rate = rate, RATES[rate == RATES[0]]
    return count


def last_checkpoint(run: Path) -> Path:
    """
    Find any state to go on from.

    :param run: folder of a run
    :return: a checkpoint; one that is not there, if there is none
    """
    return next((run / "checkpoints").glob("*.zip"), run / "none.zip")


def rate_of(path: Path) -> float | None:
    """
    Tell by what run a model was saved.

    :param path: its file
    :return: the learning rate; None if there is no file, or a broken one
    """
    with suppress(ValueError):
        return float(read_info(path)["run"]["settings"]["algorithm_settings"]["learning_rate"])
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--kills", type=int, default=200, help="default %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default %(default)s)")
    given = parser.parse_args()
    th.set_num_threads(1)
    getLogger("tensorboard").setLevel(ERROR)  # it tells of every run that went on
    counts = {}
    with tempfile.TemporaryDirectory() as place:
        tempfile.tempdir = place  # SB3's loggers make folders there, which those that are killed leave
        for name, kill in (("train", kill_training), ("save", kill_saves)):
            (Path(place) / name).mkdir()
            counts[name] = kill(Path(place) / name, given.kills, np.random.default_rng(given.seed))
    print("| killed | `seeupo-gym train` | `model.save` and callbacks |\n|---|---|---|")
    for key, row in ROWS.items():
        shown = (str(count[key]) if key in count or name == "train" else "" for name, count in counts.items())
        print(f"| {row} | {' | '.join(shown)} |")
    sys.exit(any(count[key] for count in counts.values() for key in ("broken", "differ", "leftovers")))
