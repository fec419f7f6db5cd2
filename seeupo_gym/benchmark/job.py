"""One job of a benchmark: what to train on what, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seeupo_gym.baselines.registry import AlgorithmSpec
from seeupo_gym.benchmark.environments import env_name
from seeupo_gym.envs.task import HELD_OUT_SEED


@dataclass(frozen=True)
class Job:
    """
    One run.

    :param spec: algorithm and its settings
    :param env_id: a registered Gymnasium id
    :param seed: seed of environments and algorithm
    :param total_timesteps: environment steps to train for; training stops at the first point it can after them
    :param out: folder of the benchmark
    :param n_evals: evaluations after the one before training, at equally spaced numbers of steps
    :param n_eval_episodes: held-out episodes of each evaluation
    :param env_kwargs: arguments of the environment
    :param checkpoint_every: environment steps between two checkpoints; None: none
    :param keep_checkpoints: how many of the last ones to keep, at least 1
    """

    spec: AlgorithmSpec
    env_id: str
    seed: int
    total_timesteps: int
    out: Path
    n_evals: int = 20
    n_eval_episodes: int = 100
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    checkpoint_every: int | None = None
    keep_checkpoints: int = 3

    @property
    def name(self) -> str:
        """``environment/algorithm/seed_0``: how the job is called, and its folder in the benchmark's."""
        return f"{env_name(self.env_id)}/{self.spec.name}/seed_{self.seed}"

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.out / self.name

    def settings(self) -> dict[str, Any]:
        """
        Everything that decides the result, with all defaults written out.

        :return: what ``result.json`` holds under "settings"
        """
        return {
            "algorithm": self.spec.name,
            "entry_point": self.spec.entry_point,
            "policy": self.spec.policy,
            "n_envs": self.spec.n_envs,
            "algorithm_settings": self.spec.all_settings(),
            "environment": env_name(self.env_id),
            "env_id": self.env_id,
            "env_kwargs": dict(self.env_kwargs),
            "seed": self.seed,
            "total_timesteps": self.total_timesteps,
            "n_evals": self.n_evals,
            "n_eval_episodes": self.n_eval_episodes,
            "first_eval_seed": HELD_OUT_SEED,
        }
