"""The formulas of one turn's update."""

from __future__ import annotations

import torch as th

# exp(20) is far beyond any clip range, and finite in float32.
MAX_LOG_RATIO = 20.0


def log_importance_ratio(log_prob: th.Tensor, old_log_prob: th.Tensor, length: th.Tensor | None = None) -> th.Tensor:
    """
    Compute the logarithm of the sequence-level importance ratio (arXiv:2602.06554, below eq. 6)::

        log rho = (log pi_theta(a | h) - log pi_old(a | h)) / L

    clamped to +-20 before anyone exponentiates it.

    :param log_prob: log-probabilities of the actions now, shape (batch,)
    :param old_log_prob: those recorded at collection, shape (batch,)
    :param length: number L of tokens of each action, shape (batch,); None: 1, an action is one decision
    :return: shape (batch,)
    """
    difference = log_prob - old_log_prob
    if length is not None:
        difference = difference / length
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def at_ratio_level(
    log_prob: th.Tensor, ratio_level: str, token_mask: th.Tensor | None
) -> tuple[th.Tensor, th.Tensor | None]:
    """
    Turn log-probabilities of tokens into those that the importance ratio of a level compares.

    :param log_prob: one per token, shape (batch, tokens), 0 where an action has no such token; or one per action,
        shape (batch,), which is the same at all levels
    :param ratio_level: "joint" (the ratio of whole actions), "sequence" (its geometric mean over tokens, the paper's)
        or "token" (one ratio per token)
    :param token_mask: which tokens there are, shape (batch, tokens); None: all
    :return: log-probabilities, shape (batch,), or (batch, tokens) for one ratio per token, and the lengths L to divide
        by, shape (batch,), or None
    """
    if log_prob.ndim == 1 or ratio_level == "token":
        return log_prob, None
    whole = log_prob.sum(dim=1)
    if ratio_level == "joint":
        return whole, None
    return whole, th.full_like(whole, log_prob.shape[1]) if token_mask is None else token_mask.sum(dim=1).to(whole)


def mean_over_tokens(values: th.Tensor, token_mask: th.Tensor | None) -> th.Tensor:
    """
    Compute the mean of each action's tokens.

    :param values: shape (batch, tokens), or (batch,) which is returned as it is
    :param token_mask: which tokens there are, shape (batch, tokens), at least one in every row; None: all
    :return: shape (batch,)
    """
    if values.ndim == 1:
        return values
    if token_mask is None:
        return values.mean(dim=1)
    return (values * token_mask).sum(dim=1) / token_mask.sum(dim=1)


def clipped_surrogate(ratio: th.Tensor, weighted_advantage: th.Tensor, clip_low: float, clip_high: float) -> th.Tensor:
    """
    Compute the objective of one turn (arXiv:2602.06554, eq. 6), to be maximised::

        J = min(rho * M, clip(rho, 1 - clip_low, 1 + clip_high) * M)

    :param ratio: importance ratio rho, shape (batch,)
    :param weighted_advantage: M, advantage times the factor of the other turns, shape (batch,)
    :param clip_low: lower clip range
    :param clip_high: upper clip range
    :return: shape (batch,)
    """
    # clip(rho) M can be the smaller one only at the bound where M gains.
    gain = weighted_advantage > 0
    bound = th.where(gain, (1.0 + clip_high) * weighted_advantage, (1.0 - clip_low) * weighted_advantage)
    unclipped = ratio * weighted_advantage
    return th.where(unclipped > bound, bound, unclipped)


def kl_divergence(log_ratio: th.Tensor) -> th.Tensor:
    """
    Estimate KL(pi_old || pi_theta) from samples of pi_old, in the k3 form ``rho - 1 - log rho`` (Schulman,
    "Approximating KL divergence", 2020): unbiased and never negative.

    :param log_ratio: log rho, shape (batch,)
    :return: one estimate per sample, shape (batch,)
    """
    return log_ratio.exp() - 1.0 - log_ratio


def action_kl(
    log_prob: th.Tensor, old_log_prob: th.Tensor, ratio_level: str, token_mask: th.Tensor | None
) -> th.Tensor:
    """
    Estimate KL(pi_old || pi_theta) of each action: by the chain rule the sum of its tokens', or their mean where there
    is one ratio per token.

    :param log_prob: of tokens, shape (batch, tokens), or of actions, shape (batch,)
    :param old_log_prob: those to compare with, in the same shape
    :param ratio_level: of the update
    :param token_mask: which tokens there are; None: all
    :return: shape (batch,)
    """
    divergence = kl_divergence(log_importance_ratio(log_prob, old_log_prob))
    if ratio_level == "token" or divergence.ndim == 1:
        return mean_over_tokens(divergence, token_mask)
    return divergence.sum(dim=1)


def update_factor(factor: th.Tensor, ratio: th.Tensor, factor_clip: float) -> th.Tensor:
    """
    Carry the change of an updated turn over to the others (arXiv:2602.06554, eq. 8)::

        F <- clip(F * clip(rho, 1 - delta, 1 + delta), 1 - delta, 1 + delta),   M = A * F

    :param factor: running product F of the episodes that reached the turn, shape (batch,)
    :param ratio: their importance ratios after the update of the turn, shape (batch,)
    :param factor_clip: delta
    :return: shape (batch,)
    """
    low, high = 1.0 - factor_clip, 1.0 + factor_clip
    return (factor * ratio.clamp(low, high)).clamp(low, high)
