"""Presets of the command line: prepared benchmarks."""

from __future__ import annotations

from typing import Any

# In environments of others every lane is an environment, or a Java process. Their episodes are long, and their lengths
# differ much. So SeeUPO has few episodes an iteration, and one network. None of this is tuned.
_REAL_SEEUPO = {"n_envs": 8, "n_groups": 4, "turn_policies": "shared"}

# Arguments of the command `benchmark` that differ from its defaults. `make demo` runs "demo". "real" has environments
# of others, and leaves out those whose packages are not installed.
PRESETS: dict[str, dict[str, Any]] = {
    "demo": {
        "algos": ["seeupo", "seeupo_staged", "ppo", "a2c"],
        "envs": ["seeupo_gym/ToolChain-v0", "seeupo_gym/CoordinationTrap-v0"],
        "seeds": [0, 1],
        "steps": 60_000,
        "evals": 20,
    },
    "real": {
        "algos": ["seeupo", "ppo", "a2c"],
        "envs": [
            "FrozenLake-v1",
            "Taxi-v4",
            "CliffWalking-v1",
            "seeupo_gym/MiniGrid-Empty-5x5-v0",
            "seeupo_gym/MiniGrid-DoorKey-5x5-v0",
            "seeupo_gym/BabyAI-GoToRedBallGrey-v0",
            "seeupo_gym/GEM-GuessTheNumber-v0",
            "seeupo_gym/TextWorldExpress-Coin-v0",
            "seeupo_gym/BFCLOracleMenu-v0",
        ],
        "seeds": [0, 1, 2],
        "steps": 100_000,
        "evals": 10,
        "settings": {"seeupo": _REAL_SEEUPO, "ppo": {"n_envs": 8}, "a2c": {"n_envs": 8}},
        "env_kwargs": {"CliffWalking-v1": {"max_episode_steps": 100}},  # it has no turn limit of its own
    },
}
