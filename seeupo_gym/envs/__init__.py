"""Multi-turn tasks as Gymnasium environments: the table of registered ids."""

import gymnasium as gym

from seeupo_gym.envs.suites import RECIPES, SUITE_ENTRY_POINTS
from seeupo_gym.envs.views.text_view import TextView

__all__ = ["ENTRY_POINTS", "ENV_IDS", "NAMESPACE", "TextView", "register_envs"]

NAMESPACE = "seeupo_gym"

# Name -> entry point; the environment classes are imported when one is made.
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


def register_envs() -> None:
    """Register every id that is not registered yet, of the package's own tasks and of the suites of others."""
    for name, entry_point in {**ENTRY_POINTS, **SUITE_ENTRY_POINTS}.items():
        if f"{NAMESPACE}/{name}" not in gym.registry:
            gym.register(f"{NAMESPACE}/{name}", entry_point=entry_point)
    for name, (entry_point, arguments) in RECIPES.items():
        if f"{NAMESPACE}/{name}" not in gym.registry:
            gym.register(f"{NAMESPACE}/{name}", entry_point=entry_point, kwargs=arguments)


register_envs()
