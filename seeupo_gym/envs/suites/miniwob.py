"""MiniWoB++: small tasks on web pages, done in a real browser."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import time
from typing import Any

from seeupo_gym.envs.arguments import check_choice, check_count
from seeupo_gym.envs.info_keys import MALFORMED
from seeupo_gym.envs.suites.miniwob_browser import (
    Browser,
    Element,
    find_programs,
    html_folder,
    printable,
    quote,
    read_elements,
)
from seeupo_gym.envs.suites.text_suite import TextSuiteEnv

# Keys are sent one by one.
MAX_TYPED = 256

_CLICK = re.compile(r"click \[([0-9]{1,9})\].*", re.DOTALL | re.IGNORECASE)
_TYPE = re.compile(r'type ("(?:[^"\\]|\\.)*") into \[([0-9]{1,9})\].*', re.DOTALL | re.IGNORECASE)


class MiniWoBEnv(TextSuiteEnv):
    """
    A task of MiniWoB++ (``miniwob``, MIT): click, type and find things on a small web page, in a headless Chromium.

    ## Description

    The pages, their seeds, what a click does and the rewards are the suite's; this class gives them text for
    observations and actions, a turn limit in place of the suite's ten seconds, and one browser an environment.

    ## Action Space

    ``Text``: ``click [5]`` or ``type "some text" into [5]``, where 5 is the number of an element of the page. The
    string is in JSON notation, with up to 256 printable characters. Typing clicks the element first, and adds to the
    text that is in it. A message of another form costs the turn, and the reply says so
    (``info["seeupo_gym/malformed"]``).

    ``info["admissible_commands"]`` lists, sorted, a click on every element and, for every element that takes text, the
    typing of every string that the task quotes or that the suite extracts from it. These commands end with a
    description of the element: text after the number is not read.

    Dragging, scrolling, hovering and other keys are not available, so tasks that need them cannot be solved.

    ## Observation Space

    ``Text``, printable ASCII: the task, then the page, one element a line: its number, tag, ``#id``, ``.classes``
    (which name the icons), text and state. Other characters are escaped as in JSON. ``info`` has the two parts
    separately (``utterance`` and ``page``). Places, shapes and whatever else only a picture shows are missing.

    ## Rewards

    The suite's raw reward, once at the end: 1 for a solved task, else -1 (in some tasks 0, or a part of 1). It does not
    decrease with time.

    ## Starting State

    The seed given to ``reset`` is the seed of the suite's generator of tasks. The page is loaded anew for each
    episode. In some tasks, such as click-test, seeds only move the same elements to other places, which the text does
    not show. Animations of jQuery are switched off. Tasks with timers of their own depend on the clock.

    ## Episode End

    The episode terminates when the page ends it, or after ``turns`` turns, with -1, as at the suite's time limit.
    ``info["is_success"]`` is True if the reward is 1. If the browser dies or does not answer for a minute, the episode
    is truncated, with reward 0 and ``info["seeupo_gym/crashed"]``: do not learn from it. A RuntimeWarning reports it,
    and the next reset starts the browser again. A second crash before an episode has ended regularly is a RuntimeError.

    ## Arguments

    The browser starts at the first ``reset``. A copy or a pickle has the arguments, but neither the browser nor the
    episode.

    :param task: one of the suite's tasks, for example click-button or login-user; the flight tasks are not available
    :param turns: turn limit
    :param data_mode: ``"train"`` or ``"test"``, for the five tasks that have sentences or targets for both
    :param wait_ms: time to wait after each action, for tasks in which something appears after a while
    :param render_mode: ``"ansi"`` makes :meth:`render` return the transcript of the episode so far
    :raises ImportError: if the package, the browser or its driver is missing

    ## Version History

    * v0: initial version, miniwob 1.1.0
    """

    starts_programs = True

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
        check_choice("task", task, tasks)
        check_choice("data_mode", data_mode, ("train", "test"))
        check_count("wait_ms", wait_ms, least=0)
        super().__init__(turns, render_mode)
        self.task, self.data_mode, self.wait_ms = task, data_mode, wait_ms
        self._browser: Browser | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The browser belongs to the original: a copy has neither a browser nor an episode.
        return {**self.__dict__, "_browser": None, "_running": False}

    def _begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        if self._browser is None:
            self._browser = Browser()
        self._take_in(self._browser.begin(self.task, seed, self.data_mode))
        return self._text(), self._info()

    def _play(self, message: str) -> tuple[str, float, bool, dict[str, Any]]:
        assert self._browser is not None
        command = self._parse(message)
        if command is not None:
            self._browser.act(*command)
            time.sleep(self.wait_ms / 1000)
        page = self._browser.read(time_is_up=self._is_last_turn)
        self._take_in(page)
        info = {**self._info(), MALFORMED: command is None}
        if page["done"]:
            reward = float(page["reward"])
            # The page is covered now, so there is nothing to do on it.
            info.update(is_success=reward >= 1, admissible_commands=[], page="")
            return f"The episode is over, with reward {reward:g}.", reward, True, info
        text = self._text()
        if command is None:
            text = f'Nothing was understood: write click [5] or type "some text" into [5], with a number below.\n{text}'
        return text, 0.0, False, info

    def _parse(self, message: str) -> tuple[int, str | None] | None:
        """Find the element that a message is about, and the text to type, if any."""
        message = message[: self.max_message].strip()
        typed: str | None = None
        if match := _TYPE.fullmatch(message):
            try:
                typed = json.loads(match[1])
            except json.JSONDecodeError:
                return None
            # In the browser's protocol other characters stand for keys such as Control.
            if len(typed) > MAX_TYPED or not typed.isprintable():
                return None
        elif not (match := _CLICK.fullmatch(message)):
            return None
        ref = int(match[match.lastindex or 1])
        return (ref, typed) if ref and any(element.ref == ref for element in self._elements) else None

    def _clean_up(self) -> None:
        browser, self._browser = self._browser, None
        if browser is not None:
            browser.stop()

    def _take_in(self, page: dict[str, Any]) -> None:
        self._utterance: str = page["utterance"]
        self._elements: list[Element] = list(read_elements(page["dom"]))
        fields = dict(page["fields"] or {})
        extract = importlib.import_module("miniwob.fields").FIELD_EXTRACTORS.get(self.task)
        if not fields and extract is not None:
            with contextlib.suppress(ValueError):  # the suite cannot extract from every sentence
                fields = dict(extract(self._utterance))
        self._strings = {*re.findall(r'"([^"]*)"', self._utterance), *map(str, fields.values())} - {""}

    def _text(self) -> str:
        """Write the text that the player reads."""
        return f"Task: {printable(self._utterance)}\n{self._page()}"

    def _page(self) -> str:
        return "\n".join(map(str, self._elements))

    def _crash_info(self) -> dict[str, Any]:
        return self._info()

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

    def close(self) -> None:
        """End the browser; a later reset starts another."""
        self._running = False
        self._clean_up()
