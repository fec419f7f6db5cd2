"""What tests of several folders use. pytest's setting ``pythonpath`` makes it importable from all of them."""

import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback


def assert_close(actual, expected):
    """
    Compare float32 results whose sums were taken in other orders, as other batches and other processors take them.

    That changes them by up to some 1e-5 of their terms, and what is wrong by far more than 1e-4. What is promised bit
    for bit is compared with ``torch.equal``.
    """
    th.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


class _CollectedError(Exception):
    """Ends learning between collection and update."""


class _StopBeforeUpdate(BaseCallback):
    def _on_step(self):
        return True

    def _on_rollout_end(self):
        raise _CollectedError


def collect(model):
    """
    Let a model collect the episodes of one iteration and learn nothing from them.

    :return: the rollout buffer
    """
    with pytest.raises(_CollectedError):
        model.learn(1, callback=_StopBeforeUpdate())
    return model.rollout_buffer
