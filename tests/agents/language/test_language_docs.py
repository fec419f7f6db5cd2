"""The example of docs/language_models.md runs as written, and learns."""

import sys

import pytest
from helpers.docs import ROOT, code_blocks
from helpers.processes import run, run_python

from seeupo_gym.agents.language import tiny

pytest.importorskip("transformers")
pytest.importorskip("peft")

PAGE = "docs/language_models.md"


@pytest.mark.docs
def test_the_laptop_example_runs_as_written_and_learns(tmp_path):
    (code,) = code_blocks(PAGE, "python")
    printed = run_python(code, cwd=tmp_path)
    assert float(printed.splitlines()[-1]) > 0.55
    assert (tmp_path / "runs" / "guesser.zip").is_file()
    assert (tmp_path / "runs" / "guesser_hf" / "model.safetensors").is_file()
    assert list((tmp_path / "runs").rglob("events.out.tfevents.*"))


@pytest.mark.docs
def test_the_settings_for_a_gpu_are_accepted(tmp_path, monkeypatch):
    pytest.importorskip("bfcl_eval")
    monkeypatch.chdir(tmp_path)
    tiny.build("tiny", ["name description parameters files"], hidden_size=16, max_positions=10_000)
    (code,) = code_blocks(PAGE, "py")
    for written, small in (
        ('"Qwen/Qwen3-4B"', '"tiny"'),
        ("n_envs=256", "n_envs=2"),
        ("n_groups=32", "n_groups=1"),
        ("group_size=8", "group_size=2"),
        ('"cuda"', '"cpu"'),
    ):
        assert code.count(written) == 1
        code = code.replace(written, small)
    names = {}
    exec(code, names)
    assert (names["vec_env"].reset()["context"] >= 0).sum() > 100  # the functions' documents


@pytest.mark.slow
@pytest.mark.process
def test_the_benchmark_runs_and_continues(tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "language.py", "--algos", "seeupo", "--seeds", "1"]
    command += ["--episodes", "256", "--workers", "1", "--out", tmp_path]
    for finished in ("1 of 1 runs finished", ""):
        printed = run(*command)
        assert ("runs finished" in printed) == bool(finished)
        assert "| seeupo | " in printed
    assert (tmp_path / "language.png").stat().st_size > 1000
