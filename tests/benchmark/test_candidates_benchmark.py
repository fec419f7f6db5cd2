"""The commands of docs/benchmarks.md for changing lists of commands run, with as few steps as possible."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("textworld_express")
pytest.importorskip("sklearn")

ROOT = Path(__file__).parents[2]
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
        done = subprocess.run(
            [sys.executable, *arguments, *small], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert re.search(r"\| coin \| seeupo \| [\d.]+ \|", done.stdout)
    assert (tmp_path / "candidates.csv").is_file()
