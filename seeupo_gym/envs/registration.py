"""The tables of registered ids: for each name the class that plays it, and its arguments."""

from typing import Any

import gymnasium as gym

NAMESPACE = "seeupo_gym"

# The package's own tasks: name -> entry point. A class is imported when one of its environments is made.
ENTRY_POINTS = {
    "CoordinationTrap-v0": "seeupo_gym.envs.tasks.coordination_trap:CoordinationTrapEnv",
    "ContextChain-v0": "seeupo_gym.envs.tasks.context_chain:ContextChainEnv",
    "ToolChain-v0": "seeupo_gym.envs.tasks.tool_chain:ToolChainEnv",
    "GarnetTree-v0": "seeupo_gym.envs.tasks.garnet_tree:GarnetTreeEnv",
    "SlotDialogue-v0": "seeupo_gym.envs.tasks.slot_dialogue:SlotDialogueEnv",
    "WebNav-v0": "seeupo_gym.envs.tasks.web_nav:WebNavEnv",
    "GuessNumber-v0": "seeupo_gym.envs.tasks.guess_number:GuessNumberEnv",
    "Mastermind-v0": "seeupo_gym.envs.tasks.mastermind:MastermindEnv",
    "TwentyQuestions-v0": "seeupo_gym.envs.tasks.twenty_questions:TwentyQuestionsEnv",
    "DeadlinePlanner-v0": "seeupo_gym.envs.tasks.deadline_planner:DeadlinePlannerEnv",
    "Blocksworld-v0": "seeupo_gym.envs.tasks.blocksworld:BlocksworldEnv",
}

ENV_IDS = tuple(f"{NAMESPACE}/{name}" for name in ENTRY_POINTS)

# Suites of others: name -> entry point. They are in a table of their own because they have no reference scores.
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
# Environments of others with the wrappers they need: name -> entry point and arguments. See docs/suites.md.
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "MiniGrid-v0": (f"{_RECIPES}:minigrid", {}),
    "MiniGrid-Empty-5x5-v0": (f"{_RECIPES}:minigrid", {"name": "MiniGrid-Empty-5x5-v0"}),
    "MiniGrid-DoorKey-5x5-v0": (f"{_RECIPES}:minigrid", {"name": "MiniGrid-DoorKey-5x5-v0"}),
    "BabyAI-GoToRedBallGrey-v0": (f"{_RECIPES}:minigrid", {"name": "BabyAI-GoToRedBallGrey-v0", "max_steps": 64}),
    "GEM-GuessTheNumber-v0": (f"{_RECIPES}:gem_guess_the_number", {}),
    "TextWorldExpress-Coin-v0": (f"{_RECIPES}:text_world_express_coin", {}),
}


def register_envs() -> None:
    """Register all ids of these tables, except those that are registered already."""
    for name, entry_point in {**ENTRY_POINTS, **SUITE_ENTRY_POINTS}.items():
        if f"{NAMESPACE}/{name}" not in gym.registry:
            gym.register(f"{NAMESPACE}/{name}", entry_point=entry_point)
    for name, (entry_point, arguments) in RECIPES.items():
        if f"{NAMESPACE}/{name}" not in gym.registry:
            gym.register(f"{NAMESPACE}/{name}", entry_point=entry_point, kwargs=arguments)
