"""Names that packages export, whether they are imported at once or on first use."""

import importlib

import pytest
from helpers.processes import run_python

import seeupo_gym
from seeupo_gym import baselines

PACKAGES = ("seeupo_gym", *(f"seeupo_gym.{name}" for name in ("agents", "envs", "baselines", "agents.language")))


@pytest.mark.process
def test_completion_lists_names_before_they_are_imported(tmp_path):
    code = f"""
import importlib, sys
for name in {PACKAGES}:
    package = importlib.import_module(name)
    assert set(package.__all__) <= set(dir(package)), (name, sorted(set(package.__all__) - set(dir(package))))
    assert {{"__name__", "__all__"}} <= set(dir(package)), "what any module has"
"""
    run_python(code, cwd=tmp_path)


@pytest.mark.process
def test_the_environments_alone_load_neither_torch_nor_sb3(tmp_path):
    code = "import sys, seeupo_gym; dir(seeupo_gym); print('torch' in sys.modules, 'stable_baselines3' in sys.modules)"
    assert run_python(code, cwd=tmp_path).strip() == "False False"


def test_evaluate_is_at_the_root():
    assert seeupo_gym.evaluate is baselines.evaluate


@pytest.mark.parametrize("package", ["seeupo_gym", "seeupo_gym.baselines"])
def test_unknown_names_are_told(package):
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        importlib.import_module(package).nothing  # noqa: B018
