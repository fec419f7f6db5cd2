"""The table of update rules, by name."""

from __future__ import annotations

from seeupo_gym.agents.method.rules.kl_penalty import KLPenalty
from seeupo_gym.agents.method.rules.reinforce import Reinforce
from seeupo_gym.agents.method.rules.trust_region import TrustRegion
from seeupo_gym.agents.method.sequential import Clip, UpdateRule
from seeupo_gym.agents.method.settings import MethodSettings

UPDATE_RULES: dict[str, UpdateRule] = {
    "clip": Clip(),
    "reinforce": Reinforce(),
    "kl_penalty": KLPenalty(),
    "trust_region": TrustRegion(),
}


def get_rule(settings: MethodSettings) -> UpdateRule:
    """
    Find the update rule of some settings.

    :param settings: with the name of a rule, or a rule, as ``update_rule``
    :return: the rule, which can work with these settings
    :raises ValueError: for an unknown name, or settings that the rule cannot work with
    """
    given = settings.update_rule
    rule = UPDATE_RULES.get(given) if isinstance(given, str) else given
    if not isinstance(rule, UpdateRule):
        raise ValueError(f"update_rule must be one of {tuple(UPDATE_RULES)} or an UpdateRule, got {given!r}")
    rule.check(settings)
    return rule
