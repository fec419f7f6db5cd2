"""SeeUPO: a critic-free algorithm with one policy per turn, behind the SB3 algorithm interface."""

from seeupo_gym.agents.low_level.backward_induction import BackwardInductionOptimizer, train_multi_turn_agent
from seeupo_gym.agents.low_level.trajectories import MultiTurnTrajectory
from seeupo_gym.agents.method.errors import NonFiniteError
from seeupo_gym.agents.policies import (
    CandidateActorCriticPolicy,
    CandidatePolicy,
    CnnPolicy,
    MlpPolicy,
    MultiInputPolicy,
    SeeUPOPolicy,
    TurnPolicy,
)
from seeupo_gym.agents.seeupo import SeeUPO

__all__ = [
    "BackwardInductionOptimizer",
    "CandidateActorCriticPolicy",
    "CandidatePolicy",
    "CnnPolicy",
    "MlpPolicy",
    "MultiInputPolicy",
    "MultiTurnTrajectory",
    "NonFiniteError",
    "SeeUPO",
    "SeeUPOPolicy",
    "TurnPolicy",
    "train_multi_turn_agent",
]
