"""
Tune SeeUPO, PPO and A2C alike: the same grid, tasks, seeds and environment steps for each.

``python benchmarks/tune.py`` runs 3 algorithms x 9 settings x 2 tasks x 2 seeds (about ten minutes on 2 cores) and
prints Markdown: the mean over tasks and seeds of the final normalised score, and of all evaluations on the way. The
best final score, and among equals the best mean, became the settings of ``seeupo_gym.baselines.registry``. The seeds
are none of those that the demo shows. ``docs/benchmarks.md`` holds the table it printed.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

from seeupo_gym.baselines import get_algorithm, register_algorithm, run_benchmark

ALGORITHMS = ("seeupo", "ppo", "a2c")
ENV_IDS = ("seeupo_gym/ToolChain-v0", "seeupo_gym/CoordinationTrap-v0")
SEEDS = (100, 101)
LEARNING_RATES = (1e-3, 3e-3, 1e-2)
ENT_COEFS = (0.0, 0.1, 0.3)


def main() -> None:
    """Run what is not finished yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algos", nargs="+", default=ALGORITHMS)
    parser.add_argument("--out", type=Path, default=Path("runs/tune"))
    parser.add_argument("--steps", type=int, default=40_000)
    args = parser.parse_args()

    names: dict[str, tuple[str, float, float]] = {}
    for algorithm, learning_rate, ent_coef in product(args.algos, LEARNING_RATES, ENT_COEFS):
        spec = get_algorithm(algorithm)
        # A name becomes a folder, so without a point.
        name = f"{algorithm}-lr{learning_rate:.0e}-ent{100 * ent_coef:.0f}"
        tuned = {"learning_rate": learning_rate, "ent_coef": ent_coef}
        settings = {**spec.settings, **tuned}
        register_algorithm(name, spec.entry_point, n_envs=spec.n_envs, settings=settings)
        names[name] = (algorithm, learning_rate, ent_coef)
    run = run_benchmark(list(names), ENV_IDS, SEEDS, args.steps, args.out, n_evals=10)

    print("| algorithm | learning_rate | ent_coef | final score, each task | final | mean of all evaluations |")
    print("|---|---|---|---|---|---|")
    for name, (algorithm, learning_rate, ent_coef) in names.items():
        results = [result for result in run.results if result["settings"]["algorithm"] == name]
        finals: dict[str, list[float]] = {}
        scores: list[float] = []
        for result in results:
            curve = [row["normalized_score"] for row in result["evaluations"]]
            finals.setdefault(result["settings"]["environment"], []).append(curve[-1])
            scores += curve
        tasks = ", ".join(f"{task.removesuffix('-v0')} {sum(v) / len(v):.2f}" for task, v in finals.items())
        final = sum(sum(v) for v in finals.values()) / len(results)
        mean = sum(scores) / len(scores)
        print(f"| {algorithm} | {learning_rate:g} | {ent_coef:g} | {tasks} | {final:.3f} | {mean:.3f} |")


if __name__ == "__main__":
    main()
