"""The base of all suites' environments: text, turns, seeds, a transcript, and programs that can crash."""

from __future__ import annotations

import re
import string
import warnings
from abc import abstractmethod
from typing import Any, ClassVar

import gymnasium as gym
from gymnasium import spaces

from seeupo_gym.envs.arguments import check_count
from seeupo_gym.envs.info_keys import CRASHED
from seeupo_gym.envs.task import HELD_OUT_SEED, MAX_SEED

# Latin-1, general punctuation and currency signs: the characters of texts that people wrote.
WIDE_CHARSET = string.printable + "".join(
    map(chr, [*range(0xA0, 0x100), *range(0x2010, 0x2028), *range(0x20A0, 0x20C0)])
)


class CrashError(RuntimeError):
    """A program that plays a suite died, hangs, or gave a useless answer."""


class TextSuiteEnv(gym.Env[str, str]):
    """
    Environment of a suite. A subclass says how an episode begins (``_begin``) and what a message does (``_play``).

    Observations are cut at ``max_observation`` characters, and characters outside ``charset`` become question marks.

    One :class:`CrashError` is forgiven, with a RuntimeWarning. If ``_play`` raises it, the episode is truncated, with
    reward 0 and ``info["seeupo_gym/crashed"]``, and the next reset starts anew. If ``_begin`` raises it, the reset
    starts anew at once. A second crash is a RuntimeError, unless an episode has ended in between: regularly, or by a
    reset after at least one turn.

    :param turns: turn limit
    :param render_mode: ``"ansi"`` makes :meth:`render` return the transcript of the episode so far
    :raises TypeError: for another render mode
    :raises ValueError: for a turn limit below 1
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (Gymnasium declares it mutable)

    starts_programs: ClassVar[bool] = False
    """True where a copy would start or share a program; see :mod:`seeupo_gym.envs.hidden_state`."""

    max_observation: ClassVar[int] = 20_000
    max_message: ClassVar[int] = 20_000
    charset: ClassVar[str] = string.printable
    max_seed: ClassVar[int] = MAX_SEED

    def __init__(self, turns: int, render_mode: str | None) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            # It must be a TypeError, which SB3's make_vec_env expects (see TaskEnv).
            raise TypeError(f"render_mode must be None or one of {self.metadata['render_modes']}, got {render_mode!r}")
        self.max_turns = check_count("turns", turns)
        self.render_mode = render_mode
        self.observation_space = spaces.Text(self.max_observation, min_length=0, charset=self.charset)
        self.action_space = spaces.Text(self.max_message, min_length=0, charset=self.charset)
        self._outside = re.compile(f"[^{re.escape(self.charset)}]")
        self._turns_taken = 0
        self._running = False
        self._crashes = 0
        self._transcript: list[str] = []

    @abstractmethod
    def _begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        """
        Start an episode.

        :param seed: decides on the episode, from 0 to ``max_seed``
        :return: the text that the agent reads, and ``info``
        """

    @abstractmethod
    def _play(self, message: str) -> tuple[str, float, bool, dict[str, Any]]:
        """
        Take one turn, which ``_turns_taken`` counts already.

        :param message: what the agent wrote
        :return: the text that the agent reads, the reward, whether the episode is over, and ``info``
        """

    def _clean_up(self) -> None:
        """Remove all that is left of a program that crashed, whatever state it is in."""

    def _crash_info(self) -> dict[str, Any]:
        """Return more entries for the ``info`` of an episode that is truncated after a crash."""
        return {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """
        Start an episode, and the program that plays it if it does not run yet.

        :param seed: see "Starting State"; later resets without a seed draw one below 2**31 from ``np_random``
        :param options: must be empty
        :raises ValueError: for a seed that is too large, and for any option, as there are none
        :raises RuntimeError: if the program does not start
        """
        super().reset(seed=seed)
        if options:
            raise ValueError(f"{type(self).__name__} has no reset options, got {sorted(options)}")
        if seed is None:
            seed = int(self.np_random.integers(HELD_OUT_SEED))
        if seed > self.max_seed:
            raise ValueError(f"seed must be at most {self.max_seed}, got {seed}")
        if self._running and self._turns_taken:
            self._crashes = 0  # something else has ended the episode, for example a TimeLimit
        self._running, self._turns_taken = False, 0
        while True:
            try:
                text, info = self._begin(int(seed))
                break
            except CrashError as error:
                self._note_crash(error)
        self._running = True
        text = self._clean(text)
        self._transcript = [text]
        return text, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """
        Take one turn.

        :param action: what the agent writes
        :raises ValueError: if it is not text
        :raises gymnasium.error.ResetNeeded: before the first reset and after the end of an episode
        """
        if not isinstance(action, str):
            raise ValueError(f"a message must be a str, got {type(action).__name__}")
        self._need_episode("step()")
        self._turns_taken += 1
        try:
            text, reward, done, info = self._play(action)
        except CrashError as error:
            self._running = False
            self._note_crash(error)
            return (
                self._clean(str(error)),
                0.0,
                False,
                True,
                {**self._crash_info(), CRASHED: True, "is_success": False},
            )
        if done:
            self._running, self._crashes = False, 0
        text = self._clean(text)
        if self.render_mode == "ansi":
            self._transcript.append(f"Agent: {self._outside.sub('?', action[: self.max_message])}\n{text}")
        return text, reward, done, False, info

    @property
    def _is_last_turn(self) -> bool:
        return self._turns_taken >= self.max_turns

    def _need_episode(self, call: str) -> None:
        if not self._running:
            raise gym.error.ResetNeeded(f"the episode is over (or never began): call reset() before {call}")

    def _clean(self, text: str) -> str:
        return self._outside.sub("?", text[: self.max_observation])

    def _note_crash(self, error: CrashError) -> None:
        self._clean_up()
        self._crashes += 1
        if self._crashes > 1:
            raise RuntimeError(f"{error}, for the second time in a row: it is not tried again") from error
        warnings.warn(f"{error}; it is tried once more", RuntimeWarning, stacklevel=3)

    def render(self) -> str | None:
        """Return the transcript so far (``render_mode="ansi"``), else None."""
        return "\n".join(self._transcript) if self.render_mode == "ansi" else None
