"""Conversations with language models: who takes part in them, templates, and messages as tokens."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from seeupo_gym.agents.language.tokens import end_of_turn
from seeupo_gym.envs import NAMESPACE

GUESS = f"{NAMESPACE}/GuessNumber-v0"
SMALL = {"range": 8, "turns": 3}
WORDS = ["go north", "go south", "look", "a b c d e f", "one two three four five", "thinking aloud ok"]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Qwen3's: no thoughts in the history, and an empty one where they are not wanted.
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


class Scripted(gym.Env):
    """Says given texts one after another, and remembers what it was told."""

    observation_space = spaces.Text(1000)
    action_space = spaces.Text(1000)

    def __init__(self, says, commands=None, max_turns=None):
        self.says, self.commands, self.heard = says, commands, []
        self.max_turns = max_turns or len(says) - 1

    def reset(self, *, seed=None, options=None):
        self.heard = []
        return self.says[0], self._info()

    def step(self, action):
        self.heard.append(action)
        return self.says[len(self.heard)], 0.5, len(self.heard) == len(self.says) - 1, False, self._info()

    def _info(self):
        return {} if self.commands is None else {"admissible_commands": self.commands}


def tokens(tokenizer, text, size):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return np.array(ids + [-1] * (size - len(ids)), dtype=np.int32)


def text_of(tokenizer, ids):
    return tokenizer.decode(ids[ids >= 0])


def play(view, tokenizer, *messages):
    """Reset, send messages, and return what the steps gave."""
    results = [view.reset(seed=3)]
    end = tokenizer.convert_ids_to_tokens(end_of_turn(tokenizer))
    for message in messages:
        results.append(view.step(tokens(tokenizer, message + end, view.action_space.shape[0])))
    return results
