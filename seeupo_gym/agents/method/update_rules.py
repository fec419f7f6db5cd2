"""The first-order update rules: what one turn maximises, and its slope."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch as th

from seeupo_gym.agents.method.objective import clipped_surrogate, kl_divergence, log_importance_ratio

if TYPE_CHECKING:
    from seeupo_gym.agents.method.sequential import UpdateSettings

UPDATE_RULES = ("clip", "reinforce", "kl_penalty", "trust_region")


def surrogate(
    log_prob: th.Tensor,
    old_log_prob: th.Tensor,
    lengths: th.Tensor | None,
    weighted_advantage: th.Tensor,
    settings: UpdateSettings,
) -> tuple[th.Tensor, th.Tensor]:
    """
    The objective J of a rule, to be maximised, and its slope ``dJ / d log pi``::

        "clip"         J = min(rho * M, clip(rho, 1 - clip_low, 1 + clip_high) * M)   (arXiv:2602.06554, eq. 6)
        "reinforce"    J = M * log pi(a | h): the policy gradient, no ratio           (Williams, 1992)
        "kl_penalty"   J = rho * M - kl_coef * KL                                     (arXiv:1707.06347, eq. 8)
        "trust_region" J = rho * M, under a bound on the KL; see trust_region.py      (arXiv:1502.05477, eq. 14)

    With ``kl_coef`` the penalty on KL(pi_old || pi), in the k3 form, is part of every rule. It is that of the
    whole action, or per token where there is one ratio per token. Slopes are written out so that only
    log-probabilities are left for autograd, in the update's inner loop: the derivative of rho with respect to
    log rho is rho, and that of log rho with respect to log pi is 1 / L.

    :param log_prob: log pi, shape (batch,), or (batch, tokens) for one ratio per token
    :param old_log_prob: the same as recorded at collection
    :param lengths: L of each action, shape (batch,); None: 1
    :param weighted_advantage: M, shape (batch,), or (batch, 1) for one ratio per token
    :param settings: the rule and its hyperparameters
    :return: objective and slope, in the shape of ``log_prob``
    """
    if settings.rule == "reinforce":
        objective, slope = weighted_advantage * log_prob, weighted_advantage.expand_as(log_prob)
    else:
        ratio = log_importance_ratio(log_prob, old_log_prob, lengths).exp()
        if settings.rule == "clip":
            objective, slope = clipped_surrogate(ratio, weighted_advantage, settings.clip_low, settings.clip_high)
        else:
            objective = slope = ratio * weighted_advantage
        if lengths is not None:
            slope = slope / lengths
    if settings.kl_coef != 0.0:
        log_ratio = log_importance_ratio(log_prob, old_log_prob)
        objective = objective - settings.kl_coef * kl_divergence(log_ratio)
        slope = slope - settings.kl_coef * (log_ratio.exp() - 1.0)  # d kl / d log rho = rho - 1
    return objective, slope
