"""The examples of docs/suites.md run as written where all suites are installed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("bfcl_eval", "textworld_express", "gem"):
    pytest.importorskip(package)

PAGE = (Path(__file__).parents[1] / "docs" / "suites.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
def test_example(code, tmp_path):
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout in ("", "True\n")
