"""
A tiny language model learns GuessNumber from nothing: SeeUPO beside GRPO, GSPO and RLOO at equal episodes.

Run it with ``python benchmarks/language.py --out runs/language``; two runs at once take half an hour. A run
that was stopped goes on with the missing jobs. It prints Markdown, and writes ``language.md`` and ``language.png``;
``docs/benchmarks.md`` holds the last ones.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback

from seeupo_gym import SeeUPO
from seeupo_gym.agents.language import CausalLMPolicy, tiny
from seeupo_gym.baselines import GRPO, GSPO, RLOO, evaluate
from seeupo_gym.envs import TextView

ENV_ID = "seeupo_gym/GuessNumber-v0"
ENV_KWARGS = {"range": 8, "turns": 3}
ALGORITHMS = {"seeupo": SeeUPO, "grpo": GRPO, "gspo": GSPO, "rloo": RLOO}
# The same for all of them.
SETTINGS: dict[str, Any] = {"n_groups": 16, "group_size": 8, "n_epochs": 1, "learning_rate": 1e-3}
# The entropy bonus falls from the first number to about a quarter of it: without much of it at first, the model settles
# on three different guesses whatever the replies are, which finds 3/8.
ENT_COEF = 0.06
MALFORMED_REWARD = -0.2
# What the model reads and writes; the other words of the task are the same in every episode.
WORDS = ["guess", "higher", "lower", *map(str, range(ENV_KWARGS["range"]))]


class Recorder(BaseCallback):
    """Records the result of each iteration, and the time of its parts."""

    def __init__(self, n_iterations: int) -> None:
        super().__init__()
        self.n_iterations = n_iterations
        self.success: list[float] = []
        self.seconds = {"collection": 0.0, "update": 0.0}
        self._ended = 0.0

    def _on_training_start(self) -> None:
        self._began = time.perf_counter()
        self._ended = self._began

    def _on_rollout_start(self) -> None:
        now = time.perf_counter()
        if self.success:
            self.seconds["update"] += now - self._ended
        self._rollout_began = now
        self.model.ep_success_buffer.clear()

    def _on_step(self) -> bool:
        return len(self.success) < self.n_iterations

    def _on_rollout_end(self) -> None:
        self._ended = time.perf_counter()
        self.seconds["collection"] += self._ended - self._rollout_began
        self.success.append(float(np.mean(self.model.ep_success_buffer)))


def make_env() -> gym.Env[str, str]:
    """Make the task in words."""
    return TextView(gym.make(ENV_ID, **ENV_KWARGS))


def run(algorithm: str, seed: int, n_episodes: int, path: Path) -> None:
    """Train one model from nothing, and write what it gave to ``path``."""
    th.set_num_threads(1)
    n_iterations = n_episodes // (SETTINGS["n_groups"] * SETTINGS["group_size"])
    with tempfile.TemporaryDirectory() as folder:
        tiny.build(folder, tiny.collect_texts(make_env(), 50), seed=seed, words=WORDS)
        policy_kwargs = {
            "model": folder,
            "max_context": 64,
            "max_new_tokens": 3,
            "rows_at_once": 1024,
            "chat": {"malformed_reward": MALFORMED_REWARD},
        }
        model = ALGORITHMS[algorithm](
            CausalLMPolicy,
            make_env,
            policy_kwargs=policy_kwargs,
            seed=seed,
            device="cpu",
            stats_window_size=SETTINGS["n_groups"] * SETTINGS["group_size"],
            max_grad_norm=1.0,
            ent_coef=lambda progress_remaining: ENT_COEF * progress_remaining,
            **SETTINGS,
        )
        recorder = Recorder(n_iterations)
        began = time.process_time()
        model.learn(n_episodes * ENV_KWARGS["turns"], callback=recorder, log_interval=None)
        cpu_seconds = time.process_time() - began
        greedy = evaluate(model, ENV_ID, 200, **ENV_KWARGS).success_rate
    policy = model.policy
    seconds = {
        "generation": policy.seconds["generation"],
        "environment": recorder.seconds["collection"] - policy.seconds["generation"],
        "log_probs": policy.seconds["log_probs"],
        "update": recorder.seconds["update"] - policy.seconds["log_probs"],
    }
    result = {"success": recorder.success, "greedy": greedy, "cpu_seconds": cpu_seconds, "seconds": seconds}
    result["tokens_per_second"] = policy.tokens_per_second
    path.write_text(json.dumps(result))


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Every seed of every algorithm."""
    lines = [
        "| algorithm | success, first iteration | success, last 10 iterations, seed by seed | mean "
        "| greedy play, seed by seed | mean | CPU seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, runs in results.items():
        last = [float(np.mean(r["success"][-10:])) for r in runs]
        greedy = [r["greedy"] for r in runs]
        cells = [name, f"{np.mean([r['success'][0] for r in runs]):.3f}"]
        for numbers in (last, greedy):
            cells += [", ".join(f"{x:.2f}" for x in numbers), f"{np.mean(numbers):.2f}"]
        cells.append(f"{np.mean([r['cpu_seconds'] for r in runs]):.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| algorithm | generation | environment and tokenizer | log-probabilities | update | tokens/s |"]
    lines.append("|---|---|---|---|---|---|")
    for name, runs in results.items():
        total = sum(sum(r["seconds"].values()) for r in runs)
        shares = [sum(r["seconds"][part] for r in runs) / total for part in runs[0]["seconds"]]
        speed = np.mean([r["tokens_per_second"] for r in runs])
        lines.append(f"| {name} | " + " | ".join(f"{share:.0%}" for share in shares) + f" | {speed:,.0f} |")
    return "\n".join(lines)


def plot(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Success against episodes, over ten iterations at a time: the mean of the seeds, and each of them."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for index, (name, runs) in enumerate(results.items()):
        curves = np.array([r["success"] for r in runs])
        width = min(10, curves.shape[1])
        curves = np.lib.stride_tricks.sliding_window_view(curves, width, axis=1).mean(axis=-1)
        episodes = (width + np.arange(curves.shape[1])) * SETTINGS["n_groups"] * SETTINGS["group_size"]
        style = {"color": f"C{index}", "linestyle": ("-", "--", "-.", (0, (1, 1)))[index % 4]}
        axes.plot(episodes, curves.T, color=f"C{index}", alpha=0.3, linewidth=0.6)
        axes.plot(episodes, curves.mean(axis=0), label=f"{name} ({len(runs)} seeds)", linewidth=2, **style)
    axes.axhline(7 / 8, color="grey", linestyle=":", label="binary search (optimum)")
    axes.set(xlabel="episodes", ylabel="success", ylim=(0, 1), title="A tiny Llama on GuessNumber (8 numbers, 3 turns)")
    axes.legend(loc="lower right", title="thick: mean of the seeds")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/language"), help="folder (default %(default)s)")
    parser.add_argument("--algos", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0, 1, ... (default %(default)s)")
    parser.add_argument("--episodes", type=int, default=48_000, help="episodes of each run (default %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="runs at once, one core each (default %(default)s)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    paths = {
        (name, seed): arguments.out / f"{name}_{seed}_{arguments.episodes}.json"
        for seed in range(arguments.seeds)
        for name in arguments.algos
    }
    missing = [(*job, arguments.episodes, path) for job, path in paths.items() if not path.exists()]
    with multiprocessing.get_context("spawn").Pool(arguments.workers, maxtasksperchild=1) as pool:
        pending = [(job, pool.apply_async(run, job)) for job in missing]
        for n_done, (job, result) in enumerate(pending, start=1):
            result.get()
            print(f"{n_done} of {len(missing)} runs finished: {job[0]}, seed {job[1]}", flush=True)
    results = {
        name: [json.loads(paths[name, seed].read_text()) for seed in range(arguments.seeds)] for name in arguments.algos
    }
    text = table(results)
    (arguments.out / "language.md").write_text(text + "\n")
    plot(results, arguments.out / "language.png")
    print(text)


if __name__ == "__main__":
    main()
