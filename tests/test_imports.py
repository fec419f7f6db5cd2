"""The import graph of the package: no cycles between files, and none between folders."""

import ast
from pathlib import Path

import pytest

import seeupo_gym

ROOT = Path(seeupo_gym.__file__).parent


def modules(root):
    """Return module name -> file, of a package in the folder ``root``; an __init__.py has the name of its folder."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path, names):
    """Yield the modules of the package that a file imports, within functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} has a relative import: this graph would miss it"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield from [name for name in (full, node.module) if name in names][:1]


def file_graph(root):
    """Return module name -> names of the modules that it imports."""
    files = modules(root)
    return {name: set(imported(path, files)) - {name} for name, path in files.items()}


def folder_graph(root):
    """Return folder -> folders that its files import from; __init__.py is left out, as it only re-exports."""
    files = modules(root)

    def folder(name):
        return name if files[name].name == "__init__.py" else name.rpartition(".")[0]

    graph = {folder(name): set() for name in files}
    for name, targets in file_graph(root).items():
        if files[name].name != "__init__.py":
            graph[folder(name)] |= {folder(target) for target in targets} - {folder(name)}
    return graph


def cycle_members(graph):
    """Return all nodes that are on a cycle: those that can be reached from themselves."""

    def reachable(start):
        seen, todo = set(), list(graph[start])
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo += graph[node]
        return seen

    return {node for node in graph if node in reachable(node)}


@pytest.mark.parametrize("graph", [file_graph, folder_graph])
def test_there_are_no_import_cycles(graph):
    of_package = graph(ROOT)
    members = cycle_members(of_package)
    edges = {name: sorted(of_package[name] & members) for name in sorted(members)}
    assert not edges, f"these import each other, directly or through others: {edges}"


def test_init_files_only_re_export():
    for name, path in modules(ROOT).items():
        if path.name == "__init__.py":
            tree = ast.parse(path.read_text())
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            own = [node.name for node in ast.walk(tree) if isinstance(node, kinds)]
            assert not own, f"{name} defines {own}: move it to a file, so that the graph has it"


def test_cycles_are_found_wherever_the_import_stands(tmp_path):
    sources = {
        "p/__init__.py": "from p.a.one import f",
        "p/a/__init__.py": "",
        "p/a/one.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a.two import g",
        "p/a/two.py": "def g():\n    import p.a.one",
        "p/a/three.py": "from p.b.four import h",
        "p/b/__init__.py": "",
        "p/b/four.py": "",
        "p/b/five.py": "def h():\n    from p.a import three",
    }
    for name, source in sources.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert cycle_members(file_graph(tmp_path / "p")) == {"p.a.one", "p.a.two"}
    assert cycle_members(folder_graph(tmp_path / "p")) == {"p.a", "p.b"}
