"""The sequential update: turn after turn, each weighted by what the turns before it have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch as th
from stable_baselines3.common.type_aliases import PyTorchObs

from seeupo_gym.agents.method.batches import TurnBatch, WeightedTurn, micro_batches, minibatches
from seeupo_gym.agents.method.errors import NonFiniteError
from seeupo_gym.agents.method.objective import (
    at_ratio_level,
    kl_divergence,
    log_importance_ratio,
    mean_over_tokens,
    update_factor,
)
from seeupo_gym.agents.method.trust_region import natural_gradient_step
from seeupo_gym.agents.method.update_rules import surrogate

UPDATE_ORDERS = ("reverse", "forward", "random", "simultaneous")

# SB3's margin: the update of a turn ends when its KL divergence exceeds this many times the target.
_KL_MARGIN = 1.5


class TurnPolicies(Protocol):
    """What the update needs of policies; :class:`~seeupo_gym.agents.SeeUPOPolicy` is one."""

    def evaluate_actions(
        self,
        obs: PyTorchObs,
        actions: th.Tensor,
        turn: int,
        action_masks: th.Tensor | None = None,
        with_entropy: bool = False,
    ) -> tuple[th.Tensor, th.Tensor | None]:
        """
        Log-probabilities, shape (batch,) or (batch, tokens), and entropies, shape (batch,); with gradients.

        That of a token which an action does not have is 0.
        """

    def reference_log_probs(self, obs: PyTorchObs, actions: th.Tensor, turn: int) -> th.Tensor:
        """Log-probabilities of tokens under the reference policy; asked for with ``reference_kl_coef`` only."""

    def turn_parameters(self, turn: int) -> list[th.nn.Parameter]:
        """The parameters that the update of a turn moves."""

    def step_optimizer(self, *turns: int) -> None:
        """Take an optimizer step with the gradients of these turns' parameters, and no others."""


@dataclass(frozen=True)
class UpdateSettings:
    """The current values of the hyperparameters of an update; see :class:`~seeupo_gym.agents.SeeUPO`."""

    rule: str = "clip"
    ratio_level: str = "token"
    n_epochs: int = 1
    batch_size: int | None = None
    micro_batch_size: int | None = None
    clip_low: float = 0.2
    clip_high: float = 0.2
    factor_clip: float = 0.2
    ent_coef: float = 0.0
    kl_coef: float = 0.0
    reference_kl_coef: float = 0.0
    target_kl: float | None = None
    max_grad_norm: float | None = None

    @property
    def level(self) -> str:
        """The ratio level; a rule without a ratio takes the probability of the whole action."""
        return "joint" if self.rule == "reinforce" else self.ratio_level

    @property
    def n_passes(self) -> int:
        """How often the rule goes over its data."""
        return 1 if self.rule in ("reinforce", "trust_region") else self.n_epochs


@dataclass(frozen=True)
class TurnStats:
    """
    What the update of one turn did; everything but the loss and the gradient steps is measured after it.

    :param n_gradient_steps: optimizer steps that were taken
    :param policy_loss: mean over them of what was minimised
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


def turn_order(n_turns: int, update_order: str | Sequence[int], generator: th.Generator) -> list[list[int]]:
    """
    The order in which the turns are updated.

    :param n_turns: number of turns that any episode reached
    :param update_order: ``"reverse"`` (backward induction: T, ..., 1), ``"forward"``, ``"random"``,
        ``"simultaneous"`` (all turns in one loss), or turns counted from 0, first to last; those that no
        episode reached are passed over, and those beyond the list stand where its highest turn stands
    :param generator: source of the random order, on the CPU
    :return: blocks of turns; the turns of a block are updated together
    """
    turns = list(range(n_turns))
    if update_order == "simultaneous":
        return [turns]
    if update_order == "random":
        turns = th.randperm(n_turns, generator=generator).tolist()
    elif update_order == "reverse":
        turns.reverse()
    elif not isinstance(update_order, str):
        last = max(update_order)
        turns = [t for turn in update_order for t in (range(n_turns - 1, last - 1, -1) if turn == last else [turn])]
    return [[turn] for turn in turns if turn < n_turns]


def sequential_update(
    policy: TurnPolicies,
    turn_batches: Sequence[TurnBatch],
    advantages: th.Tensor,
    order: list[list[int]],
    settings: UpdateSettings,
    generator: th.Generator,
    factors: th.Tensor | None = None,
) -> dict[int, TurnStats]:
    """
    Update the turns one after the other (arXiv:2602.06554, Algorithm 1).

    The factor F of an episode starts at 1 and is multiplied by the importance ratio of each turn once that
    turn is updated; the next turn maximises its surrogate with ``M = A * F``. An episode that ended before
    a turn is not in its batch, and keeps its factor.

    :param policy: the turn policies; changed in place
    :param turn_batches: the rows of each turn, with the log-probabilities recorded at collection
    :param advantages: A, shape (episodes,), or (turns, episodes) if it differs between turns
    :param order: blocks of turns to update, first to last; see :func:`turn_order`
    :param settings: hyperparameters
    :param generator: source of the minibatches, on the CPU
    :param factors: F to start from, shape (episodes,), changed in place; None: 1
    :return: statistics by turn
    :raises NonFiniteError: if a loss or a gradient is not finite; the step that would spread it is not taken
    """
    if factors is None:
        factors = th.ones(advantages.shape[-1], dtype=advantages.dtype, device=advantages.device)
    stats = {}
    for turns in order:
        block, weights = [], factors.clone()
        for turn in turns:
            batch = turn_batches[turn]
            of_turn = advantages if advantages.ndim == 1 else advantages[turn]
            weighted = WeightedTurn(turn, batch, of_turn[batch.episodes] * weights[batch.episodes])
            if settings.reference_kl_coef != 0.0:
                parts = [
                    policy.reference_log_probs(rows.observations, rows.actions, turn)
                    for [(_, rows, _)] in micro_batches([weighted], settings.micro_batch_size)
                ]
                weighted = weighted._replace(batch=batch._replace(reference_log_probs=th.cat(parts)))
            block.append(weighted)
        if settings.rule == "trust_region":
            n_steps, loss = _trust_region_update(policy, block, settings)
        else:
            n_steps, loss = _gradient_update(policy, block, settings, generator)
        for weighted in block:
            stats[weighted.turn] = _finish_turn(policy, weighted, weights, factors, settings, n_steps, loss)
    return stats


def _finish_turn(
    policy: TurnPolicies,
    weighted: WeightedTurn,
    weights: th.Tensor,
    factors: th.Tensor,
    settings: UpdateSettings,
    n_steps: int,
    loss: float,
) -> TurnStats:
    """Carry an updated turn over to the factors (eq. 8), and measure what its update did."""
    turn, batch, weighted_advantages = weighted
    with th.no_grad():
        parts = [
            policy.evaluate_actions(rows.observations, rows.actions, turn, rows.action_masks, with_entropy=True)
            for [(_, rows, _)] in micro_batches([weighted], settings.micro_batch_size)
        ]
        tokens = th.cat([log_probs for log_probs, _ in parts])
        entropies = [entropy for _, entropy in parts if entropy is not None]
        log_ratio = _log_ratio(tokens, batch, settings.level)
        # One ratio per token has no place in an episode's factor: the whole action's takes it.
        whole = (log_ratio if log_ratio.ndim == 1 else log_ratio.sum(dim=1)).exp()
        factors[batch.episodes] = update_factor(factors[batch.episodes], whole, settings.factor_clip)
        factor = weights[batch.episodes]  # what the update was weighted with
        numbers = [
            _clip_fraction(log_ratio, batch, settings),
            _divergence(tokens, batch.log_probs, batch, settings).mean(),
            th.cat(entropies).mean() if entropies else tokens.new_full((), np.nan),
            factor.mean(),
            factor.min(),
            factor.max(),
            weighted_advantages.abs().mean(),
        ]
        if tokens.ndim > 1:
            numbers += [_clip_fraction(_log_ratio(tokens, batch, lv), batch, settings) for lv in ("token", "sequence")]
        if batch.reference_log_probs is not None:
            to_reference = kl_divergence(log_importance_ratio(batch.reference_log_probs, tokens))
            numbers.append(mean_over_tokens(to_reference, batch.token_mask).mean())
        return TurnStats(n_steps, loss, *th.stack(numbers).tolist())


def _log_ratio(log_prob: th.Tensor, batch: TurnBatch, level: str) -> th.Tensor:
    new, lengths = at_ratio_level(log_prob, level, batch.token_mask)
    old, _ = at_ratio_level(batch.log_probs, level, batch.token_mask)
    return log_importance_ratio(new, old, lengths)


def _divergence(log_prob: th.Tensor, old_log_prob: th.Tensor, batch: TurnBatch, settings: UpdateSettings) -> th.Tensor:
    """KL(pi_old || pi) of each action, by the chain rule the sum of its tokens'; their mean for one ratio per token."""
    divergence = kl_divergence(log_importance_ratio(log_prob, old_log_prob))
    if settings.level == "token" or divergence.ndim == 1:
        return mean_over_tokens(divergence, batch.token_mask)
    return divergence.sum(dim=1)


def _clip_fraction(log_ratio: th.Tensor, batch: TurnBatch, settings: UpdateSettings) -> th.Tensor:
    ratio = log_ratio.exp()
    clipped = (ratio < 1.0 - settings.clip_low) | (ratio > 1.0 + settings.clip_high)
    return mean_over_tokens(clipped.float(), batch.token_mask).mean()


def _gradient_update(
    policy: TurnPolicies, block: list[WeightedTurn], settings: UpdateSettings, generator: th.Generator
) -> tuple[int, float]:
    """
    Maximise the surrogate of a block of turns for ``n_passes`` or until ``target_kl``.

    :return: number of gradient steps and their mean loss
    """
    params = _parameters(policy, block)
    max_kl = np.inf if settings.target_kl is None else _KL_MARGIN * settings.target_kl
    losses: list[float] = []
    for epoch in range(settings.n_passes):
        for part in minibatches(block, settings.batch_size, generator):
            for param in params:
                param.grad = None
            n_rows = sum(len(weighted_advantages) for _, _, weighted_advantages in part)
            objective = kl = 0.0
            for micro in micro_batches(part, settings.micro_batch_size):
                of_micro, kl_of_micro, outputs, slopes = _objective(policy, micro, n_rows, settings)
                objective += of_micro.item()
                kl += 0.0 if kl_of_micro is None else kl_of_micro.item()
                if not losses or kl <= max_kl:
                    th.autograd.backward(outputs, slopes)
            if losses and kl > max_kl:
                return len(losses), float(np.mean(losses))
            norm = clip_gradients(params, settings.max_grad_norm)
            losses.append(-objective)
            if not np.isfinite(losses[-1]) or not np.isfinite(norm):
                raise _non_finite(losses[-1], f"its gradient (norm {norm})", block, f"epoch {epoch}")
            policy.step_optimizer(*(turn for turn, _, _ in part))
    return len(losses), float(np.mean(losses))


def _trust_region_update(
    policy: TurnPolicies, block: list[WeightedTurn], settings: UpdateSettings
) -> tuple[int, float]:
    """Take one natural-gradient step for a block of turns; see :func:`_gradient_update`."""
    assert settings.target_kl is not None, "target_kl is the radius of the trust region"
    params = _parameters(policy, block)
    n_rows = sum(len(weighted_advantages) for _, _, weighted_advantages in block)
    start: list[th.Tensor] = []

    def evaluate() -> tuple[th.Tensor, th.Tensor]:
        objective = kl = th.zeros((), device=params[0].device)
        for i, (turn, batch, weighted_advantages) in enumerate(block):
            log_prob, entropy = policy.evaluate_actions(
                batch.observations, batch.actions, turn, batch.action_masks, with_entropy=settings.ent_coef != 0.0
            )
            if len(start) == i:
                start.append(log_prob.detach())
            share = len(weighted_advantages) / n_rows
            of_turn, _, _ = _surrogate(log_prob, batch, weighted_advantages, settings)
            objective = objective + share * mean_over_tokens(of_turn, batch.token_mask).mean()
            if entropy is not None:
                objective = objective + share * settings.ent_coef * entropy.mean()
            kl = kl + share * _divergence(log_prob, start[i], batch, settings).mean()
        return objective, kl

    before, accepted = natural_gradient_step(params, evaluate, settings.target_kl)
    if not np.isfinite(before):
        raise _non_finite(-before, "its gradient", block, "the natural-gradient step")
    return int(accepted), -before


def _objective(
    policy: TurnPolicies, part: list[WeightedTurn], n_rows: int, settings: UpdateSettings
) -> tuple[th.Tensor, th.Tensor | None, list[th.Tensor], list[th.Tensor]]:
    """
    The part that some rows have in the objective of a minibatch of ``n_rows``, a mean over rows of any turns.

    :return: the objective, the KL divergence if there is a target for it, the tensors to go backward from and the
        gradients of the loss with respect to them
    """
    objectives, kls, outputs, slopes = [], [], [], []
    for turn, batch, weighted_advantages in part:
        tokens, entropy = policy.evaluate_actions(
            batch.observations, batch.actions, turn, batch.action_masks, with_entropy=settings.ent_coef != 0.0
        )
        share = len(weighted_advantages) / n_rows
        objective, slope, log_prob = _surrogate(tokens, batch, weighted_advantages, settings)
        with th.no_grad():
            objectives.append(share * mean_over_tokens(objective, batch.token_mask).mean())
            outputs.append(log_prob)
            slopes.append(-share * slope * _weights(slope, batch.token_mask))
            if settings.target_kl is not None:
                kls.append(share * _divergence(tokens, batch.log_probs, batch, settings).mean())
            if batch.reference_log_probs is not None:
                # d KL / d log pi = 1 - pi_ref / pi in the k3 form, whose expectation under pi is 0 at the reference.
                log_ratio = log_importance_ratio(batch.reference_log_probs, tokens)
                penalty = mean_over_tokens(kl_divergence(log_ratio), batch.token_mask)
                coef = share * settings.reference_kl_coef
                objectives.append(-coef * penalty.mean())
                outputs.append(tokens)
                slopes.append(coef * (1.0 - log_ratio.exp()) * _weights(tokens, batch.token_mask))
            if entropy is not None:
                objectives.append(share * settings.ent_coef * entropy.mean())
                outputs.append(entropy)
                slopes.append(th.full_like(entropy, -share * settings.ent_coef / len(entropy)))
    return th.stack(objectives).sum(), th.stack(kls).sum() if kls else None, outputs, slopes


def _surrogate(
    tokens: th.Tensor, batch: TurnBatch, weighted_advantages: th.Tensor, settings: UpdateSettings
) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
    """The rule's objective and slope at the ratio level, and the log-probabilities that the slope belongs to."""
    log_prob, lengths = at_ratio_level(tokens, settings.level, batch.token_mask)
    old_log_prob, _ = at_ratio_level(batch.log_probs, settings.level, batch.token_mask)
    m = weighted_advantages if log_prob.ndim == 1 else weighted_advantages.unsqueeze(1)
    differentiable = settings.rule == "trust_region"
    with th.set_grad_enabled(differentiable and th.is_grad_enabled()):
        objective, slope = surrogate(log_prob, old_log_prob, lengths, m, settings)
    return objective, slope, log_prob


def _weights(values: th.Tensor, token_mask: th.Tensor | None) -> th.Tensor | float:
    """What each entry weighs in the mean over rows of the means over their tokens."""
    if values.ndim == 1 or token_mask is None:
        return 1.0 / values.numel()
    return token_mask / (token_mask.sum(dim=1, keepdim=True) * len(values))


def _parameters(policy: TurnPolicies, block: list[WeightedTurn]) -> list[th.nn.Parameter]:
    """The parameters of all turns of a block, each once."""
    return list(dict.fromkeys(param for turn, _, _ in block for param in policy.turn_parameters(turn)))


def _non_finite(loss: float, what: str, block: list[WeightedTurn], where: str) -> NonFiniteError:
    turns = ", ".join(str(turn) for turn, _, _ in block)
    return NonFiniteError(
        f"the loss ({loss}) or {what} is not finite at turn {turns}, {where}; the step was not taken and the policy is "
        "as it was before it (try a smaller learning rate)"
    )


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
