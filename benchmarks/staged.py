"""
The staged schedule on the coordination trap, beside the sweep and the simultaneous update with the same settings.

Run it with ``python benchmarks/staged.py``; it takes about fifteen minutes and prints Markdown.
``docs/benchmarks.md`` holds the table it printed last.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch as th

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.baselines import evaluate

ENV_ID = "seeupo_gym/CoordinationTrap-v0"
N_LANES = 128
# Turns -> environment steps that a run may take.
BUDGETS = {4: 60_000, 5: 130_000}
METHODS: dict[str, dict[str, Any]] = {
    "staged": {"schedule": "staged"},
    "sweep": {"schedule": "sweep"},
    "simultaneous": {"update_order": "simultaneous"},
}
# The setting of the registry, which benchmarks/tune.py chose for the sweep, and the best one found for it since.
SETTINGS = ({"learning_rate": 1e-2, "ent_coef": 0.1}, {"learning_rate": 5e-3, "ent_coef": 0.3})


def greedy_return(turns: int, budget: int, seed: int, **settings: Any) -> float:
    """Train for at most ``budget`` environment steps; the return of greedy play, which is the same in all episodes."""
    model = SeeUPO("MlpPolicy", make_vec(ENV_ID, N_LANES, turns=turns), seed=seed, **settings)
    iteration = N_LANES * turns
    model.learn(budget // iteration * iteration)
    assert model.num_timesteps <= budget
    return evaluate(model, ENV_ID, 1, turns=turns).mean_return


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="seeds 0, 1, ... of each row (default %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of steps (default %(default)s)")
    arguments = parser.parse_args()
    th.set_num_threads(1)
    print("| turns | steps | method | learning_rate | ent_coef | optimal | greedy return, seed by seed |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for turns, steps in BUDGETS.items():
        budget = max(int(steps * arguments.scale), N_LANES * turns)
        for method, changes in METHODS.items():
            for settings in SETTINGS:
                returns = [greedy_return(turns, budget, seed, **settings, **changes) for seed in range(arguments.seeds)]
                cells = [turns, f"{budget:,}", method, settings["learning_rate"], settings["ent_coef"]]
                cells += [f"{sum(r > 0.99 for r in returns)} of {len(returns)}", ", ".join(f"{r:.1f}" for r in returns)]
                print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
