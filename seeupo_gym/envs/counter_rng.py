"""Counter-based random numbers: a pure function of a seed and of what is drawn.

A generator object for each of thousands of lanes would cost more than the dynamics that it serves. Here a draw
is a hash of ``(seed, stream, index...)``. It is computed for all lanes at once, does not depend on how many
draws came before it, and is the same on every platform. The mixing function is SplitMix64's finaliser (Steele,
Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def hash_bits(seeds: ArrayLike, *counters: ArrayLike) -> NDArray[np.uint64]:
    """
    Hash seeds and counters to 64 random bits each.

    :param seeds: non-negative integers, any shape
    :param counters: non-negative integers that broadcast against ``seeds`` and say which draw this is
    :return: ``uint64`` array of the broadcast shape, at least one-dimensional
    """
    bits = np.atleast_1d(np.asarray(seeds)).astype(np.uint64)
    with np.errstate(over="ignore"):
        for counter in (np.uint64(0), *counters):
            bits = bits + (np.asarray(counter).astype(np.uint64) + np.uint64(1)) * _GOLDEN
            bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
            bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
            bits = bits ^ (bits >> np.uint64(31))
    return bits


def uniform(seeds: ArrayLike, *counters: ArrayLike) -> NDArray[np.float64]:
    """
    Draw uniform numbers in [0, 1), with the 53 bits of a double.

    :param seeds: see :func:`hash_bits`
    :param counters: see :func:`hash_bits`
    :return: ``float64`` array of the broadcast shape
    """
    return (hash_bits(seeds, *counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(high: ArrayLike, seeds: ArrayLike, *counters: ArrayLike) -> NDArray[np.int64]:
    """
    Draw integers in [0, high).

    :param high: exclusive upper bound, at least 1; broadcasts against the seeds
    :param seeds: see :func:`hash_bits`
    :param counters: see :func:`hash_bits`
    :return: ``int64`` array of the broadcast shape
    """
    draws: NDArray[np.float64] = uniform(seeds, *counters) * np.asarray(high)
    return draws.astype(np.int64)
