"""How a trained model plays: in the environment that training gave it, with the masks and the memory it had there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, unwrap_vec_normalize

from seeupo_gym.agents.policies.turn_policy import TurnPolicy
from seeupo_gym.envs.checked_env import check_is_env
from seeupo_gym.envs.episodes import EpisodeLanes
from seeupo_gym.envs.masks import has_masks, read_masks
from seeupo_gym.envs.task import bare_task_env
from seeupo_gym.envs.training_wrappers import (
    WrapperRecord,
    current_record,
    describe_wrappers,
    frozen_statistics,
    wrap_alike,
)
from seeupo_gym.envs.vector import SeedQueue, make_vec

# Lanes of a native environment cost almost nothing, those of others are an environment each.
_MAX_NATIVE_LANES = 1000
_MAX_OTHER_LANES = 8


@contextmanager
def playing_env(
    model: BaseAlgorithm,
    env: str | gym.Env[Any, Any] | VecEnv,
    n_episodes: int,
    env_kwargs: Mapping[str, Any],
    transcript: bool = False,
) -> Iterator[VecEnv]:
    """
    Make the environment that a model plays in as it did in training: with its wrappers, and with fixed statistics.

    :param model: a SeeUPO or SB3 model
    :param env: a registered id, an environment or a vector environment, which stay open
    :param n_episodes: how many are to be played
    :param env_kwargs: arguments of the environment, for an id
    :param transcript: whether to make a single environment for an id, which writes a transcript if it can
    :return: context manager; the environment, closed at the end if it was made here
    :raises ValueError: if it cannot be known how the model was trained, or the environment is another one
    """
    if env_kwargs and not isinstance(env, str):
        raise ValueError(f"arguments of the environment ({', '.join(env_kwargs)}) are for an id, got {env}")
    record, normalized = _trained_in(model)
    made = _vectorize(model, _readable(env, env_kwargs) if transcript else env, n_episodes, env_kwargs)
    try:
        if isinstance(env, str) and record is not None:
            _check_single_wrappers(made, record)
        wrapped = wrap_alike(made, record) if record is not None else made
        wrapped = BaseAlgorithm._wrap_env(wrapped)  # SB3 puts VecTransposeImage around images by itself
        _check_statistics(wrapped, normalized)
        _check_spaces(model, wrapped)
        with frozen_statistics(wrapped):
            yield wrapped
    finally:
        if isinstance(env, str):
            made.close()


def uses_masks(model: BaseAlgorithm, env: VecEnv) -> bool:
    """
    Tell whether a model is to be given invalid-action masks.

    :param model: any SB3 model
    :param env: what it plays in
    :return: True for SeeUPO and its subclasses if they were trained with masks, and for sb3-contrib's MaskablePPO if
        its environment has them
    :raises ValueError: if the model was trained with masks and the environment has none
    """
    trained_with = getattr(model, "masked", None)
    if trained_with is None:
        if not type(model).__name__.startswith("Maskable"):
            return False
        # It does not say whether it was trained with masks; its environment does.
        own = getattr(model, "env", None)
        trained_with = has_masks(env if own is None else own)
    if trained_with and not has_masks(env):
        raise ValueError(
            "the model was trained with action_masks(), and this environment has none: pass one that has them, for "
            "example in the wrapper that the training environment had"
        )
    return bool(trained_with)


def choose_actions(
    model: BaseAlgorithm,
    env: VecEnv,
    lanes: EpisodeLanes,
    obs: Any,
    memory: tuple[NDArray[Any], ...] | None,
    episode_start: NDArray[np.bool_],
    deterministic: bool,
    masked: bool,
) -> tuple[NDArray[Any], tuple[NDArray[Any], ...] | None, NDArray[np.bool_] | None]:
    """
    Ask a model for the actions of all lanes.

    :param model: any SB3 model
    :param env: what it plays in
    :param lanes: which episode and turn each lane is at
    :param obs: observations of all lanes
    :param memory: what the model returned the last time
    :param episode_start: which lanes begin an episode
    :param deterministic: whether to take the most likely actions
    :param masked: whether to give it masks
    :return: actions, the memory for the next time, and the masks it was given
    """
    if not masked:
        actions, memory = model.predict(obs, memory, episode_start, deterministic)
        return actions, memory, None
    active = np.flatnonzero(lanes.active)
    valid = read_masks(env, env.action_space, active, lanes.turns[active])
    masks = np.ones((env.num_envs, valid.shape[1]), dtype=bool)  # a finished lane need not have any valid action
    masks[active] = valid
    predict: Any = model.predict
    actions, memory = predict(obs, memory, episode_start, deterministic, action_masks=masks)
    return actions, memory, masks


def _readable(env: Any, env_kwargs: Mapping[str, Any]) -> Any:
    if not isinstance(env, str):
        return env
    made: gym.Env[Any, Any] = gym.make(env, **env_kwargs)
    if "ansi" not in made.metadata.get("render_modes", ()):
        return made
    made.close()
    return gym.make(env, **{**env_kwargs, "render_mode": "ansi"})


def _vectorize(
    model: BaseAlgorithm, env: str | gym.Env[Any, Any] | VecEnv, n_episodes: int, env_kwargs: Mapping[str, Any]
) -> VecEnv:
    policy = model.policy
    if isinstance(env, VecEnv):
        return env
    if isinstance(env, str):
        probe = gym.make(env, **env_kwargs)
        max_lanes = _MAX_OTHER_LANES if bare_task_env(probe) is None else _MAX_NATIVE_LANES
        probe.close()
        n_lanes = min(n_episodes, max_lanes)
        if isinstance(policy, TurnPolicy):
            return policy.make_vec(env, n_lanes, model.policy_kwargs, dict(env_kwargs))
        return make_vec(env, n_lanes, **env_kwargs)
    check_is_env(env)
    single: Any = policy.make_env(env, 1, model.policy_kwargs) if isinstance(policy, TurnPolicy) else env
    queued = single if is_wrapped(single, SeedQueue) else SeedQueue(single)
    return DummyVecEnv([lambda: queued])


def _trained_in(model: BaseAlgorithm) -> tuple[WrapperRecord | None, bool]:
    """Return the wrappers a model was trained in (None: not known), and whether it certainly had normalisation."""
    recorded: WrapperRecord | None = getattr(model, "env_wrappers", None)
    env: VecEnv | None = getattr(model, "env", None)
    record = current_record(env, recorded)
    # Models of others have no record. SB3 keeps observations as they were before normalisation, in files too;
    # algorithms that learn off-policy do so always.
    original_obs = None if isinstance(model, OffPolicyAlgorithm) else getattr(model, "_last_original_obs", None)
    normalized = recorded is None and original_obs is not None
    if normalized and (env is None or unwrap_vec_normalize(env) is None):
        record = None  # the environment is not the one of its training
    return record, normalized


def _check_single_wrappers(env: VecEnv, record: WrapperRecord) -> None:
    present = describe_wrappers(env)["single"]
    missing = [name for name in record["single"] if name not in present]
    if missing:
        raise ValueError(
            f"the model was trained in an environment wrapped with {', '.join(missing)}, which changes what it sees or "
            "does: pass the environment, wrapped in the same way, in place of its id"
        )


def _check_statistics(env: VecEnv, needed: bool) -> None:
    normalize = unwrap_vec_normalize(env)
    if normalize is None and needed:
        raise ValueError(
            "the model was trained with VecNormalize, and its file does not hold the statistics: pass a vector "
            "environment that has them, VecNormalize.load(path, make_vec(...))"
        )
    if normalize is not None and normalize.norm_obs and _n_seen(normalize) < 1:
        raise ValueError(
            "the environment's VecNormalize has seen no observation yet: pass the environment without it, if the model "
            "has the statistics of its training, or with VecNormalize.load(path, ...)"
        )


def _n_seen(normalize: VecNormalize) -> float:
    rms: Any = normalize.obs_rms
    return float(min((part.count for part in rms.values()), default=1.0) if isinstance(rms, dict) else rms.count)


def _check_spaces(model: BaseAlgorithm, env: VecEnv) -> None:
    for kind in ("observation", "action"):
        trained, given = getattr(model, f"{kind}_space", None), getattr(env, f"{kind}_space")
        if trained is not None and _in_short(trained) != _in_short(given):
            raise ValueError(
                f"the model was trained with the {kind} space {_in_short(trained)}, and this environment has "
                f"{_in_short(given)}: pass one that is made and wrapped as in training"
            )


def _in_short(space: spaces.Space[Any]) -> Any:
    """Return the part of a space that networks depend on: not the bounds and types of numbers."""
    if isinstance(space, spaces.Dict):
        return {key: _in_short(part) for key, part in space.spaces.items()}
    return f"Box of shape {space.shape}" if isinstance(space, spaces.Box) else str(space)
