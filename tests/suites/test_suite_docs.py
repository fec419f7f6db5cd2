"""The examples of docs/suites/ run as written, each page's where its suite is installed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "suites"
# Page -> packages that its examples need; None: they need a server, so they are marked as not run.
PACKAGES = {
    "appworld": None,
    "bfcl": ("bfcl_eval", "sklearn"),
    "gem": ("gem",),
    "minigrid": ("minigrid",),
    "miniwob": ("miniwob",),
    "open_env": None,
    "text_arena": ("textarena",),
    "text_world_express": ("textworld_express",),
}


def examples():
    for name, packages in PACKAGES.items():
        for code in re.findall(r"```python\n(.*?)```", (PAGES / f"{name}.md").read_text(), flags=re.DOTALL):
            yield pytest.param(code, packages, id=name)


def test_every_page_is_looked_at():
    assert {page.stem for page in PAGES.glob("*.md")} == set(PACKAGES)
    with_examples = {param.id for param in examples()}
    assert with_examples == {name for name, packages in PACKAGES.items() if packages is not None}
    for name in set(PACKAGES) - with_examples:
        assert "<!-- not run: needs" in (PAGES / f"{name}.md").read_text()


@pytest.mark.parametrize(("code", "packages"), list(examples()))
@pytest.mark.docs
def test_example(code, packages, tmp_path):
    for package in packages:
        pytest.importorskip(package)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout in ("", "True\n")
