"""Algorithms to compare with, and the benchmark that puts them side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seeupo_gym.lazy import lazy_names

if TYPE_CHECKING:
    from seeupo_gym.baselines.critic_free import GRPO, GSPO, REINFORCE, RLOO, REINFORCEPlusPlus
    from seeupo_gym.baselines.registry import AlgorithmSpec, algorithm_names, get_algorithm, register_algorithm
    from seeupo_gym.benchmark.eval_callback import EvalCallback
    from seeupo_gym.benchmark.evaluation import Evaluation, evaluate
    from seeupo_gym.benchmark.plots import plot_learning_curves
    from seeupo_gym.benchmark.run import BenchmarkRun, run_benchmark

__all__ = [
    "GRPO",
    "GSPO",
    "REINFORCE",
    "RLOO",
    "AlgorithmSpec",
    "BenchmarkRun",
    "EvalCallback",
    "Evaluation",
    "REINFORCEPlusPlus",
    "algorithm_names",
    "evaluate",
    "get_algorithm",
    "plot_learning_curves",
    "register_algorithm",
    "run_benchmark",
]

# The command line answers "--help" without loading torch.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AlgorithmSpec": "baselines.registry",
        "BenchmarkRun": "benchmark.run",
        "EvalCallback": "benchmark.eval_callback",
        "Evaluation": "benchmark.evaluation",
        "GRPO": "baselines.critic_free",
        "GSPO": "baselines.critic_free",
        "REINFORCE": "baselines.critic_free",
        "REINFORCEPlusPlus": "baselines.critic_free",
        "RLOO": "baselines.critic_free",
        "algorithm_names": "baselines.registry",
        "evaluate": "benchmark.evaluation",
        "get_algorithm": "baselines.registry",
        "plot_learning_curves": "benchmark.plots",
        "register_algorithm": "baselines.registry",
        "run_benchmark": "benchmark.run",
    },
)
