"""Episodes of one iteration, collected as ``learn`` collects them."""

import pytest
from stable_baselines3.common.callbacks import BaseCallback


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
