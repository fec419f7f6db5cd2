"""
Text games with changing lists of commands: SeeUPO, GRPO, PPO and A2C choose among candidates in TextWorldExpress.

Needs ``pip install textworld-express==1.1.0 scikit-learn``, Java 17 and 1.5 GB of memory for each process. Run it with
``python benchmarks/candidates.py --out runs/candidates``; when it is stopped, the same command continues. It prints
Markdown and writes ``candidates.md``, ``candidates.csv`` (one row a run) and the curves into the folder;
``--tune`` runs the sweep that the settings come from. ``docs/benchmarks.md`` says what came out.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from itertools import count, product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.utils import LinearSchedule

from seeupo_gym.baselines import evaluate, get_algorithm, register_algorithm, run_benchmark
from seeupo_gym.benchmark.jobs import load_model
from seeupo_gym.benchmark.plots import plot_learning_curves
from seeupo_gym.benchmark.results import CSV_FILE, MODEL_FILE, read_json, write_json
from seeupo_gym.envs.info_keys import CRASHED
from seeupo_gym.envs.suites.text_world_express import TextWorldExpressEnv
from seeupo_gym.envs.views.candidate_view import CandidateView

# Name -> the game's parameters, turn limit, and room for its commands.
GAMES: dict[str, tuple[dict[str, int], int, int]] = {
    "coin": ({"numLocations": 4, "numDistractorItems": 0, "includeDoors": 0}, 12, 8),
    "twc": ({"numLocations": 1, "numItemsToPutAway": 1, "includeDoors": 0}, 8, 24),
    "cookingworld": ({"numLocations": 2, "numIngredients": 2}, 25, 96),
}
N_TRAIN, N_DEV = 50, 100
N_ENVS = 8

# Policies are the registry's choice. The structure of an iteration was not tuned; for all algorithms the learning rate
# falls linearly to 0 and its start and ent_coef were chosen by --tune, on the same grid.
_GROUPS: dict[str, Any] = {"n_groups": 8, "group_size": 8, "n_epochs": 2, "turn_policies": "shared"}
SETTINGS: dict[str, dict[str, Any]] = {
    "seeupo": _GROUPS,
    "grpo": _GROUPS,
    "ppo": {"n_steps": 128, "batch_size": 256, "gamma": 1.0},
    "a2c": {"gamma": 1.0},
}
LEARNING_RATES, ENT_COEFS = (1e-3, 3e-3, 1e-2), (0.01,)
TUNED = {"seeupo": (3e-3, 0.01), "grpo": (1e-2, 0.01), "ppo": (1e-2, 0.01), "a2c": (3e-3, 0.01)}
TUNING_SEED = 100


class RememberedGame(gym.Env[str, str]):
    """
    A game of TextWorldExpress that plays from memory what was played before in this process.

    Games are deterministic, and Java takes most of the time. It is asked when something is played for the first time;
    environments may share a Java process, as it is brought to the right place first.

    :param game: name of the game
    :param fold: the suite's fold
    :param n_games: the first so many games of the fold are played
    """

    observation_space = action_space = spaces.Text(20_000)
    _memory: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # noqa: RUF012
    _javas: dict[tuple[str, int], RememberedGame._Java] = {}  # noqa: RUF012
    _counter = count()

    class _Java:
        def __init__(self, game: str) -> None:
            params, turns, _ = GAMES[game]
            self.env = TextWorldExpressEnv(game, params, turns=turns)
            self.place: tuple[Any, ...] = ()

        def play(self, place: tuple[Any, ...]) -> tuple[Any, ...]:
            """Go to a place, which is game, fold, number and then commands, and return what the last step returned."""
            _, fold, number, *commands = place
            if not commands or self.place != place[:-1]:
                self.env.fold = fold
                text, info = self.env.reset(seed=number)
                result: tuple[Any, ...] = (text, 0.0, False, False, info)
                for command in commands[:-1]:
                    self.env.step(command)
            if commands:
                result = self.env.step(commands[-1])
            self.place = place
            return result

    def __init__(self, game: str, fold: str, n_games: int) -> None:
        self.game, self.fold, self.n_games = game, fold, n_games
        self.max_turns = GAMES[game][1]
        slot = (game, next(self._counter) % N_ENVS)
        self._java = self._javas.setdefault(slot, self._Java(game))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        number = int(self.np_random.integers(self.n_games)) if seed is None else seed % self.n_games
        self._place: tuple[Any, ...] = (self.game, self.fold, number)
        text, _, _, _, info = self._result()
        return text, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._place = (*self._place, action)
        text, reward, terminated, truncated, info = self._result()
        return text, reward, terminated, truncated, info

    def _result(self) -> tuple[Any, ...]:
        known = self._memory.get(self._place)
        if known is None:
            known = self._java.play(self._place)
            if not known[4].get(CRASHED):
                self._memory[self._place] = known
        return (*known[:4], dict(known[4]))


def make_env(game: str, fold: str = "train", n_games: int = N_TRAIN) -> gym.Env[Any, Any]:
    """Make a game as a choice among candidates."""
    return CandidateView(RememberedGame(game, fold, n_games), GAMES[game][2], state_keys=("look", "inventory"))


# Worker processes import this module too. The runner evaluates on 50 seeds in a row: each of the training games once.
for _game in GAMES:
    gym.register(_game, make_env, kwargs={"game": _game}, disable_env_checker=True)


def settings(algorithm: str, learning_rate: float, ent_coef: float) -> dict[str, Any]:
    """Return the settings of a run, in addition to those of the registry."""
    schedule = LinearSchedule(learning_rate, 0.0, 1.0)
    return {**SETTINGS[algorithm], "n_envs": N_ENVS, "learning_rate": schedule, "ent_coef": ent_coef}


def tune(args: argparse.Namespace) -> None:
    """Run the grid on one seed, and print it as Markdown."""
    names = {}
    for algorithm, learning_rate, ent_coef in product(args.algos, LEARNING_RATES, ENT_COEFS):
        spec = get_algorithm(algorithm)
        name = f"{algorithm}-lr{learning_rate:.0e}-ent{1000 * ent_coef:.0f}"  # becomes a folder, so without a point
        register_algorithm(name, spec.entry_point, settings=spec.settings)
        names[name] = (algorithm, learning_rate, ent_coef)
    changes = {name: settings(*key) for name, key in names.items()}
    run = run_benchmark(
        list(names), args.games, [TUNING_SEED], args.steps, args.out, 4, N_TRAIN, args.workers, settings=changes
    )
    print("| algorithm | learning_rate | ent_coef | final score, each game | final | mean of all evaluations |")
    print("|---|---|---|---|---|---|")
    for name, (algorithm, learning_rate, ent_coef) in names.items():
        results = [result for result in run.results if result["settings"]["algorithm"] == name]
        curves = [[row["score"] for row in result["evaluations"]] for result in results]
        finals = [f"{r['settings']['environment']} {curve[-1]:.2f}" for r, curve in zip(results, curves, strict=True)]
        means = [np.mean([curve[-1] for curve in curves]), np.mean(curves)]
        cells = [algorithm, f"{learning_rate:g}", f"{ent_coef:g}", ", ".join(finals), *(f"{m:.3f}" for m in means)]
        print(f"| {' | '.join(cells)} |")


def score_model(folder: Path, game: str) -> dict[str, float]:
    """Scores of a trained model; kept in its folder."""
    path = folder / "scores.json"
    if not path.is_file():
        model, _ = load_model(folder / MODEL_FILE)
        dev: dict[str, Any] = {"first_seed": 0, "fold": "dev", "n_games": N_DEV}
        scores = {
            "train": evaluate(model, game, N_TRAIN),
            "train_sampled": evaluate(model, game, N_TRAIN, deterministic=False),
            "dev": evaluate(model, game, N_DEV, **dev),
            "dev_sampled": evaluate(model, game, N_DEV, deterministic=False, **dev),
        }
        write_json(path, {name: scores[name].mean_return for name in scores})
    return read_json(path)


def random_score(game: str, n_episodes: int = 500) -> float:
    """Mean score of uniform play over the admissible commands of the training games."""
    env, rng, scores = make_env(game), np.random.default_rng(0), []
    for seed in range(n_episodes):
        env.reset(seed=seed)
        done = False
        while not done:
            _, reward, done, _, _ = env.step(int(rng.integers(env.action_masks().sum())))  # type: ignore[attr-defined]
        scores.append(float(reward))
    return float(np.mean(scores))


def report(results: Sequence[dict[str, Any]], out: Path) -> None:
    """Write the table of runs, and print that of means."""
    rows = []
    for result in results:
        run = result["settings"]
        scores = score_model(out / run["environment"] / run["algorithm"] / f"seed_{run['seed']}", run["environment"])
        keys = {"game": run["environment"], "algorithm": run["algorithm"], "seed": run["seed"]}
        rows.append({**keys, "steps": result["timesteps"], **scores})
    with (out / "candidates.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    lines = [
        "| game | algorithm | training games | seed by seed | sampled play | dev games | seed by seed | steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for game in dict.fromkeys(row["game"] for row in rows):
        for algorithm in [name for name in SETTINGS if any(row["algorithm"] == name for row in rows)]:
            runs = [row for row in rows if (row["game"], row["algorithm"]) == (game, algorithm)]
            mean = {name: f"{np.mean([run[name] for run in runs]):.3f}" for name in ("train", "train_sampled", "dev")}
            each = {name: ", ".join(f"{run[name]:.2f}" for run in runs) for name in ("train", "dev")}
            cells = [game, algorithm, mean["train"], each["train"], mean["train_sampled"], mean["dev"], each["dev"]]
            cells.append(f"{np.mean([run['steps'] for run in runs]):,.0f}")
            lines.append(f"| {' | '.join(cells)} |")
        lines.append(f"| {game} | uniform play | | | {random_score(game):.3f} | | | |")
    (out / "candidates.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main() -> None:
    """Run what is not finished yet, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--games", nargs="+", default=["coin", "twc"], choices=GAMES)
    parser.add_argument("--algos", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0, 1, ... (default %(default)s)")
    parser.add_argument("--steps", type=int, default=30_000, help="environment steps of a run (default %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time (default %(default)s)")
    parser.add_argument("--tune", action="store_true", help="run the sweep instead")
    args = parser.parse_args()
    th.set_num_threads(1)
    if args.tune:
        tune(args)
        return
    run = run_benchmark(
        args.algos,
        args.games,
        range(args.seeds),
        args.steps,
        args.out,
        n_evals=10,
        n_eval_episodes=N_TRAIN,
        n_workers=args.workers,
        settings={name: settings(name, *TUNED[name]) for name in args.algos},
        report=print,
    )
    report(run.results, args.out)
    plot_learning_curves(args.out / CSV_FILE, args.out)


if __name__ == "__main__":
    main()
