"""
Memory, open files, threads and processes over a long training.

    python benchmarks/soak.py --steps 10_000_000

trains one small model after another, on native lanes, masked, staged, with ``VecNormalize`` and in a ``DummyVecEnv``,
evaluates and saves on the way, and prints a table. It fails where something grows: after the first fifth, by more than
``--mib`` of memory for each million steps, or by a single file, thread or process.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import platform
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.baselines import evaluate

TRAP, TOOLS, CHAIN = (f"seeupo_gym/{name}-v0" for name in ("CoordinationTrap", "ToolChain", "ContextChain"))
# Share of the steps -> the task, what makes its vector environment, and settings.
RUNS: list[tuple[float, str, Any, dict[str, Any]]] = [
    (0.5, CHAIN, lambda: make_vec(CHAIN, 512), {"n_groups": 64}),
    (0.2, TOOLS, lambda: make_vec(TOOLS, 256), {"n_groups": 32, "n_sweeps": 2, "turn_policies": "shared"}),
    (0.2, TRAP, lambda: make_vec(TRAP, 256), {"n_groups": 32, "schedule": "staged"}),
    (0.09, CHAIN, lambda: VecNormalize(make_vec(CHAIN, 128), norm_reward=False), {"n_groups": 16}),
    (0.01, CHAIN, lambda: make_vec(CHAIN, 16, vec_env_cls=DummyVecEnv), {"n_groups": 16}),
]
HEADER = "| million steps | memory (MiB) | open files | threads | processes |\n|---|---|---|---|---|"


def measure() -> tuple[float, int, int, int]:
    """Return the resident memory in MiB, and the numbers of open files, threads and child processes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = len(os.listdir("/proc/self/fd"))
    memory = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return memory, files, threading.active_count(), len(multiprocessing.active_children())


def train(total: int, every: int, report: Any) -> None:
    """Take ``total`` steps, in rounds over all runs, and report after every ``every`` of them."""
    taken = 0
    with tempfile.TemporaryDirectory() as folder:
        while taken < total:
            for share, env_id, make, settings in RUNS:
                env = make()
                model = SeeUPO("MlpPolicy", env, seed=taken, n_epochs=1, tensorboard_log=folder, **settings)
                model.learn(int(share * every))
                model.save(Path(folder) / "model")
                loaded = SeeUPO.load(Path(folder) / "model", env=env)
                loaded.learn(1, reset_num_timesteps=False)
                evaluate(loaded, env_id, 20)
                taken += loaded.num_timesteps
                for one in (model, loaded):
                    one.logger.close()  # a writer of TensorBoard has a thread, which SB3 leaves open
                env.close()
            report(taken)


def main() -> int:
    """Run, print the table, and return 1 if something grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000_000, help="environment steps (default %(default)s)")
    parser.add_argument("--every", type=int, default=500_000, help="steps between two rows (default %(default)s)")
    parser.add_argument("--mib", type=float, default=1.0, help="growth allowed per million steps (default %(default)s)")
    args = parser.parse_args()
    th.set_num_threads(1)
    print(f"Python {platform.python_version()}, torch {th.__version__}\n\n{HEADER}", flush=True)
    rows: list[tuple[float, ...]] = []

    def report(taken: int) -> None:
        rows.append((taken / 1e6, *measure()))
        print(f"| {rows[-1][0]:.1f} | {rows[-1][1]:.0f} | {' | '.join(f'{n:.0f}' for n in rows[-1][2:])} |", flush=True)

    train(args.steps, args.every, report)
    table = np.array(rows[len(rows) // 5 :])
    slope = float(np.polyfit(table[:, 0], table[:, 1], 1)[0]) if len(table) > 2 else 0.0
    grown = bool(np.any(table[:, 2:] > table[0, 2:]))
    print(
        f"\nmemory: {slope:+.2f} MiB per million steps; files, threads or processes: {'more' if grown else 'as many'}"
    )
    return int(slope > args.mib or grown)


if __name__ == "__main__":
    sys.exit(main())
