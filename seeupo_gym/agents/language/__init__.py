"""Language-model policies: a Hugging Face causal LM learns text environments. transformers is imported when needed."""

import importlib
from typing import Any

_MODULES = {
    "CausalLMPolicy": "policy",
    "ChatView": "chat",
    "bfcl_functions": "chat",
    "make_chat_vec": "chat",
}

__all__ = ["CausalLMPolicy", "ChatView", "bfcl_functions", "make_chat_vec"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
