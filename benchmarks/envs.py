"""
Throughput of every task: one Gymnasium environment, SB3's DummyVecEnv of 16 of them, and the native VecEnv.

Run it with ``python benchmarks/envs.py``; it takes a few minutes on one thread and prints Markdown.
``docs/benchmarks.md`` holds the table it printed last. Actions are drawn uniformly from the valid ones, and drawing
them is not part of the time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from seeupo_gym import make_vec
from seeupo_gym.envs import ENV_IDS
from seeupo_gym.envs.vector import TaskVecEnv

N_LANES = (16, 256, 4096)


def valid_actions(space: spaces.Space[Any], masks: NDArray[np.bool_] | None, n: int, rng: np.random.Generator) -> Any:
    """Uniform actions, shape (n,) or (n, components), out of the valid ones if there are masks."""
    sizes = [int(space.n)] if isinstance(space, spaces.Discrete) else list(space.nvec)  # type: ignore[attr-defined]
    lottery = rng.random((n, int(sum(sizes))), dtype=np.float32)
    if masks is not None:
        lottery[~masks] = -1.0
    parts = np.split(lottery, np.cumsum(sizes)[:-1], axis=1)
    actions = np.stack([part.argmax(axis=1) for part in parts], axis=1)
    return actions[:, 0] if isinstance(space, spaces.Discrete) else actions


def steps_per_second(n_lanes: int, act: Callable[[], Any], step: Callable[[Any], None], seconds: float) -> float:
    """Measure the steps of all lanes per second spent in ``step``, with automatic resets."""
    n_steps, spent = 0, 0.0
    step(act())  # caches
    while spent < seconds:
        actions = act()
        started = time.perf_counter()
        step(actions)
        spent += time.perf_counter() - started
        n_steps += n_lanes
    return n_steps / spent


def single(env_id: str, seconds: float) -> float:
    """One Gymnasium environment, reset when an episode ends."""
    env, rng = gym.make(env_id), np.random.default_rng(0)
    env.reset(seed=0)
    base: Any = env.unwrapped

    def act() -> Any:
        masks = base.action_masks()[None] if base.task.has_action_masks else None
        return valid_actions(env.action_space, masks, 1, rng)[0]

    def step(action: Any) -> None:
        if env.step(action)[2]:
            env.reset()

    return steps_per_second(1, act, step, seconds)


def vectorised(env: VecEnv, seconds: float) -> float:
    """Measure a vector environment, with its automatic resets."""
    rng = np.random.default_rng(0)
    env.reset()
    native = isinstance(env, TaskVecEnv)
    masked = env.has_attr("action_masks") if not native else env.task.has_action_masks

    def act() -> Any:
        masks = None
        if masked:
            masks = env.action_masks() if isinstance(env, TaskVecEnv) else np.stack(env.env_method("action_masks"))
        return valid_actions(env.action_space, masks, env.num_envs, rng)

    def step(actions: Any) -> None:
        env.step(actions)

    return steps_per_second(env.num_envs, act, step, seconds)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (default %(default)s)")
    seconds = parser.parse_args().seconds
    columns = ["Env", "DummyVecEnv 16", *(f"native {n}" for n in N_LANES), "native 256 / Dummy 16"]
    print(f"| task, steps/s | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|", flush=True)
    for env_id in ENV_IDS:
        alone = single(env_id, seconds)
        dummy = vectorised(make_vec(env_id, 16, seed=0, vec_env_cls=DummyVecEnv), seconds)
        native = {n: vectorised(make_vec(env_id, n, seed=0), seconds) for n in N_LANES}
        numbers = [f"{speed:,.0f}" for speed in (alone, dummy, *native.values())]
        print(f"| {env_id} | {' | '.join(numbers)} | {native[256] / dummy:.0f}x |", flush=True)


if __name__ == "__main__":
    main()
