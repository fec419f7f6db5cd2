"""The rule "reinforce"."""

from __future__ import annotations

import torch as th

from seeupo_gym.agents.method.sequential import UpdateRule
from seeupo_gym.agents.method.settings import MethodSettings, RatioLevel


class Reinforce(UpdateRule):
    """The policy gradient without a ratio (Williams, 1992): one pass, with the probability of whole actions."""

    def check(self, settings: MethodSettings) -> None:
        if settings.n_sweeps > 1:
            raise ValueError(
                f'update_rule="reinforce" needs n_sweeps=1, got {settings.n_sweeps}: it has no importance ratio that '
                "would correct for the moves that a turn has already made on the same data"
            )

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
