"""The number of torch threads of small networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch as th

# Weight matrices below this many entries are multiplied faster by one thread than by several that wait for each other.
SMALL_MATRIX = 100_000


@contextmanager
def one_torch_thread(only_if: bool = True) -> Iterator[None]:
    """
    Run the body with one torch thread, and restore the number that was set before.

    :param only_if: False: change nothing
    """
    before = th.get_num_threads()
    if only_if:
        th.set_num_threads(1)
    try:
        yield
    finally:
        th.set_num_threads(before)
