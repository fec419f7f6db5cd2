"""SeeUPO: a critic-free algorithm with one policy per turn, behind the SB3 algorithm interface."""

from seeupo_gym.agents.backward_induction import BackwardInductionOptimizer, train_multi_turn_agent
from seeupo_gym.agents.candidates import CandidateActorCriticPolicy, CandidatePolicy
from seeupo_gym.agents.networks import NonFiniteError
from seeupo_gym.agents.policies import CnnPolicy, MlpPolicy, MultiInputPolicy, SeeUPOPolicy
from seeupo_gym.agents.seeupo import SeeUPO
from seeupo_gym.agents.trajectories import MultiTurnTrajectory
from seeupo_gym.agents.turn_policy import TurnPolicy

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
