"""Saving and loading of algorithms whose policies may keep their weights by themselves, as language models do."""

from __future__ import annotations

import io
import pathlib
import sys
import zipfile
from collections.abc import Iterable
from importlib import import_module
from typing import Any, TypeVar

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import GymEnv, TensorDict

from seeupo_gym.agents.policies.turn_policy import TurnPolicy
from seeupo_gym.envs.training_wrappers import WrapperRecord, current_record, describe_wrappers

# Classes in files of version 0.1.0 are looked for under the names that their modules had then.
_MOVED = {
    "seeupo_gym.agents.candidates": "seeupo_gym.agents.policies.candidates",
    "seeupo_gym.agents.staged": "seeupo_gym.agents.method.staged",
}

SelfSavedAlgorithm = TypeVar("SelfSavedAlgorithm", bound="SavedAlgorithm")
_File = str | pathlib.Path | io.BufferedIOBase


class SavedAlgorithm(BaseAlgorithm):
    """What :class:`~seeupo_gym.agents.group_algorithm.GroupAlgorithm` adds to SB3's saving and loading."""

    policy: TurnPolicy
    policy_class: Any
    n_groups: int
    group_size: int
    # What the model was trained in, for evaluation; None: not trained yet, or by a version that did not note it.
    env_wrappers: WrapperRecord | None = None

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        result = super()._setup_learn(*args, **kwargs)
        assert self.env is not None
        self.env_wrappers = describe_wrappers(self.env)
        return result

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """
        Set another training environment; see SB3.

        :param env: environment with the same spaces, and the same number of environments
        :param force_reset: whether to reset it before training
        """
        self.env_wrappers = current_record(self.env, self.env_wrappers)
        super().set_env(env, force_reset)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy.optimizer"] if self.policy.weights is not None else ["policy", "policy.optimizer"], []

    def save(self, path: _File, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None) -> None:
        """
        Save the model; see SB3. A language model's trained weights are in the same archive, as safetensors.

        :param path: file to write, or something like a file
        :param exclude: attributes to leave out
        :param include: attributes to save that are left out otherwise
        """
        self.env_wrappers = current_record(self.env, self.env_wrappers)
        super().save(path, exclude, include)
        if self.policy.weights is not None:
            with zipfile.ZipFile(_archive(path), "a") as archive:
                self.policy.weights.write(archive)

    @classmethod
    def load(
        cls: type[SelfSavedAlgorithm],
        path: _File,
        env: Any = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> SelfSavedAlgorithm:
        """
        Load a model; see SB3.

        :param path: file to read, or something like a file
        :param env: the environment to go on in, or what the constructor makes one of; None: none
        :param device: device of the networks
        :param custom_objects: what to take in place of attributes that are saved
        :param print_system_info: whether to print on what systems the model was saved and is loaded
        :param force_reset: whether to reset the environment before training
        :param kwargs: attributes to change
        :return: the model, which goes on as the one that was saved; with ``seed=...`` its random streams begin anew
        """
        for name, moved in _MOVED.items():
            sys.modules.setdefault(name, import_module(moved))
        model = super().load(path, None, device, custom_objects, print_system_info, **kwargs)
        if env is not None:
            n_episodes = model.n_groups * model.group_size
            made: GymEnv = model.policy_class.make_env(env, n_episodes, model.policy_kwargs)
            made = model._wrap_env(made, model.verbose)
            model.n_envs = made.num_envs  # which set_env alone would refuse to change
            model.set_env(made, force_reset)
        if "seed" in kwargs:
            model.set_random_seed(kwargs["seed"])
        model._read_weights(path)
        return model

    def set_parameters(
        self, load_path_or_dict: str | TensorDict, exact_match: bool = True, device: th.device | str = "auto"
    ) -> None:
        """
        Load parameters; see SB3. Those of a language model are in files only: ``get_parameters`` does not have them.

        :param load_path_or_dict: a saved model, or what ``get_parameters`` gave
        :param exact_match: whether there must be parameters for everything
        :param device: device to load them on
        """
        super().set_parameters(load_path_or_dict, exact_match, device)
        if not isinstance(load_path_or_dict, dict):
            self._read_weights(load_path_or_dict)

    def _read_weights(self, path: _File) -> None:
        if self.policy.weights is not None:
            with zipfile.ZipFile(_archive(path)) as archive:
                self.policy.weights.read(archive)


def _archive(path: _File) -> Any:
    """The file that SB3 reads or writes for a path: with the suffix .zip where there is none."""
    if isinstance(path, (str, pathlib.Path)):
        return path if pathlib.Path(path).is_file() else f"{path}.zip"
    path.seek(0)
    return path
