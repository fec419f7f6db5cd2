"""Conversations with language models: who takes part in them, templates, and messages as tokens."""

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces

from seeupo_gym.agents.language.tokens import end_of_turn
from seeupo_gym.envs import NAMESPACE, TextView

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


LORA = {"r": 4, "lora_alpha": 8}


def guess_env(turns=2):
    """A small game in words."""
    return TextView(gym.make(GUESS, range=4, turns=turns))


class Chatter(gym.Env):
    """Pays for every word, so that any two messages of different lengths differ; two turns."""

    max_turns = 2

    def __init__(self):
        self.observation_space = self.action_space = gym.spaces.Text(100, min_length=0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return f"guess {self.np_random.integers(4)}", {}

    def step(self, message):
        self.turn += 1
        return (
            f"guess {min(len(message.split()), 3)}",
            len(message.split()) + 0.1 * message.count("1"),
            self.turn == 2,
            False,
            {},
        )


def weights(model):
    return {name: param.detach().clone() for name, param in model.policy.named_parameters()}


def same(a, b):
    return all(th.equal(a[name], b[name]) for name in a)
