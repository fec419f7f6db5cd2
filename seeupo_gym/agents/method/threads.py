"""The number of torch threads of small networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch as th

Parameters = ParamSpec("Parameters")
ResultT = TypeVar("ResultT")

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


def keep_torch_state(function: Callable[Parameters, ResultT]) -> Callable[Parameters, ResultT]:
    """
    Have a function leave torch's gradient mode and number of threads as it found them.

    An interrupt can come between the lines that change them and those that would change them back.

    :param function: any function
    :return: the function with that
    """

    @wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> ResultT:
        gradients, n_threads = th.is_grad_enabled(), th.get_num_threads()
        try:
            return function(*args, **kwargs)
        finally:
            th.set_grad_enabled(gradients)
            th.set_num_threads(n_threads)

    return wrapped
