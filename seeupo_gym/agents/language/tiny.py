"""A tiny Llama with random weights and a tokenizer of whole words, which learns from scratch on one core of a CPU."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.agents.language.loading import require_llm
from seeupo_gym.envs.task import Task

UNKNOWN, END = "<unk>", "<|end|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
# A message is the token of its role, its words, and the token of the end.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_WORD = "[a-z0-9]+"
_WORD_OR_SIGN = r"[a-z0-9]+|[^\sa-z0-9]"
# If a task has at most so many messages, all are collected, else only those that are met.
_MAX_LISTED = 1000


def build(
    folder: str | Path,
    texts: Iterable[str],
    hidden_size: int = 64,
    n_layers: int = 2,
    n_heads: int = 4,
    max_positions: int = 512,
    seed: int = 0,
    punctuation: bool = False,
    words: Iterable[str] | None = None,
) -> Path:
    """
    Write a folder that ``AutoTokenizer`` and ``AutoModelForCausalLM`` load: a Llama with random weights.

    The tokenizer knows the words and numbers of some texts, in lower case; any other word is the unknown token. Decoded
    text is the words with spaces between them, which this package's tasks understand. The chat template adds two tokens
    to the words of a message. The weights are drawn without the global random state.

    :param folder: folder to write; it is made if it does not exist
    :param texts: texts that are read and written, see :func:`collect_texts`
    :param hidden_size: width; the layers in between are twice as wide
    :param n_layers: number of layers
    :param n_heads: number of attention heads
    :param max_positions: length of the longest context, with the generated tokens
    :param seed: seed of the weights
    :param punctuation: whether every other character has a token, too; otherwise they are left out
    :param words: the only words that have tokens, in lower case; the model does not see any others. Short prompts make
        a small model learn faster. None: all words of the texts
    :return: the folder
    """
    if hidden_size % (2 * n_heads):
        raise ValueError(f"hidden_size must be a multiple of 2 * n_heads = {2 * n_heads}, got {hidden_size}")
    transformers = require_llm()
    tokenizer = _tokenizer(texts, max_positions, punctuation, words)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        num_key_value_heads=n_heads,
        max_position_embeddings=max_positions,
        # With the default of transformers, 0.02, so narrow a model attends to hardly anything for hundreds of updates.
        initializer_range=hidden_size**-0.5,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with th.random.fork_rng(devices=[]):
        th.manual_seed(seed)
        network = transformers.LlamaForCausalLM(config)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)


def _tokenizer(texts: Iterable[str], max_positions: int, punctuation: bool, only: Iterable[str] | None) -> Any:
    tokenizers = require_llm("tokenizers")
    pattern = _WORD_OR_SIGN if punctuation else _WORD
    if only is not None:
        pattern = rf"\b(?:{'|'.join(map(re.escape, sorted(only)))})\b"
    special = [UNKNOWN, END, *_ROLES]
    words = sorted({word for text in texts for word in re.findall(pattern, text.lower())})
    vocabulary = {token: i for i, token in enumerate([*special, *words])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.normalizer = tokenizers.normalizers.Lowercase()
    # Each match is a token, and the text between matches is removed.
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "removed", invert=True)
    return require_llm().PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=list(_ROLES),
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_positions,
        clean_up_tokenization_spaces=False,
    )


def collect_texts(env: gym.Env[str, str], n_episodes: int, seed: int = 0) -> list[str]:
    """
    Play a text environment, and collect its texts and the messages that it understands.

    Each message is the expert's or a random one, with equal probability. A random one is one of the admissible commands
    if the environment lists them, else one of a task's actions. If a task has few actions, all are collected. The last
    reply of an episode is not, as no policy reads it.

    :param env: a text environment, for example a task in ``TextView``
    :param n_episodes: number of episodes; their seeds are ``seed``, ``seed + 1``, ...
    :param seed: seed of the first episode, and of the random messages
    :return: the texts, each once, in the order in which they occurred
    """
    rng = np.random.default_rng(seed)
    task: Any = getattr(env.unwrapped, "task", None)
    sizes = _sizes(task) if isinstance(task, Task) else None
    expert = env.get_wrapper_attr("expert_message") if env.has_wrapper_attr("expert_message") else None
    texts: dict[str, None] = {}
    for episode in range(n_episodes):
        text, info = env.reset(seed=seed + episode)
        if sizes is not None and np.prod(sizes) <= _MAX_LISTED:
            texts.update(dict.fromkeys(task.action_text(0, action) for action in task.all_actions()))
        done = False
        while not done:
            messages = list(info.get("admissible_commands", ()))
            if not messages and sizes is not None:
                messages = [task.action_text(0, rng.integers(sizes))]
            if expert is not None and (not messages or rng.random() < 0.5):
                messages = [expert()]
            message = messages[rng.integers(len(messages))] if messages else ""
            texts.update({text: None, message: None})
            text, _, terminated, truncated, info = env.step(message)
            done = terminated or truncated
    return list(texts)


def _sizes(task: Task) -> NDArray[np.int64]:
    """Return the number of choices of an action, shape () or (components,)."""
    space = task.action_space
    return np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec, dtype=np.int64)
