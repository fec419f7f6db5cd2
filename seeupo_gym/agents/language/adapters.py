"""LoRA adapters on one language model, one for each policy."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import torch as th

from seeupo_gym.agents.language.loading import require_llm

# Initial values of peft that do not change the weights of the model itself.
_INITIAL = (True, False, "gaussian", "orthogonal")


def _name(index: int) -> str:
    return f"turn_{index:02d}"


def add_adapters(network: Any, n_adapters: int, lora: dict[str, Any]) -> Any:
    """
    Put adapters into a model, whose own weights are frozen.

    :param network: a causal language model of transformers
    :param n_adapters: number of adapters
    :param lora: arguments of ``peft.LoraConfig``
    :return: peft's wrapper of the model
    :raises ValueError: for dropout, and for initial values that change the model's own weights
    """
    peft = require_llm("peft")
    if lora.get("lora_dropout", 0.0) != 0.0:
        raise ValueError("lora_dropout must be 0: importance ratios have to be 1 before an update")
    if (init := lora.get("init_lora_weights", True)) not in _INITIAL:
        raise ValueError(
            f"init_lora_weights={init!r} may change the model's own weights, so that without adapters it is no longer "
            f"the model that was loaded: use one of {', '.join(map(repr, _INITIAL))}"
        )
    config = peft.LoraConfig(**{"task_type": "CAUSAL_LM", "target_modules": "all-linear", **lora})
    with warnings.catch_warnings():
        # peft asks transformers for attributes under their old names.
        warnings.simplefilter("ignore", FutureWarning)
        adapted = peft.get_peft_model(network, config, adapter_name=_name(0))
        for index in range(1, n_adapters):
            adapted.add_adapter(_name(index), config)
    return adapted


def adapter_parameters(network: Any, index: int) -> dict[str, th.nn.Parameter]:
    """Return the weights of one adapter, by name."""
    marker = f".{_name(index)}."
    return {name: param for name, param in network.named_parameters() if marker in f"{name}."}


def activate(network: Any, index: int, trained: Iterable[th.nn.Parameter]) -> None:
    """
    Use one adapter from now on.

    :param network: peft's wrapper
    :param index: number of the adapter
    :param trained: weights of all adapters
    """
    _use(network, _name(index), trained)


def _use(network: Any, name: str, trained: Iterable[th.nn.Parameter]) -> None:
    network.set_adapter(name)
    # peft freezes the other adapters. But turns that are updated together need gradients of several.
    for param in trained:
        param.requires_grad_(True)


def checkpoint_activations(network: Any, trained: Iterable[th.nn.Parameter]) -> None:
    """
    Compute activations twice instead of keeping them.

    The second time uses the adapter of the first time, as the adapter of another turn may be active by then.

    :param network: a causal language model of transformers, or peft's wrapper of one
    :param trained: weights of all adapters; empty if there are none
    """
    # The older of the two names disappears in transformers 6.
    enable = getattr(network, "activation_checkpointing_enable", network.gradient_checkpointing_enable)
    settings: dict[str, Any] = {"use_reentrant": False}
    if hasattr(network, "peft_config"):
        settings["context_fn"] = lambda: (nullcontext(), _again_with(network, network.active_adapter, trained))
    enable(settings)


@contextmanager
def _again_with(network: Any, name: str, trained: Iterable[th.nn.Parameter]) -> Iterator[None]:
    if network.active_adapter != name:
        _use(network, name, trained)
    yield


def merged(network: Any, index: int) -> Any:
    """
    Make a plain model whose weights contain one adapter.

    :param network: peft's wrapper, which is not changed
    :param index: number of the adapter
    """
    network = deepcopy(network)
    network.set_adapter(_name(index))
    return network.merge_and_unload(adapter_names=[_name(index)])
