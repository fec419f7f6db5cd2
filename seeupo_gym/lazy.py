"""Names of a package that are imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """
    Make the function ``__getattr__`` of a package that re-exports names without importing their modules at once.

    :param package: ``__name__`` of the package
    :param homes: name -> module that defines it, without the leading ``seeupo_gym.``
    :return: the function
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"seeupo_gym.{homes[name]}"), name)

    return find
