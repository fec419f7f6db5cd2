"""The random streams of an algorithm: everything that must be saved to go on as if nothing had happened."""

from __future__ import annotations

from copy import copy

import numpy as np
import torch as th
from numpy.typing import NDArray

from seeupo_gym.envs.counter_rng import hash_bits
from seeupo_gym.envs.task import HELD_OUT_SEED

_GROUPS, _NOISE, _INIT, _ACTIONS, _UPDATES, _PREDICT = range(6)


class RandomStreams:
    """
    Independent random streams that all follow from one seed; picklable in any state.

    The seeds of the groups are a function of a counter, so their stream has no state but ``n_groups``.

    :param seed: non-negative seed; None: fresh entropy
    :param device: device of the networks, where actions are sampled
    """

    actions: th.Generator
    """Source of the actions in training."""
    predictions: th.Generator
    """Source of the samples of ``predict``, apart: evaluating a policy must not change how training goes on."""

    def __init__(self, seed: int | None, device: th.device) -> None:
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
        elif seed < 0:
            raise ValueError(f"seed must be non-negative, got {seed}")
        self.root = seed
        self.n_groups = 0
        self.updates = self._generator(_UPDATES, th.device("cpu"))
        self.place(device)

    @property
    def init_seed(self) -> int:
        """Seed of the networks' initial weights."""
        return self._seed(_INIT)

    def place(self, device: th.device) -> None:
        """
        Have the generators that work where the networks are on their device. One that is elsewhere begins anew, as its
        state cannot move, and so does one that a model saved by an older version lacks.

        :param device: device of the networks
        """
        for name, stream in (("actions", _ACTIONS), ("predictions", _PREDICT)):
            new = self._generator(stream, device)
            if name not in self.__dict__ or self.__dict__[name].device != new.device:
                setattr(self, name, new)

    def clone(self) -> RandomStreams:
        """Return streams of their own in the same state."""
        streams = copy(self)
        for name in ("actions", "predictions", "updates"):
            # Not deepcopy: torch 2.13 never frees the state of a generator that was copied so, 5 KiB each.
            setattr(streams, name, getattr(self, name).clone_state())
        return streams

    def episode_seeds(
        self, n_groups: int, group_size: int, independent_noise: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """
        Seeds of the next groups of episodes, below the range that is held out for evaluation.

        :param n_groups: number of groups
        :param group_size: episodes per group; they share a seed
        :param independent_noise: whether the transitions of each episode get a seed of their own
        :return: seeds and transition seeds (or None), shape (n_groups * group_size,), group after group
        """
        groups = np.arange(self.n_groups, self.n_groups + n_groups).repeat(group_size)
        self.n_groups += n_groups
        seeds = self._below_held_out(_GROUPS, groups)
        if not independent_noise:
            return seeds, None
        return seeds, self._below_held_out(_NOISE, groups, np.tile(np.arange(group_size), n_groups))

    def _below_held_out(self, *counters: NDArray[np.int64] | int) -> NDArray[np.int64]:
        return (hash_bits(self.root, *counters) % np.uint64(HELD_OUT_SEED)).astype(np.int64)

    def _seed(self, stream: int) -> int:
        return int(hash_bits(self.root, stream)[0] >> np.uint64(1))

    def _generator(self, stream: int, device: th.device) -> th.Generator:
        return th.Generator(device).manual_seed(self._seed(stream))
