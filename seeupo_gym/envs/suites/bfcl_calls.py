"""Calls of BFCL's tools in a model's message: read without evaluating anything, and run on the episode's own tools."""

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

# Limits of arguments: beyond them a legal call would run for minutes or fill the memory.
MAX_PRECISION = 1000
MAX_POWER_BITS = 20_000
# Number of characters that the calls of one message may go through: in paths, files and results.
MAX_CHARACTERS = 2_000_000
# Pickling and copying take a nested call for each folder. Gold play has at most 5 folders.
MAX_FOLDERS = 100

_TOO_LARGE = f"the message is too large: its calls may go through {MAX_CHARACTERS:,} characters of files and results"


class Call(NamedTuple):
    """One call as the parser found it; its function and arguments are not checked yet."""

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
    Find the calls of a message: a list of calls, or one call a line.

    :param message: what the model wrote
    :return: the calls; none unless the whole message consists of calls, as in the official runner
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
    """Shorten a result for the checker, which compares results: equal results stay equal, different ones different."""
    return result if len(result) <= 200 else hashlib.sha256(result.encode("utf-8", "surrogatepass")).hexdigest()


class Toolbox:
    """
    The tools of one task, in the state that the calls made so far have left them in.

    :param entry: the task's entry in the data
    :param functions: for each class, the names of its documented functions; nothing else can be called
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
        """Return True for a call of an existing function with literals for arguments."""
        try:
            self._read(call)
        except Exception:  # literal_eval raises several kinds
            return False
        return True

    def run(self, calls: list[Call]) -> list[str]:
        """
        Run the calls of a message.

        :return: the result of each call in the official form, or its error
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
            # MathAPI sets the precision of the whole process, so it is set back after the call.
            mpmath = importlib.import_module("mpmath").mp
            precision = mpmath.prec
            try:
                with decimal.localcontext():
                    return _as_text(getattr(tool, name)(*positional, **keywords))
            finally:
                mpmath.prec = precision
        except Exception as error:  # a wrong argument may raise anything in a tool; the official runner does the same
            return f"Error during execution: {error}"

    def _check(self, name: str, positional: list[Any], keywords: dict[str, Any]) -> None:
        """Refuse a call that would take too long, or whose result would be too large."""
        if self._left < 0:
            raise ValueError(_TOO_LARGE)
        values = [*positional, *keywords.values()]
        if name in ("logarithm", "square_root", "round_number"):
            precision = keywords.get({"round_number": "decimal_places"}.get(name, "precision"), (positional or [0])[-1])
            # As in the tools, int() accepts text, too.
            if len(values) > 1 and _size(precision) > MAX_PRECISION:
                raise ValueError(f"a precision must be at most {MAX_PRECISION}")
        if name == "power" and len(values) == 2 and all(isinstance(value, int) for value in values):
            base = keywords.get("base", values[0])
            exponent = keywords.get("exponent", values[-1])
            if base.bit_length() * abs(exponent) > MAX_POWER_BITS:
                raise ValueError("the power is too large")
        files: Any = self.tools.get("GorillaFileSystem")
        if name in ("cp", "find", "du"):
            # Copied folders share their contents, so a few calls can make a tree of exponential or infinite size.
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
    """Count the folders of a file system, including those that are only reachable as parents of others."""
    found, folders = set(), [files.root, files._current_dir]
    while folders:
        folder = folders.pop()
        if folder is not None and id(folder) not in found:
            found.add(id(folder))
            folders += [folder.parent, *(item for item in folder.contents.values() if hasattr(item, "contents"))]
    return len(found)


def _tree_characters(root: Any, limit: int) -> int:
    """Count the characters in all paths and files below a folder; stop above the limit."""
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
    """Count the characters of a name or of a file's content, which the tools accept in other types than text."""
    try:
        return len(str(value))
    except (ValueError, RecursionError):
        return MAX_MESSAGE  # an integer with too many digits to print; a literal is no longer than its message


def _as_text(result: Any) -> str:
    """Write a result in the official form."""
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except Exception:  # as in the official runner: not every result is JSON
            return str(result)
    return str(result)
