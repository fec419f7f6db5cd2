"""One iteration's update of policies and batches that a test made, as SeeUPO and BackwardInductionOptimizer make it."""

from seeupo_gym.agents.method.rules import get_rule
from seeupo_gym.agents.method.sequential import SequentialUpdate
from seeupo_gym.agents.method.settings import MethodSettings


def method_settings(**changes):
    """One pass, one ratio per token where there are tokens, no gradient clipping."""
    return MethodSettings(**(dict(n_epochs=1, ratio_level="token", max_grad_norm=None) | changes))


def sequential_update(policy, batches, advantages, order, settings, generator, factors=None):
    """The loop of ``SequentialUpdate``; returns the statistics by turn."""
    update = SequentialUpdate(policy, batches, advantages, get_rule(settings), settings, generator, factors)
    for sweep in range(settings.n_sweeps):
        if sweep > 0 or factors is None:
            update.begin_sweep(order)
        for turns in order:
            update.maximise(turns)
            update.carry_over(turns)
    return update.stats()
