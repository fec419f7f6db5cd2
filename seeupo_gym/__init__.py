"""Multi-turn agentic tasks, and SeeUPO to learn them, behind the interfaces of Gymnasium and Stable-Baselines3."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from seeupo_gym import envs

if TYPE_CHECKING:
    from seeupo_gym.agents import SeeUPO
    from seeupo_gym.envs.vector import SeedQueue, make_vec

__version__ = "0.1.0"

# Imported on first use, so that the environments alone do not load torch.
_LAZY = {
    "SeeUPO": "seeupo_gym.agents",
    "SeedQueue": "seeupo_gym.envs.vector",
    "make_vec": "seeupo_gym.envs.vector",
}

__all__ = ["SeeUPO", "SeedQueue", "envs", "make_vec"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
