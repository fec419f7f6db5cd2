"""The statistics of an iteration's update, turn by turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch as th

from seeupo_gym.agents.method.batches import TurnBatch, WeightedTurn
from seeupo_gym.agents.method.objective import (
    action_kl,
    at_ratio_level,
    kl_divergence,
    log_importance_ratio,
    mean_over_tokens,
)
from seeupo_gym.agents.method.settings import MethodSettings


class UpdatedTurn(NamedTuple):
    """A turn after its last update."""

    rows: WeightedTurn
    n_steps: int
    """Optimizer steps that were taken, in all sweeps."""
    loss: float
    factors: th.Tensor
    """F of each row, which weighted the update."""
    tokens: th.Tensor
    """Log-probabilities after the update, shape (batch,) or (batch, tokens)."""
    entropy: th.Tensor | None

    def ratio(self, ratio_level: str) -> th.Tensor:
        """
        Compute the importance ratio of whole actions: one ratio per token has no place in an episode's factor.

        :param ratio_level: of the update; "token" gives the product of the tokens' ratios
        :return: shape (batch,)
        """
        log_ratio = _log_ratio(self.tokens, self.rows.batch, ratio_level)
        return (log_ratio if log_ratio.ndim == 1 else log_ratio.sum(dim=1)).exp()


@dataclass(frozen=True)
class TurnStats:
    """
    The effect of an iteration on one turn; everything but the loss and the gradient steps is measured after it.

    :param n_gradient_steps: optimizer steps that were taken, in all sweeps
    :param policy_loss: mean over those of the last sweep of what was minimised
    :param clip_fraction: share of the ratios outside of the clip range
    :param approx_kl: KL of the old policy to the new one, estimated from the ratios
    :param entropy: mean entropy
    :param factor_mean: mean of the episodes' factors F that weighted the advantages
    :param factor_min: the smallest of them
    :param factor_max: the largest of them
    :param advantage_abs_mean: mean of abs(A F)
    :param token_clip_fraction: as if the ratio were that of tokens; None: log-probabilities are not those of tokens
    :param sequence_clip_fraction: the same, as if it were that of whole messages
    :param reference_kl: KL to the reference policy; None: there is none
    """

    n_gradient_steps: int
    policy_loss: float
    clip_fraction: float
    approx_kl: float
    entropy: float
    factor_mean: float
    factor_min: float
    factor_max: float
    advantage_abs_mean: float
    token_clip_fraction: float | None = None
    sequence_clip_fraction: float | None = None
    reference_kl: float | None = None


@th.no_grad()
def measure(updated: UpdatedTurn, ratio_level: str, settings: MethodSettings) -> TurnStats:
    """
    Measure the effect of an iteration on one turn.

    :param updated: the turn after its last update
    :param ratio_level: of the update
    :param settings: the settings that it was made with
    :return: the statistics
    """
    batch, tokens = updated.rows.batch, updated.tokens

    def clip_fraction(level: str) -> th.Tensor:
        ratio = _log_ratio(tokens, batch, level).exp()
        clipped = (ratio < 1.0 - settings.clip_range) | (ratio > 1.0 + settings.clip_high)
        return mean_over_tokens(clipped.float(), batch.token_mask).mean()

    numbers = {
        "clip_fraction": clip_fraction(ratio_level),
        "approx_kl": action_kl(tokens, batch.log_probs, ratio_level, batch.token_mask).mean(),
        "entropy": tokens.new_full((), np.nan) if updated.entropy is None else updated.entropy.mean(),
        "factor_mean": updated.factors.mean(),
        "factor_min": updated.factors.min(),
        "factor_max": updated.factors.max(),
        "advantage_abs_mean": updated.rows.weighted_advantages.abs().mean(),
    }
    if tokens.ndim > 1:
        numbers["token_clip_fraction"] = clip_fraction("token")
        numbers["sequence_clip_fraction"] = clip_fraction("sequence")
    if batch.reference_log_probs is not None:
        to_reference = kl_divergence(log_importance_ratio(batch.reference_log_probs, tokens))
        numbers["reference_kl"] = mean_over_tokens(to_reference, batch.token_mask).mean()
    values = dict(zip(numbers, th.stack(list(numbers.values())).tolist(), strict=True))
    return TurnStats(n_gradient_steps=updated.n_steps, policy_loss=updated.loss, **values)


def _log_ratio(log_prob: th.Tensor, batch: TurnBatch, ratio_level: str) -> th.Tensor:
    new, lengths = at_ratio_level(log_prob, ratio_level, batch.token_mask)
    old, _ = at_ratio_level(batch.log_probs, ratio_level, batch.token_mask)
    return log_importance_ratio(new, old, lengths)
