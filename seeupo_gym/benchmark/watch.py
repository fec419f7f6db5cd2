"""Watching a saved model: the transcript of one episode, with the policy's probabilities at every turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from torch.distributions import Bernoulli, Categorical, Normal

from seeupo_gym.agents import SeeUPO
from seeupo_gym.agents.policies.turns import find_horizon
from seeupo_gym.benchmark.evaluation import check_seeds
from seeupo_gym.benchmark.playing import choose_actions, playing_env, uses_masks
from seeupo_gym.envs.episodes import EpisodeLanes
from seeupo_gym.envs.info_keys import SUCCESS, read_flag
from seeupo_gym.envs.task import HELD_OUT_SEED

_N_SHOWN = 3


def watch_episode(
    model: BaseAlgorithm,
    env: str | gym.Env[Any, Any] | VecEnv,
    seed: int = HELD_OUT_SEED,
    deterministic: bool = True,
    **env_kwargs: Any,
) -> Iterator[str]:
    """
    Play one episode as :func:`~seeupo_gym.baselines.evaluate` does, and tell it turn by turn.

    :param model: a SeeUPO or SB3 model
    :param env: a registered Gymnasium id, an environment, or a vector environment, whose first one plays. With
        ``render_mode="ansi"``, which an id gets, its text is the transcript
    :param seed: seed of the episode
    :param deterministic: whether to take the most likely actions
    :param env_kwargs: arguments of the environment, for an id
    :return: pieces of text to print under each other
    :raises ValueError: if the seed is outside of [0, 2**63), or the environment is not what the model was trained in
    """
    check_seeds(seed, 1)
    return _turns(model, env, seed, deterministic, env_kwargs)


def _turns(
    model: BaseAlgorithm,
    env: str | gym.Env[Any, Any] | VecEnv,
    seed: int,
    deterministic: bool,
    env_kwargs: dict[str, Any],
) -> Iterator[str]:
    shown, total, turn, info = "", 0.0, 0, dict[str, Any]()
    playing = playing_env(model, env, 1, env_kwargs, transcript=True)
    with playing as vec_env, EpisodeLanes(vec_env, np.array([seed]), max_turns=find_horizon(vec_env)) as lanes:
        masked = uses_masks(model, vec_env)
        obs, memory, start = lanes.reset(), None, np.ones(vec_env.num_envs, dtype=bool)
        while lanes.running:
            shown, text = _news(vec_env, shown)
            if text:
                yield text
            actions, memory, masks = choose_actions(model, vec_env, lanes, obs, memory, start, deterministic, masked)
            thought = describe_policy(model, _first(obs), turn, None if masks is None else masks[0])
            yield f"    [turn {turn}: {thought + ' -> ' if thought else ''}action {actions[0].tolist()}]"
            obs, rewards, dones, infos = vec_env.step(actions)
            total, turn, info = total + float(rewards[0]), turn + 1, infos[0]
            obs, start = lanes.advance(obs, dones), dones
        if lanes.parks:  # any other environment shows its next episode already
            shown, text = _news(vec_env, shown)
            if text:
                yield text
    success = read_flag(info, SUCCESS, 0, turn - 1)
    ending = "" if success is None else f", success: {'yes' if success else 'no'}"
    yield f"Return {total:.3g} after {turn} turn{'s' if turn != 1 else ''}{ending} (seed {seed})."


def _news(env: VecEnv, shown: str) -> tuple[str, str]:
    """Return what the environment shows now, and its new part: all of it, unless it is a growing transcript."""
    if env.render_mode != "ansi":
        return "", ""
    text = str(env.env_method("render", indices=0)[0]).rstrip()
    return text, text[len(shown) :].lstrip("\n") if text.startswith(shown) else text


def _first(obs: Any) -> Any:
    return {key: values[0] for key, values in obs.items()} if isinstance(obs, dict) else obs[0]


def describe_policy(model: BaseAlgorithm, obs: Any, turn: int, masks: NDArray[np.bool_] | None = None) -> str:
    """
    Describe a policy's distribution over actions: the likeliest choices, or mean and standard deviation.

    :param model: a SeeUPO or SB3 model
    :param obs: one observation
    :param turn: the turn it is at, counted from 0
    :param masks: valid choices, shape (sum of choices,); None: all
    :return: one line; empty if the policy has no distribution over actions
    """
    policy: Any = model.policy
    if not hasattr(policy, "get_distribution") or hasattr(policy, "lstm_actor"):  # one needs its memory
        return ""
    with th.no_grad():
        obs_tensor, _ = policy.obs_to_tensor(obs)
        mask_tensor = None if masks is None else th.as_tensor(masks.reshape(1, -1), device=model.device)
        if isinstance(model, SeeUPO):
            distribution = policy.get_distribution(obs_tensor, turn, mask_tensor)
        elif mask_tensor is not None:
            distribution = policy.get_distribution(obs_tensor, mask_tensor)
        else:
            distribution = policy.get_distribution(obs_tensor)
        return _describe(distribution)


def _describe(distribution: Any) -> str:
    inner = distribution.distributions if hasattr(distribution, "distributions") else distribution.distribution
    if isinstance(inner, Normal):
        pairs = zip(inner.mean.flatten().tolist(), inner.stddev.flatten().tolist(), strict=True)
        return ", ".join(f"{mean:.3g} ± {std:.2g}" for mean, std in pairs)
    if isinstance(inner, Bernoulli):
        return "P(1): " + ", ".join(f"{p:.0%}" for p in inner.probs.flatten().tolist())
    components: list[Categorical] = inner if isinstance(inner, list) else [inner]
    texts = [_likeliest(component.probs.flatten()) for component in components]
    return texts[0] if len(texts) == 1 else " | ".join(texts)


def _likeliest(probs: th.Tensor) -> str:
    best = th.argsort(probs, descending=True, stable=True)[:_N_SHOWN]
    return ", ".join(f"{int(choice)}: {float(probs[choice]):.0%}" for choice in best)
