"""Language-model policies: a Hugging Face causal LM learns text environments. transformers is imported when needed."""

from importlib import import_module
from typing import Any

_MODULES = {
    "CausalLMPolicy": "agents.language.policy",
    "ChatView": "agents.language.chat",
    "bfcl_functions": "envs.suites.bfcl",
    "make_chat_vec": "agents.language.chat",
}

__all__ = ["CausalLMPolicy", "ChatView", "bfcl_functions", "make_chat_vec"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"seeupo_gym.{_MODULES[name]}"), name)
