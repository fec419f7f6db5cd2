"""Policies of networks, one for each turn."""

from seeupo_gym.agents.policies.candidates import CandidateActorCriticPolicy, CandidatePolicy
from seeupo_gym.agents.policies.network_policies import CnnPolicy, MlpPolicy, MultiInputPolicy, SeeUPOPolicy
from seeupo_gym.agents.policies.turn_policy import TurnPolicy

__all__ = [
    "CandidateActorCriticPolicy",
    "CandidatePolicy",
    "CnnPolicy",
    "MlpPolicy",
    "MultiInputPolicy",
    "SeeUPOPolicy",
    "TurnPolicy",
]
