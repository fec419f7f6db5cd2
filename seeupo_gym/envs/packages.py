"""Packages that only some environments need: imported when one is made, with a clear error if they are missing."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, message: str) -> Any:
    """
    Import a module of a package that may be missing.

    :param module: full name of the module
    :param message: text of the error; says what needs the package and how to install it
    :return: the module
    :raises ImportError: if the module, or one that it imports, is missing
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(message, name=module.partition(".")[0]) from error
