"""What models have learned and logged."""

import torch as th
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def weights(model):
    """All parameters of a model's policy, in one vector."""
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach()


def read_events(folder):
    """All that TensorBoard shows of a folder."""
    return EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0}).Reload()
