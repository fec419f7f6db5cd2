"""Checks of what a saved model holds, which its owner may have edited, and a bad disk damaged."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import recursive_getattr

from seeupo_gym.agents.method.staged import Stages
from seeupo_gym.agents.streams import RandomStreams
from seeupo_gym.envs.arguments import check_count, check_flag, check_number
from seeupo_gym.envs.training_wrappers import check_record

# Counts, and the least that they can be.
_COUNTS = {
    "num_timesteps": 0,
    "_num_timesteps_at_start": 0,
    "_n_updates": 0,
    "_episode_num": 0,
    "verbose": 0,
    "n_envs": 1,
    "n_turns": 1,
    "n_iterations": 0,
}
_FLAGS = ("starts_checked", "masked")
# What Adam and its like keep for each weight.
_LIKE_WEIGHTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg")


def check_state(model: BaseAlgorithm) -> None:
    """
    Refuse what no training leaves: numbers out of range, and values of other types.

    Settings are checked where they are used.

    :param model: a model that was loaded
    :raises ValueError: names the entry
    """
    state = vars(model)
    for name, least in _COUNTS.items():
        if name in state:
            check_count(name, state[name], least)
    for name in _FLAGS:
        if name in state:
            check_flag(name, state[name])
    check_number("_total_timesteps", state["_total_timesteps"], least=0)
    check_number("_current_progress_remaining", state["_current_progress_remaining"], most=1.0)
    if state.get("declared_turns") is not None:
        check_count("declared_turns", state["declared_turns"])
    if state["seed"] is not None:
        check_count("seed", state["seed"], least=0)
    for name in ("observation_space", "action_space"):
        _check_type(name, state[name], spaces.Space)
    _check_type("lr_schedule", state["lr_schedule"], Callable)
    for name in ("ep_info_buffer", "ep_success_buffer"):
        if state[name] is not None:
            _check_type(name, state[name], deque)
    for episode in state["ep_info_buffer"] or ():
        _check_type("ep_info_buffer", episode, Mapping)
        for key in ("r", "l"):
            _check_type(f"ep_info_buffer: {key}", episode.get(key), (int, float, np.number))
    for success in state["ep_success_buffer"] or ():
        _check_type("ep_success_buffer", success, (int, float, np.number, np.bool_))
    if "streams" in state:
        _check_type("streams", state["streams"], RandomStreams)
        check_count("streams: n_groups", state["streams"].n_groups, least=0)
    if state.get("env_wrappers") is not None:
        check_record(state["env_wrappers"])
    if state.get("stages") is not None:
        _check_stages(state["stages"], state["n_turns"])


def _check_type(name: str, value: Any, kind: Any) -> None:
    if not isinstance(value, kind):
        words = " or ".join(part.__name__ for part in (kind if isinstance(kind, tuple) else (kind,)))
        raise ValueError(f"{name} must be of type {words}, got {value!r}")


def _check_stages(stages: Any, n_turns: int) -> None:
    _check_type("stages", stages, Stages)
    check_count("stages: n_turns", stages.n_turns, n_turns, n_turns)
    check_count("stages: turn", stages.turn, least=-1, most=n_turns - 1)
    for name in ("start", "total", "end"):
        check_count(f"stages: {name}", getattr(stages, name), least=0)
    check_flag("stages: trained", stages.trained)
    type(stages.settings)(**vars(stages.settings))
    for value in stages.returns:
        check_number("stages: returns", value)


def check_weights(model: BaseAlgorithm) -> None:
    """
    Refuse weights, also those of the optimizer, that are not finite.

    :param model: a model that was loaded
    :raises ValueError: names the weights
    """
    for name in model._get_torch_save_params()[0]:
        saved = recursive_getattr(model, name)
        _check_finite(name, saved.state_dict())
        if isinstance(saved, th.optim.Optimizer):
            _check_shapes(name, saved)
    trained = {name: param for name, param in model.policy.named_parameters() if param.requires_grad}
    _check_finite("policy", trained)


def _check_shapes(name: str, optimizer: th.optim.Optimizer) -> None:
    """Refuse what is kept for weights of other shapes, which an optimizer takes until its next step."""
    for param, kept in optimizer.state.items():
        for key in _LIKE_WEIGHTS:
            if key in kept and getattr(kept[key], "shape", None) != param.shape:
                raise ValueError(
                    f"{key} in {name} is not of the shape {tuple(param.shape)} of its weights: the file is damaged; "
                    "load an earlier checkpoint"
                )


def _check_finite(name: str, content: Any) -> None:
    if isinstance(content, (th.Tensor, float)):
        finite = math.isfinite(content) if isinstance(content, float) else bool(th.isfinite(content).all())
        if not finite:
            raise ValueError(
                f"the saved weights {name} are not finite (NaN or infinity): the training had diverged, or the file is "
                "damaged; load an earlier checkpoint"
            )
    elif isinstance(content, dict):
        for key, value in content.items():
            _check_finite(f"{name}.{key}", value)
    elif isinstance(content, (list, tuple)):
        for key, value in enumerate(content):
            _check_finite(f"{name}.{key}", value)
