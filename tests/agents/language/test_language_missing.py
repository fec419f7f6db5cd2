"""Without transformers: importing the package does not need it, and what needs it says in a line what to install."""

import pytest
from helpers.processes import run_python

import seeupo_gym.agents.language as language

# An import of a module that is None in sys.modules fails as if it were not installed.
WITHOUT = """
import sys
sys.modules["transformers"] = None
from seeupo_gym.agents.language import loading, make_chat_vec, tiny
for call in (
    lambda: make_chat_vec("seeupo_gym/GuessNumber-v0", "model", 1, 64, 4),
    lambda: loading.load_tokenizer("model"),
    lambda: loading.load_model("model"),
    lambda: tiny.build("folder", ["text"]),
):
    try:
        call()
    except ImportError as error:
        print(error)
"""
IMPORTS = """
import sys, seeupo_gym.agents
from seeupo_gym.agents.language import ChatView, bfcl_functions, make_chat_vec
print([name for name in ("transformers", "peft", "tokenizers", "safetensors", "gguf") if name in sys.modules])
"""


@pytest.mark.process
def test_importing_the_package_imports_no_transformers():
    assert run_python(IMPORTS) == "[]\n"


@pytest.mark.process
def test_a_missing_package_is_named_in_one_line():
    assert run_python(WITHOUT) == 'language models need transformers: pip install -e ".[llm]" in a checkout\n' * 4


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = language.nothing
