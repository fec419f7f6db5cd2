"""The example of docs/language_models.md runs as written, and learns."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from seeupo_gym.agents.language import tiny

pytest.importorskip("transformers")
pytest.importorskip("peft")

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "language_models.md"


@pytest.mark.docs
def test_the_laptop_example_runs_as_written_and_learns(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) > 0.55
    assert (tmp_path / "runs" / "guesser.zip").is_file()
    assert (tmp_path / "runs" / "guesser_hf" / "model.safetensors").is_file()
    assert list((tmp_path / "runs").rglob("events.out.tfevents.*"))


@pytest.mark.docs
def test_the_settings_for_a_gpu_are_accepted(tmp_path, monkeypatch):
    pytest.importorskip("bfcl_eval")
    monkeypatch.chdir(tmp_path)
    tiny.build("tiny", ["name description parameters files"], hidden_size=16, max_positions=10_000)
    (code,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
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
    command = [sys.executable, str(ROOT / "benchmarks" / "language.py"), "--algos", "seeupo", "--seeds", "1"]
    command += ["--episodes", "256", "--workers", "1", "--out", str(tmp_path)]
    for finished in ("1 of 1 runs finished", ""):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert ("runs finished" in done.stdout) == bool(finished)
        assert "| seeupo | " in done.stdout
    assert (tmp_path / "language.png").stat().st_size > 1000
