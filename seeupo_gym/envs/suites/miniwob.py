"""MiniWoB++: small tasks on web pages, done in a real browser."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import string
import time
import warnings
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from seeupo_gym.envs.suites.miniwob_browser import (
    Browser,
    BrowserCrashError,
    Element,
    find_programs,
    html_folder,
    printable,
    quote,
    read_elements,
)
from seeupo_gym.envs.task import HELD_OUT_SEED

MAX_TEXT_LENGTH = 20_000

# Keys are sent one by one.
MAX_TYPED = 256

_CLICK = re.compile(r"click \[([0-9]{1,9})\].*", re.DOTALL | re.IGNORECASE)
_TYPE = re.compile(r'type ("(?:[^"\\]|\\.)*") into \[([0-9]{1,9})\].*', re.DOTALL | re.IGNORECASE)


class MiniWoBEnv(gym.Env[str, str]):
    """
    Tasks of MiniWoB++ (``miniwob``, MIT): click, type and find things on small web pages, in a headless Chromium.

    ## Description

    The pages, their seeds, what a click does and the rewards are the suite's; this class gives them text for
    observations and actions, a turn limit in place of the suite's ten seconds, and one browser an environment.

    ## Action Space

    ``Text``: ``click [5]`` or ``type "some text" into [5]``, where 5 is the number of an element of the page. What
    follows is not read, so that ``info["admissible_commands"]`` can say what the element is: it lists, sorted, a click
    on every element and, for every element that takes text, the typing of every string that the task quotes or that
    the suite extracts from it. Other strings can be typed too: JSON notation, up to 256 printable characters. Typing
    clicks the element first and adds to what is in it. In a message of another form nothing is understood: it gets a
    reply that says so, and costs the turn (``info["malformed"]``).

    There is no dragging, scrolling, hovering or pressing of other keys: tasks that need them cannot be solved.

    ## Observation Space

    ``Text``, printable ASCII: the task and the page, one element a line, as number, tag, ``#id`` and ``.classes``
    (which stand for the icons), text and state; other signs are escaped as in JSON. ``info`` has the two apart
    (``utterance`` and ``page``). What only a picture shows, such as places and shapes, is not in it.

    ## Rewards

    The suite's raw reward, once at the end: 1 for a solved task, -1 (in some tasks 0, or a part of 1) else. It does
    not decrease with time.

    ## Starting State

    The seed given to ``reset`` is the seed of the suite's generator of tasks. The page is loaded anew for each
    episode. In some tasks, such as click-test, seeds move the same elements to other places, which the text does not
    tell. Animations of jQuery are switched off; tasks with timers of their own follow the clock.

    ## Episode End

    The episode terminates when the page ends it (``info["is_success"]``: whether the reward is 1) or after
    ``turns`` turns, with -1, as at the suite's time limit. If the browser dies or does not answer for a minute, the
    episode is truncated, with reward 0 and ``info["crashed"]``: leave it out of what is learned from. A RuntimeWarning
    tells of it, and the next reset starts the browser again; a second crash before an episode ended regularly is a
    RuntimeError.

    ## Arguments

    The browser starts at the first ``reset``. A copy or a pickle carries the arguments, not the browser nor the
    episode.

    :param task: one of the suite's tasks, for example click-button or login-user; not the flight ones
    :param turns: turn limit
    :param data_mode: ``"train"`` or ``"test"``, for the five tasks that have sentences or targets for both
    :param wait_ms: time to wait after each action, for tasks in which something appears after a while
    :param render_mode: ``"ansi"`` makes :meth:`render` return the transcript of the episode so far
    :raises ImportError: if the package, the browser or its driver is missing

    ## Version History

    * v0: initial version, miniwob 1.1.0
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (Gymnasium declares it mutable)

    def __init__(
        self,
        task: str = "click-test",
        turns: int = 10,
        data_mode: str = "train",
        wait_ms: int = 0,
        render_mode: str | None = None,
    ) -> None:
        tasks = sorted(page.stem for page in (html_folder() / "miniwob").glob("*.html"))
        find_programs()
        if task not in tasks:
            raise ValueError(f"task must be one of {', '.join(tasks)}, got {task!r}")
        if not isinstance(turns, int) or turns < 1:
            raise ValueError(f"turns must be an integer of at least 1, got {turns!r}")
        if data_mode not in ("train", "test"):
            raise ValueError(f"data_mode must be 'train' or 'test', got {data_mode!r}")
        if not isinstance(wait_ms, int) or wait_ms < 0:
            raise ValueError(f"wait_ms must be an integer of at least 0, got {wait_ms!r}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            # A TypeError, as SB3's make_vec_env expects (see TaskEnv).
            raise TypeError(f"render_mode must be None or one of {self.metadata['render_modes']}, got {render_mode!r}")
        self.task, self.data_mode, self.wait_ms = task, data_mode, wait_ms
        self.max_turns = turns
        self.render_mode = render_mode
        self.observation_space = spaces.Text(MAX_TEXT_LENGTH, min_length=0, charset=string.printable)
        self.action_space = spaces.Text(MAX_TEXT_LENGTH, min_length=0, charset=string.printable)
        self._browser: Browser | None = None
        self._crashes = 0
        self._running = False
        self._transcript: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        # The browser stays where it was started: a copy has none, and no episode.
        return {**self.__dict__, "_browser": None, "_running": False}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """
        Start an episode, and the browser if it does not run.

        :param seed: seed of the task
        :param options: must be empty
        :raises ValueError: for an option, as there are none
        :raises RuntimeError: if the browser does not start, or died twice in a row
        """
        super().reset(seed=seed)
        if options:
            raise ValueError(f"{type(self).__name__} has no reset options, got {sorted(options)}")
        if seed is None:
            seed = int(self.np_random.integers(HELD_OUT_SEED))
        self._running = False
        self._take_in(self._begin(seed))
        self._running = True
        self._turn = 0
        text = self._text()
        self._transcript = [text]
        return text, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """
        Take one turn.

        :param action: what to do
        :raises ValueError: if it is not text
        :raises gymnasium.error.ResetNeeded: before the first reset and after the end of an episode
        """
        if not isinstance(action, str):
            raise ValueError(f"an action must be a str, got {type(action).__name__}")
        if not self._running or self._browser is None:
            raise gym.error.ResetNeeded("the episode is over (or never began): call reset() before step()")
        self._turn += 1
        command = self._parse(action)
        try:
            if command is not None:
                self._browser.act(*command)
                time.sleep(self.wait_ms / 1000)
            page = self._browser.read(time_is_up=self._turn >= self.max_turns)
        except BrowserCrashError as error:
            self._running = False
            self._note_crash(error)
            return printable(str(error)), 0.0, False, True, {**self._info(), "crashed": True, "is_success": False}
        self._take_in(page)
        done = bool(page["done"])
        reward = float(page["reward"]) if done else 0.0
        info = {**self._info(), "malformed": command is None}
        text = self._text()
        if command is None:
            text = f'Nothing was understood: write click [5] or type "some text" into [5], with a number below.\n{text}'
        if done:
            # The page is covered now: there is nothing to do on it.
            info.update(is_success=reward >= 1, admissible_commands=[], page="")
            text = f"The episode is over, with reward {reward:g}."
            self._crashes = 0
        self._running = not done
        if self.render_mode == "ansi":
            self._transcript.append(f"> {printable(action[:MAX_TEXT_LENGTH])}\n{text}")
        return text, reward, done, False, info

    def _parse(self, message: str) -> tuple[int, str | None] | None:
        """Find the element that a message is about and the text to type, if any."""
        message = message[:MAX_TEXT_LENGTH].strip()
        typed: str | None = None
        if match := _TYPE.fullmatch(message):
            try:
                typed = json.loads(match[1])
            except json.JSONDecodeError:
                return None
            # Other characters stand for keys such as Control in the browser's protocol.
            if len(typed) > MAX_TYPED or not typed.isprintable():
                return None
        elif not (match := _CLICK.fullmatch(message)):
            return None
        ref = int(match[match.lastindex or 1])
        return (ref, typed) if ref and any(element.ref == ref for element in self._elements) else None

    def _begin(self, seed: int) -> dict[str, Any]:
        """Start the task in the browser; a dead one is replaced once."""
        while True:
            if self._browser is None:
                self._browser = Browser()
            try:
                return self._browser.begin(self.task, seed, self.data_mode)
            except BrowserCrashError as error:
                self._note_crash(error)

    def _note_crash(self, error: BrowserCrashError) -> None:
        self._stop_browser()
        self._crashes += 1
        if self._crashes > 1:
            raise RuntimeError(f"{error}, for the second time: it is not started again") from error
        warnings.warn(f"{error}; it is started again", RuntimeWarning, stacklevel=3)

    def _stop_browser(self) -> None:
        if self._browser is not None:
            self._browser.stop()
            self._browser = None

    def _take_in(self, page: dict[str, Any]) -> None:
        self._utterance: str = page["utterance"]
        self._elements: list[Element] = list(read_elements(page["dom"]))
        fields = dict(page["fields"] or {})
        extract = importlib.import_module("miniwob.fields").FIELD_EXTRACTORS.get(self.task)
        if not fields and extract is not None:
            with contextlib.suppress(ValueError):  # not every sentence is one that the suite extracts from
                fields = dict(extract(self._utterance))
        self._strings = {*re.findall(r'"([^"]*)"', self._utterance), *map(str, fields.values())} - {""}

    def _text(self) -> str:
        """What the player reads."""
        return f"Task: {printable(self._utterance)}\n{self._page()}"[:MAX_TEXT_LENGTH]

    def _page(self) -> str:
        return "\n".join(map(str, self._elements))

    def _info(self) -> dict[str, Any]:
        commands = {f"click {element.title}" for element in self._elements if element.ref}
        commands |= {
            f"type {quote(text)} into {element.title}"
            for element in self._elements
            if element.typable
            for text in self._strings
        }
        return {
            "admissible_commands": sorted(commands),
            "utterance": printable(self._utterance),
            "page": self._page(),
        }

    def render(self) -> str | None:
        """Return the transcript so far (``render_mode="ansi"``), else None."""
        return "\n".join(self._transcript) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """End the browser; a later reset starts another."""
        self._running = False
        self._stop_browser()
