"""BFCL v4 multi-turn: the function-calling conversations of the Berkeley Function Calling Leaderboard."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.resources
import json
import re
import string
from typing import Any, NamedTuple

from seeupo_gym.envs.arguments import check_choice
from seeupo_gym.envs.info_keys import MALFORMED
from seeupo_gym.envs.packages import require
from seeupo_gym.envs.suites.bfcl_calls import MAX_MESSAGE, Toolbox, fingerprint, read_calls
from seeupo_gym.envs.suites.text_suite import TextSuiteEnv

INSTALL = "BFCLMultiTurn-v0 needs: pip install --no-deps bfcl-eval==2026.3.23 && pip install mpmath==1.3.0"
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
SPLITS = ("all", "train", "test")
# The categories are variants of the same 200 conversations: a task's index decides on its split in all of them.
TEST_EVERY = 5

MESSAGES_PER_TURN = 20
MAX_RESULT = 50_000

_HOW_TO_CALL = (
    "You can call these functions. Write nothing but calls, as in [first(a=1), second(b='x')]; you are shown the "
    "results. Any other message ends your turn. The functions, one a line:"
)
NEW_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
# A message that matches this was meant to have calls, though it has none if other text is around them.
_ATTEMPT = re.compile(r"(?:^[ \t]*|\[\s*)\w+\(", re.MULTILINE)
CHECKER = "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker"


class Category(NamedTuple):
    """The data of one category; they are shared, so never change them."""

    entries: list[dict[str, Any]]
    gold: list[list[list[str]]]
    documents: dict[str, list[dict[str, Any]]]


@functools.cache
def load(category: str) -> Category:
    """
    Read a category's data.

    :param category: one of ``CATEGORIES``
    :raises ImportError: if the packages are not installed
    """
    require("mpmath", INSTALL)
    require(CHECKER, INSTALL)
    config = importlib.import_module("bfcl_eval.constants.executable_backend_config")
    data = importlib.resources.files("bfcl_eval") / "data"

    def read(path: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (data / path).read_text("utf-8").splitlines()]

    entries = read(f"BFCL_v4_multi_turn_{category}.json")
    gold = [answer["ground_truth"] for answer in read(f"possible_answer/BFCL_v4_multi_turn_{category}.json")]
    files = config.MULTI_TURN_FUNC_DOC_FILE_MAPPING
    classes = sorted({name for entry in entries for name in entry["involved_classes"]})
    return Category(entries, gold, {name: read(f"multi_turn_func_doc/{files[name]}") for name in classes})


def bfcl_functions(info: dict[str, Any]) -> str:
    """
    Write out the functions in ``info`` of ``BFCLMultiTurn-v0``: how to call them, and their documents as JSON.

    It is made for the argument ``show_info`` of :class:`~seeupo_gym.agents.language.ChatView`.

    :param info: info of a reset or a step
    :return: the text, which is empty if there are no functions in ``info``
    """
    functions = info.get("functions", ())
    return "\n".join([_HOW_TO_CALL, *map(json.dumps, functions)]) if functions else ""


def tools_of(category: str, task: int) -> Toolbox:
    """Make the tools of a task, in their initial state."""
    data = load(category)
    names = {cls: frozenset(doc["name"] for doc in documents) for cls, documents in data.documents.items()}
    return Toolbox(data.entries[task], names)


class BFCLMultiTurnEnv(TextSuiteEnv):
    """
    ## Description
    A conversation of BFCL v4 multi-turn (Berkeley Function Calling Leaderboard): a user asks for several things in
    turn, and the agent serves each request with calls of simulated tools (files, messages, tickets, trading, travel,
    a vehicle, ...). Data, tools, state checker and response checker are those of ``bfcl-eval``. Text is parsed, never
    evaluated: only documented functions of the task's tools can be called, with literals for arguments.

    ## Action Space
    ``Text``, up to 20,000 characters: one message of the assistant, either a list of calls
    (``[ls(a=True), cd(folder='x')]``) or one call a line. Positional arguments are accepted. A longer message, or one
    with anything but calls, counts as one without calls: it ends the user's turn, as in the official runner.

    ## Observation Space
    ``Text``: the user's message, or the results of the calls. ``info["functions"]`` has the documents of the available
    functions, at reset and whenever functions are added. ``info["calls"]`` is the number of calls that were read.
    ``info["seeupo_gym/malformed"]`` is True in two cases: if a call names no available function or has arguments that
    are no literals; and if no call was read, although the message has ``[name(``, or ``name(`` at the beginning of a
    line.

    ## Rewards
    At the end 1 if the conversation passes the official checks after every user turn, else 0. With ``dense_reward``
    each user turn pays 1 / (number of user turns) at its end, as long as all turns so far have passed: 1 in all for a
    success.

    ## Starting State
    Task ``task``. If it is None, task number ``seed`` modulo the number of tasks in the split; a reset without a seed
    draws a task.

    ## Episode End
    Terminates after the last user turn, or at the 21st message with calls in one user turn. In the second case the
    episode has failed, even in the last user turn, where the official runner is lenient. ``info["is_success"]`` is the
    official verdict, and ``info["error"]`` the official type of the first error, empty for a success.

    ## Arguments
    See below. ``max_turns`` is 21 times the largest number of user turns among the split's tasks.

    ## Version History
    * v0: initial version, for bfcl-eval 2026.3.23

    :param category: ``"base"``, ``"miss_func"`` (functions come later), ``"miss_param"`` (values come later) or
        ``"long_context"`` (long results)
    :param split: ``"test"`` (every fifth task), ``"train"`` (the others) or ``"all"``; the same tasks in each category
    :param task: index of the task in the category; None: the seed decides
    :param dense_reward: whether to pay for each user turn
    :param render_mode: ``"ansi"`` makes :meth:`render` return the transcript of the episode so far
    :raises ImportError: if bfcl-eval or mpmath is not installed
    :raises ValueError: for an unknown category or split, or a task that is not in the split
    """

    # Printable ASCII, and the dashes, quotes and dots that the data contain.
    charset = string.printable + "\u2013\u2014\u2019\u2011\u2026"
    max_observation = 1_000_000
    max_message = MAX_MESSAGE

    def __init__(
        self,
        category: str = "base",
        split: str = "all",
        task: int | None = None,
        dense_reward: bool = False,
        render_mode: str | None = None,
    ) -> None:
        check_choice("category", category, CATEGORIES)
        check_choice("split", split, SPLITS)
        data = load(category)
        indices = range(len(data.entries))
        tasks = [i for i in indices if split == "all" or (split == "test") == (i % TEST_EVERY == TEST_EVERY - 1)]
        if task is not None and (isinstance(task, bool) or task not in tasks):
            raise ValueError(f"task must be the index of a task in split {split!r}, got {task!r}")
        self.category = category
        self.tasks = tasks if task is None else [int(task)]
        self.dense_reward = dense_reward
        super().__init__((MESSAGES_PER_TURN + 1) * max(len(data.gold[i]) for i in self.tasks), render_mode)

    def _begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        self.task = self.tasks[seed % len(self.tasks)]
        data = load(self.category)
        self._entry, self._gold = data.entries[self.task], data.gold[self.task]
        self._model, self._truth = tools_of(self.category, self.task), tools_of(self.category, self.task)
        documents = [doc for name in self._entry["involved_classes"] for doc in data.documents[name]]
        # Functions that the user adds later. The tools have them from the start, as in the official runner.
        self._held = {int(turn): names for turn, names in self._entry.get("missed_function", {}).items()}
        held = {name for names in self._held.values() for name in names}
        self._later = {doc["name"]: doc for doc in documents if doc["name"] in held}
        self._functions = [doc for doc in documents if doc["name"] not in held]
        self._turn, self._messages = 0, 0
        self._results: list[str] = []
        self._error = ""
        return self._question(), {"functions": copy.deepcopy(self._functions), "task": self._entry["id"]}

    def _play(self, message: str) -> tuple[str, float, bool, dict[str, Any]]:
        calls = read_calls(message)
        understood = all(map(self._model.understands, calls)) if calls else not _ATTEMPT.search(message)
        info: dict[str, Any] = {"calls": len(calls), MALFORMED: not understood}
        if calls:
            self._messages += 1
            results = self._model.run(calls)
            self._results += map(fingerprint, results)
            shown = [f"Tool: {result[:MAX_RESULT]}" for result in results]
            if self._messages <= MESSAGES_PER_TURN:
                return "\n".join(shown), 0.0, False, info
            self._error = self._error or "multi_turn:force_terminated"
            reply = f"System: stopped after {MESSAGES_PER_TURN} messages with calls in one user turn."
            return self._end("\n".join([*shown, reply]), 0.0, info)
        self._error = self._error or self._check()
        paid = 1 / len(self._gold) if self.dense_reward and not self._error else 0.0
        self._turn, self._messages = self._turn + 1, 0
        if self._turn == len(self._gold):
            return self._end("System: the conversation is over.", paid, info)
        if self._turn in self._held:
            self._functions += [self._later[name] for name in self._held[self._turn]]
            info["functions"] = copy.deepcopy(self._functions)
        return self._question(), paid, False, info

    def _end(self, reply: str, paid: float, info: dict[str, Any]) -> tuple[str, float, bool, dict[str, Any]]:
        """Close the episode."""
        success = not self._error
        reward = paid if self.dense_reward else float(success)
        return reply, reward, True, {**info, "is_success": success, "error": self._error}

    def _question(self) -> str:
        """Return the user's message of this turn; the official data have none where functions are added."""
        messages = self._entry["question"][self._turn]
        return "User: " + ("\n".join(message["content"] for message in messages) if messages else NEW_FUNCTIONS)

    def _check(self) -> str:
        """
        Run the turn's gold calls and compare the results, as the official checker does after a turn.

        :return: the official type of the error; empty if there is none
        """
        gold = self._gold[self._turn]
        wanted = [*map(fingerprint, self._truth.run([call for text in gold for call in read_calls(text)]))]
        if not gold:
            return ""
        if not self._messages:
            return "multi_turn:empty_turn_model_response"
        checker = importlib.import_module(CHECKER)
        verdict = checker.state_checker(self._model.tools, self._truth.tools)
        if verdict["valid"]:
            verdict = checker.response_checker(self._results, wanted, self._turn)
        return "" if verdict["valid"] else str(verdict["error_type"])

    def expert_message(self) -> str:
        """Write the gold calls of this user turn, then a closing message, whatever the agent did before."""
        gold = self._gold[self._turn] if self._running else []
        return f"[{', '.join(gold)}]" if gold and not self._messages else "Done."
