"""What tests of several folders use. pytest's setting ``pythonpath`` makes it importable from all of them."""

import torch as th

from seeupo_gym.envs import ENV_IDS

TRAP, CHAIN, TOOL = ENV_IDS[:3]


def assert_close(actual, expected):
    """
    Compare float32 results whose sums were taken in other orders, as other batches and other processors take them.

    That changes them by up to some 1e-5 of their terms, and what is wrong by far more than 1e-4. What is promised bit
    for bit is compared with ``torch.equal``.
    """
    th.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
