"""Real multi-turn suites of others as Gymnasium environments; their packages are imported when one is made."""

# Name -> entry point; registered beside the package's own tasks, but not among them: they have no expert scores here.
SUITE_ENTRY_POINTS = {
    "BFCLMultiTurn-v0": "seeupo_gym.envs.suites.bfcl:BFCLMultiTurnEnv",
    "TextWorldExpress-v0": "seeupo_gym.envs.suites.text_world_express:TextWorldExpressEnv",
    "GEM-v0": "seeupo_gym.envs.suites.gem:GEMEnv",
}
