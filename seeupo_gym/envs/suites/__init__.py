"""Real multi-turn suites of others as Gymnasium environments; their packages are imported when one is made."""

from typing import Any

# Name -> entry point; registered beside the package's own tasks, but not among them: they have no expert scores here.
SUITE_ENTRY_POINTS = {
    "BFCLMultiTurn-v0": "seeupo_gym.envs.suites.bfcl:BFCLMultiTurnEnv",
    "TextWorldExpress-v0": "seeupo_gym.envs.suites.text_world_express:TextWorldExpressEnv",
    "GEM-v0": "seeupo_gym.envs.suites.gem:GEMEnv",
    "MiniWoB-v0": "seeupo_gym.envs.suites.miniwob:MiniWoBEnv",
    "AppWorld-v0": "seeupo_gym.envs.suites.appworld:AppWorldEnv",
    "BFCLOracleMenu-v0": "seeupo_gym.envs.suites.bfcl_oracle_menu:BFCLOracleMenuEnv",
    "TextArena-v0": "seeupo_gym.envs.suites.text_arena:TextArenaEnv",
    "OpenEnv-v0": "seeupo_gym.envs.suites.open_env:OpenEnvEnv",
}

_RECIPES = "seeupo_gym.envs.suites.recipes"
# Name -> entry point and arguments: environments of others with the wrappers they need, see docs/suites.md.
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "MiniGrid-v0": (f"{_RECIPES}:minigrid", {}),
    "MiniGrid-Empty-5x5-v0": (f"{_RECIPES}:minigrid", {"name": "MiniGrid-Empty-5x5-v0"}),
    "MiniGrid-DoorKey-5x5-v0": (f"{_RECIPES}:minigrid", {"name": "MiniGrid-DoorKey-5x5-v0"}),
    "BabyAI-GoToRedBallGrey-v0": (f"{_RECIPES}:minigrid", {"name": "BabyAI-GoToRedBallGrey-v0", "max_steps": 64}),
    "GEM-GuessTheNumber-v0": (f"{_RECIPES}:gem_guess_the_number", {}),
    "TextWorldExpress-Coin-v0": (f"{_RECIPES}:text_world_express_coin", {}),
}
