"""The documentation site: its pages' examples run as written, and what it says of the code is there."""

import importlib
import re
import sys

import pytest
from helpers.docs import ROOT, run_page

DOCS = ROOT / "docs"
TUTORIALS = {path.stem for path in (DOCS / "tutorials").glob("*.md")}
# Language models have packages of their own, and so does the test of their page.
PAGES = ["start", "from_ppo", "extending", *sorted(f"tutorials/{name}" for name in TUTORIALS - {"language_laptop"})]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.docs
def test_examples_of_a_page_run_one_after_another(page, tmp_path):
    run_page(f"docs/{page}.md", tmp_path)


def test_every_page_has_its_place_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text()
    for path in DOCS.rglob("*.md"):
        assert str(path.relative_to(DOCS)) in menu, path


PACKAGES = ("", ".agents", ".baselines", ".envs", ".agents.language")
PUBLIC = [
    (f"seeupo_gym{package}", name)
    for package in PACKAGES
    for name in importlib.import_module(f"seeupo_gym{package}").__all__
]


@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_every_public_name_is_in_the_api(package, name):
    described = re.findall(r"^::: (.*)$", "\n".join(p.read_text() for p in (DOCS / "api").glob("*.md")), re.MULTILINE)
    home = _home(package, name)
    assert home in described or home.rpartition(".")[0] in described, home


def _home(package, name):
    found = getattr(importlib.import_module(package), name)
    if hasattr(found, "__qualname__"):
        return f"{found.__module__}.{found.__qualname__}"
    if hasattr(found, "__path__"):  # a package
        return f"{found.__name__}.registration"
    return f"seeupo_gym.envs.registration.{name}"


@pytest.fixture(scope="module")
def messages():
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("hooks").find_messages()
    finally:
        sys.path.remove(str(DOCS))


def test_messages_that_are_explained_are_those_of_the_code(messages):
    quoted = re.findall(r"^\*\*`(.*?)`\*\*", (DOCS / "troubleshooting.md").read_text(), flags=re.MULTILINE)
    assert len(quoted) >= 15
    for text in quoted:
        assert any(text in message.text for message in messages), text


def test_messages_are_found_with_what_is_filled_in(messages):
    by_module = {(message.module, message.kind): message.text for message in messages}
    assert by_module["seeupo_gym.agents.streams", "ValueError"] == "seed must be non-negative, got {seed}"
    assert ("seeupo_gym.benchmark.folder", "Warning") in by_module
    source = "".join(path.read_text() for path in (ROOT / "seeupo_gym").rglob("*.py"))
    assert len(messages) > 0.8 * len(re.findall(r"^ *raise \w+\(", source, flags=re.MULTILINE))
