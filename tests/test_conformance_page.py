"""The page about SB3's tests names every test that is left out, and why."""

import ast

from helpers.docs import ROOT


def test_every_test_that_is_left_out_is_on_the_page():
    adapter = ast.parse((ROOT / "tests/conformance/sb3_adapter.py").read_text())  # to import it would replace PPO
    tables = [node for node in adapter.body if isinstance(node, ast.AnnAssign) and node.target.id == "LEFT_OUT"]
    left_out = ast.literal_eval(tables[0].value)
    page = (ROOT / "docs/conformance.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    expected = [f"| `{pattern}` | {why} |".replace("|", "\\|") for pattern, why in left_out.items()]
    assert [row.replace("\\|", "|").replace("|", "\\|") for row in rows] == expected
