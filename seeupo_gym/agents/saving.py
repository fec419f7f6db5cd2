"""Saving and loading of algorithms whose policies may keep their weights by themselves, as language models do."""

from __future__ import annotations

import io
import pathlib
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, ClassVar, TypeVar, cast

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import GymEnv, TensorDict

from seeupo_gym.agents.arguments import device_to_load_on
from seeupo_gym.agents.policies.turn_policy import TurnPolicy
from seeupo_gym.agents.saved_state import check_state, check_weights
from seeupo_gym.agents.streams import RandomStreams
from seeupo_gym.agents.unpickling import read_entries
from seeupo_gym.envs.arguments import check_env_kwargs
from seeupo_gym.envs.training_wrappers import (
    WrapperRecord,
    current_record,
    describe_wrappers,
    frozen_statistics,
    restore_statistics,
    warn_of_other_normalisation,
)
from seeupo_gym.system.errors import damage_is_told
from seeupo_gym.system.files import open_atomically

SelfSavedAlgorithm = TypeVar("SelfSavedAlgorithm", bound="SavedAlgorithm")
_File = str | pathlib.Path | io.BufferedIOBase


class SavedAlgorithm(BaseAlgorithm):
    """Saving and loading, as SB3 has it, of algorithms whose policies may keep their weights by themselves."""

    policy: TurnPolicy
    policy_class: Any
    n_groups: int
    group_size: int
    streams: RandomStreams
    starts_checked: bool
    needed_entries: ClassVar = ("n_turns", "num_timesteps", "stages", "streams")
    # What the model was trained in, for evaluation; None: not trained yet, or by a version that did not note it.
    env_wrappers: WrapperRecord | None = None
    # What changes while episodes are collected, as it was before; None: no collection is under way.
    _iteration_start: dict[str, Any] | None = None

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        assert self.env is not None
        if self.env_wrappers is not None:
            warn_of_other_normalisation(self.env, self.env_wrappers)
        # SB3 resets the environment here, for nothing, as each rollout does: statistics must not count that.
        with frozen_statistics(self.env):
            result = super()._setup_learn(*args, **kwargs)
        self.env_wrappers = describe_wrappers(self.env)
        return result

    def _begin_iteration(self) -> None:
        """
        Remember where an iteration begins.

        A model that is saved while its episodes are collected goes back to here, as the episodes are not saved: it then
        collects the same ones again, and ends bit for bit where it would have ended without the interruption.
        """
        if self.get_vec_normalize_env() is not None:
            self.env_wrappers = current_record(self.env, self.env_wrappers)
        self._iteration_start = {
            "num_timesteps": self.num_timesteps,
            "starts_checked": self.starts_checked,
            "streams": self.streams.clone(),
            "ep_info_buffer": copy(self.ep_info_buffer),
            "ep_success_buffer": copy(self.ep_success_buffer),
            "env_wrappers": self.env_wrappers,
        }

    def _return_to_iteration_start(self) -> None:
        """Go back to where an iteration began whose collection was broken off, as a model that was saved then does."""
        if self._iteration_start is not None:
            vars(self).update(self._iteration_start)
            self._iteration_start = None
            if self.env is not None and self.env_wrappers is not None:
                restore_statistics(self.env, self.env_wrappers)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_iteration_start"]

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """
        Set another training environment; see SB3.

        :param env: environment with the same spaces, and the same number of environments
        :param force_reset: whether to reset it before training
        """
        self._return_to_iteration_start()  # in the environment that it was begun in
        self.env_wrappers = current_record(self.env, self.env_wrappers)
        super().set_env(env, force_reset)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy.optimizer"] if self.policy.weights is not None else ["policy", "policy.optimizer"], []

    def save(self, path: _File, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None) -> None:
        """
        Save the model; see SB3. A language model's trained weights are in the same archive, as safetensors.

        A file with that name is replaced when the new one is whole and on the disk, and stays as it is if that fails.
        What is saved while episodes are collected, by a callback or after an interrupt, is the model as it was when the
        iteration began: its ``num_timesteps`` is smaller than that of the running model.

        :param path: file to write, or something like a file
        :param exclude: attributes to leave out
        :param include: attributes to save that are left out otherwise
        :raises OSError: if the file cannot be written
        """
        self.env_wrappers = current_record(self.env, self.env_wrappers)
        if isinstance(path, (str, pathlib.Path)):
            with open_atomically(_path_to_write(path)) as file:
                self.save(cast(io.BufferedIOBase, file), exclude, include)
            return
        with self._at_iteration_start():
            super().save(path, exclude, include)
        if self.policy.weights is not None:
            with zipfile.ZipFile(_archive(path), "a") as archive:
                self.policy.weights.write(archive)

    @contextmanager
    def _at_iteration_start(self) -> Iterator[None]:
        """Go back to where the iteration began, for a while, if its episodes are being collected."""
        start = self._iteration_start or {}
        now = {name: getattr(self, name) for name in start}
        vars(self).update(start)
        try:
            yield
        finally:
            vars(self).update(now)

    @classmethod
    def load(
        cls: type[SelfSavedAlgorithm],
        path: _File,
        env: Any = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        trusted: bool = True,
        env_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> SelfSavedAlgorithm:
        """
        Load a model; see SB3. A file can run any code when it is loaded, unless ``trusted`` is False.

        :param path: file to read, or something like a file
        :param env: the environment to go on in, or what the constructor makes one of; None: none. Its ``VecNormalize``
            gets the statistics that were saved with the model
        :param device: device of the networks
        :param custom_objects: what to take in place of attributes that are saved
        :param print_system_info: whether to print on what systems the model was saved and is loaded
        :param force_reset: whether to reset the environment before training
        :param trusted: False: take only data from the file, and execute nothing in it; see docs/trust.md
        :param env_kwargs: arguments of the environment, for an id
        :param kwargs: attributes to change
        :return: the model, which goes on as the one that was saved; with ``seed=...`` its random streams begin anew
        :raises ValueError: if the file is damaged, settings in it are out of range, or weights not finite
        :raises UntrustedError: if the file is not trusted and holds more than data
        """
        if env is None:
            check_env_kwargs(env_kwargs, env, makes_env=False)
        device = device_to_load_on(device)
        with damage_is_told(path, f"model of {cls.__name__}", given=bool(kwargs or custom_objects)):
            if not isinstance(path, (str, pathlib.Path)):
                model = cls._load_file(path, device, custom_objects or {}, print_system_info, trusted, kwargs)
            else:
                with pathlib.Path(_archive(path)).open("rb") as file:
                    model = cls._load_file(file, device, custom_objects or {}, print_system_info, trusted, kwargs)
        if env is not None:
            n_episodes = model.n_groups * model.group_size
            made: GymEnv = model.policy_class.make_env(env, n_episodes, model.policy_kwargs, env_kwargs)
            made = model._wrap_env(made, model.verbose)
            model.n_envs = made.num_envs  # which set_env alone would refuse to change
            model.set_env(made, force_reset)
            if model.env_wrappers is not None:
                restore_statistics(made, model.env_wrappers)
        if "seed" in kwargs:
            model.set_random_seed(kwargs["seed"])
        return model

    @classmethod
    def _load_file(
        cls: type[SelfSavedAlgorithm],
        file: io.BufferedIOBase,
        device: th.device | str,
        custom_objects: dict[str, Any],
        print_system_info: bool,
        trusted: bool,
        changes: dict[str, Any],
    ) -> SelfSavedAlgorithm:
        """Load a model without an environment."""
        if not trusted:
            file.seek(0)
            file = io.BytesIO(file.read())  # what is checked is what is loaded
        # SB3 compares the arguments of the policy with those in the file.
        given = {**{name: value for name, value in changes.items() if name != "policy_kwargs"}, **custom_objects}
        entries = read_entries(file, cls, given, trusted)
        model = super().load(file, None, device, {**entries, **given}, print_system_info, **changes)
        model._read_weights(file)
        check_weights(model)
        check_state(model)
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


def _path_to_write(path: str | pathlib.Path) -> pathlib.Path:
    """Return the file that SB3 writes for a path: with the suffix .zip where there is none, and beside a folder."""
    path = pathlib.Path(path)
    if path.suffix == "":
        path = path.with_name(f"{path.name}.zip")
    if path.is_dir():
        warnings.warn(f"Path '{path}' is a folder. Will save instead to {path}_2", stacklevel=3)
        path = _path_to_write(f"{path}_2")
    return path


def _archive(path: _File) -> Any:
    """Return the file that SB3 reads for a path: with the suffix .zip where there is none."""
    if isinstance(path, (str, pathlib.Path)):
        return path if pathlib.Path(path).is_file() else f"{path}.zip"
    path.seek(0)
    return path
