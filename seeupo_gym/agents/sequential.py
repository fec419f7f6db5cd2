"""The sequential update: turn after turn, each weighted by what the turns before it have changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch as th

from seeupo_gym.agents.networks import NonFiniteError
from seeupo_gym.agents.objective import clipped_surrogate, kl_divergence, log_importance_ratio, update_factor
from seeupo_gym.agents.policies import SeeUPOPolicy
from seeupo_gym.agents.rollout import TurnBatch

UPDATE_ORDERS = ("reverse", "forward", "random")


@dataclass(frozen=True)
class UpdateSettings:
    """The current values of the hyperparameters of an update; see :class:`~seeupo_gym.agents.SeeUPO`."""

    n_epochs: int
    batch_size: int | None
    clip_low: float
    clip_high: float
    factor_clip: float
    ent_coef: float
    kl_coef: float
    target_kl: float | None
    max_grad_norm: float | None


@dataclass(frozen=True)
class TurnStats:
    """What the update of one turn did; everything but the loss and the gradient steps is measured after it."""

    n_gradient_steps: int
    policy_loss: float
    clip_fraction: float
    approx_kl: float
    entropy: float
    factor_mean: float
    factor_min: float
    factor_max: float
    advantage_abs_mean: float


def turn_order(n_turns: int, update_order: str, generator: th.Generator) -> list[int]:
    """
    The order in which the turns are updated.

    :param n_turns: number of turns that any episode reached
    :param update_order: ``"reverse"`` (backward induction: T, ..., 1), ``"forward"`` or ``"random"``
    :param generator: source of the random order, on the CPU
    :return: turns counted from 0
    """
    if update_order == "random":
        permutation: list[int] = th.randperm(n_turns, generator=generator).tolist()
        return permutation
    turns = list(range(n_turns))
    return turns[::-1] if update_order == "reverse" else turns


def sequential_update(
    policy: SeeUPOPolicy,
    turn_batches: list[TurnBatch],
    advantages: th.Tensor,
    order: list[int],
    settings: UpdateSettings,
    generator: th.Generator,
) -> dict[int, TurnStats]:
    """
    Update the turns one after the other (arXiv:2602.06554, Algorithm 1).

    The factor F of an episode starts at 1 and is multiplied by the importance ratio of each turn once that
    turn is updated; the next turn maximises its surrogate with ``M = A * F``. An episode that ended before
    a turn is not in its batch, and keeps its factor.

    :param policy: the turn policies; changed in place
    :param turn_batches: the rows of each turn, with the log-probabilities recorded at collection
    :param advantages: A, shape (episodes,)
    :param order: the turns to update, first to last
    :param settings: hyperparameters
    :param generator: source of the minibatches, on the CPU
    :return: statistics by turn
    :raises NonFiniteError: if a loss or a gradient is not finite; the step that would spread it is not taken
    """
    factors = th.ones_like(advantages)
    stats = {}
    for turn in order:
        batch = turn_batches[turn]
        factor = factors[batch.episodes]
        weighted = advantages[batch.episodes] * factor
        losses = update_turn(policy, turn, batch, weighted, settings, generator)
        with th.no_grad():
            log_prob, entropy = policy.evaluate_actions(
                batch.observations, batch.actions, turn, batch.action_masks, with_entropy=True
            )
            assert entropy is not None
            log_ratio = log_importance_ratio(log_prob, batch.log_probs)
            ratio = log_ratio.exp()
            factors[batch.episodes] = update_factor(factor, ratio, settings.factor_clip)
            clipped = (ratio < 1.0 - settings.clip_low) | (ratio > 1.0 + settings.clip_high)
            numbers = [
                clipped.float().mean(),
                kl_divergence(log_ratio).mean(),
                entropy.mean(),
                factor.mean(),
                factor.min(),
                factor.max(),
                weighted.abs().mean(),
            ]
            stats[turn] = TurnStats(len(losses), float(np.mean(losses)), *th.stack(numbers).tolist())
    return stats


def update_turn(
    policy: SeeUPOPolicy,
    turn: int,
    batch: TurnBatch,
    weighted_advantages: th.Tensor,
    settings: UpdateSettings,
    generator: th.Generator,
) -> list[float]:
    """
    Maximise the surrogate of one turn over its batch, for ``n_epochs`` passes or until ``target_kl``.

    :param policy: only the network that plays ``turn`` is changed
    :param turn: the turn, counted from 0
    :param batch: the episodes that reached it
    :param weighted_advantages: M of each row of the batch
    :param settings: hyperparameters
    :param generator: source of the minibatches, on the CPU
    :return: the loss of each gradient step
    """
    params, target_kl = policy.turn_parameters(turn), settings.target_kl  # 1.5 times the target is SB3's margin
    losses: list[float] = []
    for epoch in range(settings.n_epochs):
        for rows in _minibatches(len(batch.episodes), settings.batch_size, generator):
            part = batch if rows is None else batch.rows(rows.to(batch.episodes.device))
            weighted = weighted_advantages if rows is None else weighted_advantages[rows.to(batch.episodes.device)]
            log_prob, entropy = policy.evaluate_actions(
                part.observations, part.actions, turn, part.action_masks, with_entropy=settings.ent_coef != 0.0
            )
            with th.no_grad():
                log_ratio = log_importance_ratio(log_prob, part.log_probs)
                ratio = log_ratio.exp()
                if target_kl is not None and losses and kl_divergence(log_ratio).mean() > 1.5 * target_kl:
                    return losses
                objective, slope = clipped_surrogate(ratio, weighted, settings.clip_low, settings.clip_high)
                if settings.kl_coef != 0.0:
                    objective = objective - settings.kl_coef * kl_divergence(log_ratio)
                    slope = slope - settings.kl_coef * (ratio - 1.0)  # d kl / d log rho = rho - 1
                loss = -objective.mean()
                slope = slope / len(log_prob)
            for param in params:
                param.grad = None
            if entropy is None:
                log_prob.backward(-slope)
            else:
                bonus = settings.ent_coef * entropy.mean()
                loss = loss - bonus.detach()
                th.autograd.backward([log_prob, bonus], [-slope, -th.ones_like(bonus)])
            norm = clip_gradients(params, settings.max_grad_norm)
            losses.append(loss.item())
            if not np.isfinite(losses[-1]) or not np.isfinite(norm):
                raise NonFiniteError(
                    f"the loss ({losses[-1]}) or its gradient (norm {norm}) is not finite at turn {turn}, "
                    f"epoch {epoch}; the step was not taken and the policy is as it was before it (try a smaller "
                    "learning rate)"
                )
            policy.step_optimizer(turn)
    return losses


def clip_gradients(params: list[th.nn.Parameter], max_norm: float | None) -> float:
    """
    Scale gradients so that their joint norm is at most ``max_norm``, with one flat norm.

    :param params: parameters; those without a gradient are passed over
    :param max_norm: None: leave them as they are
    :return: the norm before clipping
    """
    grads = [param.grad for param in params if param.grad is not None]
    norm = float(th.linalg.vector_norm(th.cat([grad.reshape(-1) for grad in grads])))
    if max_norm is not None and norm > max_norm:
        th._foreach_mul_(grads, max_norm / norm)
    return norm


def _minibatches(n_rows: int, batch_size: int | None, generator: th.Generator) -> Iterator[th.Tensor | None]:
    """Row indices of shuffled minibatches; None stands for all rows at once, without a copy."""
    if batch_size is None or batch_size >= n_rows:
        yield None
        return
    yield from th.randperm(n_rows, generator=generator).split(batch_size)
