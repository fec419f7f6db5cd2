"""The random streams of an algorithm."""

import gc
import os
from pathlib import Path

import pytest
import torch as th

from seeupo_gym.agents.streams import RandomStreams


def draw(streams):
    numbers = [th.rand(3, generator=generator) for generator in (streams.actions, streams.predictions, streams.updates)]
    return [*th.cat(numbers).tolist(), *streams.episode_seeds(2, 1, False)[0]]


def test_a_clone_goes_on_alike_and_by_itself():
    streams = RandomStreams(0, th.device("cpu"))
    draw(streams)
    clone = streams.clone()
    ahead = draw(streams)
    assert draw(clone) == ahead
    assert draw(streams) == draw(clone) != ahead


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of the process from /proc")
def test_clones_leave_no_memory_behind():
    def memory():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    streams = RandomStreams(0, th.device("cpu"))
    for _ in range(500):
        streams.clone()
    before = memory()
    for _ in range(2000):
        streams.clone()
    assert memory() - before < 4 * 2**20  # deepcopy: 30 MiB
