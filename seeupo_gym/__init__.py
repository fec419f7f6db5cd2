"""Multi-turn agentic tasks, and SeeUPO to learn them, behind the interfaces of Gymnasium and Stable-Baselines3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seeupo_gym import envs
from seeupo_gym.lazy import lazy_names

if TYPE_CHECKING:
    from seeupo_gym.agents import SeeUPO
    from seeupo_gym.benchmark.evaluation import evaluate
    from seeupo_gym.envs.vector import SeedQueue, make_vec

__version__ = "0.1.0"

__all__ = ["SeeUPO", "SeedQueue", "envs", "evaluate", "make_vec"]

# The environments alone do not load torch.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "SeeUPO": "agents",
        "SeedQueue": "envs.vector",
        "evaluate": "benchmark.evaluation",
        "make_vec": "envs.vector",
    },
)
