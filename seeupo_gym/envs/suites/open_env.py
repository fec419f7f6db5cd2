"""Environments of OpenEnv servers, played over a websocket session."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import re
import string
import urllib.parse
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from seeupo_gym.envs.task import HELD_OUT_SEED, MAX_SEED

MAX_TEXT_LENGTH = 100_000
MAX_MESSAGE = 20_000
# Latin-1, general punctuation and currencies; other characters of an observation become question marks.
CHARSET = string.printable + "".join(map(chr, [*range(0xA0, 0x100), *range(0x2010, 0x2028), *range(0x20A0, 0x20C0)]))
_OUTSIDE = re.compile(f"[^{re.escape(CHARSET)}]")

INSTALL = "seeupo_gym/OpenEnv-v0 needs the package websockets: pip install 'websockets>=15'"

Fields = dict[str, Any]


class SessionError(RuntimeError):
    """The session is lost, or never was."""


class RefusalError(RuntimeError):
    """A message could not be made an action, or the server could not do it; the session goes on."""


def _load_client() -> Any:
    try:
        return importlib.import_module("websockets.sync.client")
    except ImportError as error:
        raise ImportError(INSTALL, name="websockets") from error


class Session:
    """
    A websocket session, for which the server makes an environment of its own.

    :param url: address of the server
    :param wait: time-out of the connection and of each answer, in seconds
    :raises SessionError: if there is no such server
    """

    def __init__(self, url: str, wait: float) -> None:
        self.url, self.wait = url, wait
        # websockets asks for a with statement; this is one that lasts until close().
        self._stack = contextlib.ExitStack()
        try:
            # No proxy: the server is the user's own. No limit on the size of a message: an observation is cut later.
            connection = _load_client().connect(
                f"ws{url.removeprefix('http')}/ws", open_timeout=wait, close_timeout=1, max_size=None, proxy=None
            )
            self._socket: Any = self._stack.enter_context(connection)
        except Exception as error:  # websockets has its own errors for what is no websocket server
            cause = f"{type(error).__name__}: {error}"
            raise SessionError(f"no session with the OpenEnv server at {url} ({cause})") from error

    def ask(self, kind: str, data: Fields) -> Fields:
        """
        Send a message and wait for the answer.

        :param kind: type of the message, ``"reset"`` or ``"step"``
        :param data: its data
        :return: the answer's data
        :raises RefusalError: if the message was not valid or the environment failed
        :raises SessionError: if there is no answer in time, or none of this protocol
        """
        message = json.dumps({"type": kind, "data": data})
        try:
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
        except Exception as error:  # whatever websockets raises, and answers of another form
            cause = f"{type(error).__name__}: {error}"
            raise SessionError(f"the OpenEnv server at {self.url} gave no answer to {kind!r} ({cause})") from error
        return result

    def close(self) -> None:
        """End the session."""
        with contextlib.suppress(Exception):
            self._stack.close()


class OpenEnvEnv(gym.Env[str, str]):
    """
    An environment that an OpenEnv server (``openenv-core`` 0.3.0) offers, with text in and text out.

    ## Description

    OpenEnv serves environments over websockets; every session has an environment of its own. This class speaks the
    protocol's ``reset`` and ``step``, and needs the package ``websockets`` for that, not ``openenv-core``. What an
    action and an observation are is up to the server; both are objects with named fields. ``action`` and
    ``observation`` say how texts become the one and how the other becomes a text.

    ## Action Space

    ``Text``, at most 20,000 characters; a longer message is cut.

    ## Observation Space

    ``Text``, cut at 100,000 characters; characters beyond Latin-1 and punctuation become question marks. An action that
    the server refuses gets the server's error for an observation and costs the turn (``info["refused"]``).
    ``info["observation"]`` has all fields.

    ## Rewards

    The server's; none is 0.

    ## Starting State

    The seed given to ``reset`` is sent to the server. Whether it fixes the episode is up to the environment there: one
    that does not take a seed is not told of it, and starts as it likes.

    ## Episode End

    Terminates when the server says that the episode is done, and after ``turns`` turns. ``info["is_success"]`` then
    says what ``success`` makes of the last observation, by default whether the episode was done with a positive
    reward. If the session breaks or an answer does not come in time, the episode is truncated, with reward 0 and
    ``info["crashed"]``: leave it out of what is learned from. A RuntimeWarning tells of it, and the next reset starts
    another session; a second time before an episode ended regularly is a RuntimeError.

    ## Arguments

    The session starts at the first ``reset`` and ends with ``close``. A copy or a pickle carries the arguments, not the
    session nor the episode. A server must allow as many sessions as there are environments (``max_concurrent_envs``).

    :param url: address of the server, ``http://...``
    :param action: name of the action's field that takes the message, or a function from the message to the action's
        fields; one that raises ValueError has the message refused
    :param observation: name of the observation's field that is shown, or a function from its fields to a text
    :param success: function of the last observation's fields and the last reward
    :param turns: turn limit
    :param timeout: seconds that an answer is waited for
    :param render_mode: ``"ansi"`` makes :meth:`render` return the transcript of the episode so far
    :raises ImportError: without websockets

    ## Version History

    * v0: initial version, openenv-core 0.3.0
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (Gymnasium declares it mutable)

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
        _load_client()
        parts = urllib.parse.urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must be the address of a server, such as 'http://127.0.0.1:8000', got {url!r}")
        for name, value in (("action", action), ("observation", observation)):
            if not callable(value) and not (isinstance(value, str) and value):
                raise ValueError(f"{name} must be the name of a field or a function, got {value!r}")
        if success is not None and not callable(success):
            raise ValueError(f"success must be a function or None, got {success!r}")
        if type(turns) is not int or turns < 1:
            raise ValueError(f"turns must be an integer of at least 1, got {turns!r}")
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
            raise ValueError(f"timeout must be a positive number, got {timeout!r}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            # A TypeError, as SB3's make_vec_env expects (see TaskEnv).
            raise TypeError(f"render_mode must be None or one of {self.metadata['render_modes']}, got {render_mode!r}")
        self.url = url.rstrip("/")
        self._action, self._observation, self._success = action, observation, success
        self.max_turns = turns
        self.timeout = float(timeout)
        self.render_mode = render_mode
        self.observation_space = spaces.Text(MAX_TEXT_LENGTH, min_length=0, charset=CHARSET)
        self.action_space = spaces.Text(MAX_MESSAGE, min_length=0, charset=CHARSET)
        self._session: Session | None = None
        self._reached = False
        self._crashes = 0
        self._running = False
        self._transcript: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None, "_reached": False, "_running": False}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """
        Start an episode, and the session if there is none.

        :param seed: sent to the server; later resets without one draw theirs from ``np_random``, below 2**31
        :param options: must be empty
        :raises ValueError: for a seed over 2**63 - 1 or an option, as there are none
        :raises RuntimeError: if the server is not there or refuses
        """
        super().reset(seed=seed)
        if options:
            raise ValueError(f"{type(self).__name__} has no reset options, got {sorted(options)}")
        if seed is None:
            seed = int(self.np_random.integers(HELD_OUT_SEED))
        if seed > MAX_SEED:
            raise ValueError(f"seed must be at most 2**63 - 1, got {seed}")
        self._running = False
        fields = self._begin(int(seed))
        text = self._show(fields)
        self._turns, self._running = 0, True
        self._transcript = [text]
        return text, {"observation": fields}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """
        Take one turn.

        :param action: what the agent writes
        :raises ValueError: if it is not text
        :raises gymnasium.error.ResetNeeded: before the first reset and after the end of an episode
        """
        if not isinstance(action, str):
            raise ValueError(f"a message must be a str, got {type(action).__name__}")
        if not self._running or self._session is None:
            raise gym.error.ResetNeeded("the episode is over (or never began): call reset() before step()")
        self._turns += 1
        fields: Fields = {}
        reward, over, refused = 0.0, False, False
        try:
            result = self._session.ask("step", self._fields(action[:MAX_MESSAGE]))
        except SessionError as error:
            self._note_crash(error)
            return self._clean(str(error)), 0.0, False, True, {"crashed": True, "is_success": False}
        except RefusalError as error:
            text, refused = self._clean(f"Refused: {error}"), True
        else:
            fields, reward, over = result["observation"], float(result.get("reward") or 0.0), bool(result.get("done"))
            text = self._show(fields)
        info: dict[str, Any] = {"observation": fields, "refused": refused}
        done = over or self._turns >= self.max_turns
        if done:
            self._running, self._crashes = False, 0
            decide = self._success or (lambda _, last: over and last > 0)
            info["is_success"] = bool(decide(fields, reward))
        if self.render_mode == "ansi":
            self._transcript.append(f"Agent: {action}\n{text}")
        return text, reward, done, False, info

    def _fields(self, message: str) -> Fields:
        """The action that a message means; a RefusalError if the function for that says so."""
        # What is no Unicode cannot be sent.
        message = message.encode("utf-8", "replace").decode()
        if isinstance(self._action, str):
            return {self._action: message}
        try:
            return self._action(message)
        except ValueError as error:
            raise RefusalError(str(error)) from error

    def _show(self, fields: Mapping[str, Any]) -> str:
        """The text of an observation."""
        if not isinstance(self._observation, str):
            return self._clean(self._observation(dict(fields)))
        if self._observation not in fields:
            raise ValueError(f"the observation has no field {self._observation!r}, it has {list(fields)}")
        return self._clean(str(fields[self._observation]))

    def _clean(self, text: str) -> str:
        return _OUTSIDE.sub("?", text[:MAX_TEXT_LENGTH])

    def _begin(self, seed: int) -> Fields:
        """Start an episode; a session that is lost is replaced once, after there has been one."""
        while True:
            try:
                if self._session is None:
                    self._session = Session(self.url, self.timeout)
                result = self._session.ask("reset", {"seed": seed})
            except RefusalError as error:
                raise RuntimeError(f"the OpenEnv server at {self.url} refused the reset: {error}") from error
            except SessionError as error:
                if not self._reached:
                    self.close()
                    raise RuntimeError(f"{error}: is it running, and has it a session left?") from error
                self._note_crash(error)
            else:
                self._reached = True
                observation: Fields = result["observation"]
                return observation

    def _note_crash(self, error: SessionError) -> None:
        self.close()
        self._crashes += 1
        if self._crashes > 1:
            raise RuntimeError(f"{error}, for the second time: it is not tried again") from error
        warnings.warn(f"{error}; it is tried once more", RuntimeWarning, stacklevel=3)

    def render(self) -> str | None:
        """Return the transcript so far (``render_mode="ansi"``), else None."""
        return "\n".join(self._transcript) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """End the session; a later reset starts another."""
        self._running = False
        if self._session is not None:
            self._session.close()
            self._session = None
