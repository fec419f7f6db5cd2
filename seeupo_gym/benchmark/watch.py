"""Watching a saved model: the transcript of one episode, with the policy's probabilities at every turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from torch.distributions import Bernoulli, Categorical, Normal

from seeupo_gym.agents import SeeUPO
from seeupo_gym.benchmark.evaluation import check_seeds, uses_masks
from seeupo_gym.envs.task import HELD_OUT_SEED

_N_SHOWN = 3


def watch_episode(
    model: BaseAlgorithm,
    env_id: str,
    seed: int = HELD_OUT_SEED,
    deterministic: bool = True,
    **env_kwargs: Any,
) -> Iterator[str]:
    """
    Play one episode, and describe it turn by turn.

    :param model: a SeeUPO or SB3 model
    :param env_id: a registered Gymnasium id; with ``render_mode="ansi"`` its text is the transcript
    :param seed: seed of the episode
    :param deterministic: whether to take the most likely actions
    :param env_kwargs: arguments of the environment
    :return: pieces of text to print under each other
    :raises ValueError: if the seed is outside of [0, 2**63)
    """
    check_seeds(seed, 1)
    return _turns(model, env_id, seed, deterministic, env_kwargs)


def _turns(
    model: BaseAlgorithm, env_id: str, seed: int, deterministic: bool, env_kwargs: dict[str, Any]
) -> Iterator[str]:
    env = gym.make(env_id, **env_kwargs)
    if "ansi" in env.metadata.get("render_modes", ()):
        env.close()
        env = gym.make(env_id, **{**env_kwargs, "render_mode": "ansi"})
    masked = uses_masks(model) and env.has_wrapper_attr("action_masks")
    obs, _ = env.reset(seed=seed)
    shown = ""
    state, turn, total, over = None, 0, 0.0, False
    info: dict[str, Any] = {}
    try:
        while not over:
            shown, text = _news(env, shown)
            if text:
                yield text
            masks = np.asarray(env.get_wrapper_attr("action_masks")()) if masked else None
            arguments = {} if masks is None else {"action_masks": masks}
            start = np.array([turn == 0])
            action, state = model.predict(obs, state, start, deterministic, **arguments)
            thought = describe_policy(model, obs, turn, masks)
            yield f"    [turn {turn}: {thought + ' -> ' if thought else ''}action {np.asarray(action).tolist()}]"
            # predict() gives a Discrete action as an array, which some environments cannot look up in their tables.
            obs, reward, terminated, truncated, info = env.step(action if np.ndim(action) else np.asarray(action)[()])
            total += float(reward)
            turn, over = turn + 1, terminated or truncated
        shown, text = _news(env, shown)
        if text:
            yield text
    finally:
        env.close()
    ending = f", success: {'yes' if info['is_success'] else 'no'}" if "is_success" in info else ""
    yield f"Return {total:.3g} after {turn} turn{'s' if turn != 1 else ''}{ending} (seed {seed})."


def _news(env: gym.Env[Any, Any], shown: str) -> tuple[str, str]:
    """Return what the environment shows now, and its new part: all of it, unless it is a transcript that grows."""
    if env.render_mode != "ansi":
        return "", ""
    rendered: Any = env.render()
    text = str(rendered).rstrip()
    return text, text[len(shown) :].lstrip("\n") if text.startswith(shown) else text


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
