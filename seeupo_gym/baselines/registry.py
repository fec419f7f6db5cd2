"""
The table of algorithms: for each name its class, and the settings that it runs with.

Adding an algorithm takes three lines, anywhere before the benchmark starts (worker processes get the entry itself)::

    from seeupo_gym.baselines import register_algorithm, run_benchmark
    register_algorithm("long_a2c", "stable_baselines3:A2C", n_envs=16, settings={"n_steps": 32, "gamma": 1.0})
    run_benchmark(["a2c", "long_a2c"], ["seeupo_gym/ToolChain-v0"], seeds=[0, 1], total_timesteps=50_000, out="runs")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space

from seeupo_gym.agents.policies.candidates import CandidateActorCriticPolicy, has_candidates
from seeupo_gym.envs.vector import make_vec
from seeupo_gym.system.errors import origin, raised_on_purpose

AUTO = "auto"

# The networks are small, and every run has a process of its own. Use "--set device=cuda" for large networks.
_DEVICE = "cpu"

# Those that settings are given to; what comes from elsewhere is a fault of an environment.
_LIBRARIES = ("sb3_contrib", "seeupo_gym", "stable_baselines3", "torch")

# Arguments that the runner itself gives to every algorithm.
_RESERVED = ("env", "env_kwargs", "seed", "tensorboard_log", "_init_setup_model")


@dataclass(frozen=True)
class AlgorithmSpec:
    """
    An algorithm and its settings, which are the same for every environment.

    :param name: name in tables, plots and folders
    :param entry_point: ``"module:Class"``, imported when a model is made
    :param policy: policy alias; ``"auto"``: chosen by the observation space, see :func:`policy_for`
    :param n_envs: number of environments it trains in
    :param settings: constructor arguments that differ from the class's defaults
    """

    name: str
    entry_point: str
    policy: str = AUTO
    n_envs: int = 16
    settings: Mapping[str, Any] = field(default_factory=dict)

    def load_class(self) -> type[BaseAlgorithm]:
        """
        Import the class.

        :return: an algorithm with SB3's interface
        :raises ValueError: if the entry point leads nowhere
        """
        module_name, _, class_name = self.entry_point.partition(":")
        try:
            algorithm_class: type[BaseAlgorithm] = getattr(import_module(module_name), class_name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(
                f'algorithm {self.name!r}: cannot import {self.entry_point!r} ("module:Class"): {error}'
            ) from error
        return algorithm_class

    def all_settings(self) -> dict[str, Any]:
        """
        Collect the settings of a run, with the defaults of the class written out. The default device is the CPU.

        :return: constructor argument -> value
        """
        algorithm_class = self.load_class()
        settings = {**constructor_defaults(algorithm_class), "device": _DEVICE, **self.settings}
        settings |= _fixed_settings(algorithm_class)
        return {k: v for k, v in settings.items() if v is not Parameter.empty and k not in _RESERVED}

    def with_settings(self, changes: Mapping[str, Any]) -> AlgorithmSpec:
        """
        Copy this entry with other settings.

        :param changes: constructor arguments, and also ``n_envs`` and ``policy``
        :return: the changed entry
        :raises ValueError: for a name that the class does not know, or whose value it fixes
        """
        algorithm_class = self.load_class()
        known = set(constructor_defaults(algorithm_class)) - set(_RESERVED) - set(_fixed_settings(algorithm_class))
        unknown = sorted(set(changes) - known - {"n_envs", "policy"})
        if unknown:
            raise ValueError(
                f"{self.name} has no setting {unknown[0]!r}; it has: {', '.join(sorted(known | {'n_envs'}))}"
            )
        settings = {k: v for k, v in {**self.settings, **changes}.items() if k not in ("n_envs", "policy")}
        n_envs = changes.get("n_envs", self.n_envs)
        if not isinstance(n_envs, int) or n_envs < 1:
            raise ValueError(f"n_envs must be a whole number of at least 1, got {n_envs!r}")
        return replace(self, settings=settings, n_envs=n_envs, policy=changes.get("policy", self.policy))

    def make_model(
        self, env_id: str, seed: int | None, env_kwargs: Mapping[str, Any] | None = None, **arguments: Any
    ) -> BaseAlgorithm:
        """
        Make a model that is ready to learn, on ``seeupo_gym.make_vec(env_id, n_envs, seed)``.

        :param env_id: a registered Gymnasium id
        :param seed: seed of the environments and of the algorithm; SB3's own algorithms seed the global
            generators of the process with it
        :param env_kwargs: arguments of the environment
        :param arguments: more constructor arguments, for example ``tensorboard_log``
        :return: the model
        :raises ValueError: if the algorithm refuses the environment or the settings
        """
        settings = {"device": _DEVICE, **self.settings, **arguments}
        if str(settings["device"]).startswith("cuda") and not th.cuda.is_available():  # SB3 would take the CPU
            raise ValueError(f"device={settings['device']!r}: torch finds no GPU here")
        env = make_vec(env_id, self.n_envs, seed, **(env_kwargs or {}))
        algorithm_class = self.load_class()
        policy = policy_for(env.observation_space, algorithm_class) if self.policy == AUTO else self.policy
        try:
            return algorithm_class(policy, env, seed=seed, **settings)
        except (AssertionError, TypeError, ValueError) as error:  # how SB3 and Python refuse settings
            env.close()
            if raised_on_purpose(error) or origin(error) not in _LIBRARIES:
                raise
            raise ValueError(f"{self.name} on {env_id} cannot be made with {settings}: {error}") from error


def policy_for(
    observation_space: spaces.Space[Any], algorithm_class: type[BaseAlgorithm]
) -> str | type[CandidateActorCriticPolicy]:
    """
    Choose the policy for an observation space.

    :param observation_space: the environment's
    :param algorithm_class: the algorithm
    :return: an alias: "CandidatePolicy" for lists of candidates if the class has it, "MultiInputPolicy" for other
        Dicts, "CnnPolicy" for images, else "MlpPolicy"; or the class's own form of these, for example "MlpLstmPolicy".
        For lists of candidates and SB3's actor-critics (PPO, A2C, TRPO) the class ``CandidateActorCriticPolicy``
    """
    if has_candidates(observation_space):
        if "CandidatePolicy" in algorithm_class.policy_aliases:
            return "CandidatePolicy"
        if algorithm_class.policy_aliases.get("MlpPolicy") is ActorCriticPolicy:
            return CandidateActorCriticPolicy
    kind = "Cnn" if is_image_space(observation_space) else "Mlp"
    if isinstance(observation_space, spaces.Dict):
        kind = "MultiInput"
    return next((alias for alias in algorithm_class.policy_aliases if alias.startswith(kind)), f"{kind}Policy")


def constructor_defaults(algorithm_class: type[BaseAlgorithm]) -> dict[str, Any]:
    """
    List the arguments of a constructor, including those that it passes on to its base classes as ``**kwargs``.

    :param algorithm_class: an algorithm
    :return: argument -> default, or ``Parameter.empty`` where there is none
    """
    defaults: dict[str, Any] = {}
    for base in algorithm_class.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = signature(vars(base)["__init__"]).parameters.values()
        named = [p for p in parameters if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
        defaults = {**{p.name: p.default for p in named if p.name != "self"}, **defaults}
        if all(p.kind is not Parameter.VAR_KEYWORD for p in parameters):
            break
    return {**defaults, **getattr(algorithm_class, "default_settings", {})}


def _fixed_settings(algorithm_class: type[BaseAlgorithm]) -> dict[str, Any]:
    """Return the arguments whose fixed values define the algorithm; see ``baselines/critic_free.py``."""
    return dict(getattr(algorithm_class, "fixed_settings", {}))


_ALGORITHMS: dict[str, AlgorithmSpec] = {}


def register_algorithm(
    name: str,
    entry_point: str,
    policy: str = AUTO,
    n_envs: int = 16,
    settings: Mapping[str, Any] | None = None,
) -> AlgorithmSpec:
    """
    Add an algorithm with SB3's interface.

    :param name: its name; letters, digits, ``_`` and ``-``, as it becomes the name of a folder
    :param entry_point: ``"module:Class"``
    :param policy: policy alias; ``"auto"``: chosen by the observation space
    :param n_envs: number of environments it trains in
    :param settings: constructor arguments that differ from the class's defaults
    :return: the entry
    :raises ValueError: if the name is taken or cannot be the name of a folder
    """
    if name in _ALGORITHMS:
        raise ValueError(f"an algorithm named {name!r} is registered already")
    if not name.replace("_", "").replace("-", "").isalnum():
        raise ValueError(f"an algorithm's name must consist of letters, digits, '_' and '-', got {name!r}")
    _ALGORITHMS[name] = AlgorithmSpec(name, entry_point, policy, n_envs, dict(settings or {}))
    return _ALGORITHMS[name]


def unregister_algorithm(name: str) -> None:
    """
    Remove an entry.

    :param name: name of a registered algorithm
    """
    _ALGORITHMS.pop(name)


def get_algorithm(name: str) -> AlgorithmSpec:
    """
    Look up an algorithm.

    :param name: its name
    :return: the entry
    :raises ValueError: if there is none; lists the names there are
    """
    if name not in _ALGORITHMS:
        raise ValueError(f"unknown algorithm {name!r}; there are: {', '.join(_ALGORITHMS)}")
    return _ALGORITHMS[name]


def algorithm_names() -> list[str]:
    """
    List the registered algorithms.

    :return: names, in order of registration
    """
    return list(_ALGORITHMS)


# The settings of these three were chosen by benchmarks/tune.py. The grid is the same for all: learning_rate 1e-3, 3e-3,
# 1e-2 and ent_coef 0, 0.1, 0.3, on the two tasks of the demo, with 40,000 steps and seeds 100 and 101. The best final
# score wins; among equal ones the best mean over all evaluations. docs/benchmarks.md has the table. The tasks pay whole
# episodes, so gamma is 1 for all. Only the number of environments, and PPO's batch with it, also differ from the
# defaults.
_SEEUPO: dict[str, Any] = {"n_groups": 16, "group_size": 8, "learning_rate": 1e-2, "ent_coef": 0.1}
_PPO: dict[str, Any] = {"n_steps": 128, "batch_size": 256, "learning_rate": 1e-3, "ent_coef": 0.1, "gamma": 1.0}
register_algorithm("seeupo", "seeupo_gym.agents:SeeUPO", n_envs=128, settings=_SEEUPO)
register_algorithm("ppo", "stable_baselines3:PPO", n_envs=16, settings=_PPO)
register_algorithm("a2c", "stable_baselines3:A2C", n_envs=16, settings={"learning_rate": 3e-3, "gamma": 1.0})

# These are not tuned: relatives of SeeUPO have its settings, and relatives of PPO have those of PPO. The settings need
# not suit them: the advantages of RLOO and REINFORCE, for example, are not normalised, so the same ent_coef weighs
# more. TRPO has no entropy bonus; its learning rate and its batches are those of its critic.
_TRPO = {name: value for name, value in _PPO.items() if name != "ent_coef"}
register_algorithm("seeupo_staged", "seeupo_gym.agents:SeeUPO", n_envs=128, settings={**_SEEUPO, "schedule": "staged"})
register_algorithm("grpo", "seeupo_gym.baselines.critic_free:GRPO", n_envs=128, settings=_SEEUPO)
register_algorithm("gspo", "seeupo_gym.baselines.critic_free:GSPO", n_envs=128, settings=_SEEUPO)
register_algorithm("rloo", "seeupo_gym.baselines.critic_free:RLOO", n_envs=128, settings=_SEEUPO)
register_algorithm("reinforce", "seeupo_gym.baselines.critic_free:REINFORCE", n_envs=128, settings=_SEEUPO)
register_algorithm("reinforce_pp", "seeupo_gym.baselines.critic_free:REINFORCEPlusPlus", n_envs=128, settings=_SEEUPO)
register_algorithm("trpo", "sb3_contrib:TRPO", n_envs=16, settings=_TRPO)
register_algorithm("recurrent_ppo", "sb3_contrib:RecurrentPPO", n_envs=16, settings=_PPO)
register_algorithm("maskable_ppo", "sb3_contrib:MaskablePPO", n_envs=16, settings=_PPO)
