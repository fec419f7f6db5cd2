"""The benchmark of sweeps: it continues where it was stopped, and its variant leaves out what it says."""

import runpy
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch as th

import seeupo_gym.agents.seeupo
from seeupo_gym import SeeUPO

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sweeps.py"


@pytest.fixture(scope="module")
def script():
    n_threads = th.get_num_threads()
    yield runpy.run_path(str(SCRIPT))
    th.set_num_threads(n_threads)  # the script sets one


def test_the_benchmark_continues(script, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    command = ["sweeps.py", "--out", str(out), "--steps", "200", "--tasks", "GuessNumber"]
    for arguments, n_rows in ((["--seeds", "1"], 5), (["--seeds", "1"], 5), (["--seeds", "2"], 10)):
        before = next(out.glob("*.csv")).read_text() if out.exists() else ""
        monkeypatch.setattr(sys, "argv", [*command, *arguments])
        script["main"]()
        lines = (out / "sweeps_200.csv").read_text()
        assert lines.startswith(before)
        assert len(lines.splitlines()) == 1 + n_rows
    printed = capsys.readouterr().out.splitlines()
    for method in script["METHODS"]:
        assert sum(line.startswith(f"| {method} |") for line in printed) == 2 * 3
    assert printed[-1].startswith("| PPO |")
    assert printed[-1].count(",") == 1, "two seeds of one task"


@pytest.mark.parametrize("later_turns", [True, False])
def test_factors_of_the_variant_start_at_1_in_each_sweep(script, later_turns):
    update = script["SequentialUpdate" if later_turns else "UpdateWithoutLaterTurns"]
    settings = {"n_groups": 2, "group_size": 4, "seed": 0, "n_epochs": 1}
    model = SeeUPO("MlpPolicy", "seeupo_gym/ContextChain-v0", n_sweeps=2, **settings)
    with patch.object(seeupo_gym.agents.seeupo, "SequentialUpdate", update):
        model.learn(1, log_interval=None)
    # The turn that is updated first: in the second sweep all others are still to come.
    assert (model.logger.name_to_value[f"train/turn_{model.n_turns - 1:02d}/factor_mean"] != 1.0) == later_turns
