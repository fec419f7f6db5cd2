"""The rows of an update, and how they are divided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch as th

from seeupo_gym.agents.rollout import TurnBatch


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
