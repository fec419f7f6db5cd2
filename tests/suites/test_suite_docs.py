"""The examples of docs/suites/ run as written, each page's where its suite is installed."""

import pytest
from helpers.docs import ROOT, code_blocks
from helpers.processes import run_python

PAGES = ROOT / "docs" / "suites"
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
        for code in code_blocks(PAGES / f"{name}.md", "python"):
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
    assert run_python(code, cwd=tmp_path) in ("", "True\n")
