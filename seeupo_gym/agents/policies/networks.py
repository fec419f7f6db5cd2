"""The network of one turn."""

from __future__ import annotations

import numpy as np
import torch as th
from stable_baselines3.common.distributions import DiagGaussianDistribution, Distribution
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, create_mlp
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

# As in SB3's actor: hidden layers of tanh units, and a last layer that starts close to a uniform policy.
HIDDEN_GAIN = float(np.sqrt(2))
OUTPUT_GAIN = 0.01


class ActionNetwork(nn.Module):
    """A network that computes the parameters of a distribution over actions from preprocessed observations."""

    log_std: nn.Parameter | None
    n_params: int


class TurnNetwork(ActionNetwork):
    """
    The network of one turn policy: features extractor, hidden layers, action head.

    :param features_extractor: turns preprocessed observations into features
    :param distribution: makes the action head
    :param net_arch: sizes of the hidden layers
    :param activation_fn: activation function of the hidden layers
    :param ortho_init: whether to initialise orthogonally, as SB3 does
    :param log_std_init: initial log standard deviation of continuous actions
    """

    def __init__(
        self,
        features_extractor: BaseFeaturesExtractor,
        distribution: Distribution,
        net_arch: list[int],
        activation_fn: type[nn.Module],
        ortho_init: bool,
        log_std_init: float,
    ) -> None:
        super().__init__()
        self.features_extractor = features_extractor
        self.mlp = nn.Sequential(*create_mlp(features_extractor.features_dim, -1, net_arch, activation_fn))
        latent_dim = net_arch[-1] if net_arch else features_extractor.features_dim
        self.log_std = None
        if isinstance(distribution, DiagGaussianDistribution):
            self.action_net, self.log_std = distribution.proba_distribution_net(latent_dim, log_std_init=log_std_init)
        else:
            head = distribution.proba_distribution_net(latent_dim)
            assert isinstance(head, nn.Module)
            self.action_net = head
        assert isinstance(self.action_net, nn.Linear)
        self.n_params = self.action_net.out_features
        if ortho_init:
            for module, gain in (
                (self.features_extractor, HIDDEN_GAIN),
                (self.mlp, HIDDEN_GAIN),
                (self.action_net, OUTPUT_GAIN),
            ):
                for layer in module.modules():
                    BasePolicy.init_weights(layer, gain=gain)

    def forward(self, preprocessed_obs: PyTorchObs) -> th.Tensor:
        """Return the logits, or the means of continuous actions, shape (batch, parameters)."""
        latent = self.features_extractor(preprocessed_obs)
        for layer in self.mlp:
            latent = layer(latent)
        params: th.Tensor = self.action_net(latent)
        return params
