"""Text environments as arrays of tokens, for language models."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from seeupo_gym.agents.language.loading import load_tokenizer
from seeupo_gym.agents.language.tokens import PAD, stop_token_ids
from seeupo_gym.envs.info_keys import MALFORMED
from seeupo_gym.envs.task import TaskEnv
from seeupo_gym.envs.vector import SeedQueue
from seeupo_gym.envs.views.text_view import TextView

_THINK, _THOUGHT = "<think>", "</think>"
_MEMO_SIZE = 1024
# Conversations that each tokenizer's template rendered lately. Environments with the same tokenizer share them, and
# they are not pickled with an environment.
_WRITTEN: WeakKeyDictionary[Any, OrderedDict[Any, NDArray[np.int32]]] = WeakKeyDictionary()

Observation = dict[str, NDArray[np.int32]]


class ChatView(gym.Wrapper[Any, Any, Any, Any]):
    """
    A text environment as a conversation in tokens: an observation is a prompt, an action is a generated message.

    The observation is a dict of

    - ``context``: the conversation so far as the chat template writes it, ready for the next message of the assistant,
      padded with -1 on the right;
    - ``turn``: the turn, counted from 0;
    - ``choices``, only with ``n_choices``: a row for each of ``info["admissible_commands"]``, with its tokens and the
      one that ends a message, padded with -1; then rows of -1. Without any command the empty message is the one choice.

    The action holds the generated tokens, including the one that ended the message if there was one, padded with -1.
    The message is their text up to the first stop token. Removed are special tokens, white space around the text, and
    the model's thoughts: all text up to the last ``</think>``, and the whole text if a thought has no end. Tokens of a
    choice mean its command, letter by letter.

    The message is sent to the environment and added to the conversation; the reply is the user's next message. The
    environment decides what a message means, and on ``info["seeupo_gym/malformed"]``. If a message or a reply spells a
    special token letter by letter, the token is removed. Otherwise the next prompt would contain the real token, and
    one side could write turns of the other.

    A conversation of more than ``max_context`` tokens loses its oldest exchanges (a message of the assistant and the
    reply to it) until it fits. The system prompt, the first message of the user and the last exchange always stay, and
    no message is cut. If these do not fit, that is an error. The context is empty at the end of an episode, where
    nothing is to be written any more.

    ``info["message"]`` is the message that was sent, and ``info["dropped_exchanges"]`` the number of exchanges that the
    context lacks. At the end of an episode ``info["conversation"]`` has all messages, as dicts of ``role`` and
    ``content``.

    :param env: the text environment; it needs an attribute ``max_turns``
    :param tokenizer: a tokenizer of transformers with a chat template
    :param max_context: largest number of tokens of a prompt; the model's context must hold it and ``max_new_tokens``
    :param max_new_tokens: largest number of tokens of a message, with thoughts and the end
    :param system_prompt: a first message with the role ``system``; None: the template decides
    :param template_kwargs: arguments of the chat template, for example ``{"enable_thinking": False}``
    :param n_choices: largest number of admissible commands, for constrained decoding; None: no ``choices``
    :param show_info: function from ``info`` to a text that is put before the observation, unless it is empty
    :param malformed_reward: added to the reward of a malformed message; a small negative number helps a model that
        knows nothing yet
    :raises ValueError: for an environment or settings that do not fit together
    """

    def __init__(
        self,
        env: gym.Env[str, str],
        tokenizer: Any,
        max_context: int,
        max_new_tokens: int,
        system_prompt: str | None = None,
        template_kwargs: dict[str, Any] | None = None,
        n_choices: int | None = None,
        show_info: Callable[[dict[str, Any]], str] | None = None,
        malformed_reward: float = 0.0,
    ) -> None:
        super().__init__(env)
        for name, value in {
            "max_context": max_context,
            "max_new_tokens": max_new_tokens,
            "n_choices": n_choices,
        }.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not _is_text(env):
            raise ValueError(f"ChatView needs text for observations and actions, got {env}: see text_env")
        if not env.has_wrapper_attr("max_turns"):
            raise ValueError(f"ChatView needs an environment with an attribute max_turns, got {env}")
        self.tokenizer = tokenizer
        self._max_context, self._max_new_tokens, self._n_choices = max_context, max_new_tokens, n_choices
        self._system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        self._template_kwargs = dict(template_kwargs or {})
        self._show_info = show_info
        self._malformed_reward = malformed_reward
        stops = stop_token_ids(tokenizer)
        self._stops, self._end = set(stops), stops[0]
        tags = (_THINK, _THOUGHT)
        added = tokenizer.added_tokens_decoder.items()
        special = {id_: token.content for id_, token in added if token.special and token.content not in tags}
        self._hidden = set(special)
        self._spelled = re.compile(
            "|".join(re.escape(text) for text in sorted(special.values(), key=len, reverse=True))
        )
        # Some templates begin the thought themselves, so that the message only ends it.
        self._begun = self._template([*self._system, _message("user", "")], tokenize=False).rstrip().endswith(_THINK)
        template = str(tokenizer.chat_template)
        self._template_changes = "strftime_now" in template  # it depends on the date
        self._template_key = (template, len(tokenizer), repr(self._template_kwargs))
        n_vocab, max_turns = len(tokenizer), int(env.get_wrapper_attr("max_turns"))
        entries: dict[str, spaces.Space[Any]] = {
            "context": spaces.Box(PAD, n_vocab - 1, (max_context,), np.int32),
            "turn": spaces.Box(0, max(max_turns, 1), (1,), np.int32),
        }
        if n_choices is not None:
            entries["choices"] = spaces.Box(PAD, n_vocab - 1, (n_choices, max_new_tokens), np.int32)
        self.observation_space = spaces.Dict(entries)
        self.action_space = spaces.Box(PAD, n_vocab - 1, (max_new_tokens,), np.int32)
        self._n_vocab = n_vocab
        self._messages: list[dict[str, str]] = []
        self._turn = self._dropped = 0
        self._commands: dict[tuple[int, ...], str] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode of the environment."""
        text, info = self.env.reset(seed=seed, options=options)
        self._messages = [*self._system, self._reply(text, info)]
        self._turn = self._dropped = 0
        return self._observe(info), {**info, "dropped_exchanges": 0}

    def step(self, action: NDArray[np.integer[Any]]) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """
        Send a message.

        :param action: its tokens, shape (max_new_tokens,)
        :raises ValueError: if they are not tokens followed by -1 alone, or if the conversation gets too long
        """
        message = self._read(action)
        text, reward, terminated, truncated, info = self.env.step(message)
        if info.get(MALFORMED):
            reward = float(reward) + self._malformed_reward
        self._messages += [_message("assistant", self._plain(message)), self._reply(text, info)]
        self._turn += 1
        info = {**info, "message": message}
        if terminated or truncated:
            observation = self._arrays([], [])
            info["conversation"] = [dict(entry) for entry in self._messages]
        else:
            observation = self._observe(info)
        return observation, reward, terminated, truncated, {**info, "dropped_exchanges": self._dropped}

    def _reply(self, text: str, info: dict[str, Any]) -> dict[str, str]:
        shown = "" if self._show_info is None else self._show_info(info)
        return _message("user", self._plain(f"{shown}\n\n{text}" if shown else text))

    def _plain(self, text: str) -> str:
        """Remove special tokens, including those that only arise when others are removed."""
        while (rest := self._spelled.sub("", text)) != text:
            text = rest
        return text

    def _read(self, action: Any) -> str:
        """Decode the tokens of an action to a message."""
        tokens = np.asarray(action)
        n_tokens = int((tokens != PAD).cumprod().sum())
        if (
            tokens.shape != (self._max_new_tokens,)
            or tokens.dtype.kind not in "iu"
            or not ((tokens[:n_tokens] >= 0) & (tokens[:n_tokens] < self._n_vocab)).all()
            or (tokens[n_tokens:] != PAD).any()
        ):
            raise ValueError(
                f"an action must be {self._max_new_tokens} integers: tokens from 0 to {self._n_vocab - 1}, then {PAD} "
                f"up to the end; got {action!r}"
            )
        ids = tokens[:n_tokens].tolist()
        ids = ids[: next((i for i, token in enumerate(ids) if token in self._stops), n_tokens)]
        if tuple(ids) in self._commands:
            return self._commands[tuple(ids)]
        ids = [token for token in ids if token not in self._hidden]
        text = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        text = self._plain(text)
        _, ended, message = text.rpartition(_THOUGHT)
        if _THINK in message or (self._begun and not ended):
            return ""
        return message.strip()

    def _observe(self, info: dict[str, Any]) -> Observation:
        return self._arrays(self._context(), [] if self._n_choices is None else self._choices(info, self._n_choices))

    def _context(self) -> NDArray[np.int32]:
        """Render the conversation, and drop its oldest exchanges for good until it fits."""
        head = len(self._system) + 1
        while True:
            tokens = self._tokens([*self._messages[:head], *self._messages[head + 2 * self._dropped :]])
            if len(tokens) <= self._max_context:
                return tokens
            if self._dropped + 1 >= self._turn:
                raise ValueError(
                    f"the conversation needs {len(tokens)} tokens at turn {self._turn}, even with only its first "
                    f"message and its last exchange: set max_context, now {self._max_context}, to at least that many"
                )
            self._dropped += 1

    def _tokens(self, messages: list[dict[str, str]]) -> NDArray[np.int32]:
        """Render a conversation, or look it up: members of a group often have the same conversation."""
        if self._template_changes:
            return np.array(self._template(messages), dtype=np.int32)
        memo = _WRITTEN.setdefault(self.tokenizer, OrderedDict())
        key = (self._template_key, tuple((message["role"], message["content"]) for message in messages))
        if key not in memo:
            memo[key] = np.array(self._template(messages), dtype=np.int32)
            if len(memo) > _MEMO_SIZE:
                memo.popitem(last=False)
        memo.move_to_end(key)
        return memo[key]

    def _template(self, messages: list[dict[str, str]], tokenize: bool = True) -> Any:
        """Render a conversation."""
        try:
            return self.tokenizer.apply_chat_template(
                messages, tokenize=tokenize, add_generation_prompt=True, return_dict=False, **self._template_kwargs
            )
        except Exception as error:
            roles = ", ".join(message["role"] for message in messages[:4])
            raise ValueError(
                f"the chat template cannot write a conversation of {roles}, ...: {error} (a template without the role "
                "system needs system_prompt=None)"
            ) from error

    def _choices(self, info: dict[str, Any], n_choices: int) -> list[list[int]]:
        """Encode the admissible commands, and remember which tokens mean which command."""
        if "admissible_commands" not in info:
            raise ValueError('the environment gives no info["admissible_commands"]: set n_choices to None')
        commands = list(dict.fromkeys(info["admissible_commands"])) or [""]
        if len(commands) > n_choices:
            raise ValueError(f"{len(commands)} commands are admissible now: set n_choices to at least that many")
        rows = self.tokenizer(commands, add_special_tokens=False)["input_ids"]
        self._commands = {}
        for command, row in zip(commands, rows, strict=True):
            if len(row) >= self._max_new_tokens:
                raise ValueError(
                    f"the command {command!r} needs {len(row) + 1} tokens: set max_new_tokens to at least that many"
                )
            other = self._commands.setdefault(tuple(row), command)
            if other != command:
                raise ValueError(f"the commands {other!r} and {command!r} are the same tokens: use another tokenizer")
        return [[*row, self._end] for row in rows]

    def _arrays(self, context: Sequence[int] | NDArray[np.int32], choices: list[list[int]]) -> Observation:
        """Make an observation of padded arrays."""
        padded = np.full(self._max_context, PAD, dtype=np.int32)
        padded[: len(context)] = context
        observation = {"context": padded, "turn": np.array([self._turn], dtype=np.int32)}
        if self._n_choices is not None:
            observation["choices"] = np.full((self._n_choices, self._max_new_tokens), PAD, dtype=np.int32)
            for i, row in enumerate(choices):
                observation["choices"][i, : len(row)] = row
        return observation


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _is_text(env: gym.Env[Any, Any]) -> bool:
    return isinstance(env.observation_space, spaces.Text) and isinstance(env.action_space, spaces.Text)


def text_env(env: gym.Env[Any, Any]) -> gym.Env[str, str]:
    """
    Make a text environment of one of this package's tasks. A text environment is returned as it is.

    :param env: a task, or an environment with text for observations and actions
    :raises TypeError: for any other environment
    """
    if isinstance(env.unwrapped, TaskEnv):
        return TextView(env)
    if not _is_text(env):
        raise TypeError(
            f"a language model needs an environment with text for observations and actions, got {env} with "
            f"{env.observation_space} and {env.action_space}: write a wrapper that has spaces.Text for both"
        )
    return env


def make_chat_vec(
    env: str | Callable[..., gym.Env[Any, Any]],
    model: str | Path,
    n_envs: int,
    max_context: int,
    max_new_tokens: int,
    seed: int | None = None,
    vec_env_cls: type[VecEnv] = DummyVecEnv,
    env_kwargs: dict[str, Any] | None = None,
    chat_template: str | None = None,
    **chat_settings: Any,
) -> VecEnv:
    """
    Make a vector environment of :class:`ChatView`.

    :param env: a registered Gymnasium id, or a function that makes an environment; see :func:`text_env`
    :param model: the model whose tokenizer is used, see :func:`~seeupo_gym.agents.language.loading.load_tokenizer`
    :param n_envs: number of environments, at least 1
    :param max_context: see :class:`ChatView`
    :param max_new_tokens: see :class:`ChatView`
    :param seed: environment ``i`` starts from ``seed + i`` at its next reset; None: random
    :param vec_env_cls: SB3 class to use
    :param env_kwargs: arguments of the environment
    :param chat_template: Jinja template; None: the tokenizer's own
    :param chat_settings: other arguments of :class:`ChatView`
    :return: an SB3 vector environment that reports episode statistics and takes queues of seeds
    """
    if n_envs < 1:
        raise ValueError(f"n_envs must be at least 1, got {n_envs}")
    tokenizer = load_tokenizer(model, chat_template)
    env_kwargs = env_kwargs or {}

    def make() -> gym.Env[Any, Any]:
        made = gym.make(env, **env_kwargs) if isinstance(env, str) else env(**env_kwargs)
        return SeedQueue(Monitor(ChatView(text_env(made), tokenizer, max_context, max_new_tokens, **chat_settings)))

    vec_env = vec_env_cls([make] * n_envs)  # type: ignore[call-arg, arg-type]
    if seed is not None:
        vec_env.seed(seed)
    return vec_env
