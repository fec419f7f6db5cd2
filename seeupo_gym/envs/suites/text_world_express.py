"""TextWorldExpress: eight text games of household tasks and puzzles, played by a Java process of their own."""

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
from seeupo_gym.envs.suites.text_suite import CrashError, TextSuiteEnv

# The suite's own folds: each has so many games, numbered from here on.
FOLD_STARTS = {"train": 0, "dev": 10_000, "test": 20_000}
FOLD_SIZE = 1_000

# Seconds that Java may take for one answer.
TIMEOUT = 60.0
# Paths that the expert chooses from; one takes 5 to 15 ms.
_GOLD_DRAWS = 10

_PARAMS = re.compile(r"\s*(\w+\s*=\s*-?\d+\s*(,\s*\w+\s*=\s*-?\d+\s*)*)?")


def _import_package() -> Any:
    try:
        return importlib.import_module("textworld_express")
    except ImportError as error:
        raise ImportError("TextWorldExpress-v0 needs a package: pip install textworld-express==1.1.0") from error


def _check_java() -> None:
    # The suite takes the java of the PATH, whatever JAVA_HOME says.
    if shutil.which("java") is None:
        raise ImportError(
            "TextWorldExpress-v0 needs Java 17 on the PATH: on Debian, apt-get install openjdk-17-jre-headless"
        )


def _params_text(params: str | dict[str, int]) -> str:
    """Parameters in the suite's notation; it ignores what it cannot split, so that is refused here."""
    if isinstance(params, dict):
        for name, value in params.items():
            if not isinstance(name, str) or not isinstance(value, int):
                raise ValueError(f"params must map names to integers, got {name!r}: {value!r}")
        params = ",".join(f"{name}={int(value)}" for name, value in params.items())
    if not isinstance(params, str) or not _PARAMS.fullmatch(params):
        raise ValueError(f"params must be a dict or a text such as 'numLocations=4,includeDoors=0', got {params!r}")
    return params


def _stop(server: Any, owner: int) -> None:
    """End a Java process and free the Python end, whatever state they are in."""
    gateway, process = server._gateway, server._gateway.java_process
    # Or Java would be told of each of its objects that Python drops from now on: if it is dead, with errors in the log.
    gateway._gateway_client.is_connected = False
    if os.getpid() != owner:
        return  # a fork of the process that Java belongs to
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdin.close()
    process.stdout.close()
    # From here on there is nothing left to leak, and what is gone already need not be freed.
    with contextlib.suppress(OSError):
        gateway.shutdown_callback_server()
        gateway._gateway_client.close()


class JavaProcess:
    """
    A Java process with one game loaded; it ends with :meth:`stop`, with this object or with Python.

    :param game: name of the game
    :param params: its parameters, in the suite's notation
    :param turns: the suite's step limit
    :raises ValueError: if the game refuses the parameters
    :raises CrashError: if Java does not start
    """

    def __init__(self, game: str, params: str, turns: int) -> None:
        package = _import_package()
        _check_java()
        protocol = importlib.import_module("py4j.protocol")
        self._errors, self._game_error = (protocol.Py4JError, OSError), protocol.Py4JJavaError
        # The suite's finaliser talks to the Java process, alive or not: weakref.finalize takes its place.
        server_class = type("Server", (package.TextWorldExpressEnv,), {"__del__": lambda self: None})
        try:
            self._server = server_class(envStepLimit=turns)
        except Exception as error:  # py4j raises whatever reading a port from a dead process gives
            raise CrashError(
                f"Java did not start TextWorldExpress ({type(error).__name__}: {error}): does `java -version` say 17 "
                "or more?"
            ) from error
        # Nobody asks for what is written to it, and a cleaner of temporary files or a fork may delete it at any time.
        self._server._obj_tree_tempfile.close()
        # Connections are made with the limit of that time: those without one are closed.
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
    Eight text games of TextWorldExpress (``textworld-express``, Apache-2.0), in its own Java process.

    ## Description

    Household tasks and puzzles in a small text world: find a coin, cook by a recipe, put things where they belong,
    read a map, add and sort, do what Simon says. The games, their texts, commands and scores are the suite's; this
    class gives them Gymnasium's interface, a turn limit and seeds.

    ## Action Space

    ``Text``: one command. ``info["admissible_commands"]`` lists those that the game offers, sorted, since the
    suite's own order varies. Another text is answered by the game, usually "Unknown action", and costs the turn.

    ## Observation Space

    ``Text``: the task (at the start), the game's reply, the room and the inventory, and the admissible commands.
    ``info`` has them apart: ``look``, ``inventory``, ``admissible_commands`` and the game's ``score`` so far, and
    after a step ``seeupo_gym/malformed``: whether the command was not among the admissible ones.

    ## Rewards

    With ``reward="final"`` the game's normalised score, paid once at the end; with ``reward="delta"`` its change at
    every turn, which adds up to the same. It is 1 for a solved task and from 0 on for a part of one; arithmetic,
    sorting, simonsays and peckingorder score -1 when they are lost.

    ## Starting State

    The seed given to ``reset`` selects game number ``seed % n_games`` of the fold; its transitions are deterministic.
    Folds are the suite's: 1,000 games each. With some parameters different numbers give the same start (coin with
    four locations and no doors: 24 starts in the first 200 games).

    ## Episode End

    The episode terminates when the game is won (``info["is_success"]``) or lost, or after ``turns`` turns. If the Java
    process dies or does not answer for a minute, the episode is truncated, with reward 0 and
    ``info["seeupo_gym/crashed"]``: leave it out of what is learned from. A RuntimeWarning tells of it, and the next
    reset starts Java again; a second crash before an episode ended regularly is a RuntimeError.

    ## Arguments

    Java starts at the first ``reset``. A copy or a pickle carries the arguments, not the Java process nor the episode.

    :param game: cookingworld, coin, twc, mapreader, arithmetic, sorting, simonsays or peckingorder
    :param params: the game's parameters, as a dict or ``"name=value,..."``; what the game refuses is a ValueError at
        the first reset
    :param fold: train, dev or test
    :param turns: turn limit; cookingworld's gold paths can be longer than the default (98 was seen)
    :param reward: ``"final"`` or ``"delta"``
    :param n_games: how many of the fold's games are played, the first ones
    :param render_mode: ``"ansi"`` makes :meth:`render` return the transcript of the episode so far
    :raises ImportError: if the package or Java is missing

    ## Version History

    * v0: initial version, textworld-express 1.1.0
    """

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
        games = _import_package().GAME_NAMES
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
        # The process stays where it was started: a copy has none, and no episode.
        return {**self.__dict__, "_java": None, "_running": False}

    def _begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        self._game_seed = FOLD_STARTS[self.fold] + seed % self.n_games
        self._state = self._load(gold=False)
        self._actions: list[str] = []
        self._gold: list[str] | None = None
        return f"{self._state['taskDescription'].strip()}\n{self._text()}", self._info()

    def _play(self, message: str) -> tuple[str, float, bool, dict[str, Any]]:
        assert self._java is not None
        # The games know ASCII only; what the protocol could not carry becomes a question mark.
        command = message[: self.max_message].encode("ascii", "replace").decode().strip()
        malformed = command not in self._state["validActions"]
        self._actions.append(command)
        before = self._state["score"] if len(self._actions) > 1 else 0.0
        self._state = dict(self._java.call("step", command)[-1])
        if command == "help":  # the suite answers it with the task and the state before
            self._state["observation"] = self._state["taskDescription"]
        done = self._state["done"] or self._is_last_turn
        score = float(self._state["score"])
        reward = score - before if self.reward == "delta" else score * done
        info = {**self._info(), MALFORMED: malformed}
        if done:
            info["is_success"] = bool(self._state["tasksuccess"])
        return self._text(), reward, done, info

    def _load(self, gold: bool) -> dict[str, Any]:
        """Start the game, and Java if it does not run."""
        if self._java is None:
            self._java = JavaProcess(self.game, self.params, self.max_turns)
        try:
            _, state = self._java.call("reset", self._game_seed, self.fold, generateGoldPath=gold)
        except json.JSONDecodeError as error:  # a score that is no number, for example, as there is nothing to do
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
        """What the player reads; the room is told once where the reply is the room."""
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
        The next command of the suite's gold path, which leads from the start of the game.

        The suite draws the gold paths of coin and twc, detours included, from a generator that cannot be seeded: the
        shortest of some is taken.

        :raises RuntimeError: if the episode has left the gold path, as the suite has no expert elsewhere
        :raises gymnasium.error.ResetNeeded: before the first reset and after the end of an episode
        """
        self._need_episode("expert_message()")
        assert self._java is not None
        if self._gold is None:
            # It costs many times a plain reset, so the game is made again with it, up to here, when somebody asks.
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
