"""Update rules, one a file; "clip" is beside the method itself, in sequential.py."""

from seeupo_gym.agents.method.rules.table import UPDATE_RULES, get_rule

__all__ = ["UPDATE_RULES", "get_rule"]
