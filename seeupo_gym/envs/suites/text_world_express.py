"""TextWorldExpress: eight text games of household tasks and puzzles, run by a Java process."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shutil
import subprocess
import weakref
from typing import Any

from seeupo_gym.envs.arguments import check_choice, check_count
from seeupo_gym.envs.info_keys import MALFORMED
from seeupo_gym.envs.packages import require
from seeupo_gym.envs.suites.text_suite import CrashError, TextSuiteEnv

INSTALL = "TextWorldExpress-v0 needs a package: pip install textworld-express==1.1.0"

# The suite's own folds: the number of the first game of each, and how many games each has.
FOLD_STARTS = {"train": 0, "dev": 10_000, "test": 20_000}
FOLD_SIZE = 1_000

# Seconds that Java may take for an answer.
TIMEOUT = 60.0
# Number of paths that the expert chooses from; each takes 5 to 15 ms.
_GOLD_DRAWS = 10

_PARAMS = re.compile(r"\s*(\w+\s*=\s*-?\d+\s*(,\s*\w+\s*=\s*-?\d+\s*)*)?")


def _check_java() -> None:
    # The suite uses the java on the PATH, whatever JAVA_HOME is.
    if shutil.which("java") is None:
        raise ImportError(
            "TextWorldExpress-v0 needs Java 17 on the PATH: on Debian, apt-get install openjdk-17-jre-headless"
        )


def _params_text(params: str | dict[str, int]) -> str:
    """Write parameters in the suite's notation. The suite ignores what it cannot split, so that is refused here."""
    if isinstance(params, dict):
        for name, value in params.items():
            if not isinstance(name, str) or not isinstance(value, int):
                raise ValueError(f"params must map names to integers, got {name!r}: {value!r}")
        params = ",".join(f"{name}={int(value)}" for name, value in params.items())
    if not isinstance(params, str) or not _PARAMS.fullmatch(params):
        raise ValueError(f"params must be a dict or a text such as 'numLocations=4,includeDoors=0', got {params!r}")
    return params


def _stop(server: Any, owner: int) -> None:
    """End a Java process and free the Python end of the connection, whatever state they are in."""
    gateway, process = server._gateway, server._gateway.java_process
    # Otherwise Python would report each object that it drops to Java; if Java is dead, with errors in the log.
    gateway._gateway_client.is_connected = False
    if os.getpid() != owner:
        return  # this is a fork of the process that owns Java
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdin.close()
    process.stdout.close()
    # From here on nothing can leak any more, and parts that are gone already need not be freed.
    with contextlib.suppress(OSError):
        gateway.shutdown_callback_server()
        gateway._gateway_client.close()


class JavaProcess:
    """
    A Java process with one game loaded. It ends with :meth:`stop`, with this object, or with Python.

    :param game: name of the game
    :param params: its parameters, in the suite's notation
    :param turns: the suite's step limit
    :raises ValueError: if the game refuses the parameters
    :raises CrashError: if Java does not start
    """

    def __init__(self, game: str, params: str, turns: int) -> None:
        package = require("textworld_express", INSTALL)
        _check_java()
        protocol = importlib.import_module("py4j.protocol")
        self._errors, self._game_error = (protocol.Py4JError, OSError), protocol.Py4JJavaError
        # weakref.finalize replaces the suite's finaliser, which talks to the Java process even if it is dead.
        server_class = type("Server", (package.TextWorldExpressEnv,), {"__del__": lambda self: None})
        try:
            self._server = server_class(envStepLimit=turns)
        except Exception as error:  # reading a port from a dead process raises various errors in py4j
            raise CrashError(
                f"Java did not start TextWorldExpress ({type(error).__name__}: {error}): does `java -version` say 17 "
                "or more?"
            ) from error
        # Nobody reads this file, and a cleaner of temporary files or a fork may delete it at any time.
        self._server._obj_tree_tempfile.close()
        # A connection keeps the time-out of the time when it is made, so connections without one are closed.
        self._server._gateway.gateway_parameters.read_timeout = TIMEOUT
        self._server._gateway._gateway_client.close()
        self.stop = weakref.finalize(self, _stop, self._server, os.getpid())
        self._process = self._server._gateway.java_process
        self.pid: int = self._process.pid
        try:
            self.call("load", game, params)
        except Exception:
            self.stop()
            raise

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """
        Call a method of the suite's environment.

        :raises CrashError: if the Java process is dead, or hangs
        """
        try:
            return getattr(self._server, method)(*args, **kwargs)
        except self._game_error:
            raise  # Java itself is well
        except self._errors as error:
            try:
                status = self._process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise CrashError("the Java process of TextWorldExpress hangs") from error
            raise CrashError(f"the Java process of TextWorldExpress died (exit status {status})") from error


class TextWorldExpressEnv(TextSuiteEnv):
    """
    One of eight text games of TextWorldExpress (``textworld-express``, Apache-2.0), in a Java process of its own.

    ## Description

    Household tasks and puzzles in a small text world: find a coin, cook by a recipe, put things where they belong,
    read a map, add and sort, do what Simon says. The games, their texts, commands and scores are the suite's; this
    class gives them Gymnasium's interface, a turn limit and seeds.

    ## Action Space

    ``Text``: one command. ``info["admissible_commands"]`` lists the commands that the game offers, sorted, since the
    suite's own order varies. Any other text costs the turn; the game replies to it, usually with "Unknown action".

    ## Observation Space

    ``Text``: the task (at the start), the game's reply, the room, the inventory, and the admissible commands. ``info``
    has the parts separately (``look``, ``inventory``, ``admissible_commands``), and the game's ``score`` so far. After
    a step ``seeupo_gym/malformed`` is True if the command was not admissible.

    ## Rewards

    With ``reward="final"`` the game's normalised score, paid once at the end. With ``reward="delta"`` the change of the
    score at every turn, which adds up to the same. The score is 1 for a solved task, and from 0 to 1 for a part of one.
    A lost game scores -1 in arithmetic, sorting, simonsays and peckingorder.

    ## Starting State

    The seed given to ``reset`` selects game number ``seed % n_games`` of the fold; its transitions are deterministic.
    The folds are the suite's, with 1,000 games each. With some parameters, different games have the same start (coin
    with four locations and no doors: 24 starts in the first 200 games).

    ## Episode End

    The episode terminates when the game is won (``info["is_success"]``) or lost, or after ``turns`` turns. If the Java
    process dies or does not answer for a minute, the episode is truncated, with reward 0 and
    ``info["seeupo_gym/crashed"]``: do not learn from it. A RuntimeWarning reports it, and the next reset starts Java
    again. A second crash before an episode has ended regularly is a RuntimeError.

    ## Arguments

    Java starts at the first ``reset``. A copy or a pickle has the arguments, but neither the Java process nor the
    episode.

    :param game: cookingworld, coin, twc, mapreader, arithmetic, sorting, simonsays or peckingorder
    :param params: the game's parameters, as a dict or ``"name=value,..."``; if the game refuses them, the first reset
        raises a ValueError
    :param fold: train, dev or test
    :param turns: turn limit; gold paths of cookingworld can be longer than the default (98 was seen)
    :param reward: ``"final"`` or ``"delta"``
    :param n_games: number of the fold's games that are played, from the first on
    :param render_mode: ``"ansi"`` makes :meth:`render` return the transcript of the episode so far
    :raises ImportError: if the package or Java is missing

    ## Version History

    * v0: initial version, textworld-express 1.1.0
    """

    starts_programs = True

    def __init__(
        self,
        game: str = "coin",
        params: str | dict[str, int] = "",
        fold: str = "train",
        turns: int = 50,
        reward: str = "final",
        n_games: int = FOLD_SIZE,
        render_mode: str | None = None,
    ) -> None:
        games = require("textworld_express", INSTALL).GAME_NAMES
        _check_java()
        check_choice("game", game, games)
        check_choice("fold", fold, FOLD_STARTS)
        check_choice("reward", reward, ("final", "delta"))
        super().__init__(turns, render_mode)
        self.game, self.fold, self.reward = game, fold, reward
        self.params = _params_text(params)
        self.n_games = check_count("n_games", n_games, most=FOLD_SIZE)
        self._java: JavaProcess | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The process belongs to the original: a copy has neither a process nor an episode.
        return {**self.__dict__, "_java": None, "_running": False}

    def _begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        self._game_seed = FOLD_STARTS[self.fold] + seed % self.n_games
        self._state = self._load(gold=False)
        self._actions: list[str] = []
        self._gold: list[str] | None = None
        return f"{self._state['taskDescription'].strip()}\n{self._text()}", self._info()

    def _play(self, message: str) -> tuple[str, float, bool, dict[str, Any]]:
        assert self._java is not None
        # The games know ASCII only; other characters, which the protocol could not carry, become question marks.
        command = message[: self.max_message].encode("ascii", "replace").decode().strip()
        malformed = command not in self._state["validActions"]
        self._actions.append(command)
        before = self._state["score"] if len(self._actions) > 1 else 0.0
        self._state = dict(self._java.call("step", command)[-1])
        if command == "help":  # the suite's answer is the task, with the state of the turn before
            self._state["observation"] = self._state["taskDescription"]
        done = self._state["done"] or self._is_last_turn
        score = float(self._state["score"])
        reward = score - before if self.reward == "delta" else score * done
        info = {**self._info(), MALFORMED: malformed}
        if done:
            info["is_success"] = bool(self._state["tasksuccess"])
        return self._text(), reward, done, info

    def _load(self, gold: bool) -> dict[str, Any]:
        """Start the game, and Java if it does not run yet."""
        if self._java is None:
            self._java = JavaProcess(self.game, self.params, self.max_turns)
        try:
            _, state = self._java.call("reset", self._game_seed, self.fold, generateGoldPath=gold)
        except json.JSONDecodeError as error:  # for example a score that is no number, as there is nothing to do
            self._clean_up()
            raise ValueError(
                f"{self.game} has no game for params {self.params!r} (the suite's answer is no JSON: {error})"
            ) from error
        return dict(state)

    def _clean_up(self) -> None:
        java, self._java = self._java, None
        if java is not None:
            java.stop()

    def _text(self) -> str:
        """Write the text that the player reads; the room is not repeated if the reply is the room."""
        state = self._state
        parts = [state["observation"].strip()]
        parts += [text for key in ("look", "inventory") if (text := state[key].strip()) and text not in parts]
        return "\n".join([*parts, f"Commands: {'; '.join(sorted(state['validActions']))}"])

    def _crash_info(self) -> dict[str, Any]:
        return self._info()

    def _info(self) -> dict[str, Any]:
        state = self._state
        return {
            "admissible_commands": sorted(state["validActions"]),
            "look": state["look"],
            "inventory": state["inventory"],
            "score": float(state["score"]),
        }

    def expert_message(self) -> str:
        """
        Write the next command of the suite's gold path, which leads from the start of the game to its solution.

        The suite draws gold paths of coin and twc, with detours, from a generator that cannot be seeded. The shortest
        of several is taken.

        :raises RuntimeError: if the episode has left the gold path: the suite has no expert elsewhere
        :raises gymnasium.error.ResetNeeded: before the first reset and after the end of an episode
        """
        self._need_episode("expert_message()")
        assert self._java is not None
        if self._gold is None:
            # A reset with the gold path takes many times longer than one without. So the game is started again with it
            # only when the path is needed, and then played up to the present turn.
            paths = []
            for _ in range(_GOLD_DRAWS if self.game in ("coin", "twc") else 1):
                self._load(gold=True)
                paths.append(self._java.call("getGoldActionSequence"))
            self._gold = min(paths, key=len)
            for command in self._actions:
                self._java.call("step", command)
        turn = len(self._actions)
        if self._gold[:turn] != self._actions or turn >= len(self._gold):
            raise RuntimeError("the episode has left the suite's gold path: there is no expert's command from here")
        return self._gold[turn]

    def close(self) -> None:
        """End the Java process; a later reset starts another."""
        self._running = False
        self._clean_up()
