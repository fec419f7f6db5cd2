"""AppWorld: tasks in a world of apps, solved by writing code that a server of the package ``appworld`` runs."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from seeupo_gym.envs.arguments import check_choice, check_count
from seeupo_gym.envs.info_keys import MALFORMED
from seeupo_gym.envs.suites.text_suite import WIDE_CHARSET, CrashError, TextSuiteEnv

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

_TASK_ID = re.compile(r"[A-Za-z0-9]+_[0-9]+")

# Seconds to wait for an answer beyond the time that the execution of code may take, as starting and evaluating a task
# take time, too.
MARGIN = 60
# The beginning of an answer if no code was executed.
_TOO_LONG = "Execution failed. A message may have"
_NOT_EXECUTED = (
    "No code available to execute.",
    "Execution failed. Traceback:\nSyntax error in line:",
    "Execution failed. Traceback:\nUsage of the following",
    _TOO_LONG,
)
CLOSE_WAIT = 5

# The server is local, and a proxy for the internet could not reach it.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

INSTALL = (
    "AppWorld-v0 needs AppWorld's data, and a server in an environment of its own: pip install appworld==0.1.3.post1; "
    "appworld install; appworld download data; appworld serve environment (data looked for in {})"
)

T = TypeVar("T")


class RefusalError(CrashError):
    """The server answered with an HTTP error, which is 500 for all errors inside. The cause is in the server's log."""


class EnvironmentServer:
    """
    The server of ``appworld serve environment``, over HTTP: one world, in which one task is active.

    :param url: address of the server
    :param wait: seconds to wait for an answer
    :raises ValueError: for an address of another kind
    """

    def __init__(self, url: str, wait: float) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
            valid = isinstance(url, str) and parts.scheme in ("http", "https") and bool(parts.hostname)
            # The address in a form that can be a file name.
            self.name = re.sub(r"[^a-z0-9.]+", "-", f"{parts.hostname}-{parts.port or parts.scheme}")
        except (ValueError, AttributeError, TypeError):
            valid = False
        if not valid:
            raise ValueError(f"url must be the address of a server, such as 'http://127.0.0.1:8000', got {url!r}")
        self.url = url.rstrip("/")
        self.name = self.name.replace("localhost", "127.0.0.1")
        self.wait = wait

    def ask(self, route: str, kind: type[T], wait: float | None = None, **body: Any) -> T:
        """
        Send a request and wait for the answer.

        :param route: name of the route
        :param kind: type of the answer's output
        :param wait: seconds to wait; None: as for all answers
        :param body: the request's fields
        :return: the answer's output
        :raises RefusalError: if the answer is an error
        :raises CrashError: if no answer comes in time, or if it is not one of this protocol
        """
        address, header = f"{self.url}/{route}", {"Content-Type": "application/json"}
        request = urllib.request.Request(address, json.dumps(body).encode(), header)
        try:
            with _OPENER.open(request, timeout=self.wait if wait is None else wait) as response:
                output = json.load(response)["output"]
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(500).decode("utf-8", "replace")
            raise RefusalError(
                f"the AppWorld server at {self.url} refused {route!r}: HTTP {error.code}, {text}"
            ) from error
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            cause = f"{type(error).__name__}: {error}"
            raise CrashError(f"the AppWorld server at {self.url} gave no answer to {route!r} ({cause})") from error
        if not isinstance(output, kind):
            raise CrashError(
                f"the AppWorld server at {self.url} answered {route!r} with {type(output).__name__}, "
                f"not {kind.__name__}: is it another server?"
            )
        return output


def read_split(root: str | None, split: str) -> list[str]:
    """
    Read the task ids of a split from AppWorld's data.

    :param root: folder that has the folder ``data``; None: ``APPWORLD_ROOT`` or the current folder, as in appworld
    :param split: name of a split
    :raises ImportError: if there are no data
    :raises ValueError: for an unknown split
    """
    folder = Path(os.environ.get("APPWORLD_ROOT", ".") if root is None else root).absolute() / "data" / "datasets"
    files = {path.stem: path for path in sorted(folder.glob("*.txt"))}
    if not files:
        raise ImportError(INSTALL.format(folder), name="appworld")
    if split not in files:
        raise ValueError(f"split must be one of {list(files)}, got {split!r}")
    # A line may have a tag, which the package strips, too.
    return [line.split(":")[0].strip() for line in files[split].read_text("utf-8").splitlines() if line.strip()]


def _unlock(file: int, owner: int) -> None:
    """Release a lock, unless this is a fork of the process that owns it."""
    if os.getpid() == owner:
        fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)


class AppWorldEnv(TextSuiteEnv):
    """
    Tasks of AppWorld, on a server of the package ``appworld`` (0.1.3.post1, Apache-2.0), over HTTP.

    ## Description

    A person asks for something that the agent has to do in simulated apps (mail, music, shopping, payments, notes,
    ...), for example to settle a bill among friends. The agent writes Python code, reads what it prints, and ends the
    task with a call of an API. Tasks, apps, execution and tests are those of the package, on a server that the user
    starts. This class imports nothing of the package and executes nothing: it sends the code to the server as text, and
    only the server runs it.

    ## Action Space

    ``Text``: Python code, without Markdown around it, at most 20,000 characters. Variables keep their values from one
    message to the next.

    ## Observation Space

    ``Text``: at the start the task, the person it is for, the date and how to begin; then the output of the code, or
    the error. Characters beyond Latin-1 and punctuation become question marks, and text after 100,000 characters is
    cut. ``info["seeupo_gym/malformed"]`` is True for a message of which nothing was executed.

    ## Rewards

    At the end, by the task's own tests: the fraction of tests that passed (``reward="fraction"``), or 1 if all passed,
    else 0 (``reward="success"``). Some tests pass even if nothing was done.

    ## Starting State

    The seed given to ``reset`` selects task number ``seed % len(tasks)``. A task always starts the same.

    ## Episode End

    The episode terminates when the code has called ``apis.supervisor.complete_task``, or after ``turns`` turns. In both
    cases the tests are run, and ``info`` has ``is_success`` (all passed), ``tests_passed`` and ``num_tests``. If the
    server is gone, hangs or has lost the task, the episode is truncated, with reward 0 and
    ``info["seeupo_gym/crashed"]``: do not learn from it. A RuntimeWarning reports it, and the next reset tries once
    more. A second crash before an episode has ended regularly is a RuntimeError. The server is not started again; that
    is left to the user.

    ## Arguments

    A server holds one task, so every environment needs a server of its own. With the same server, a second environment
    would replace the first one's task, or, if it has the same task, change its world unseen. A lock in the temporary
    folder prevents this on one machine (not on Windows). It is taken at the first ``reset`` and released by ``close``.
    A copy or a pickle has the arguments, but neither the episode nor the lock.

    The server writes to ``experiments/outputs/seeupo_gym-HOST-PORT`` in its own root.

    :param url: address of the server
    :param split: name of a split, ``data/datasets/SPLIT.txt``
    :param root: folder that has the folder ``data``; None: the variable ``APPWORLD_ROOT``, or the current folder
    :param tasks: ids of the tasks, in place of ``split`` and ``root``; no data are read then
    :param turns: turn limit
    :param reward: ``"fraction"`` or ``"success"``
    :param timeout: seconds after which the server stops the execution of a message; the environment waits a minute
        longer for the answer
    :param render_mode: ``"ansi"`` makes :meth:`render` return the transcript of the episode so far
    :raises ImportError: if there are neither data nor ``tasks``

    ## Version History

    * v0: initial version, appworld 0.1.3.post1
    """

    starts_programs = True

    charset = WIDE_CHARSET
    max_observation = 100_000

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        split: str = "train",
        root: str | None = None,
        tasks: Sequence[str] | None = None,
        turns: int = 50,
        reward: str = "fraction",
        timeout: int = 100,
        render_mode: str | None = None,
    ) -> None:
        timeout = check_count("timeout", timeout)
        check_choice("reward", reward, ("fraction", "success"))
        super().__init__(turns, render_mode)
        if tasks is None:
            tasks = read_split(root, split)
        if isinstance(tasks, str) or not tasks or not all(isinstance(t, str) and _TASK_ID.fullmatch(t) for t in tasks):
            raise ValueError(f"tasks must be ids of tasks such as ['82e2fac_1'], got {tasks!r}")
        self.tasks = list(tasks)
        self.reward = reward
        self.timeout = timeout
        self.server = EnvironmentServer(url, timeout + MARGIN)
        self._release: Any = None
        self._reached = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_release": None, "_reached": False, "_running": False}

    def _begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        self.task_id = self.tasks[seed % len(self.tasks)]
        self._claim()
        task = self._initialize()
        person = task["supervisor"]
        text = (
            f"{task['instruction']}\n"
            f"The task is from {person['first_name']} {person['last_name']}, your supervisor (email "
            f"{person['email']}, phone number {person['phone_number']}). It is {task['datetime']}.\n"
            "Your messages are Python code; what it prints is the answer. The apps are in `apis`: "
            "apis.api_docs.show_app_descriptions(), apis.api_docs.show_api_descriptions(app_name=...) and "
            "apis.api_docs.show_api_doc(app_name=..., api_name=...) tell of them. "
            "apis.supervisor.complete_task(answer=...) ends the task, without an answer where none is asked for. "
            f"At most {self.max_turns} messages."
        )
        return text, {"task_id": self.task_id, "supervisor": dict(person), "datetime": task["datetime"]}

    def _play(self, message: str) -> tuple[str, float, bool, dict[str, Any]]:
        text = self._execute(message)
        info: dict[str, Any] = {MALFORMED: text.startswith(_NOT_EXECUTED)}
        if len(text) > self.max_observation:
            note = f"\n[{len(text):,} characters, cut]"
            text = text[: self.max_observation - len(note)] + note
        completed = self.server.ask("task_completed", bool, task_id=self.task_id)
        if not completed and not self._is_last_turn:
            return text, 0.0, False, info
        # If errors are not suppressed, the server itself fails at the first test that fails.
        verdict = self.server.ask("evaluate", dict, task_id=self.task_id, suppress_errors=True)
        success, passed, total = bool(verdict["success"]), len(verdict["passes"]), int(verdict["num_tests"])
        reward = float(success) if self.reward == "success" else passed / max(total, 1)
        return text, reward, True, {**info, "is_success": success, "tests_passed": passed, "num_tests": total}

    def _claim(self) -> None:
        """Lock the server's address. The operating system releases the lock when this process ends."""
        if self._release is not None or fcntl is None:
            return
        name = f"seeupo_gym-appworld-{os.getuid()}-{self.server.name}.lock"
        file = os.open(Path(tempfile.gettempdir()) / name, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            raise RuntimeError(
                f"the AppWorld server at {self.server.url} is in use by another environment: every environment needs "
                "a server of its own, as a server holds one task"
            ) from error
        self._release = weakref.finalize(self, _unlock, file, os.getpid())

    def _initialize(self) -> dict[str, Any]:
        """Start the task on the server."""
        try:
            task = self.server.ask(
                "initialize",
                dict,
                task_id=self.task_id,
                # Tests read the files of the world from a folder of this name, so servers with the same root need
                # different names.
                experiment_name=f"seeupo_gym-{self.server.name}",
                max_interactions=self.max_turns,
                timeout_seconds=self.timeout,
            )
        except RefusalError as error:
            raise RuntimeError(
                f"{error} (task {self.task_id!r}; the server's log says why, a task that its data folder lacks for "
                "example)"
            ) from error
        except CrashError as error:
            if self._reached:
                raise
            raise RuntimeError(
                f"{error}: start one with `appworld serve environment --root ROOT --port PORT`"
            ) from error
        self._reached = True
        return task

    def _execute(self, code: str) -> str:
        """Execute code in the task's world."""
        if len(code) > self.max_message:
            return f"{_TOO_LONG} {self.max_message:,} characters."
        # Text that is not valid Unicode could not be written to the server's log.
        code = code.encode("utf-8", "replace").decode()
        try:
            return self.server.ask("execute", str, task_id=self.task_id, code=code)
        except RefusalError:
            # The task is gone, or the code escaped the server's error handling (as "raise KeyboardInterrupt" does). In
            # the second case the server's guard against writing files stays on, and no other task could be started. An
            # empty program, which is no interaction, takes the guard off. If the task is gone, it is refused, too.
            self.server.ask("execute", str, task_id=self.task_id, code="")
            return "Execution failed. The server could not tell why."

    def close(self) -> None:
        """Close the task on the server and release the server's address; a later reset takes it again."""
        if self._running:
            self._running = False
            # A server that is gone has no task to close.
            with contextlib.suppress(CrashError):
                self.server.ask("close", type(None), wait=CLOSE_WAIT, task_id=self.task_id)
        if self._release is not None:
            self._release()
            self._release = None
