"""The rule "kl_penalty"."""

from __future__ import annotations

import torch as th

from seeupo_gym.agents.method.objective import log_importance_ratio
from seeupo_gym.agents.method.sequential import UpdateRule
from seeupo_gym.agents.method.settings import MethodSettings


class KLPenalty(UpdateRule):
    """The importance ratio under a penalty on the KL divergence, weighed by ``kl_coef`` (arXiv:1707.06347, eq. 8)."""

    def check(self, settings: MethodSettings) -> None:
        if not settings.kl_coef > 0.0:
            raise ValueError(
                f'update_rule="kl_penalty" needs kl_coef > 0, got {settings.kl_coef}: nothing else bounds the step'
            )

    def surrogate(
        self,
        log_prob: th.Tensor,
        old_log_prob: th.Tensor,
        lengths: th.Tensor | None,
        weighted_advantage: th.Tensor,
        settings: MethodSettings,
    ) -> th.Tensor:
        """Compute ``rho * M``; the objective of every rule has the penalty."""
        return log_importance_ratio(log_prob, old_log_prob, lengths).exp() * weighted_advantage
