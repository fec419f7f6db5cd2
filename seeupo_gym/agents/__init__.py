"""SeeUPO: a critic-free algorithm with one policy per turn, behind the SB3 algorithm interface."""

from seeupo_gym.agents.networks import NonFiniteError
from seeupo_gym.agents.policies import CnnPolicy, MlpPolicy, MultiInputPolicy, SeeUPOPolicy
from seeupo_gym.agents.seeupo import SeeUPO

__all__ = ["CnnPolicy", "MlpPolicy", "MultiInputPolicy", "NonFiniteError", "SeeUPO", "SeeUPOPolicy"]
