"""Real multi-turn suites of others as Gymnasium environments; their packages are imported when one is made."""
