"""Multi-turn tasks, and suites of others, as Gymnasium environments; importing this registers their ids."""

from seeupo_gym.envs.registration import ENTRY_POINTS, ENV_IDS, NAMESPACE, register_envs
from seeupo_gym.envs.views.text_view import TextView

__all__ = ["ENTRY_POINTS", "ENV_IDS", "NAMESPACE", "TextView", "register_envs"]

register_envs()
