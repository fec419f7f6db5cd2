"""The method: turn after turn maximises its objective, weighted by what the other turns have changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch as th

from seeupo_gym.agents.method.batches import TurnBatch, WeightedTurn, micro_batches, minibatches
from seeupo_gym.agents.method.errors import NonFiniteError
from seeupo_gym.agents.method.objective import (
    action_kl,
    at_ratio_level,
    clipped_surrogate,
    kl_divergence,
    log_importance_ratio,
    mean_over_tokens,
    update_factor,
)
from seeupo_gym.agents.method.policy import TrainablePolicies
from seeupo_gym.agents.method.settings import MethodSettings, RatioLevel
from seeupo_gym.agents.method.statistics import TurnStats, UpdatedTurn, measure

# SB3's margin: the update of a turn ends when its KL divergence exceeds this many times the target.
_KL_MARGIN = 1.5


class Ascent(NamedTuple):
    """The result of maximising an objective: optimizer steps that were taken, and their mean loss."""

    n_steps: int
    loss: float


class UpdateRule(ABC):
    """
    An update rule: the objective of a turn, and how it is maximised.

    A rule of one's own defines :meth:`surrogate`, and takes its hyperparameters when it is made; see
    ``docs/architecture.md``. Rules hold no state.
    """

    second_derivatives: ClassVar[bool] = False
    """True for a rule that takes second derivatives of log-probabilities, which some policies do not have."""

    def check(self, settings: MethodSettings) -> None:  # noqa: B027
        """
        Refuse settings that the rule cannot work with.

        :param settings: settings, each of which is in its range
        :raises ValueError: names the setting
        """

    def ratio_level(self, settings: MethodSettings) -> RatioLevel:
        """Return the level of the importance ratio."""
        return settings.ratio_level

    def n_passes(self, settings: MethodSettings) -> int:
        """Return how often the rule goes over the data of a turn in one sweep."""
        return settings.n_epochs

    @abstractmethod
    def surrogate(
        self,
        log_prob: th.Tensor,
        old_log_prob: th.Tensor,
        lengths: th.Tensor | None,
        weighted_advantage: th.Tensor,
        settings: MethodSettings,
    ) -> th.Tensor:
        """
        Compute the objective of each row, to be maximised.

        :param log_prob: log pi with gradients, shape (batch,), or (batch, tokens) for one ratio per token
        :param old_log_prob: the same as recorded at collection, without gradients
        :param lengths: L of each action, shape (batch,); None: 1
        :param weighted_advantage: M, shape (batch,), or (batch, 1) for one ratio per token
        :param settings: the settings as they are now
        :return: in the shape of ``log_prob``
        """

    def objective(
        self, policy: TrainablePolicies, part: list[WeightedTurn], settings: MethodSettings
    ) -> tuple[th.Tensor, list[th.Tensor]]:
        """
        Compute the objective of rows of one or several turns: the mean over rows of the surrogate, less the penalties
        on KL divergences, plus the entropy bonus.

        ``kl_coef`` weighs KL(pi_old || pi) of the whole action, or per token where there is one ratio per token;
        ``reference_kl_coef`` weighs KL(pi || pi_ref) per token. Both are in the k3 form.

        :param policy: the turn policies
        :param part: rows of each turn, with their M
        :param settings: the settings as they are now
        :return: a differentiable number, and the log-probabilities of each turn that it was computed from
        """
        n_rows = sum(len(rows.weighted_advantages) for rows in part)
        objectives, log_probs = [], []
        for turn, batch, weighted_advantages in part:
            tokens, entropy = policy.evaluate_actions(
                batch.observations, batch.actions, turn, batch.action_masks, with_entropy=settings.ent_coef != 0.0
            )
            log_probs.append(tokens)
            log_prob, lengths = at_ratio_level(tokens, self.ratio_level(settings), batch.token_mask)
            old_log_prob, _ = at_ratio_level(batch.log_probs, self.ratio_level(settings), batch.token_mask)
            m = weighted_advantages if log_prob.ndim == 1 else weighted_advantages.unsqueeze(1)
            surrogate = self.surrogate(log_prob, old_log_prob, lengths, m, settings)
            if settings.kl_coef != 0.0:
                surrogate = surrogate - settings.kl_coef * kl_divergence(log_importance_ratio(log_prob, old_log_prob))
            of_turn = mean_over_tokens(surrogate, batch.token_mask).mean()
            if batch.reference_log_probs is not None:
                to_reference = kl_divergence(log_importance_ratio(batch.reference_log_probs, tokens))
                of_turn = of_turn - settings.reference_kl_coef * mean_over_tokens(to_reference, batch.token_mask).mean()
            if entropy is not None:
                of_turn = of_turn + settings.ent_coef * entropy.mean()
            objectives.append(of_turn if len(part) == 1 else len(weighted_advantages) / n_rows * of_turn)
        return sum(objectives[1:], start=objectives[0]), log_probs

    def maximise(
        self,
        policy: TrainablePolicies,
        block: list[WeightedTurn],
        settings: MethodSettings,
        generator: th.Generator,
        first_sweep: bool = True,
    ) -> Ascent:
        """
        Maximise the objective of a block of turns by gradient ascent, for ``n_passes`` or until ``target_kl``.

        :param policy: the turn policies; changed in place
        :param block: all rows of the turns that are updated together
        :param settings: the settings as they are now
        :param generator: source of the minibatches, on the CPU
        :param first_sweep: whether these turns have not been updated in this iteration; then at least one step is
            taken, however far other turns have moved a shared network
        :return: what was done
        :raises NonFiniteError: if a loss or a gradient is not finite; the step that would spread it is not taken
        """
        params = parameters(policy, block)
        max_kl = np.inf if settings.target_kl is None else _KL_MARGIN * settings.target_kl
        losses: list[float] = []
        for epoch in range(self.n_passes(settings)):
            for part in minibatches(block, settings.batch_size, generator):
                for param in params:
                    param.grad = None
                n_rows = sum(len(rows.weighted_advantages) for rows in part)
                loss = kl = 0.0
                for micro in micro_batches(part, settings.micro_batch_size):
                    share = sum(len(rows.weighted_advantages) for rows in micro) / n_rows
                    objective, log_probs = self.objective(policy, micro, settings)
                    if settings.target_kl is not None:
                        kl += share * self._mean_divergence(micro, log_probs, settings)
                    too_far = kl > max_kl and (len(losses) > 0 or not first_sweep)
                    if not too_far:
                        objective.backward(objective.new_full((), -share))
                    loss -= share * objective.item()
                if too_far:
                    return Ascent(len(losses), float(np.mean(losses or [loss])))
                norm = clip_gradients(params, settings.max_grad_norm)
                if not np.isfinite(loss) or not np.isfinite(norm):
                    raise non_finite(loss, f"its gradient (norm {norm})", block, f"epoch {epoch}")
                losses.append(loss)
                policy.step_optimizer(*(rows.turn for rows in part))
        return Ascent(len(losses), float(np.mean(losses)))

    @th.no_grad()
    def _mean_divergence(self, part: list[WeightedTurn], log_probs: list[th.Tensor], settings: MethodSettings) -> float:
        parts = [
            action_kl(tokens, rows.batch.log_probs, self.ratio_level(settings), rows.batch.token_mask)
            for rows, tokens in zip(part, log_probs, strict=True)
        ]
        return float(th.cat(parts).mean())


class Clip(UpdateRule):
    """The clipped surrogate (arXiv:2602.06554, eq. 6)."""

    def surrogate(
        self,
        log_prob: th.Tensor,
        old_log_prob: th.Tensor,
        lengths: th.Tensor | None,
        weighted_advantage: th.Tensor,
        settings: MethodSettings,
    ) -> th.Tensor:
        """Compute ``min(rho * M, clip(rho, 1 - clip_range, 1 + clip_range_high) * M)``."""
        ratio = log_importance_ratio(log_prob, old_log_prob, lengths).exp()
        return clipped_surrogate(ratio, weighted_advantage, settings.clip_range, settings.clip_high)


def turn_order(n_turns: int, update_order: str | Sequence[int], generator: th.Generator) -> list[list[int]]:
    """
    Lay down the order in which the turns are updated.

    :param n_turns: number of turns that any episode reached
    :param update_order: ``"reverse"`` (backward induction: T, ..., 1), ``"forward"``, ``"random"``,
        ``"simultaneous"`` (all turns in one loss), or turns counted from 0, first to last; those that no
        episode reached are passed over, and those beyond the list stand where its highest turn stands
    :param generator: source of the random order, on the CPU
    :return: blocks of turns; the turns of a block are updated together
    """
    turns = list(range(n_turns))
    if isinstance(update_order, str):
        if update_order == "simultaneous":
            return [turns]
        if update_order == "random":
            turns = th.randperm(n_turns, generator=generator).tolist()
        elif update_order == "reverse":
            turns.reverse()
    else:
        last = max(update_order)
        turns = [t for turn in update_order for t in (range(n_turns - 1, last - 1, -1) if turn == last else [turn])]
    return [[turn] for turn in turns if turn < n_turns]


class SequentialUpdate:
    """
    The update of one iteration (arXiv:2602.06554, Algorithm 1), for the loop::

        for _ in range(settings.n_sweeps):
            update.begin_sweep(order)
            for turns in order:
                update.maximise(turns)
                update.carry_over(turns)

    Every turn maximises its objective with ``M = A * F`` (eq. 7). The factor F of an episode is the clipped product of
    the current importance ratios of the other turns (eq. 8): in the first sweep of those updated before, as the others
    are still what they were at collection; in later sweeps of all. An episode that ended before a turn is not in its
    batch, and the turn's ratio is 1 for it. A ratio is always taken against the log-probabilities recorded at
    collection, and is measured when its turn has been updated.

    :param policy: the turn policies; changed in place
    :param turn_batches: the rows of each turn, with the log-probabilities recorded at collection
    :param advantages: A, shape (episodes,), or (turns, episodes) if it differs between turns
    :param rule: update rule
    :param settings: the settings as they are now
    :param generator: source of the minibatches, on the CPU
    :param factors: F to start from, shape (episodes,), changed in place; None: 1
    """

    def __init__(
        self,
        policy: TrainablePolicies,
        turn_batches: Sequence[TurnBatch],
        advantages: th.Tensor,
        rule: UpdateRule,
        settings: MethodSettings,
        generator: th.Generator,
        factors: th.Tensor | None = None,
    ) -> None:
        self.policy = policy
        self.batches = list(turn_batches)
        self.advantages = advantages
        self.rule = rule
        self.settings = settings
        self.generator = generator
        self.factors = advantages.new_ones(advantages.shape[-1]) if factors is None else factors
        """F of the turns updated so far in this sweep."""
        self._factors_of_later_turns: dict[int, th.Tensor] = {}
        self._updated: dict[int, UpdatedTurn] = {}

    def begin_sweep(self, order: list[list[int]]) -> None:
        """
        Start F at 1, and find the part that the turns have in it which this sweep has not updated yet.

        :param order: blocks of turns, first to last; see :func:`turn_order`
        """
        self.factors = th.ones_like(self.factors)
        if not self._updated:
            return
        later = th.ones_like(self.factors)
        for turns in reversed(order):
            for turn in turns:
                self._factors_of_later_turns[turn] = later
            later = later.clone()
            for turn in turns:
                self._multiply(later, turn)

    def maximise(self, turns: list[int]) -> None:
        """
        Maximise the objective of a block of turns (eq. 6), weighted with ``M = A * F`` (eq. 7).

        :param turns: updated together
        :raises NonFiniteError: see :meth:`UpdateRule.maximise`
        """
        block, factors = [], {}
        for turn in turns:
            batch = self._with_reference(turn)
            factors[turn] = self._factors_of(turn)[batch.episodes]
            advantages = self.advantages if self.advantages.ndim == 1 else self.advantages[turn]
            block.append(WeightedTurn(turn, batch, advantages[batch.episodes] * factors[turn]))
        first_sweep = turns[0] not in self._updated
        ascent = self.rule.maximise(self.policy, block, self.settings, self.generator, first_sweep)
        for rows in block:
            tokens, entropy = self._evaluate(rows)
            n_steps = ascent.n_steps + (self._updated[rows.turn].n_steps if rows.turn in self._updated else 0)
            self._updated[rows.turn] = UpdatedTurn(rows, n_steps, ascent.loss, factors[rows.turn], tokens, entropy)

    def carry_over(self, turns: list[int]) -> None:
        """
        Multiply F of the episodes that reached these turns by the ratios after the update (eq. 8).

        :param turns: updated before
        """
        for turn in turns:
            self._multiply(self.factors, turn)

    def _multiply(self, factors: th.Tensor, turn: int) -> None:
        """Apply eq. 8 for one turn, in place."""
        episodes = self.batches[turn].episodes
        ratio = self._updated[turn].ratio(self.rule.ratio_level(self.settings))
        factors[episodes] = update_factor(factors[episodes], ratio, self.settings.factor_clip)

    def _factors_of(self, turn: int) -> th.Tensor:
        """Return F of a turn: the part of the turns updated before, times that of those to come."""
        later = self._factors_of_later_turns.get(turn)
        return self.factors if later is None else update_factor(self.factors, later, self.settings.factor_clip)

    def _with_reference(self, turn: int) -> TurnBatch:
        """Return the batch of a turn, with the log-probabilities of the reference policy if there is a penalty."""
        batch = self.batches[turn]
        if self.settings.reference_kl_coef != 0.0 and batch.reference_log_probs is None:
            parts = [
                self.policy.reference_log_probs(rows.observations, rows.actions, turn)
                for rows in batch.split(self.settings.micro_batch_size)
            ]
            batch = self.batches[turn] = batch._replace(reference_log_probs=th.cat(parts))
        return batch

    @th.no_grad()
    def _evaluate(self, rows: WeightedTurn) -> tuple[th.Tensor, th.Tensor | None]:
        """Compute log-probabilities and entropies of a turn's rows, as many at once as are to be in memory."""
        parts = [
            self.policy.evaluate_actions(b.observations, b.actions, rows.turn, b.action_masks, with_entropy=True)
            for b in rows.batch.split(self.settings.micro_batch_size)
        ]
        entropies = [entropy for _, entropy in parts if entropy is not None]
        return th.cat([tokens for tokens, _ in parts]), th.cat(entropies) if entropies else None

    def stats(self) -> dict[int, TurnStats]:
        """Return the statistics of all turns that were updated, in the order of the first sweep."""
        return {
            turn: measure(updated, self.rule.ratio_level(self.settings), self.settings)
            for turn, updated in self._updated.items()
        }


def parameters(policy: TrainablePolicies, block: list[WeightedTurn]) -> list[th.nn.Parameter]:
    """
    Return the parameters of all turns of a block, each once.

    :param policy: the turn policies
    :param block: turns that are updated together
    """
    return list(dict.fromkeys(param for rows in block for param in policy.turn_parameters(rows.turn)))


def non_finite(loss: float, what: str, block: list[WeightedTurn], where: str) -> NonFiniteError:
    """
    Make the error of an update that cannot go on.

    :param loss: its loss
    :param what: what may not be finite besides the loss
    :param block: the turns that were updated
    :param where: how far the update was
    """
    turns = ", ".join(str(rows.turn) for rows in block)
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
