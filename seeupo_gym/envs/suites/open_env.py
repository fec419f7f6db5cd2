"""Environments of OpenEnv servers, played over a websocket session."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from seeupo_gym.envs.info_keys import MALFORMED
from seeupo_gym.envs.packages import require
from seeupo_gym.envs.suites.text_suite import WIDE_CHARSET, CrashError, TextSuiteEnv

INSTALL = "seeupo_gym/OpenEnv-v0 needs the package websockets: pip install 'websockets>=15'"

Fields = dict[str, Any]


class RefusalError(RuntimeError):
    """A message is no valid action, or the server failed to take it. The session goes on."""


class Session:
    """
    A websocket session. The server makes an environment for each session.

    :param url: address of the server
    :param wait: seconds to wait for the connection and for each answer
    :raises CrashError: if there is no such server
    """

    def __init__(self, url: str, wait: float) -> None:
        self.url, self.wait = url, wait
        # websockets wants to be used in a with statement; the exit stack is one that lasts until close().
        self._stack = contextlib.ExitStack()
        try:
            # No proxy, as the server is the user's own. No limit on messages, as observations are cut later.
            connection = require("websockets.sync.client", INSTALL).connect(
                f"ws{url.removeprefix('http')}/ws", open_timeout=wait, close_timeout=1, max_size=None, proxy=None
            )
            self._socket: Any = self._stack.enter_context(connection)
        except Exception as error:  # websockets raises errors of its own if there is no websocket server
            cause = f"{type(error).__name__}: {error}"
            raise CrashError(f"no session with the OpenEnv server at {url} ({cause})") from error

    def ask(self, kind: str, data: Fields) -> Fields:
        """
        Send a message and wait for the answer.

        :param kind: type of the message, ``"reset"`` or ``"step"``
        :param data: its data
        :return: the answer's data
        :raises RefusalError: if the message was not valid, or the environment failed
        :raises CrashError: if no answer comes in time, or if it is not one of this protocol
        """
        message = json.dumps({"type": kind, "data": data})
        closed = importlib.import_module("websockets.exceptions").ConnectionClosed
        try:
            # A server with no session left says so and closes, perhaps before we send. What it said can still be read.
            with contextlib.suppress(closed):
                self._socket.send(message)
            answer = json.loads(self._socket.recv(timeout=self.wait))
            if answer["type"] == "error" and answer["data"]["code"] in ("VALIDATION_ERROR", "EXECUTION_ERROR"):
                raise RefusalError(str(answer["data"].get("errors") or answer["data"]["message"]))
            if answer["type"] != "observation":
                raise ValueError(answer["data"])
            result: Fields = answer["data"]
            if not isinstance(result["observation"], dict):
                raise TypeError("an observation that is no object")
        except RefusalError:
            raise
        except Exception as error:  # errors of websockets, and answers of another form
            cause = f"{type(error).__name__}: {error}"
            raise CrashError(f"the OpenEnv server at {self.url} gave no answer to {kind!r} ({cause})") from error
        return result

    def close(self) -> None:
        """End the session."""
        with contextlib.suppress(Exception):
            self._stack.close()


class OpenEnvEnv(TextSuiteEnv):
    """
    Environment on an OpenEnv server (``openenv-core`` 0.3.0), with text in and text out.

    ## Description

    OpenEnv serves environments over websockets; every session has an environment of its own. This class speaks the
    protocol's ``reset`` and ``step``. For that it needs the package ``websockets``, but not ``openenv-core``. The
    server decides what an action and an observation are; both are objects with named fields. The argument ``action``
    says how a message becomes an action, and ``observation`` how an observation becomes a text.

    ## Action Space

    ``Text``, at most 20,000 characters; a longer message is cut.

    ## Observation Space

    ``Text``, cut at 100,000 characters; characters beyond Latin-1 and punctuation become question marks. If the server
    refuses an action, the observation is the server's error, and the turn is spent (``info["refused"]``, and also
    ``info["seeupo_gym/malformed"]``). ``info["observation"]`` has all fields.

    ## Rewards

    Those of the server. No reward counts as 0.

    ## Starting State

    The seed given to ``reset`` is sent to the server. The environment there may use it or not: OpenEnv does not pass it
    on to an environment that takes no seed, which then starts as it likes.

    ## Episode End

    Terminates when the server says that the episode is done, and after ``turns`` turns. ``info["is_success"]`` is then
    the result of ``success`` for the last observation; by default it is True if the episode was done with a positive
    reward. If the session breaks or an answer does not come in time, the episode is truncated, with reward 0 and
    ``info["seeupo_gym/crashed"]``: do not learn from it. A RuntimeWarning reports it, and the next reset starts another
    session. A second crash before an episode has ended regularly is a RuntimeError.

    ## Arguments

    The session starts at the first ``reset`` and ends with ``close``. A copy or a pickle has the arguments, but neither
    the session nor the episode. A server must allow as many sessions as there are environments
    (``max_concurrent_envs``).

    :param url: address of the server, ``http://...``
    :param action: name of the action's field that takes the message, or a function from the message to the action's
        fields; if the function raises ValueError, the message is refused
    :param observation: name of the observation's field that is shown, or a function from its fields to a text
    :param success: function from the last observation's fields, and the reward that came with it, to True or False; a
        refused message brings no observation
    :param turns: turn limit
    :param timeout: seconds to wait for an answer
    :param render_mode: ``"ansi"`` makes :meth:`render` return the transcript of the episode so far
    :raises ImportError: without websockets

    ## Version History

    * v0: initial version, openenv-core 0.3.0
    """

    starts_programs = True

    charset = WIDE_CHARSET
    max_observation = 100_000

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        action: str | Callable[[str], Fields] = "message",
        observation: str | Callable[[Fields], str] = "message",
        success: Callable[[Fields, float], bool] | None = None,
        turns: int = 50,
        timeout: float = 60.0,
        render_mode: str | None = None,
    ) -> None:
        require("websockets.sync.client", INSTALL)
        parts = urllib.parse.urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must be the address of a server, such as 'http://127.0.0.1:8000', got {url!r}")
        for name, value in (("action", action), ("observation", observation)):
            if not callable(value) and not (isinstance(value, str) and value):
                raise ValueError(f"{name} must be the name of a field or a function, got {value!r}")
        if success is not None and not callable(success):
            raise ValueError(f"success must be a function or None, got {success!r}")
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
            raise ValueError(f"timeout must be a positive number, got {timeout!r}")
        super().__init__(turns, render_mode)
        self.url = url.rstrip("/")
        self._action, self._observation, self._success = action, observation, success
        self.timeout = float(timeout)
        self._session: Session | None = None
        self._reached = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None, "_reached": False, "_running": False}

    def _begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        try:
            if self._session is None:
                self._session = Session(self.url, self.timeout)
            result = self._session.ask("reset", {"seed": seed})
        except RefusalError as error:
            raise RuntimeError(f"the OpenEnv server at {self.url} refused the reset: {error}") from error
        except CrashError as error:
            if self._reached:
                raise
            self.close()
            raise RuntimeError(f"{error}: is it running, and has it a session left?") from error
        self._reached = True
        fields, _ = self._last = result["observation"], float(result.get("reward") or 0.0)
        return self._show(fields), {"observation": fields}

    def _play(self, message: str) -> tuple[str, float, bool, dict[str, Any]]:
        assert self._session is not None
        fields: Fields = {}
        reward, over, refused = 0.0, False, False
        try:
            result = self._session.ask("step", self._fields(message[: self.max_message]))
        except RefusalError as error:
            text, refused = f"Refused: {error}", True
        else:
            fields, reward = self._last = result["observation"], float(result.get("reward") or 0.0)
            text, over = self._show(fields), bool(result.get("done"))
        info: dict[str, Any] = {"observation": fields, "refused": refused, MALFORMED: refused}
        done = over or self._is_last_turn
        if done:
            decide = self._success or (lambda _, last: over and last > 0)
            info["is_success"] = bool(decide(*self._last))
        return text, reward, done, info

    def _fields(self, message: str) -> Fields:
        """Make an action of a message; a RefusalError if the user's function refuses it."""
        # Text that is not valid Unicode cannot be sent.
        message = message.encode("utf-8", "replace").decode()
        if isinstance(self._action, str):
            return {self._action: message}
        try:
            return self._action(message)
        except ValueError as error:
            raise RefusalError(str(error)) from error

    def _show(self, fields: Mapping[str, Any]) -> str:
        """Make a text of an observation."""
        if not isinstance(self._observation, str):
            return self._observation(dict(fields))
        if self._observation not in fields:
            raise ValueError(f"the observation has no field {self._observation!r}, it has {list(fields)}")
        return str(fields[self._observation])

    def _clean_up(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def close(self) -> None:
        """End the session; a later reset starts another."""
        self._running = False
        self._clean_up()
