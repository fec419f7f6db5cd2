"""Calls that a model writes for BFCL's tools: read without evaluating anything, run on tools of the episode's own."""

from __future__ import annotations

import ast
import copy
import decimal
import hashlib
import importlib
import json
import warnings
from typing import Any, NamedTuple

MAX_MESSAGE = 20_000
MAX_CALLS = 100

# Caps on arguments with which a legal call would run for minutes or fill the memory.
MAX_PRECISION = 1000
MAX_POWER_BITS = 20_000
# What the calls of one message may go through: paths and files of the tree, and results.
MAX_CHARACTERS = 2_000_000
# Pickles and copies go from folder to folder, in as many nested calls. Gold play has 5 folders at most.
MAX_FOLDERS = 100

_TOO_LARGE = f"the message is too large: its calls may go through {MAX_CHARACTERS:,} characters of files and results"


class Call(NamedTuple):
    """One call as the parser found it; nothing in it has been looked at yet."""

    node: ast.Call

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """
        Read the arguments, which must be literals.

        :raises ValueError: for anything else
        """
        if any(keyword.arg is None for keyword in self.node.keywords):
            raise ValueError("** is not allowed")
        positional = [ast.literal_eval(argument) for argument in self.node.args]
        return positional, {str(word.arg): ast.literal_eval(word.value) for word in self.node.keywords}


def read_calls(message: str) -> list[Call]:
    """
    Find the calls of a message: a list of calls, or calls one a line.

    :param message: what the model wrote
    :return: no calls unless the whole message consists of them, as officially
    """
    text = message.strip("`\n ")
    if len(message) > MAX_MESSAGE:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser warns of "\d" in strings
            statements = ast.parse(text).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []
    calls = []
    for statement in statements:
        if not isinstance(statement, ast.Expr):
            return []
        value = statement.value
        for node in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
            if not isinstance(node, ast.Call):
                return []
            calls.append(Call(node))
    return calls


def fingerprint(result: str) -> str:
    """What the checker compares: equal exactly for equal results, and short, so that an episode stays small."""
    return result if len(result) <= 200 else hashlib.sha256(result.encode("utf-8", "surrogatepass")).hexdigest()


class Toolbox:
    """
    The tools of one task, in the state that the calls made so far have left them in.

    :param entry: the task as the data has it
    :param functions: names of the documented functions of each of its classes; nothing else can be called
    """

    def __init__(self, entry: dict[str, Any], functions: dict[str, frozenset[str]]) -> None:
        config = importlib.import_module("bfcl_eval.constants.executable_backend_config")
        long_context = "long_context" in entry["id"]
        self.tools: dict[str, Any] = {}
        for name in entry["involved_classes"]:
            tool = getattr(importlib.import_module(config.CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in config.STATELESS_CLASSES:
                tool._load_scenario(copy.deepcopy(entry["initial_config"].get(name, {})), long_context=long_context)
            self.tools[name] = tool
        self._owner = {function: name for name in self.tools for function in functions[name]}

    def _read(self, call: Call) -> tuple[str, list[Any], dict[str, Any]]:
        name = call.node.func
        if not isinstance(name, ast.Name):
            raise ValueError("only functions called by their plain name are allowed")
        if name.id not in self._owner:
            raise NameError(f"name '{name.id}' is not defined")
        return name.id, *call.arguments()

    def understands(self, call: Call) -> bool:
        """Tell whether a call is one of a function there is, with literals for arguments."""
        try:
            self._read(call)
        except Exception:  # literal_eval raises several kinds
            return False
        return True

    def run(self, calls: list[Call]) -> list[str]:
        """
        Run the calls of a message.

        :return: the result of each in the official form, or what went wrong
        """
        self._left = MAX_CHARACTERS
        results = []
        for i, call in enumerate(calls):
            too_many = f"Error during execution: a message may have {MAX_CALLS} calls at most"
            results.append(self._run(call) if i < MAX_CALLS else too_many)
            self._left -= len(results[-1])
        return results

    def _run(self, call: Call) -> str:
        try:
            name, positional, keywords = self._read(call)
            tool = self.tools[self._owner[name]]
            self._check(name, positional, keywords)
            # MathAPI sets the precision of the whole process; what it sets must not outlive the call.
            mpmath = importlib.import_module("mpmath").mp
            precision = mpmath.prec
            try:
                with decimal.localcontext():
                    return _as_text(getattr(tool, name)(*positional, **keywords))
            finally:
                mpmath.prec = precision
        except Exception as error:  # the tools raise whatever a wrong argument leads to, and officially so
            return f"Error during execution: {error}"

    def _check(self, name: str, positional: list[Any], keywords: dict[str, Any]) -> None:
        """Refuse a call that would not end in a moment, or that makes more than can be kept."""
        if self._left < 0:
            raise ValueError(_TOO_LARGE)
        values = [*positional, *keywords.values()]
        if name in ("logarithm", "square_root", "round_number"):
            precision = keywords.get({"round_number": "decimal_places"}.get(name, "precision"), (positional or [0])[-1])
            # Precisions count as the tools count them: int() takes text too.
            if len(values) > 1 and _size(precision) > MAX_PRECISION:
                raise ValueError(f"a precision must be at most {MAX_PRECISION}")
        if name == "power" and len(values) == 2 and all(isinstance(value, int) for value in values):
            base = keywords.get("base", values[0])
            exponent = keywords.get("exponent", values[-1])
            if base.bit_length() * abs(exponent) > MAX_POWER_BITS:
                raise ValueError("the power is too large")
        files: Any = self.tools.get("GorillaFileSystem")
        if name in ("cp", "find", "du"):
            # Copied folders share what is in them, so that a few calls make an exponential tree, or an endless one.
            for folder in (files.root, files._current_dir):
                self._left -= _tree_characters(folder, self._left)
            if self._left < 0:
                raise ValueError(_TOO_LARGE)
        if name in ("mkdir", "cp", "mv") and _count_folders(files) >= MAX_FOLDERS:
            raise ValueError(f"there are {MAX_FOLDERS} folders, and no more can be made")


def _size(precision: Any) -> int:
    try:
        return abs(int(precision))
    except (TypeError, ValueError, OverflowError):
        return 0  # the tool refuses it itself


def _count_folders(files: Any) -> int:
    """Folders that a file system holds on to, which are also those that were moved with others in them."""
    found, folders = set(), [files.root, files._current_dir]
    while folders:
        folder = folders.pop()
        if folder is not None and id(folder) not in found:
            found.add(id(folder))
            folders += [folder.parent, *(item for item in folder.contents.values() if hasattr(item, "contents"))]
    return len(found)


def _tree_characters(root: Any, limit: int) -> int:
    """Characters in all paths and files below a folder; stops counting above the limit."""
    total, folders = 0, [(root, 0)]
    while folders and total <= limit:
        folder, depth = folders.pop()
        for name, item in folder.contents.items():
            path = depth + _length(name) + 1
            total += path + _length(getattr(item, "content", ""))
            if hasattr(item, "contents"):
                folders.append((item, path))
    return total


def _length(value: Any) -> int:
    """Characters of a name or of a file's content; the tools take more than texts for both."""
    try:
        return len(str(value))
    except (ValueError, RecursionError):
        return MAX_MESSAGE  # an integer with more digits than Python prints; no literal is longer than its message


def _as_text(result: Any) -> str:
    """Official form of a result."""
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except Exception:  # as officially: not everything a tool returns is JSON
            return str(result)
    return str(result)
