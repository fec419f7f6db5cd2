"""Learning curves."""

import sys

import pytest
from helpers import CHAIN, TRAP

from seeupo_gym.baselines import plot_learning_curves
from seeupo_gym.benchmark import run as benchmark
from seeupo_gym.benchmark.plots import learning_curve_figure


def table(scores, environment=TRAP, algorithm="ppo", seed=0.0, step=100.0):
    return [
        {
            "algorithm": algorithm,
            "environment": environment,
            "seed": seed,
            "timesteps": i * step,
            "score": 2.0 * score,
            "normalized_score": score,
            "success_rate": None,
            "episode_length": 4.0,
            "wall_time": 1.0,
        }
        for i, score in enumerate(scores)
    ]


def test_learning_curves_show_mean_spread_and_reference_lines():
    rows = table([0.0, 0.2]) + table([0.2, 0.6], seed=1.0) + table([0.9, 0.9], algorithm="a2c")
    axes = learning_curve_figure(rows, TRAP).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("environment steps", "normalised score")
    assert axes.get_title() == "CoordinationTrap-v0"
    curves = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert curves["ppo (2 seeds)"] == [[0.0, pytest.approx(0.1)], [100.0, pytest.approx(0.4)]]
    assert curves["a2c (1 seed)"] == [[0.0, 0.9], [100.0, 0.9]]
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.0, 0.6)
    assert {text.get_text() for text in axes.texts} == {"expert", "random"}
    assert sorted(line.get_ydata()[0] for line in axes.lines[:2]) == [0.0, 1.0]
    legend = axes.figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["ppo (2 seeds)", "a2c (1 seed)"]
    assert "worst to best seed" in legend.get_title().get_text()


def test_seeds_that_were_evaluated_at_other_steps_are_interpolated():
    rows = table([0.0, 1.0]) + table([0.0, 0.5, 1.0], seed=1.0, step=50.0)
    axes = learning_curve_figure(rows, TRAP).axes[0]
    assert axes.lines[2].get_xydata().tolist() == [[0.0, 0.0], [50.0, 0.5], [100.0, 1.0]]


def test_one_picture_per_environment_is_written(tmp_path):
    paths = plot_learning_curves(table([0.1, 0.2]) + table([0.1, 0.3], CHAIN), tmp_path)
    assert [p.name for p in paths] == ["learning_curve_CoordinationTrap-v0.png", "learning_curve_ContextChain-v0.png"]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 10_000


@pytest.mark.parametrize(("module", "call"), [("matplotlib.figure", "plot"), ("tqdm", "bar")])
def test_missing_extras_say_what_to_install(monkeypatch, module, call):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install (matplotlib|tqdm)"):
        learning_curve_figure(table([0.0]), TRAP) if call == "plot" else benchmark.progress_bar(1, 0, show=True)
