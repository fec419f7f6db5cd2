"""Policies for changing lists of actions: one network scores the candidates, and the scores are the logits."""

from __future__ import annotations

from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.preprocessing import get_flattened_obs_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor, create_mlp
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from seeupo_gym.agents.policies.network_policies import SeeUPOPolicy
from seeupo_gym.agents.policies.networks import HIDDEN_GAIN, OUTPUT_GAIN, ActionNetwork

# The entries of the observation that are about the candidates; all others are the state.
CANDIDATES, MASK = "candidates", "mask"


def has_candidates(observation_space: spaces.Space[Any]) -> bool:
    """
    Tell whether observations hold a list of candidates.

    :param observation_space: any space
    :return: True for a Dict with a matrix "candidates" and an entry "mask" with one number for each of its rows
    """
    if not isinstance(observation_space, spaces.Dict):
        return False
    candidates, mask = (observation_space.spaces.get(key) for key in (CANDIDATES, MASK))
    if not isinstance(candidates, spaces.Box) or not isinstance(mask, (spaces.Box, spaces.MultiBinary)):
        return False
    return len(candidates.shape) == 2 and mask.shape == candidates.shape[:1]


def _check(observation_space: spaces.Space[Any], action_space: spaces.Space[Any], policy: BasePolicy) -> spaces.Dict:
    """See whether the policy can play in these spaces, with the features extractor that it was given."""
    if not has_candidates(observation_space):
        raise ValueError(
            f"{type(policy).__name__} needs a Dict observation with a Box {CANDIDATES!r} of shape (K, features) and a "
            f"{MASK!r} of shape (K,), got {observation_space}"
        )
    assert isinstance(observation_space, spaces.Dict)
    candidates = observation_space[CANDIDATES]
    assert isinstance(candidates, spaces.Box)
    expected = spaces.Discrete(candidates.shape[0])
    if action_space != expected:
        raise ValueError(f"the action space must be {expected}, one action a candidate, got {action_space}")
    if len(observation_space.spaces) < 3:
        raise ValueError(f"the observation has no entry for the state beside {CANDIDATES!r} and {MASK!r}")
    return observation_space


class StateVector(nn.Module):
    """
    All entries of the observation that are not about the candidates, flat and one after another.

    :param observation_space: with candidates
    """

    def __init__(self, observation_space: spaces.Dict) -> None:
        super().__init__()
        state = {key: space for key, space in observation_space.spaces.items() if key not in (CANDIDATES, MASK)}
        self.keys = tuple(state)
        self.size = sum(get_flattened_obs_dim(space) for space in state.values())

    def forward(self, preprocessed_obs: dict[str, th.Tensor]) -> th.Tensor:
        """Return the state, shape (batch, size)."""
        return th.cat([preprocessed_obs[key].flatten(start_dim=1) for key in self.keys], dim=1)


class CandidateScorer(ActionNetwork):
    """
    A score for each candidate: a multilayer perceptron on the state and the candidate's features, one after another.

    The first layer is the sum of an embedding of the state, computed once for all candidates, and of the candidate's.
    Candidates that the mask rules out are not computed: their score is the lowest finite number, probability 0.

    :param observation_space: with candidates
    :param net_arch: sizes of the hidden layers, at least one
    :param activation_fn: activation function
    :param ortho_init: whether to initialise orthogonally
    """

    def __init__(
        self, observation_space: spaces.Dict, net_arch: list[int], activation_fn: type[nn.Module], ortho_init: bool
    ) -> None:
        super().__init__()
        if not net_arch:
            raise ValueError(
                "a scorer of candidates needs a hidden layer: without one the state would have no influence"
            )
        self.n_params, n_features = observation_space[CANDIDATES].shape or ()
        self.log_std = None
        self.state_vector = StateVector(observation_space)
        self.state_layer = nn.Linear(self.state_vector.size, net_arch[0])
        self.candidate_layer = nn.Linear(n_features, net_arch[0], bias=False)
        hidden = create_mlp(net_arch[0], -1, net_arch[1:], activation_fn)
        self.hidden = nn.Sequential(activation_fn(), *hidden)
        self.score = nn.Linear(net_arch[-1], 1)
        if ortho_init:
            for layer in (self.state_layer, self.candidate_layer, *self.hidden):
                BasePolicy.init_weights(layer, gain=HIDDEN_GAIN)
            BasePolicy.init_weights(self.score, gain=OUTPUT_GAIN)

    def forward(self, preprocessed_obs: PyTorchObs) -> th.Tensor:
        """Return the scores, shape (batch, candidates)."""
        assert isinstance(preprocessed_obs, dict)
        candidates, mask = preprocessed_obs[CANDIDATES], preprocessed_obs[MASK] > 0
        # Most of the work is the first layer, and most of the places are usually empty: take the filled ones together.
        filled = mask.flatten().nonzero().squeeze(1)
        of_state = self.state_layer(self.state_vector(preprocessed_obs)).index_select(0, filled // self.n_params)
        of_candidate = self.candidate_layer(candidates.flatten(end_dim=1).index_select(0, filled))
        scores = self.score(self.hidden(of_state + of_candidate)).squeeze(1)
        lowest = scores.new_full((mask.numel(),), th.finfo(scores.dtype).min)
        masked: th.Tensor = lowest.index_put((filled,), scores).view(mask.shape)
        return masked


class CandidatePolicy(SeeUPOPolicy):
    """
    :class:`SeeUPOPolicy` for observations with a list of candidates, as of ``CandidateView``: each network is a
    :class:`CandidateScorer`.

    The observation is a Dict with ``candidates``, shape (K, features), and ``mask``, shape (K,), positive where there
    is a candidate; everything else in it is the state. The action space is ``Discrete(K)``. There is no features
    extractor.
    """

    def _make_network(self) -> CandidateScorer:
        space = _check(self.observation_space, self.action_space, self)
        if self.features_extractor_class is not FlattenExtractor or self.features_extractor_kwargs:
            raise ValueError("CandidatePolicy takes no features extractor: the observation holds features already")
        return CandidateScorer(space, self.net_arch, self.activation_fn, self.ortho_init)


class _Preprocessed(BaseFeaturesExtractor):
    """Hands the observation on as it is."""

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        super().__init__(observation_space, features_dim=1)

    def forward(self, preprocessed_obs: PyTorchObs) -> PyTorchObs:
        return preprocessed_obs


class _ScorerAndCritic(nn.Module):
    """In place of SB3's ``MlpExtractor``: the scores of the candidates, and the critic's last hidden layer."""

    def __init__(
        self,
        observation_space: spaces.Dict,
        net_arch: dict[str, list[int]],
        activation_fn: type[nn.Module],
        ortho_init: bool,
    ) -> None:
        super().__init__()
        self.actor = CandidateScorer(observation_space, net_arch["pi"], activation_fn, ortho_init)
        state_vector = StateVector(observation_space)
        layers = create_mlp(state_vector.size, -1, net_arch["vf"], activation_fn)
        self.critic = nn.Sequential(state_vector, *layers)
        self.latent_dim_vf = net_arch["vf"][-1] if net_arch["vf"] else state_vector.size
        if ortho_init:
            for layer in self.critic:
                BasePolicy.init_weights(layer, gain=HIDDEN_GAIN)

    def forward(self, obs: PyTorchObs) -> tuple[th.Tensor, th.Tensor]:
        return self.forward_actor(obs), self.forward_critic(obs)

    def forward_actor(self, obs: PyTorchObs) -> th.Tensor:
        scores: th.Tensor = self.actor(obs)
        return scores

    def forward_critic(self, obs: PyTorchObs) -> th.Tensor:
        latent: th.Tensor = self.critic(obs)
        return latent


class CandidateActorCriticPolicy(ActorCriticPolicy):
    """
    The same scorer as of :class:`CandidatePolicy` for SB3's PPO and A2C, with a critic on the state alone::

        PPO(CandidateActorCriticPolicy, env)

    The mask is part of the observation, so it holds with algorithms that know no action masks.

    :param observation_space: see :class:`CandidatePolicy`
    :param action_space: Discrete
    :param lr_schedule: learning rate as a function of the remaining progress
    :param kwargs: other arguments of SB3's ``ActorCriticPolicy``, without a features extractor
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        **kwargs: Any,
    ) -> None:
        if kwargs.setdefault("features_extractor_class", _Preprocessed) is not _Preprocessed:
            raise ValueError(
                f"{type(self).__name__} takes no features extractor: the observation holds features already"
            )
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        space = _check(self.observation_space, self.action_space, self)
        sizes = self.net_arch if isinstance(self.net_arch, dict) else {"pi": self.net_arch, "vf": self.net_arch}
        sizes = {"pi": list(sizes.get("pi", [])), "vf": list(sizes.get("vf", []))}
        self.mlp_extractor = _ScorerAndCritic(space, sizes, self.activation_fn, self.ortho_init)  # type: ignore[assignment]
        self.action_net = nn.Identity()
        self.value_net = nn.Linear(self.mlp_extractor.latent_dim_vf, 1)
        if self.ortho_init:
            self.init_weights(self.value_net, gain=1.0)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]
