"""The rows of an update, and how they are divided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch as th
from stable_baselines3.common.type_aliases import PyTorchObs


def select_rows(obs: PyTorchObs, rows: Any) -> PyTorchObs:
    """
    Take rows of a batch of observations.

    :param obs: tensor or dictionary of tensors, first dimension the batch
    :param rows: a slice, an index tensor or a mask
    :return: the rows, in the same form
    """
    if isinstance(obs, dict):
        return {key: value[rows] for key, value in obs.items()}
    return obs[rows]


class TurnBatch(NamedTuple):
    """The pool D_t: one row for each episode that reached turn t."""

    observations: PyTorchObs
    actions: th.Tensor
    log_probs: th.Tensor
    """Recorded at collection, under theta_k; shape (batch,), or (batch, tokens) for one ratio per token."""
    episodes: th.Tensor
    """Index of each row's episode; no episode occurs twice."""
    action_masks: th.Tensor | None
    token_mask: th.Tensor | None = None
    """Mask of the tokens that each action has, shape (batch, tokens); None: all of them."""
    reference_log_probs: th.Tensor | None = None
    """Of the tokens under the reference policy, shape (batch, tokens), where the update has a penalty for it."""

    def rows(self, rows: th.Tensor) -> TurnBatch:
        """Take some rows, with all that belongs to them."""
        return TurnBatch(
            select_rows(self.observations, rows),
            self.actions[rows],
            self.log_probs[rows],
            self.episodes[rows],
            None if self.action_masks is None else self.action_masks[rows],
            None if self.token_mask is None else self.token_mask[rows],
            None if self.reference_log_probs is None else self.reference_log_probs[rows],
        )

    def split(self, size: int | None) -> list[TurnBatch]:
        """
        Divide the batch into pieces, in order.

        :param size: rows in a piece; None: one piece
        """
        if size is None:
            return [self]
        return [self.rows(rows) for rows in th.arange(len(self.episodes), device=self.episodes.device).split(size)]


class WeightedTurn(NamedTuple):
    """A turn with what its update needs; also a minibatch of one."""

    turn: int
    batch: TurnBatch
    weighted_advantages: th.Tensor
    """M of each row, shape (batch,)."""

    def rows(self, rows: th.Tensor) -> WeightedTurn:
        """Take some rows, with all that belongs to them."""
        return WeightedTurn(self.turn, self.batch.rows(rows), self.weighted_advantages[rows])


def micro_batches(part: list[WeightedTurn], size: int | None) -> Iterator[list[WeightedTurn]]:
    """
    Divide a minibatch into pieces, as many rows as are in memory at once; their gradients are to be added up.

    :param part: rows of one or several turns
    :param size: rows in a piece, all of one turn; None: one piece with everything
    """
    if size is None:
        yield part
        return
    for weighted in part:
        for rows in th.arange(len(weighted.weighted_advantages), device=weighted.weighted_advantages.device).split(
            size
        ):
            yield [weighted.rows(rows)]


def minibatches(
    block: list[WeightedTurn], batch_size: int | None, generator: th.Generator
) -> Iterator[list[WeightedTurn]]:
    """
    Draw minibatches of the rows of all turns of a block; without a copy if it is all of them.

    :param block: the rows of each turn
    :param batch_size: rows in a minibatch; None: all of them
    :param generator: source of the order, on the CPU
    """
    sizes = [len(weighted_advantages) for _, _, weighted_advantages in block]
    if batch_size is None or batch_size >= sum(sizes):
        yield block
        return
    for rows in th.randperm(sum(sizes), generator=generator).split(batch_size):
        part, first = [], 0
        for weighted, size in zip(block, sizes, strict=True):
            own = rows if len(block) == 1 else rows[(rows >= first) & (rows < first + size)] - first
            if len(own) > 0:
                part.append(weighted.rows(own.to(weighted.weighted_advantages.device)))
            first += size
        yield part
