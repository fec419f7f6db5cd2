"""Layers that compute something else in training than in evaluation."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd


def layers_with_modes(module: nn.Module) -> list[nn.Module]:
    """
    Find dropout and batch normalisation.

    With either of them, log-probabilities in training mode differ from those in evaluation mode. An importance ratio
    of the two is not 1 where nothing was learned, so that the update must use the mode of the collection.

    :param module: a network
    :return: its layers of that kind; those without effect, as dropout with a rate of 0, are left out
    """

    def has_modes(layer: nn.Module) -> bool:
        if isinstance(layer, _DropoutNd):
            return layer.p > 0.0
        rate = getattr(layer, "dropout", 0.0)  # torch's recurrent and attention layers; others may hold a layer there
        return isinstance(layer, _BatchNorm) or (isinstance(rate, (int, float)) and rate > 0.0)

    return [layer for layer in module.modules() if has_modes(layer)]
