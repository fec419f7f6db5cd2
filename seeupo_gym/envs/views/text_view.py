"""A task played in words: the agent reads a text and writes a message."""

from __future__ import annotations

import string
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from seeupo_gym.envs.info_keys import MALFORMED
from seeupo_gym.envs.messages import MessageError
from seeupo_gym.envs.task import NO_ACTION, TaskEnv, bare_task_env

MAX_TEXT_LENGTH = 20_000


class TextView(gym.Env[str, str]):
    """
    One of this package's tasks with text for observations and for actions.

    The observation is what a person would read: the opening at the start, then the reply to each message. Case,
    punctuation and other words around an action do not matter in a message. A message that means no action costs the
    turn, and the reply says what would be understood. The dynamics, rewards and seeds are the task's.

    :param env: a task of this package, for example ``gym.make("seeupo_gym/ToolChain-v0")``
    :raises TypeError: for any other environment, and for a task in a wrapper: wrappers go around this view
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (Gymnasium declares it mutable)

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        base = bare_task_env(env)
        if base is None and isinstance(env.unwrapped, TaskEnv):
            raise TypeError(f"TextView plays the task without its wrappers: put them around TextView, got {env}")
        if base is None:
            raise TypeError(f"TextView needs one of this package's tasks (see docs/environments.md), got {env}")
        self.env = base
        self.task = base.task
        self.max_turns = base.max_turns
        self.render_mode = base.render_mode
        self.observation_space = spaces.Text(MAX_TEXT_LENGTH, min_length=0, charset=string.printable)
        self.action_space = spaces.Text(MAX_TEXT_LENGTH, min_length=0, charset=string.printable)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; see :meth:`TaskEnv.reset`. The observation is its opening."""
        super().reset(seed=seed)
        _, info = self.env.reset(seed=seed, options=options)
        return self.task.opening_text(0), info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """
        Take one turn.

        :param action: what the agent writes
        :return: as ``step`` of Gymnasium, with the reply as observation; ``info["seeupo_gym/malformed"]`` is True
            for a message that means no action
        :raises ValueError: if the message is not text
        :raises gymnasium.error.ResetNeeded: before the first reset and after the end of an episode
        """
        if not isinstance(action, str):
            raise ValueError(f"a message must be a str, got {type(action).__name__}")
        complaint = ""
        try:
            choice = self.task.parse_action(0, action)
        except MessageError as error:
            choice, complaint = np.full(self.env.action_space.shape or (), NO_ACTION), str(error)
        _, reward, terminated, truncated, info = self.env.take(choice, action, complaint)
        return self.env.last_reply, reward, terminated, truncated, {**info, MALFORMED: bool(complaint)}

    def reseed_noise(self, seed: int) -> None:
        """See :meth:`TaskEnv.reseed_noise`."""
        self.env.reseed_noise(seed)

    def expert_message(self) -> str:
        """Write the message of the reference expert."""
        return self.task.action_text(0, self.task.expert_actions()[0])

    def render(self) -> str | None:
        """Return the transcript so far (``render_mode="ansi"``), else None."""
        return self.env.render()

    def close(self) -> None:
        """Close the task."""
        self.env.close()
