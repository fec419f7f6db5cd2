"""Critic-free policies with one network per turn."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from sb3_contrib.common.maskable.distributions import make_masked_proba_distribution
from stable_baselines3.common.distributions import Distribution, make_proba_distribution
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from seeupo_gym.agents.method.errors import NonFiniteError
from seeupo_gym.agents.method.modes import layers_with_modes
from seeupo_gym.agents.policies.distributions import (
    log_prob_and_entropy,
    n_components,
    parametrize,
    sample_uniform,
    sample_with_log_prob,
)
from seeupo_gym.agents.policies.networks import ActionNetwork, TurnNetwork
from seeupo_gym.agents.policies.turn_policy import TurnPolicy
from seeupo_gym.envs.arguments import check_count, check_number

# The constructor's arguments beyond those that BasePolicy saves.
_SAVED = (
    "n_policies",
    "use_masking",
    "per_component",
    "net_arch",
    "activation_fn",
    "ortho_init",
    "log_std_init",
    "features_extractor_class",
    "features_extractor_kwargs",
    "optimizer_class",
    "optimizer_kwargs",
)


class SeeUPOPolicy(TurnPolicy):
    """
    One policy per turn, and no value network anywhere.

    Turn ``t`` (counted from 0) is played by network ``min(t, n_policies - 1)``: a turn beyond the last network
    uses the last one. With ``n_policies=1`` all turns share one network.

    The optimizer has one parameter group per network, and a step is taken for one group at a time, so that
    updating a turn leaves the other networks and their optimizer state untouched.

    :param observation_space: Box, Discrete, MultiDiscrete, MultiBinary, or a flat Dict of those
    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary
    :param lr_schedule: learning rate as a function of the remaining progress
    :param n_policies: number of networks
    :param use_masking: whether distributions take invalid-action masks (sb3-contrib's); not for Box actions
    :param per_component: whether log-probabilities are those of the components of an action, for one ratio per
        token
    :param net_arch: sizes of the hidden layers, as a list or as ``dict(pi=[...])``; default two layers of 64
        units, none after a ``NatureCNN``
    :param activation_fn: activation function
    :param ortho_init: whether to initialise orthogonally
    :param log_std_init: initial log standard deviation of continuous actions
    :param features_extractor_class: features extractor; every network has its own. By default the one of the
        policy class
    :param features_extractor_kwargs: its arguments
    :param normalize_images: whether to divide images by 255
    :param optimizer_class: optimizer, Adam by default
    :param optimizer_kwargs: its arguments, without the learning rate; by default SB3's ``eps=1e-5`` for Adam,
        with the fused implementation
    """

    default_features_extractor: ClassVar[type[BaseFeaturesExtractor]] = FlattenExtractor

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        n_policies: int = 1,
        use_masking: bool = False,
        per_component: bool = False,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        activation_fn: type[nn.Module] = nn.Tanh,
        ortho_init: bool = True,
        log_std_init: float = 0.0,
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
        optimizer_class: type[th.optim.Optimizer] = th.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if optimizer_kwargs is None:
            optimizer_kwargs = {"eps": 1e-5, "fused": True} if optimizer_class is th.optim.Adam else {}
        super().__init__(
            observation_space,
            action_space,
            n_policies,
            features_extractor_class=features_extractor_class or self.default_features_extractor,
            features_extractor_kwargs=features_extractor_kwargs,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
        )
        for name, given, kind in (
            ("activation_fn", activation_fn, nn.Module),
            ("optimizer_class", optimizer_class, th.optim.Optimizer),
            ("features_extractor_class", self.features_extractor_class, BaseFeaturesExtractor),
        ):
            if not (isinstance(given, type) and issubclass(given, kind)):
                raise ValueError(f"{name} must be a subclass of {kind.__name__}, got {given!r}")
        check_number("log_std_init", log_std_init)
        self.use_masking = self.needs_masks = use_masking
        self.per_component = per_component and n_components(action_space) > 1
        self.net_arch = self._hidden_sizes(net_arch)
        self.activation_fn = activation_fn
        self.ortho_init = ortho_init
        self.log_std_init = log_std_init
        make_distribution = make_masked_proba_distribution if use_masking else make_proba_distribution
        self.action_dist: Distribution = make_distribution(action_space)
        self.turns = nn.ModuleList(self._make_network() for _ in range(n_policies))
        # That of the first turn, under SB3's name, without registering it a second time.
        object.__setattr__(self, "features_extractor", getattr(self.turns[0], "features_extractor", None))
        groups = [{"params": list(network.parameters())} for network in self.turns]
        self.set_training_mode(False)
        if layers := layers_with_modes(self):
            warnings.warn(
                f"{type(layers[0]).__name__} has no effect in SeeUPO but that of evaluation mode: importance ratios "
                "compare with log-probabilities recorded at collection, so the update uses the same mode. Leave it "
                "out, or regularise by ent_coef or the optimizer's weight_decay",
                stacklevel=2,
            )
        self.optimizer = self.optimizer_class(groups, lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    def set_training_mode(self, mode: bool) -> None:
        """
        Stay in evaluation mode, whatever is asked for.

        Importance ratios compare with log-probabilities that were recorded at collection, without dropout and with the
        running statistics of batch normalisation; an update in another mode would take noise for change.
        """
        super().set_training_mode(False)

    def _make_network(self) -> ActionNetwork:
        """Make the network of one turn; called once a turn."""
        return TurnNetwork(
            self.make_features_extractor(),
            self.action_dist,
            self.net_arch,
            self.activation_fn,
            self.ortho_init,
            self.log_std_init,
        )

    def _hidden_sizes(self, net_arch: Any) -> list[int]:
        """Return the sizes of the hidden layers, from any form in which SB3 takes them."""
        if net_arch is None:
            return [] if issubclass(self.features_extractor_class, NatureCNN) else [64, 64]
        sizes = net_arch
        if isinstance(sizes, list) and len(sizes) == 1 and isinstance(sizes[0], dict):
            warnings.warn("net_arch=[dict(...)] is SB3's old form of net_arch=dict(...)", stacklevel=2)
            sizes = sizes[0]
        if isinstance(sizes, dict):
            ignored = sorted(set(sizes) - {"pi"})
            if ignored:
                warnings.warn(f"SeeUPO has no value network: net_arch entries {ignored} are ignored", stacklevel=2)
            sizes = sizes.get("pi", [])
        if not isinstance(sizes, (list, tuple)):
            raise ValueError(f"net_arch must be a list of layer sizes, or dict(pi=[...]), got {net_arch!r}")
        return [check_count("a layer size in net_arch", size) for size in sizes]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        return {**data, **{name: getattr(self, name) for name in _SAVED}, "lr_schedule": self._dummy_schedule}

    def _action_params(self, obs: PyTorchObs, network: ActionNetwork) -> th.Tensor:
        params: th.Tensor = network(preprocess_obs(obs, self.observation_space, self.normalize_images))
        return params

    def get_distribution(self, obs: PyTorchObs, turn: int, action_masks: th.Tensor | None = None) -> Distribution:
        """
        Return the distribution over actions at one turn. It is reused by the next call.

        :param obs: batch of observations
        :param turn: the turn they are at, counted from 0
        :param action_masks: valid choices, shape (batch, sum of choices); None: all
        :return: SB3's or sb3-contrib's distribution
        """
        network = self._network(turn)
        return parametrize(self.action_dist, self._action_params(obs, network), network.log_std, action_masks)

    def _network(self, turn: int) -> ActionNetwork:
        network = self.turns[self.policy_index(turn)]
        assert isinstance(network, ActionNetwork)
        return network

    def evaluate_actions(
        self,
        obs: PyTorchObs,
        actions: th.Tensor,
        turn: int,
        action_masks: th.Tensor | None = None,
        with_entropy: bool = False,
    ) -> tuple[th.Tensor, th.Tensor | None]:
        """
        Log-probabilities of actions under the current policy of one turn, with gradients.

        :param obs: batch of observations
        :param actions: shape (batch, components), or (batch,) for Discrete
        :param turn: the turn they are at, counted from 0
        :param action_masks: valid choices, shape (batch, sum of choices); None: all
        :param with_entropy: whether to compute entropies too
        :return: log-probabilities, shape (batch,), or (batch, components) with ``per_component``, and entropies in
            nats, shape (batch,), or None
        """
        network = self._network(turn)
        params = self._action_params(obs, network)
        return log_prob_and_entropy(
            self.action_dist, params, network.log_std, actions, action_masks, with_entropy, self.per_component
        )

    def explore(
        self, n_rows: int, generator: th.Generator, action_masks: th.Tensor | None = None
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        Choose actions uniformly over the valid ones, whatever the observations are.

        :param n_rows: number of actions
        :param generator: source of the samples
        :param action_masks: valid choices, shape (batch, sum of choices); None: all
        :return: actions, shape (batch, *action shape), and NaN for their log-probabilities: no policy chose them
        """
        size = (n_rows, self._network(0).n_params)
        actions = sample_uniform(self.action_dist, self.action_space, size, generator, action_masks)
        shape = (n_rows, n_components(self.action_space)) if self.per_component else (n_rows,)
        return actions.reshape((-1, *self._action_shape)), th.full(shape, th.nan, device=self.device)

    def _act(
        self,
        obs: PyTorchObs,
        turns: NDArray[np.int64],
        envs: NDArray[np.int64],
        generator: th.Generator | None,
        action_masks: th.Tensor | None,
    ) -> tuple[th.Tensor, th.Tensor]:
        network = self._network(int(turns[0]))
        params = self._action_params(obs, network)
        finite = th.isfinite(params)
        if not finite.all():
            row = int((~finite).flatten(1).any(1).nonzero()[0])
            raise NonFiniteError(
                f"the policy of turn {turns[row]} gives non-finite action parameters for environment {envs[row]}; its "
                "weights diverged (try a smaller learning rate or max_grad_norm) or its input is extreme"
            )
        distribution = parametrize(self.action_dist, params, network.log_std, action_masks)
        actions, log_probs = sample_with_log_prob(distribution, params, generator, self.per_component)
        return actions.reshape((-1, *self._action_shape)), log_probs


MlpPolicy = SeeUPOPolicy


class CnnPolicy(SeeUPOPolicy):
    """:class:`SeeUPOPolicy` for images: each network has a ``NatureCNN`` of its own."""

    default_features_extractor = NatureCNN


class MultiInputPolicy(SeeUPOPolicy):
    """:class:`SeeUPOPolicy` for Dict observations: each network has a ``CombinedExtractor`` of its own."""

    default_features_extractor = CombinedExtractor
