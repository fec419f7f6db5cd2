"""The codes of Mastermind, the feedback between any two of them, and the guess by Knuth's rule."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@lru_cache
def all_codes(pegs: int, colours: int) -> NDArray[np.int64]:
    """
    List all codes. Row ``i`` has the digits of ``i`` in base ``colours``; the first peg is the highest digit.

    :param pegs: length of a code
    :param colours: number of colours, each of which may occur any number of times
    :return: shape (codes, pegs)
    """
    places = colours ** np.arange(pegs - 1, -1, -1)
    return np.arange(colours**pegs)[:, None] // places % colours


@lru_cache
def feedback_table(pegs: int, colours: int) -> NDArray[np.uint8]:
    """
    Tabulate the feedback between any two codes, as ``black * (pegs + 1) + white``; it is symmetric.

    :param pegs: length of a code
    :param colours: number of colours
    :return: shape (codes, codes)
    """
    codes = all_codes(pegs, colours).astype(np.uint8)
    shape = len(codes), len(codes)
    black, common = np.zeros(shape, dtype=np.uint8), np.zeros(shape, dtype=np.uint8)
    for peg in range(pegs):
        black += codes[:, None, peg] == codes[None, :, peg]
    for colour in range(colours):
        count = (codes == colour).sum(axis=1, dtype=np.uint8)
        common += np.minimum(count[:, None], count)
    table: NDArray[np.uint8] = black * (pegs + 1) + (common - black)
    return table


@lru_cache(maxsize=50_000)
def minimax_guess(pegs: int, colours: int, consistent: bytes) -> int:
    """
    Choose the guess that leaves the fewest codes in the worst case, as Knuth does.

    Of several, one that may be the secret itself is chosen, then the first one. Any code may be guessed. (D. E. Knuth,
    "The computer as Master Mind", Journal of Recreational Mathematics 9, 1977.)

    :param pegs: length of a code
    :param colours: number of colours
    :param consistent: bits of ``numpy.packbits``, one for each code: 1 if it may be the secret
    :return: index of the guess
    """
    table = feedback_table(pegs, colours)
    n_codes, n_replies = len(table), (pegs + 1) ** 2
    possible = np.unpackbits(np.frombuffer(consistent, dtype=np.uint8), count=n_codes).astype(bool)
    if possible.sum() <= 2:  # to try the first one is as good as any other guess
        return int(possible.argmax())
    # How often each guess (column) gets each reply (row).
    cells = table[possible].astype(np.int64) * n_codes + np.arange(n_codes)
    left = np.bincount(cells.ravel(), minlength=n_replies * n_codes).reshape(n_replies, n_codes)
    return int((2 * left.max(axis=0) - possible).argmin())
