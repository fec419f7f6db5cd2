"""
The wrappers that a model was trained in, written down as plain data, and put around another environment.

A model that saw normalised or stacked observations plays something else without them. What is written down is plain
enough for JSON, so that a saved model can carry it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)

from seeupo_gym.envs.arguments import check_flag, check_number

# Wrappers as plain data: "vector", those of the vector environment, innermost first, each with its name under
# "wrapper" and its settings; "single", the names of those of Gymnasium that change observations or actions.
WrapperRecord = dict[str, Any]

# They change neither observations nor actions.
_NEUTRAL = (VecMonitor, VecCheckNan, VecVideoRecorder)


def describe_wrappers(env: VecEnv) -> WrapperRecord:
    """
    Write down what is around an environment.

    :param env: vector environment
    :return: plain data, with the statistics of ``VecNormalize`` as they are now
    """
    vector: list[dict[str, Any]] = []
    for layer in _layers(env):
        if type(layer) not in _NEUTRAL:
            describe, _ = _KNOWN.get(type(layer), (_no_settings, None))
            vector.append({"wrapper": _name(type(layer)), **describe(layer)})
    return {"vector": vector, "single": _single_wrappers(env.unwrapped)}


def current_record(env: VecEnv | None, recorded: WrapperRecord | None) -> WrapperRecord | None:
    """
    Tell what a model was trained in, with the statistics as they are now.

    :param env: the model's environment, if it has one
    :param recorded: what was written down when its training began, if anything
    :return: the record; None if nobody knows
    """
    live = None if env is None else describe_wrappers(env)
    if live is not None and (recorded is None or _names(live) == _names(recorded)):
        return live
    return recorded  # the model has an environment in which it was not trained yet


def check_record(record: Any) -> None:
    """
    Refuse what :func:`describe_wrappers` does not write.

    :param record: what a saved model holds
    :raises ValueError: says what is wrong
    """
    lists = {"vector": dict, "single": str}
    if not isinstance(record, dict) or not all(_is_list_of(kind, record.get(key)) for key, kind in lists.items()):
        raise ValueError(f"env_wrappers must be a dictionary with lists under 'vector' and 'single', got {record!r}")
    for described in record["vector"]:
        name = described.get("wrapper")
        if not isinstance(name, str):
            raise ValueError(f"env_wrappers has an entry without the name of its wrapper: {described!r}")
        if name == VecNormalize.__name__:
            _check_normalize(described)


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, kind) for part in value)


def _check_normalize(described: Mapping[str, Any]) -> None:
    for name in ("training", "norm_obs", "norm_reward"):
        check_flag(f"env_wrappers: {name}", described.get(name))
    for name in ("clip_obs", "clip_reward", "gamma", "epsilon"):
        check_number(f"env_wrappers: {name}", described.get(name), least=0.0)
    observations = described.get("observations")
    if not isinstance(observations, dict):
        raise ValueError(f"env_wrappers: observations must be a dictionary of statistics, got {observations!r}")
    for key, rms in {**observations, "returns": described.get("returns")}.items():
        numbers = {name: np.asarray(rms[name], dtype=np.float64) for name in ("mean", "var", "count")}
        sound = all(np.isfinite(values).all() for values in numbers.values())
        if not sound or np.any(numbers["var"] < 0) or numbers["count"] < 0:
            what = key or "observations"
            raise ValueError(f"env_wrappers: the mean, variance and count of VecNormalize ({what}) are no such numbers")


def wrap_alike(env: VecEnv, record: WrapperRecord) -> VecEnv:
    """
    Put around an environment what it lacks of a record.

    :param env: vector environment; wrappers that it has must be the first ones of the record, and stay as they are
    :param record: see :func:`describe_wrappers`
    :return: the environment in all wrappers of the record
    :raises ValueError: if it has other wrappers, or a missing one is none of SB3's
    """
    present, wanted = _names(describe_wrappers(env)), _names(record)
    if present != wanted[: len(present)]:
        raise ValueError(
            f"the environment is wrapped with {_listed(present)}, and the model was trained with {_listed(wanted)} "
            "(innermost first): pass the environment without these wrappers, or with all of them"
        )
    makers = {_name(kind): make for kind, (_, make) in _KNOWN.items()}
    for described in record["vector"][len(present) :]:
        settings = dict(described)
        name = settings.pop("wrapper")
        if name not in makers:
            raise ValueError(
                f"the model was trained in an environment wrapped with {_listed(wanted)} (innermost first), and "
                f"{name} cannot be made anew: pass a vector environment that is wrapped in the same way"
            )
        try:
            env = makers[name](env, **settings)
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"the wrapper {name} that the model was saved with cannot be put around this environment ({error!r}): "
                "pass a vector environment that is wrapped as in training"
            ) from error
    return env


def restore_statistics(env: VecEnv, record: WrapperRecord) -> None:
    """
    Give the ``VecNormalize`` wrappers of an environment the statistics of a record, if it has as many.

    :param env: vector environment
    :param record: see :func:`describe_wrappers`
    """
    live, recorded = _normalizers(env), _recorded_normalizers(record)
    if len(live) == len(recorded):
        for layer, described in zip(live, recorded, strict=True):
            _fill_normalize(layer, described["observations"], described["returns"])


def warn_of_other_normalisation(env: VecEnv, record: WrapperRecord) -> None:
    """
    Warn of an environment that normalises what the one of a record did not, or the other way round.

    :param env: vector environment, in which a model is to go on learning
    :param record: of what it has learned in so far
    """
    if len(_normalizers(env)) != len(_recorded_normalizers(record)):
        warnings.warn(
            f"the model was trained in an environment wrapped with {_listed(_names(record))} (innermost first), and "
            f"this one is wrapped with {_listed(_names(describe_wrappers(env)))}: what it learned was for other "
            "observations",
            stacklevel=4,
        )


@contextmanager
def frozen_statistics(env: VecEnv) -> Iterator[None]:
    """
    Keep ``VecNormalize`` from changing its statistics and from scaling rewards, for a while.

    :param env: vector environment, wrapped or not
    """
    live = _normalizers(env)
    before = [(layer.training, layer.norm_reward) for layer in live]
    for layer in live:
        layer.training = layer.norm_reward = False
    try:
        yield
    finally:
        for layer, (training, norm_reward) in zip(live, before, strict=True):
            layer.training, layer.norm_reward = training, norm_reward


def _describe_normalize(env: VecNormalize) -> dict[str, Any]:
    statistics: dict[str, Any] = {}
    if env.norm_obs:
        several = env.obs_rms if isinstance(env.obs_rms, dict) else {"": env.obs_rms}
        statistics = {key: _describe_rms(rms) for key, rms in several.items()}
    return {
        "training": env.training,
        "norm_obs": env.norm_obs,
        "norm_reward": env.norm_reward,
        "clip_obs": float(env.clip_obs),
        "clip_reward": float(env.clip_reward),
        "gamma": float(env.gamma),
        "epsilon": float(env.epsilon),
        "norm_obs_keys": env.norm_obs_keys if env.norm_obs_keys is None else list(env.norm_obs_keys),
        "observations": statistics,
        "returns": _describe_rms(env.ret_rms),
    }


def _make_normalize(
    env: VecEnv, observations: Mapping[str, Mapping[str, Any]], returns: Mapping[str, Any], **settings: Any
) -> VecNormalize:
    made = VecNormalize(env, **settings)
    _fill_normalize(made, observations, returns)
    return made


def _fill_normalize(
    env: VecNormalize, observations: Mapping[str, Mapping[str, Any]], returns: Mapping[str, Any]
) -> None:
    if env.norm_obs:
        several: Any = env.obs_rms if isinstance(env.obs_rms, dict) else {"": env.obs_rms}
        for key, rms in several.items():
            _fill_rms(rms, observations[key])
    _fill_rms(env.ret_rms, returns)


def _describe_rms(rms: RunningMeanStd) -> dict[str, Any]:
    return {"mean": rms.mean.tolist(), "var": rms.var.tolist(), "count": float(rms.count)}


def _fill_rms(rms: RunningMeanStd, described: Mapping[str, Any]) -> None:
    mean, var = (np.array(described[name], dtype=np.float64) for name in ("mean", "var"))
    if not mean.shape == var.shape == rms.mean.shape:
        raise ValueError(f"statistics of shape {mean.shape} and {var.shape} for observations of {rms.mean.shape}")
    rms.mean, rms.var = mean, var
    rms.count = described["count"]


def _describe_stack(env: VecFrameStack) -> dict[str, Any]:
    def order(stacked: Any) -> str:
        return "first" if stacked.channels_first else "last"

    stacked: Any = env.stacked_obs
    if hasattr(stacked, "sub_stacked_observations"):
        orders: Any = {key: order(part) for key, part in stacked.sub_stacked_observations.items()}
    else:
        orders = order(stacked)
    return {"n_stack": stacked.n_stack, "channels_order": orders}


def _no_settings(env: VecEnvWrapper) -> dict[str, Any]:
    return {}


# Class -> its settings as plain data, and how to make it of them.
_KNOWN: dict[type[VecEnvWrapper], tuple[Callable[[Any], dict[str, Any]], Callable[..., VecEnv]]] = {
    VecNormalize: (_describe_normalize, _make_normalize),
    VecFrameStack: (_describe_stack, VecFrameStack),
    VecTransposeImage: (lambda env: {"skip": env.skip}, VecTransposeImage),
    VecExtractDictObs: (lambda env: {"key": env.key}, VecExtractDictObs),
}


def _layers(env: VecEnv) -> list[VecEnvWrapper]:
    """Wrappers of a vector environment, innermost first."""
    layers: list[VecEnvWrapper] = []
    while isinstance(env, VecEnvWrapper):
        layers.insert(0, env)
        env = env.venv
    return layers


def _normalizers(env: VecEnv) -> list[VecNormalize]:
    return [layer for layer in _layers(env) if isinstance(layer, VecNormalize)]


def _recorded_normalizers(record: WrapperRecord) -> list[dict[str, Any]]:
    return [described for described in record["vector"] if described["wrapper"] == VecNormalize.__name__]


def _names(record: WrapperRecord) -> list[str]:
    return [described["wrapper"] for described in record["vector"]]


def _name(kind: type[VecEnvWrapper]) -> str:
    return kind.__name__ if kind in _KNOWN else f"{kind.__module__}.{kind.__qualname__}"


def _listed(wrappers: list[str]) -> str:
    return ", ".join(wrappers) or "nothing"


def _single_wrappers(env: VecEnv) -> list[str]:
    """Those of Gymnasium that change observations or actions, innermost first, if the environment has a spec."""
    spec = env.get_attr("spec", indices=0)[0] if env.has_attr("spec") else None
    entry_points = [wrapper.entry_point for wrapper in getattr(spec, "additional_wrappers", ())]
    return [entry_point for entry_point in entry_points if _changes_what_is_seen_or_done(entry_point)]


def _changes_what_is_seen_or_done(entry_point: str) -> bool:
    module, _, name = entry_point.partition(":")
    try:
        wrapper = getattr(import_module(module), name)
    except (ImportError, AttributeError):  # a class within a function, for example
        return False
    return isinstance(wrapper, type) and issubclass(wrapper, (gym.ObservationWrapper, gym.ActionWrapper))
