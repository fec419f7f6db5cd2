"""Names of a package that are imported on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """
    Make the functions of a package that re-exports names without importing their modules at once.

    :param package: ``__name__`` of the package
    :param homes: name -> module that defines it, without the leading ``seeupo_gym.``
    :return: ``__getattr__``, which imports a name, and ``__dir__``, which lists those that are not imported yet too
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"seeupo_gym.{homes[name]}"), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return find, names
