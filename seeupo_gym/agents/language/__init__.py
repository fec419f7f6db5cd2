"""Language-model policies: a Hugging Face causal LM learns text environments. transformers is imported when needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seeupo_gym.lazy import lazy_names

if TYPE_CHECKING:
    from seeupo_gym.agents.language.chat import ChatView, make_chat_vec
    from seeupo_gym.agents.language.policy import CausalLMPolicy
    from seeupo_gym.envs.suites.bfcl import bfcl_functions

__all__ = ["CausalLMPolicy", "ChatView", "bfcl_functions", "make_chat_vec"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CausalLMPolicy": "agents.language.policy",
        "ChatView": "agents.language.chat",
        "bfcl_functions": "envs.suites.bfcl",
        "make_chat_vec": "agents.language.chat",
    },
)
