"""Algorithms to compare with, and the benchmark that puts them side by side."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seeupo_gym.baselines.benchmark import BenchmarkRun, run_benchmark
    from seeupo_gym.baselines.critic_free import GRPO, GSPO, REINFORCE, RLOO, REINFORCEPlusPlus
    from seeupo_gym.baselines.evaluation import Evaluation, evaluate
    from seeupo_gym.baselines.plots import plot_learning_curves
    from seeupo_gym.baselines.registry import AlgorithmSpec, algorithm_names, get_algorithm, register_algorithm

# Imported on first use, so that the command line answers "--help" without loading torch.
_LAZY = {
    "AlgorithmSpec": "registry",
    "BenchmarkRun": "benchmark",
    "Evaluation": "evaluation",
    "GRPO": "critic_free",
    "GSPO": "critic_free",
    "REINFORCE": "critic_free",
    "REINFORCEPlusPlus": "critic_free",
    "RLOO": "critic_free",
    "algorithm_names": "registry",
    "evaluate": "evaluation",
    "get_algorithm": "registry",
    "plot_learning_curves": "plots",
    "register_algorithm": "registry",
    "run_benchmark": "benchmark",
}

__all__ = [
    "GRPO",
    "GSPO",
    "REINFORCE",
    "RLOO",
    "AlgorithmSpec",
    "BenchmarkRun",
    "Evaluation",
    "REINFORCEPlusPlus",
    "algorithm_names",
    "evaluate",
    "get_algorithm",
    "plot_learning_curves",
    "register_algorithm",
    "run_benchmark",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
