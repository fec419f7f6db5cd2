"""The rule "reinforce"."""

from __future__ import annotations

import torch as th

from seeupo_gym.agents.method.sequential import UpdateRule
from seeupo_gym.agents.method.settings import MethodSettings, RatioLevel


class Reinforce(UpdateRule):
    """The policy gradient without a ratio (Williams, 1992): one pass, with the probability of whole actions."""

    def ratio_level(self, settings: MethodSettings) -> RatioLevel:
        return "joint"

    def n_passes(self, settings: MethodSettings) -> int:
        return 1

    def surrogate(
        self,
        log_prob: th.Tensor,
        old_log_prob: th.Tensor,
        lengths: th.Tensor | None,
        weighted_advantage: th.Tensor,
        settings: MethodSettings,
    ) -> th.Tensor:
        """Compute ``M * log pi(a | h)``."""
        return weighted_advantage * log_prob
