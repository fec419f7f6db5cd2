"""Errors about what a user gave, of which one line says all, and faults of programs, whose traceback is needed."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import FrameType
from typing import Any

_PACKAGE = "seeupo_gym"
# Files are opened in all of them.
_LIBRARIES = (_PACKAGE, "filelock", "gymnasium", "sb3_contrib", "stable_baselines3", "tensorboard", "torch")
_LONGEST = 200


class DamagedFileError(ValueError):
    """A file does not hold what it should; the message names it, and says what is wrong and what to do."""


class UntrustedError(ValueError):
    """A file that is not trusted holds what is not data."""


def is_about_input(error: BaseException) -> bool:
    """
    Tell whether an error is about a user's arguments, files, packages or disk.

    Those that this package raises for its readers are. An error within an environment or another program is none,
    whatever its class, and neither is one that Python or NumPy raises because this package has a fault.

    :param error: an error that was caught
    :return: True if its text is made for a reader
    """
    if isinstance(error, OSError):
        return origin(error) in _LIBRARIES
    return isinstance(error, (ValueError, ImportError)) and raised_on_purpose(error)


def origin(error: BaseException) -> str:
    """
    Find where an error comes from.

    :param error: an error that was caught
    :return: the top-level package of the innermost call that is not one of Python's own library
    """
    roots = [_root(frame) for frame, _ in walk_tb(error.__traceback__)]
    return next((root for root in reversed(roots) if root not in sys.stdlib_module_names), "")


def raised_on_purpose(error: BaseException) -> bool:
    """
    Tell whether a ``raise`` statement of this package raised an error.

    :param error: an error that was caught
    :return: False for those of other packages, and for those of Python, as of ``int("x")``
    """
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or _root(traceback.tb_frame) != _PACKAGE:
        return False
    return dis.opname[traceback.tb_frame.f_code.co_code[traceback.tb_lasti]] == "RAISE_VARARGS"


@contextmanager
def damage_is_told(file: Any, what: str, given: bool = False) -> Iterator[None]:
    """
    Name the file in whatever goes wrong in the body, as damaged data can make anything fail.

    A missing package, and a file that cannot be opened, are no damage.

    :param file: what is read: a path, or something like a file
    :param what: what it should be
    :param given: whether the reader has also given values of its own, which may be what is wrong
    :raises DamagedFileError: for any other exception, which is its cause
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (ImportError, DamagedFileError)) or (isinstance(error, OSError) and error.filename):
            raise
        name = getattr(file, "name", "the file") if hasattr(file, "read") else file
        text = in_one_line(error)
        if isinstance(error, UntrustedError):
            raise UntrustedError(f"{name} is not to be trusted: {text}") from error
        if not raised_on_purpose(error):
            blame = ", or the values that were given do not fit it" if given else ""
            text = f"it is no {what}, or damaged{blame} ({type(error).__name__}: {text}); use an earlier one"
        raise DamagedFileError(f"cannot load {name}: {text}") from error


def in_one_line(error: BaseException) -> str:
    """
    Shorten what an error says.

    :param error: the error
    :return: its text in one line, without its end if it is long
    """
    text = "".join(character for character in " ".join(str(error).split()) if character.isprintable())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _root(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
