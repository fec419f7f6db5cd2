"""Checks that a language model, its tokenizer, an environment and the settings fit together, before anything is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gymnasium import spaces

from seeupo_gym.agents.language.loading import context_limit


def check_spaces(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], max_context: int, max_new_tokens: int
) -> None:
    """
    Refuse spaces that are not those of ``ChatView`` with the same lengths.

    :param observation_space: of the environment
    :param action_space: of the environment
    :param max_context: largest number of tokens of a prompt
    :param max_new_tokens: largest number of tokens of a message
    :raises ValueError: if they are others; says what to pass instead
    """
    if not isinstance(observation_space, spaces.Dict) or "context" not in observation_space.spaces:
        raise ValueError(
            f"a language model reads the observations of ChatView, got {observation_space}: pass SeeUPO a text "
            "environment, an id, or make_chat_vec(...)"
        )
    sizes = {"max_context": (observation_space["context"].shape, max_context)}
    sizes["max_new_tokens"] = (action_space.shape, max_new_tokens)
    for name, (shape, size) in sizes.items():
        if shape != (size,):
            raise ValueError(f"the environment was made with another {name}: {shape} against {size} in policy_kwargs")


def check_context(model: str | Path, model_config: Any, max_context: int, max_new_tokens: int) -> None:
    """
    Refuse contexts that a model cannot read.

    With rotary positions of the type "longrope", the positions of all rows of a batch, and so their log-probabilities,
    change if one row is longer than the original length. With the type "dynamic" they change if one row is longer than
    the number of positions.

    :param model: its name, for the message
    :param model_config: its configuration
    :param max_context: largest number of tokens of a prompt
    :param max_new_tokens: largest number of tokens of a message
    :raises ValueError: if these are too many together
    """
    limit, what = context_limit(model_config), "can read"
    rope = getattr(model_config.get_text_config(), "rope_parameters", None) or {}
    # They are those of the whole model, or one entry for each type of layer.
    for part in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if part.get("rope_type") == "longrope" and part["original_max_position_embeddings"] < limit:
            limit = part["original_max_position_embeddings"]
            what = 'can read before its positions (rope_type "longrope") depend on the longest row of a batch'
    if max_context + max_new_tokens > limit:
        raise ValueError(
            f"max_context={max_context} and max_new_tokens={max_new_tokens} together exceed the {limit} tokens that "
            f"{model} {what}: set max_context to at most {limit - max_new_tokens}"
        )


def check_vocabulary(model: str | Path, network: Any, tokenizer: Any, action_space: spaces.Space[Any]) -> None:
    """
    Refuse a model, a tokenizer and an environment that do not have the same tokens.

    :param model: its name, for the message
    :param network: the model
    :param tokenizer: its tokenizer
    :param action_space: of the environment
    :raises ValueError: if their tokens differ
    """
    n_vocab = len(tokenizer)
    if action_space.high.max() + 1 != n_vocab:  # type: ignore[attr-defined]
        raise ValueError(f"the environment was made with another tokenizer than that of {model}: see make_chat_vec")
    if network.get_output_embeddings().weight.shape[0] < n_vocab:
        raise ValueError(f"{model} has fewer output embeddings than its tokenizer has tokens ({n_vocab})")
