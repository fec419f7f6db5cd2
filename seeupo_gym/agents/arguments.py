"""Checks of the arguments that SeeUPO has in common with SB3's algorithms; its own are in method/settings.py."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch as th
from stable_baselines3.common.policies import BasePolicy

from seeupo_gym.agents.policies.turn_policy import TurnPolicy
from seeupo_gym.envs.arguments import check_count


def find_policy_class(policy: Any, aliases: Mapping[str, type[BasePolicy]]) -> type[TurnPolicy]:
    """
    Find the class of a policy.

    :param policy: a name or a class
    :param aliases: name -> class
    :return: the class
    :raises ValueError: for an unknown name and for what is no policy of turns
    """
    found = aliases.get(policy) if isinstance(policy, str) else policy
    if isinstance(found, type) and issubclass(found, TurnPolicy):
        return found
    given = found.__name__ if isinstance(found, type) else repr(policy)
    raise ValueError(
        f"policy must be one of {', '.join(map(repr, aliases))}, or a subclass of seeupo_gym.agents.TurnPolicy, "
        f"got {given}"
    )


def check_arguments(
    stats_window_size: Any, tensorboard_log: Any, policy_kwargs: Any, verbose: Any, seed: Any, device: Any
) -> None:
    """
    Refuse arguments of wrong types, or out of range, by their names.

    :param stats_window_size: a positive integer
    :param tensorboard_log: a path or None
    :param policy_kwargs: a dictionary or None
    :param verbose: an integer from 0
    :param seed: an integer from 0, or None
    :param device: one of torch's that is there, or "auto"
    :raises ValueError: names the argument
    """
    check_count("stats_window_size", stats_window_size)
    check_count("verbose", verbose, least=0)
    if seed is not None:
        check_count("seed", seed, least=0)
    if not isinstance(tensorboard_log, (str, os.PathLike, type(None))):
        raise ValueError(f"tensorboard_log must be a path or None, got {tensorboard_log!r}")
    if policy_kwargs is not None and not isinstance(policy_kwargs, dict):
        raise ValueError(f"policy_kwargs must be a dictionary of the policy's arguments, got {policy_kwargs!r}")
    if device != "auto":
        _check_device(device)


def _check_device(device: Any) -> None:
    """Refuse unknown devices, and a GPU that is not there, for which SB3 would quietly take the CPU."""
    if not _is_there(device):
        raise ValueError(f'device={device!r} is not there (torch finds {_n_gpus()} GPUs): use "auto" or "cpu"')


def device_to_load_on(device: Any) -> Any:
    """
    Find the device for a saved model, which may come from another machine.

    :param device: what was asked for
    :return: the same; for a GPU that is not there the CPU, as in SB3, with a warning
    :raises ValueError: for what is no device
    """
    if device == "auto" or _is_there(device):
        return device
    warnings.warn(f"device={device!r} is not there (torch finds {_n_gpus()} GPUs): the CPU is used", stacklevel=3)
    return "cpu"


def _is_there(device: Any) -> bool:
    try:
        kind = th.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'device must be "auto", "cpu", "cuda" or another of torch\'s, got {device!r}') from error
    return kind.type != "cuda" or (kind.index or 0) < _n_gpus()


def _n_gpus() -> int:
    return th.cuda.device_count() if th.cuda.is_available() else 0
