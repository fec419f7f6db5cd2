"""MkDocs' hooks: the page of all messages, made from the code, and the files outside of docs/ that pages link to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "seeupo_gym"
_CALLS = {"warn"}
_OUTSIDE = re.compile(r"\]\(\.\./(examples/[\w.]+|README\.md)")


class Message(NamedTuple):
    """A text that a user can meet: of an error, or of a warning."""

    module: str
    kind: str
    text: str


def find_messages() -> list[Message]:
    """
    Collect the messages of all errors and warnings of the package.

    :return: by module; what is filled in stands in braces
    """
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found += [Message(module, kind, text) for kind, text in _of_file(path)]
    return list(dict.fromkeys(found))


def _of_file(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            kind, call = ast.unparse(node.exc.func), node.exc
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CALLS:
            kind, call = "Warning", node
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error"):  # raised elsewhere
            kind, call = ast.unparse(node.func), node
        else:
            continue
        text = _text(call.args[0]) if call.args else None
        if text is not None and " " in text:
            yield kind, text


def _text(node: ast.expr) -> str | None:
    """Return a text as the code has it, with the names of what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else "{" + ast.unparse(part.value) + "}"
            for part in node.values
            if isinstance(part, ast.FormattedValue) or isinstance(part.value, str)
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return None if left is None or right is None else left + right
    return None


def messages_page() -> str:
    """
    Write the page of all messages.

    :return: Markdown
    """
    lines = [
        "# All messages",
        "",
        "Every error and warning of the package, as the code has it: each says what was wrong, where, and what to do.",
        "What is filled in stands in braces. [Troubleshooting](troubleshooting.md) explains those that are met most.",
    ]
    module = ""
    for message in find_messages():
        if message.module != module:
            module = message.module
            lines += ["", f"## {module}", ""]
        lines.append(f"- {message.kind}: ``{message.text.strip()}``".replace("\n", " "))
    return "\n".join(lines) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """Add the page of messages, and the examples."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "messages.md", content=messages_page()))
    for path in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links that leave docs/ in the repository stay within the site."""
    up = "../" * page.file.src_uri.count("/")
    return _OUTSIDE.sub(lambda match: f"]({up}{'index.md' if match[1] == 'README.md' else match[1]}", markdown)
