"""Methods of objects that belong to others, replaced for a time."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any


class ReplacedMethods:
    """
    Replaces methods of single objects, until :meth:`restore`.

    A copy that is made of such an object meanwhile, and a pickle, have the methods of their class.
    """

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        """
        Replace a method; one that the object's owner has replaced is left as it is.

        :param owner: the object
        :param name: the method's name
        :param replacement: called with the method, and with the arguments of the call
        """
        before = vars(owner).get(name)
        if before is not None and not is_replaced(owner, name):
            return
        method = getattr(type(owner), name) if before is None else before.__func__
        bound = MethodType(method, owner)

        def replaced(this: Any, *args: Any, **kwargs: Any) -> Any:
            return replacement(bound, *args, **kwargs) if this is owner else method(this, *args, **kwargs)

        replaced.__name__ = name  # by which a pickle finds the method of the class
        replaced.is_replaced = True  # type: ignore[attr-defined]
        vars(owner)[name] = MethodType(replaced, owner)
        self._before.append((owner, name, before))

    def restore(self) -> None:
        """Give all methods back."""
        for owner, name, before in reversed(self._before):
            if before is None:
                del vars(owner)[name]
            else:
                vars(owner)[name] = before
        self._before = []


def is_replaced(owner: Any, name: str) -> bool:
    """
    Tell whether a method is replaced at the moment.

    :param owner: the object
    :param name: the method's name
    """
    return getattr(vars(owner).get(name), "is_replaced", False)
