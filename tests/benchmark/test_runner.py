"""The processes of a benchmark, and what happens to earlier results."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from seeupo_gym.baselines import run_benchmark
from seeupo_gym.benchmark.results import read_rows
from seeupo_gym.system.files import locked

TRAP = "seeupo_gym/CoordinationTrap-v0"
QUICK = {
    "total_timesteps": 64,
    "n_evals": 1,
    "n_eval_episodes": 2,
    "progress": False,
    "settings": {"a2c": {"n_envs": 4}},
}


def test_overwriting_replaces_only_what_cannot_stay(tmp_path):
    def table():
        return sorted({(row["algorithm"], int(row["seed"])) for row in read_rows(tmp_path / "results.csv")})

    run_benchmark(["a2c"], [TRAP], [0, 1], out=tmp_path, **QUICK)
    run_benchmark(["ppo"], [TRAP], [0], out=tmp_path, **{**QUICK, "settings": {}})
    first = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    again = run_benchmark(["a2c"], [TRAP], [0], out=tmp_path, overwrite=True, **QUICK)
    assert again.finished == ["CoordinationTrap-v0/a2c/seed_0"]
    assert table() == [("a2c", 0), ("a2c", 1), ("ppo", 0)]
    changed = {path.parent.name + path.parent.parent.name for path in first if path.stat().st_mtime_ns != first[path]}
    assert changed == {"seed_0a2c"}

    wrong = {**QUICK, "settings": {"a2c": {"n_envs": 4, "n_steps": "banana"}}}
    failed = run_benchmark(["a2c"], [TRAP], [0], out=tmp_path, overwrite=True, **wrong)
    assert "banana" in failed.failures["CoordinationTrap-v0/a2c/seed_0"]
    assert table() == [("a2c", 0), ("a2c", 1), ("ppo", 0)]

    other = {**QUICK, "settings": {"a2c": {"n_envs": 2}}}
    run_benchmark(["a2c"], [TRAP], [0], out=tmp_path, overwrite=True, **other)
    assert table() == [("a2c", 0), ("ppo", 0)]


def test_two_benchmarks_cannot_write_to_one_folder(tmp_path):
    with locked(tmp_path), pytest.raises(ValueError, match="another run is writing to"):
        run_benchmark(["a2c"], [TRAP], [0], out=tmp_path, **QUICK)
    assert run_benchmark(["a2c"], [TRAP], np.arange(1), out=tmp_path, **QUICK).finished


def test_workers_import_what_this_process_imports(tmp_path):
    """Not a file of the current folder that is called like a package; the same where there can be no fork server."""
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')")
    long = tmp_path / ("x" * 90)
    long.mkdir()
    command = [Path(sys.executable).parent / "seeupo-gym", "benchmark", "--algos", "a2c", "--envs", TRAP]
    command += ["--seeds", "0", "--steps", "64", "--evals", "1", "--episodes", "2", "--no-plots", "--out"]
    for name, variables in (("a", {}), ("b", {"TMPDIR": str(long)})):
        done = subprocess.run(
            [*command, name], cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / name / "results.csv").is_file()


def test_ctrl_c_while_workers_start_is_one_line(tmp_path):
    # What a shell starts in the background ignores Ctrl-C, and hands that on.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    main = "from seeupo_gym.cli import main; raise SystemExit(main())"
    arguments = ["benchmark", "--algos", "a2c", "--envs", TRAP, "--no-plots", "--out", tmp_path]
    command = [sys.executable, "-c", f"{listen}; {main}", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not (tmp_path / ".lock").exists():
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(1.0)  # the server imports torch, which takes longer
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "stopped; what was finished is kept"
    assert "Traceback" not in err


_STUCK = """
import sys, time
from pathlib import Path
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv
from seeupo_gym.baselines import run_benchmark

class Stuck(CartPoleEnv):
    def step(self, action):
        Path("stuck").touch()
        while not Path("go").exists():
            time.sleep(0.01)
        return super().step(action)

gym.register("Stuck-v0", Stuck, max_episode_steps=3)
if __name__ == "__main__":
    quick = dict(n_evals=1, n_eval_episodes=1, progress=False, settings={"a2c": {"n_envs": 1}})
    run_benchmark(["a2c"], ["Stuck-v0"], [0], 64, "out", **quick)
"""


def test_a_folder_belongs_to_the_worker_that_outlives_its_benchmark(tmp_path):
    (tmp_path / "stuck.py").write_text(_STUCK)
    command = [sys.executable, "stuck.py"]
    first = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    while not (tmp_path / "stuck").exists():
        assert first.poll() is None
        time.sleep(0.02)
    first.kill()
    first.wait()
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert second.returncode != 0
    assert "another run is writing to out/Stuck-v0/a2c/seed_0" in second.stderr
    (tmp_path / "go").touch()
    while subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode != 0:
        time.sleep(0.1)
    assert (tmp_path / "out/Stuck-v0/a2c/seed_0/result.json").is_file()
