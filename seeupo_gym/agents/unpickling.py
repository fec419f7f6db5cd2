"""
The pickled entries of saved models.

SB3 saves what JSON cannot hold as pickles, and a pickle can run any code when it is read. Here they are read by hand:
classes also by the names that they had in older versions, and from files that are not trusted only what is data.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from collections.abc import Collection
from typing import IO, Any, cast

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from seeupo_gym.system.errors import UntrustedError, in_one_line

_AGENTS = "seeupo_gym.agents"
# Modules of older versions, also of NumPy -> where their classes are now.
_MOVED = {
    f"{_AGENTS}.candidates": f"{_AGENTS}.policies.candidates",
    f"{_AGENTS}.policies": f"{_AGENTS}.policies.network_policies",
    f"{_AGENTS}.staged": f"{_AGENTS}.method.staged",
    f"{_AGENTS}.turn_policy": f"{_AGENTS}.policies.turn_policy",
    "numpy.core.multiarray": "numpy._core.multiarray",
    "numpy.core.numeric": "numpy._core.numeric",
}
# What files that are not trusted may hold. Nothing here does more than to hold data, whatever it is called with.
_ALLOWED: dict[str, set[str]] = {
    "collections": {"OrderedDict", "deque"},
    "gymnasium.spaces.box": {"Box"},
    "gymnasium.spaces.dict": {"Dict"},
    "gymnasium.spaces.discrete": {"Discrete"},
    "gymnasium.spaces.multi_binary": {"MultiBinary"},
    "gymnasium.spaces.multi_discrete": {"MultiDiscrete"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.random._pcg64": {"PCG64"},
    "numpy.random._pickle": {"__bit_generator_ctor", "__generator_ctor"},
    "numpy.random.bit_generator": {"SeedSequence", "__pyx_unpickle_SeedSequence"},
    "sb3_contrib.common.maskable.buffers": {"MaskableDictRolloutBuffer", "MaskableRolloutBuffer"},
    "sb3_contrib.common.maskable.policies": {
        "MaskableActorCriticCnnPolicy",
        "MaskableActorCriticPolicy",
        "MaskableMultiInputActorCriticPolicy",
    },
    "sb3_contrib.common.recurrent.policies": {
        "RecurrentActorCriticCnnPolicy",
        "RecurrentActorCriticPolicy",
        "RecurrentMultiInputActorCriticPolicy",
    },
    "stable_baselines3.common.buffers": {"DictReplayBuffer", "DictRolloutBuffer", "ReplayBuffer", "RolloutBuffer"},
    "stable_baselines3.common.policies": {
        "ActorCriticCnnPolicy",
        "ActorCriticPolicy",
        "MultiInputActorCriticPolicy",
    },
    "stable_baselines3.common.type_aliases": {"TrainFreq", "TrainFrequencyUnit"},
    "stable_baselines3.common.utils": {"ConstantSchedule", "FloatSchedule", "LinearSchedule"},
    "stable_baselines3.dqn.policies": {"CnnPolicy", "DQNPolicy", "MultiInputPolicy"},
    "stable_baselines3.sac.policies": {"CnnPolicy", "MultiInputPolicy", "SACPolicy"},
    "torch": {"device"},
    "torch._C": {"Generator"},
    "torch._utils": {"_rebuild_tensor_v2"},
    "torch.nn.modules.activation": {"ELU", "GELU", "LeakyReLU", "ReLU", "SiLU", "Sigmoid", "Tanh"},
    "torch.optim.adam": {"Adam"},
    "torch.optim.adamw": {"AdamW"},
    "torch.optim.rmsprop": {"RMSprop"},
    "torch.optim.sgd": {"SGD"},
    f"{_AGENTS}.language.policy": {"CausalLMPolicy"},
    f"{_AGENTS}.method.settings": {"StageSettings"},
    f"{_AGENTS}.method.staged": {"StageSettings", "Stages"},
    f"{_AGENTS}.policies.candidates": {"CandidateActorCriticPolicy", "CandidatePolicy"},
    f"{_AGENTS}.policies.network_policies": {"CnnPolicy", "MultiInputPolicy", "SeeUPOPolicy"},
    f"{_AGENTS}.streams": {"RandomStreams"},
}
# Without them a model is another one, or none.
_NEEDED = ("action_space", "env_wrappers", "observation_space", "policy_class", "policy_kwargs", "stages", "streams")
# Set by load itself, or harmful: the folder that a model logs to.
_IGNORED = {"tensorboard_log": None}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Find a class, also one that has moved."""
        return super().find_class(_MOVED.get(module, module), name)


class _DataUnpickler(_Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Find a class that holds data; refuse others."""
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _storage
        if name not in _ALLOWED.get(_MOVED.get(module, module), ()):
            raise UntrustedError(f"{module}.{name}")
        return super().find_class(module, name)


def _storage(content: bytes) -> Any:
    return th.load(io.BytesIO(content), weights_only=True)


def read_entries(
    file: IO[bytes] | io.BufferedIOBase,
    algorithm_class: type[BaseAlgorithm],
    given: Collection[str] = (),
    trusted: bool = True,
) -> dict[str, Any]:
    """
    Read the pickled entries of a saved model.

    :param file: the model
    :param algorithm_class: the class that loads it
    :param given: entries that the caller has values for, which are not read
    :param trusted: whether the file may hold anything; if not, only data is read, and nothing in the file is executed
    :return: entry -> value, for SB3's ``load(custom_objects=...)``; with ``trusted=False`` for all that were pickled
    :raises UntrustedError: if the file is not trusted and holds what is not data; says what
    :raises ImportError: if a class is not there; says which
    """
    try:
        with zipfile.ZipFile(cast(IO[bytes], file)) as archive:
            data: dict[str, Any] = json.loads(archive.read("data"))
    except (zipfile.BadZipFile, KeyError):  # no model; SB3 says so
        return {}
    if not isinstance(data, dict):
        raise ValueError('"data" in the file is no JSON object')
    lacking = [name for name in getattr(algorithm_class, "needed_entries", ()) if name not in {*data, *given}]
    if lacking:
        raise ValueError(f"the file lacks the entry {lacking[0]!r}, without which training would go on otherwise")
    entries: dict[str, Any] = {}
    if not trusted:
        _check_names(data, algorithm_class)
        entries = {name: value for name, value in _IGNORED.items() if name in data and name not in given}
    for name, value in data.items():
        if name in given or not isinstance(value, dict) or ":serialized:" not in value:
            continue
        content = io.BytesIO(base64.b64decode(value[":serialized:"]))
        try:
            entries[name] = (_Unpickler if trusted else _DataUnpickler)(content).load()
        except UntrustedError as error:
            raise UntrustedError(
                f"the entry {name!r} of the file holds {error}, which is more than data: load the file only if you "
                f"trust who made it, or give a value of your own, custom_objects={{{name!r}: ...}}"
            ) from None
        except ModuleNotFoundError as error:
            raise ImportError(
                f"the entry {name!r} of the file needs the module {error.name}, which is not installed, or has another "
                f"name by now: install it, or give a value of your own, custom_objects={{{name!r}: ...}}"
            ) from error
        except (RuntimeError, TypeError, AttributeError) as error:
            if not trusted or name in _NEEDED:
                raise ValueError(f"the entry {name!r} of the file cannot be read: {in_one_line(error)}") from error
            # SB3, which meets it too, warns and leaves the entry out.
    return entries


def _check_names(data: dict[str, Any], algorithm_class: type[BaseAlgorithm]) -> None:
    """Refuse entries that would take the place of methods, or of what is never saved, such as the environment."""
    for name in data:
        taken = getattr(algorithm_class, name, None) is not None
        if taken or name in ("device", "env", "policy", "_logger", "_vec_normalize_env"):
            raise UntrustedError(f"the file has an entry {name!r}, which no {algorithm_class.__name__} saves")
