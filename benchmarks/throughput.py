"""
Throughput of SeeUPO against SB3's PPO, side by side in one process with one torch thread.

Run it with ``python benchmarks/throughput.py``; it takes about two minutes and prints Markdown.
``docs/benchmarks.md`` holds the table it printed last.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import stable_baselines3
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv

from seeupo_gym import SeeUPO, make_vec

ENV_ID = "seeupo_gym/ContextChain-v0"
N_LANES, GROUP_SIZE, N_TURNS, N_EPOCHS = 512, 8, 6, 4


def seeupo(n_turns: int = N_TURNS) -> SeeUPO:
    """SeeUPO with one lane per episode, one minibatch per turn and epoch."""
    env = make_vec(ENV_ID, N_LANES, seed=0, turns=n_turns)
    return SeeUPO("MlpPolicy", env, n_groups=N_LANES // GROUP_SIZE, group_size=GROUP_SIZE, n_epochs=N_EPOCHS, seed=0)


def ppo_native() -> PPO:
    """PPO on the same native vector environment, with as many episodes, epochs and rows per minibatch."""
    env = make_vec(ENV_ID, N_LANES, seed=0)
    return PPO("MlpPolicy", env, n_steps=N_TURNS, batch_size=N_LANES, n_epochs=N_EPOCHS, seed=0, device="cpu")


def ppo_default(n_steps: int = 2048) -> PPO:
    """PPO at its defaults, as its users run it: 16 environments in a DummyVecEnv."""
    env = make_vec(ENV_ID, 16, seed=0, vec_env_cls=DummyVecEnv)
    return PPO("MlpPolicy", env, n_steps=n_steps, seed=0, device="cpu")


def steps_per_second(model: BaseAlgorithm, n_steps: int) -> float:
    """Measure collection and update together, in environment steps per second."""
    started = time.perf_counter()
    model.learn(n_steps)
    return model.num_timesteps / (time.perf_counter() - started)


def timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """Wrap a function so that it appends its duration to a list."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - started)

    return wrapper


def time_shares(model: SeeUPO, n_steps: int) -> dict[str, float]:
    """Measure the share of the time that each part takes."""
    parts: dict[str, list[float]] = {"environment": [], "policy forward": [], "update": []}
    assert model.env is not None
    model.env.step = timed(model.env.step, parts["environment"])  # type: ignore[method-assign]
    model.policy.forward = timed(model.policy.forward, parts["policy forward"])  # type: ignore[method-assign]
    model.train = timed(model.train, parts["update"])  # type: ignore[method-assign]
    started = time.perf_counter()
    model.learn(n_steps)
    total = time.perf_counter() - started
    shares = {name: sum(seconds) / total for name, seconds in parts.items()}
    return {**shares, "bookkeeping": 1.0 - sum(shares.values())}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repeats; medians are printed")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the steps, for a quick look")
    args = parser.parse_args()
    th.set_num_threads(1)
    versions = f"Python {platform.python_version()}, torch {th.__version__}, SB3 {stable_baselines3.__version__}"
    print(f"{versions}, {platform.machine()}, one torch thread\n")

    contenders: dict[str, tuple[Callable[[], BaseAlgorithm], int]] = {
        f"SeeUPO, native VecEnv of {N_LANES}": (seeupo, 150_000),
        f"PPO, native VecEnv of {N_LANES}, same epochs and minibatches": (ppo_native, 60_000),
        # An iteration has 2048 steps of 16 environments, more than a quick look has time for.
        "PPO at its defaults, DummyVecEnv of 16": (partial(ppo_default, max(64, int(2048 * args.scale))), 32_768),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(args.repeats):
        for name, (make, n_steps) in contenders.items():
            rates[name].append(steps_per_second(make(), max(1, int(n_steps * args.scale))))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ours = next(iter(medians.values()))
    print(f"| {ENV_ID}, {args.repeats} interleaved repeats | steps/s (median) | SeeUPO is faster by |\n|---|---|---|")
    for name, rate in medians.items():
        print(f"| {name} | {rate:,.0f} | {ours / rate:.1f}x |")

    print("\n| where SeeUPO's time goes | share |\n|---|---|")
    for name, share in time_shares(seeupo(), int(150_000 * args.scale)).items():
        print(f"| {name} | {share:.0%} |")

    print("\n| turns | steps/s | seconds per iteration | per turn | peak memory so far |\n|---|---|---|---|---|")
    for n_turns in (5, 10, 20, 50, 100):
        n_steps = max(1, round(4 * args.scale)) * N_LANES * n_turns
        rate = steps_per_second(seeupo(n_turns), n_steps)
        seconds = N_LANES * n_turns / rate
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"| {n_turns} | {rate:,.0f} | {seconds:.3f} | {1000 * seconds / n_turns:.1f} ms | {peak:,.0f} MiB |")


if __name__ == "__main__":
    main()
