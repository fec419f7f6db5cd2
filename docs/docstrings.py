"""An extension of Griffe that makes Markdown of the reST roles in docstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|data|mod|attr):`~?([\w.]+)`")


class Roles(griffe.Extension):
    """Shows a role such as ``:class:`~a.b.C``` by the last part of its name."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(lambda match: f"`{match[1].rpartition('.')[2]}`", obj.docstring.value)
