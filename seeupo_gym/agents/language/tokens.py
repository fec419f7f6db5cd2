"""Tokens with a meaning of their own: padding, and those that end a message."""

from __future__ import annotations

from typing import Any

PAD = -1
"""Fills rows of tokens up to their common length, where there is no token."""


def end_of_turn(tokenizer: Any) -> int:
    """
    Find the token that ends a message of the assistant in the chat template; without one, the end-of-sequence token.

    :param tokenizer: a tokenizer with a chat template
    """
    marker = "Zq7Zq7"
    conversation = [{"role": "user", "content": marker}, {"role": "assistant", "content": marker}]
    text = tokenizer.apply_chat_template(conversation, tokenize=False)
    tail = tokenizer(text.rpartition(marker)[2], add_special_tokens=False)["input_ids"] if marker in text else []
    special = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
    return int(next((id_ for id_ in tail if id_ in special), tokenizer.eos_token_id))


def stop_token_ids(tokenizer: Any, *configs: Any) -> list[int]:
    """
    Collect the tokens that end a generated message.

    :param tokenizer: a tokenizer with a chat template
    :param configs: the model's configuration, its generation configuration, or both
    :return: the template's end-of-turn token first, then the end-of-sequence tokens of the tokenizer and of ``configs``
    """
    found = [end_of_turn(tokenizer), int(tokenizer.eos_token_id)]
    for config in configs:
        ids = getattr(config, "eos_token_id", None)
        found += [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
    return list(dict.fromkeys(found))
