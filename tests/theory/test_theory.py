"""Decision processes against brute force and values computed by hand, and the command ``seeupo-gym theory``."""

import itertools
import json
import shlex
import sys

import numpy as np
import pytest
from helpers.docs import ROOT, code_blocks

from seeupo_gym.cli import main
from seeupo_gym.theory import report, rows_gradients
from seeupo_gym.theory.checks import random_batch
from seeupo_gym.theory.gradients import (
    policy_gradient,
)
from seeupo_gym.theory.mdp import (
    action_values,
    deterministic_policies,
    expected_return,
    greedy,
    state_distributions,
)
from seeupo_gym.theory.rows_optimality import coordination_trap

PAGE = "docs/theory.md"


# ---------------------------------------------------------------- MDPs


def test_values_computed_by_hand():
    # The trap with 3 turns and 2 actions: going on twice pays 1, stopping at once 0.6.
    mdp, policy, paths = coordination_trap(3, 2)
    assert expected_return(mdp, None) == [1.0]
    assert expected_return(mdp, policy) == [0.5 * 0.6 + 0.5**3]
    np.testing.assert_array_equal(action_values(mdp, policy)[0, :, 0], [[0.6, 0.25], [0.0, 0.5], [0.0, 1.0]])
    np.testing.assert_array_equal(state_distributions(mdp, policy)[0], [[1, 0], [0.5, 0.5], [0.25, 0.75]])
    assert paths.probability(policy).sum() == 1.0


def test_the_optimum_is_the_best_of_all_deterministic_policies_from_every_turn_on(batch):
    policies = deterministic_policies(*batch.policy.shape[1:])
    assert len(policies) == 2**6
    assert len(np.unique(policies, axis=0)) == 64
    optimal = action_values(batch.mdp, None)
    for k in range(6):
        brute = np.max([action_values(batch.mdp[k], policy)[0] for policy in policies], axis=0)
        np.testing.assert_allclose(optimal[k], brute, atol=1e-12)
        best = max(expected_return(batch.mdp[k], policy)[0] for policy in policies)
        assert expected_return(batch.mdp, None)[k] == pytest.approx(best, abs=1e-12)
    np.testing.assert_allclose(expected_return(batch.mdp, greedy(optimal)), expected_return(batch.mdp, None))


def test_paths_are_what_stepping_through_the_mdp_gives(batch):
    mdp, policy, paths = batch
    probability = paths.probability(policy)
    steps = itertools.product(*[range(2)] * 6)
    for i, (s0, a0, s1, a1, s2, a2) in enumerate(steps):
        for k in range(6):
            chance = mdp.start[k, s0] * mdp.transitions[k, 0, s0, a0, s1] * mdp.transitions[k, 1, s1, a1, s2]
            played = policy[k, 0, s0, a0] * policy[k, 1, s1, a1] * policy[k, 2, s2, a2]
            assert probability[k, i] == pytest.approx(chance * played, abs=1e-15)
            rewards = mdp.rewards[k, 0, s0, a0] + mdp.rewards[k, 1, s1, a1] + mdp.rewards[k, 2, s2, a2]
            assert paths.returns[k, i] == pytest.approx(rewards, abs=1e-12)
    for turn in range(3):
        expected = state_distributions(mdp, policy)[:, turn, :, None] * policy[:, turn]
        np.testing.assert_allclose(paths.gather(probability, turn), expected, atol=1e-15)


def test_random_mdps_stop_and_are_deterministic_in_every_other_one(generator):
    mdp = random_batch(generator, 4, (3, 3, 2), stopping=True).mdp
    np.testing.assert_allclose(mdp.transitions.sum(axis=-1), 1.0)
    assert set(np.unique(mdp.transitions[1::2])) == {0.0, 1.0}
    assert not mdp.start[:, -1].any()
    assert not mdp.rewards[:, :, -1].any()
    np.testing.assert_array_equal(mdp.transitions[:, :, :, 0, -1], 1.0)
    np.testing.assert_array_equal(mdp.transitions[:, :, -1, :, -1], 1.0)


# ---------------------------------------------------------------- the command


def theory(capsys, *argv):
    code = main(["theory", *map(str, argv)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def claims(table):
    """The cells below "claim" of a printed table."""
    lines = table[: table.index("\n(Sweeps")].splitlines()
    start, end = lines[0].index("claim"), lines[0].index("measured")
    return [line[start:end].rstrip() for line in lines[2:]]


@pytest.fixture(scope="module")
def page_command():
    (command,) = code_blocks(PAGE, "bash")
    program, name, *options = shlex.split(command)
    assert (program, name) == ("seeupo-gym", "theory")
    return [*options, "--mdps", 3]


@pytest.mark.docs
def test_the_command_on_the_page_and_its_seed(capsys, tmp_path, page_command, monkeypatch):
    code, out, err = theory(capsys, *page_command, "--out", tmp_path / "a")
    assert code == 0
    assert "FAILS" not in out
    assert "claim 7" in err
    (table,) = code_blocks(PAGE, "text")
    printed = claims(out)
    assert printed == claims(table)
    results = json.loads((tmp_path / "a/results.json").read_text())
    assert [check["claim"].strip() for check in results["checks"]] == [claim.strip() for claim in printed]
    for plot in ("theory_return.png", "theory_gap.png", "theory_staged.png"):
        assert (tmp_path / "a" / plot).stat().st_size > 10_000
        assert str(tmp_path / "a" / plot) in out
        assert f"images/{plot}" in (ROOT / PAGE).read_text()

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, again, _ = theory(capsys, *page_command, "--out", tmp_path / "b", "--no-plots")
    assert code == 0
    assert again[: again.index("written:")] == out[: out.index("written:")]
    assert (tmp_path / "a/results.json").read_bytes() == (tmp_path / "b/results.json").read_bytes()
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["results.json"]


def test_plots_without_matplotlib_are_an_error_before_anything_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = theory(capsys, "--mdps", 3, "--out", tmp_path)
    assert (code, out) == (2, "")
    assert "pip install matplotlib" in err


def test_a_claim_that_fails_is_an_error(capsys, tmp_path, monkeypatch, generator):
    monkeypatch.setattr(rows_gradients, "policy_gradient", lambda mdp, policy: 1.001 * policy_gradient(mdp, policy))
    rows = [(2, row) for row in rows_gradients.gradient_rows(generator, 1)]
    monkeypatch.setattr(report, "run_theory", lambda *arguments: report.TheoryRun(rows, []))
    code, out, _ = theory(capsys, "--out", tmp_path, "--no-plots")
    assert code == 1
    assert out.count("FAILS") == 3


def test_too_few_mdps_are_refused(capsys, tmp_path):
    code, out, err = theory(capsys, "--mdps", 2, "--out", tmp_path, "--no-plots")
    assert (code, out) == (2, "")
    assert "--mdps must be at least 3" in err
