"""The commands of docs/benchmarks.md for changing lists of commands run, with as few steps as possible."""

import re
import shlex
import sys

import pytest
from helpers.docs import ROOT
from helpers.processes import run

pytest.importorskip("textworld_express")
pytest.importorskip("sklearn")

COMMANDS = [
    line
    for line in (ROOT / "docs" / "benchmarks.md").read_text().splitlines()
    if line.startswith("python benchmarks/candidates.py")
]


@pytest.mark.slow
@pytest.mark.docs
def test_the_benchmark_trains_and_continues(tmp_path):
    arguments = shlex.split(COMMANDS[0])[1:]
    arguments[arguments.index("--out") + 1] = str(tmp_path)
    small = ["--games", "coin", "--algos", "seeupo", "--seeds", "1", "--steps", "200"]
    for _ in range(2):
        assert re.search(r"\| coin \| seeupo \| [\d.]+ \|", run(sys.executable, *arguments, *small, cwd=ROOT))
    assert (tmp_path / "candidates.csv").is_file()
