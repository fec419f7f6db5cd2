"""
Sweeps over the turns, with and without the ratios of the turns still to come, beside one sweep and PPO.

Run it with ``python benchmarks/sweeps.py --out runs/sweeps``; it takes about half an hour on one core. When it is
stopped, the same command continues. It prints Markdown and writes ``sweeps.csv`` (one row a run) into the folder;
``docs/benchmarks.md`` holds the tables it printed last.
"""

from __future__ import annotations

import argparse
import csv
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import stable_baselines3
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import LinearSchedule

import seeupo_gym.agents.seeupo
from seeupo_gym import SeeUPO
from seeupo_gym.agents.method.sequential import SequentialUpdate
from seeupo_gym.baselines import evaluate, get_algorithm
from seeupo_gym.envs.reference import normalize, reference_scores

TASKS = ("ContextChain", "GarnetTree", "GuessNumber", "TwentyQuestions", "WebNav")
SHARED: dict[str, Any] = {
    "n_groups": 16,
    "group_size": 8,
    "learning_rate": 1e-3,
    "ent_coef": LinearSchedule(0.1, 0.0, 1.0),
    "turn_policies": "shared",
    "use_masking": False,
}
# Each takes ten times the data of a turn an iteration.
SEEUPO: dict[str, dict[str, Any]] = {
    "10 sweeps of 1 pass": {"n_sweeps": 10, "n_epochs": 1},
    "10 sweeps, F starts at 1 in each": {"n_sweeps": 10, "n_epochs": 1},
    "1 sweep of 10 passes, minibatches of 64": {"n_epochs": 10, "batch_size": 64},
    "simultaneous, 10 passes": {"n_epochs": 10, "update_order": "simultaneous"},
}
WITHOUT_LATER_TURNS = "10 sweeps, F starts at 1 in each"
METHODS = (*SEEUPO, "PPO")
COLUMNS = ("method", "task", "seed", "steps", "score", "success", "cpu_seconds")


class UpdateWithoutLaterTurns(SequentialUpdate):
    """An update whose factors start at 1 in each sweep, without the ratios of the turns still to come."""

    def begin_sweep(self, order: list[list[int]]) -> None:
        self.factors = th.ones_like(self.factors)


def train(method: str, task: str, seed: int, steps: int) -> dict[str, Any]:
    """Train one model, and return its row of the results."""
    env_id = f"seeupo_gym/{task}-v0"
    model: BaseAlgorithm
    if method in SEEUPO:
        model = SeeUPO("MlpPolicy", env_id, seed=seed, device="cpu", **SHARED, **SEEUPO[method])
    else:
        model = get_algorithm("ppo").make_model(env_id, seed)
    update = UpdateWithoutLaterTurns if method == WITHOUT_LATER_TURNS else SequentialUpdate
    began = time.process_time()
    with patch.object(seeupo_gym.agents.seeupo, "SequentialUpdate", update):
        model.learn(steps)
    cpu_seconds = time.process_time() - began
    result, reference = evaluate(model, env_id), reference_scores(env_id)
    assert reference is not None
    score = normalize(result.mean_return, reference)
    row = (method, task, seed, model.num_timesteps, round(score, 4), result.success_rate, round(cpu_seconds, 2))
    return dict(zip(COLUMNS, row, strict=True))


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows that are finished."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    numbers = {"seed": int, "steps": int, "score": float, "cpu_seconds": float}
    return [{**row, **{name: number(row[name]) for name, number in numbers.items()}} for row in rows]


def tables(rows: Sequence[dict[str, Any]], tasks: Sequence[str], n_seeds: int) -> str:
    """Every seed of every method: the mean over the tasks, and each task."""
    seeds = ", ".join(map(str, range(n_seeds)))
    lines = [
        f"| method | mean of the tasks | seeds {seeds} | CPU seconds for all tasks, seeds {seeds} |",
        "|---|---|---|---|",
    ]
    for method in METHODS:
        runs = [[row for row in rows if (row["method"], row["seed"]) == (method, seed)] for seed in range(n_seeds)]
        scores = [float(np.mean([row["score"] for row in of_seed])) for of_seed in runs]
        seconds = [sum(row["cpu_seconds"] for row in of_seed) for of_seed in runs]
        cells = [method, f"{np.mean(scores):.3f}", _listed(scores, 3), _listed(seconds, 0)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"| method, seeds {seeds} | {' | '.join(tasks)} |", "|---|" + "---|" * len(tasks)]
    for method in METHODS:
        cells = [
            _listed([row["score"] for row in rows if (row["method"], row["task"]) == (method, task)], 2)
            for task in tasks
        ]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _listed(numbers: Sequence[float], decimals: int) -> str:
    return ", ".join(f"{number:.{decimals}f}" for number in numbers)


def processor() -> str:
    """Return the name of the processor as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    """Run what is not finished yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/sweeps"), help="folder (default %(default)s)")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... (default %(default)s)")
    parser.add_argument("--steps", type=int, default=60_000, help="environment steps of a run (default %(default)s)")
    args = parser.parse_args()
    th.set_num_threads(1)
    # One folder holds runs of different lengths, each in a file of its own.
    path = args.out / ("sweeps.csv" if args.steps == 60_000 else f"sweeps_{args.steps}.csv")
    args.out.mkdir(parents=True, exist_ok=True)
    rows = read(path)
    finished = {(row["method"], row["task"], row["seed"]) for row in rows}
    for seed in range(args.seeds):
        for task in args.tasks:
            for method in METHODS:
                if (method, task, seed) in finished:
                    continue
                rows.append(train(method, task, seed, args.steps))
                with path.open("a", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS)
                    if len(rows) == 1:
                        writer.writeheader()
                    writer.writerow(rows[-1])
    wanted = [row for row in rows if row["task"] in args.tasks and row["seed"] < args.seeds]
    wanted.sort(key=lambda row: row["seed"])
    print(f"{processor()}, Python {platform.python_version()}, torch {th.__version__}, ", end="")
    print(f"SB3 {stable_baselines3.__version__}, one torch thread\n\n{tables(wanted, args.tasks, args.seeds)}")


if __name__ == "__main__":
    main()
