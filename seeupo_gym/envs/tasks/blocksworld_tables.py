"""The configurations of a few blocks on a table, the moves between them, and the distances in moves."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

# Seven blocks have 37,633 configurations. Each further block multiplies them by about ten, and the tables by more.
MAX_BLOCKS = 7

_UNREACHED = 255


class Tables:
    """
    All configurations of ``n`` blocks, numbered. Use :func:`tables`, which computes them once.

    A configuration is written as ``below``: for each block the one that it stands on, or the block itself if it stands
    on the table. Move ``block * n + onto`` puts a block onto another one, or to the table if the two are the same.

    The number of moves between two configurations stays the same if the blocks of both are renamed alike. So the blocks
    of a goal are renamed to make it the standard configuration of its shape (the heights of its stacks). One search
    from each of these few configurations finds all distances. Because every move can be taken back, these are also
    the distances *to* the goal.

    - ``below``, shape (configurations, n)
    - ``on``, shape (configurations, n * n): ``below`` as one-hot vectors
    - ``after``, shape (configurations, moves): the configuration after each move; the same if it cannot be made
    - ``labels``, shape (configurations, n): the new name of each block that makes this the standard configuration
    - ``blocks``, shape (configurations, n): the inverse of ``labels``, the block that has each new name
    - ``shape``, shape (configurations,): number of the shape
    - ``distances``, shape (shapes, configurations): number of moves to the standard configuration of each shape
    - ``by_distance``, shape (shapes, configurations): the configurations, the farthest first
    - ``longest``, shape (shapes,): the largest of these distances
    - ``farther``, shape (shapes, largest distance + 1): number of configurations that are farther than so many moves

    :param n: number of blocks, 1 to ``MAX_BLOCKS``
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._place = n ** np.arange(n)
        self.below = _configurations(n)
        self._numbers = np.full(n**n, -1, dtype=np.int32)
        self._numbers[self.below @ self._place] = np.arange(len(self.below))
        self.on = (self.below[:, :, None] == np.arange(n)).reshape(len(self.below), n * n)
        self.after = self._successors()
        self.labels = self._standard_labels()
        self.blocks = np.argsort(self.labels, axis=1)
        standard, self.shape = np.unique(self.renamed(self.below, self.labels), return_inverse=True)
        self.distances = self._search(standard)
        self.by_distance = np.argsort(self.distances, axis=1, kind="stable")[:, ::-1].astype(np.int32)
        self.longest = self.distances.max(axis=1).astype(np.int64)
        steps = range(int(self.longest.max()) + 1)
        self.farther = np.stack([(self.distances > step).sum(axis=1) for step in steps], axis=1)

    def renamed(self, below: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """
        Find the numbers of the configurations that result when blocks get new names.

        :param below: shape (any, n)
        :param labels: shape (any, n), the new name of each block
        :return: shape (any,)
        """
        digits = np.take_along_axis(labels, below, axis=1) * self._place[labels]
        numbers: NDArray[np.int64] = self._numbers[digits.sum(axis=1)].astype(np.int64)
        return numbers

    def best_moves(self, current: NDArray[np.int64], goal: NDArray[np.int64]) -> NDArray[np.int64]:
        """
        Find the first moves of shortest plans; of several moves, the one that is lowest under the standard names.

        :param current: numbers of configurations, shape (any,)
        :param goal: numbers of the goals, shape (any,)
        :return: moves, shape (any,); if the goal is reached already, some move that can be made
        """
        standard = self.renamed(self.below[current], self.labels[goal])
        after = self.after[standard]
        left = self.distances[self.shape[goal][:, None], after]
        moves = np.where(after == standard[:, None], _UNREACHED, left).argmin(axis=1)
        rows, blocks = np.arange(len(moves)), self.blocks[goal]
        best: NDArray[np.int64] = blocks[rows, moves // self.n] * self.n + blocks[rows, moves % self.n]
        return best

    def _successors(self) -> NDArray[np.int32]:
        n, here = self.n, np.arange(len(self.below), dtype=np.int32)
        codes = self.below @ self._place
        above = self.on.reshape(-1, n, n) & ~np.eye(n, dtype=bool)
        clear = ~above.any(axis=1)
        after = np.empty((len(here), n * n), dtype=np.int32)
        for block in range(n):
            for onto in range(n):
                # This rules out the block that it stands on already, which is not clear.
                possible = clear[:, block] & (clear[:, onto] if onto != block else self.below[:, block] != block)
                moved = self._numbers[np.where(possible, codes + (onto - self.below[:, block]) * n**block, codes)]
                after[:, block * n + onto] = moved
        return after

    def _standard_labels(self) -> NDArray[np.int64]:
        """Give blocks new names stack by stack, the tallest first (then by bottom block), each from the bottom up."""
        bottom, height = np.broadcast_to(np.arange(self.n), self.below.shape), np.zeros_like(self.below)
        for _ in range(self.n):
            lower = np.take_along_axis(self.below, bottom, axis=1)
            height = height + (lower != bottom)
            bottom = lower
        size = (bottom[:, :, None] == bottom[:, None, :]).sum(axis=2)
        order = np.argsort(((self.n - size) * self.n + bottom) * self.n + height, axis=1)
        return np.argsort(order, axis=1)

    def _search(self, standard: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Search breadth-first from every standard configuration."""
        distances = np.full((len(standard), len(self.below)), _UNREACHED, dtype=np.uint8)
        for found, start in zip(distances, standard, strict=True):
            frontier, steps = np.array([start]), 0
            found[start] = 0
            while frontier.size:
                steps += 1
                reached = self.after[frontier].ravel()
                found[reached[found[reached] == _UNREACHED]] = steps
                frontier = np.flatnonzero(found == steps)
        return distances


def _configurations(n: int) -> NDArray[np.int64]:
    """
    List every configuration once: each block in turn is put onto the table, onto a block or under a stack.

    :param n: number of blocks
    :return: shape (configurations, n), see :class:`Tables`
    """
    below = np.zeros((1, 1), dtype=np.int64)
    for block in range(1, n):
        alone = np.concatenate([below, np.full((len(below), 1), block)], axis=1)
        grown = [alone]
        for other in range(block):
            onto = alone.copy()
            onto[(alone == other) & (np.arange(block + 1) != other)] = block  # the block that stood on the other one
            onto[:, block] = other
            under = alone[alone[:, other] == other]
            under[:, other] = block
            grown += [onto, under]
        below = np.concatenate(grown)
    return below


@cache
def tables(n: int) -> Tables:
    """
    Return the tables of ``n`` blocks, which are computed once a process.

    :param n: number of blocks, 1 to ``MAX_BLOCKS``
    """
    return Tables(n)
