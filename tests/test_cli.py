"""The command line, through main()."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import pytest
import torch

from seeupo_gym.baselines.presets import PRESETS
from seeupo_gym.baselines.registry import get_algorithm
from seeupo_gym.benchmark.models import INFO_MEMBER, read_info
from seeupo_gym.benchmark.tables import format_table
from seeupo_gym.cli import main, parse_pairs
from seeupo_gym.envs import ENV_IDS

TRAP, TOOLS = "seeupo_gym/CoordinationTrap-v0", "seeupo_gym/ToolChain-v0"
SMALL = ["--set", "n_groups=2", "--set", "group_size=2", "--set", "n_envs=4"]


def call(capsys, *argv):
    code = main([str(argument) for argument in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def error_line(capsys, *argv):
    code, out, err = call(capsys, *argv)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    assert main(["train", "seeupo", TOOLS, "--steps", "60", "--evals", "2", "--out", str(out), *SMALL]) == 0
    return out / "ToolChain-v0/seeupo/seed_0/model.zip"


def test_pairs_are_read_as_literals_and_never_evaluated():
    pairs = [
        "a=1",
        "b=2.5",
        "c=text",
        "d=[1, 2]",
        "e=true",
        "f=None",
        "g={'x': 1}",
        "h=__import__('os').getcwd()",
        "i=k=v",
    ]
    assert parse_pairs(pairs) == {
        "a": 1, "b": 2.5, "c": "text", "d": [1, 2], "e": True, "f": None, "g": {"x": 1},
        "h": "__import__('os').getcwd()", "i": "k=v",
    }  # fmt: skip
    with pytest.raises(ValueError, match="expected key=value, got 'a'"):
        parse_pairs(["a"])
    with pytest.raises(ValueError, match="more than once"):
        parse_pairs(["a=1", "a=2"])


def test_tables_are_aligned():
    assert format_table(["name", ">n"], [["a", "10"], ["long name", "1"]]).splitlines() == [
        "name        n",
        "---------  --",
        "a          10",
        "long name   1",
    ]


def test_envs_lists_every_environment(capsys):
    code, out, err = call(capsys, "envs")
    assert (code, err) == (0, "")
    for env_id in ENV_IDS:
        assert env_id in out
    (line,) = [line for line in out.splitlines() if TRAP in line]
    assert line.split()[-5:] == ["float32)", "Discrete(4)", "4", "0.155", "1.000"]


def test_train_saves_a_model_that_evaluate_and_watch_understand(capsys, trained):
    info = read_info(trained)
    assert (info["algorithm"], info["env_id"]) == ("seeupo", TOOLS)
    assert list(trained.parent.glob("events.out.tfevents.*"))
    code, out, err = call(capsys, "evaluate", trained, "--episodes", 20)
    assert (code, err) == (0, "")
    assert "seeds 2147483648 to 2147483667" in out
    assert "mean return" in out
    assert "normalised" in out
    code, out, err = call(capsys, "watch", trained, "--seed", 7)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert sum(line.startswith("User: ") for line in lines) >= 1
    assert lines.count(next(line for line in lines if line.startswith("System: "))) == 1  # told once, not at every turn
    assert any("[turn 0: " in line and "%" in line and " | " in line for line in lines)
    assert lines[-1].startswith("Return ")
    assert "(seed 7)" in lines[-1]
    assert call(capsys, "watch", trained, "--seed", 7)[1] == out


def test_what_an_interrupted_training_learned_is_kept(capsys, tmp_path, monkeypatch):
    def interrupt(callback):
        if callback.num_timesteps >= 40:
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr("seeupo_gym.benchmark.jobs.EvaluationCallback._on_step", interrupt)
    train = ["train", "seeupo", TRAP, "--steps", 400, "--out", tmp_path, "--no-progress", *SMALL]
    code, _, err = call(capsys, *train)
    model = tmp_path / "CoordinationTrap-v0/seeupo/seed_0/model_so_far.zip"
    assert code == 130
    assert str(model) in err
    assert call(capsys, "evaluate", model, "--episodes", 3)[0] == 0
    monkeypatch.undo()
    assert str(model) in error_line(capsys, *train)
    assert "max_turns must be an integer" in error_line(capsys, *train, "--overwrite", "--set", "max_turns=no")
    assert model.exists(), "until there is something better"
    assert call(capsys, *train, "--overwrite")[0] == 0
    assert not model.exists()


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_other_algorithms_can_be_trained_and_watched(capsys, tmp_path, algorithm):
    settings = ["--set", "n_envs=2", "--set", "n_steps=8"] + (["--set", "batch_size=8"] if algorithm == "ppo" else [])
    arguments = ["--steps", 16, "--evals", 1, "--out", tmp_path, "--env-arg", "turns=3", "--no-progress", *settings]
    code, out, err = call(capsys, "train", algorithm, TRAP, *arguments)
    assert (code, err) == (0, "")
    assert f"tensorboard --logdir {tmp_path}" in out
    model = tmp_path / f"CoordinationTrap-v0/{algorithm}/seed_0/model.zip"
    code, out, _ = call(capsys, "watch", model)
    assert code == 0
    assert out.count("[turn ") == 3  # the argument of the environment is remembered
    assert "2147483648" in out
    err = error_line(capsys, "train", algorithm, TRAP, *arguments)
    assert "--overwrite" in err


def test_a_foreign_environment_can_be_watched(capsys, tmp_path):
    arguments = ["--steps", 8, "--evals", 1, "--episodes", 2, "--out", tmp_path, "--no-progress", "--set", "n_envs=2"]
    assert call(capsys, "train", "a2c", "FrozenLake-v1", *arguments)[0] == 0
    code, out, _ = call(capsys, "watch", tmp_path / "FrozenLake-v1/a2c/seed_0/model.zip")
    assert code == 0
    assert "SFFF" in out or "FFF" in out


@pytest.mark.process
def test_benchmark_writes_everything_and_continues(capsys, tmp_path):
    arguments = ["benchmark", "--algos", "seeupo", "--envs", TRAP, "--seeds", 0, "--steps", 64, "--evals", 2]
    arguments += ["--episodes", 5, "--out", tmp_path, *(text.replace("n_", "seeupo.n_") for text in SMALL[:2])]
    code, out, err = call(capsys, *arguments)
    assert code == 0
    assert "64.0/64.0" in err
    (line,) = [line for line in out.splitlines() if line.startswith("CoordinationTrap-v0")]
    assert line.split()[1] == "seeupo"
    assert out.rstrip().endswith(f"tensorboard --logdir {tmp_path}")
    for name in ("results.csv", "results.json", "learning_curve_CoordinationTrap-v0.png"):
        assert (tmp_path / name).is_file()
        assert str(tmp_path / name) in out
    code, out, _ = call(capsys, *arguments)
    assert code == 0
    assert "kept 1 finished runs" in out
    assert "total_timesteps was 64, now 65" in error_line(capsys, *arguments, "--steps", 65)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train", "nope", TRAP], "unknown algorithm 'nope'"),
        (["train", "ppo", "Nope-v0"], "cannot make the environment"),
        (["train", "ppo", TRAP, "--set", "nope=1"], "ppo has no setting 'nope'"),
        (["train", "ppo", TRAP, "--env-arg", "turns"], "expected key=value"),
        (["train", "ppo", TRAP, "--env-arg", "turns=1"], "turns must be an integer from 2 to 1000"),
        (["train", "ppo", TRAP, "--steps", "0"], "total_timesteps must be at least 1"),
        (["train", "ppo", TRAP, "--steps", "many"], "invalid int value"),
        (
            ["train", "seeupo", TRAP, "--set", "group_size=1", "--no-progress"],
            "group_size must be an integer of at least 2",
        ),
        (["train", "ppo", TRAP, "--set", "n_steps=banana", "--no-progress"], "cannot be made with"),
        (["train", "ppo", TRAP, "--set", "learning_rate=abc", "--no-progress"], "cannot be made with"),
        (["evaluate", "nowhere.zip"], "there is no model"),
        (["watch", "nowhere.zip"], "there is no model"),
        (["benchmark", "--algos", "nope"], "unknown algorithm"),
        (["benchmark", "--set", "n_epochs=3"], "ALGORITHM.KEY=VALUE"),
        (["benchmark", "--preset", "nope"], "invalid choice"),
        ([], "required"),
    ],
)
def test_errors_are_one_line(capsys, tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    assert message in error_line(capsys, *argv)
    assert list(tmp_path.glob("**/*.zip")) == []


def test_seeds_of_no_episode_are_refused(capsys, trained):
    for seed in (-1, 2**63 - 50, 10**20):
        assert "seeds must be in [0, 2**63)" in error_line(capsys, "evaluate", trained, "--seed", seed)
    assert "seeds must be in [0, 2**63)" in error_line(capsys, "watch", trained, "--seed", -1)


def with_info(source, target, info):
    """Copy a model with another description of it, or with none."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            if name != INFO_MEMBER:
                new.writestr(name, old.read(name))
        if info is not None:
            new.writestr(INFO_MEMBER, json.dumps(info))


def test_models_that_cannot_be_used_here(capsys, trained, tmp_path):
    model, info = tmp_path / "model.zip", read_info(trained)
    with_info(trained, model, {**info, "env_id": "OfSomeScript-v0"})
    for command in ("evaluate", "watch"):
        assert "If a script of yours registers it" in error_line(capsys, command, model)
    with_info(trained, model, {k: v for k, v in info.items() if k != "env_id"})
    assert "lacks the entry 'env_id'" in error_line(capsys, "evaluate", model)
    with zipfile.ZipFile(model, "w") as archive:
        archive.writestr("note", "nothing")
    assert "model.json" in error_line(capsys, "evaluate", model)
    with zipfile.ZipFile(model, "a") as archive:
        archive.writestr(INFO_MEMBER, json.dumps(info))
    assert "is no model of SeeUPO" in error_line(capsys, "evaluate", model)


def test_models_whose_description_is_beside_them_are_read(capsys, trained, tmp_path):
    """As those of older versions are."""
    model, info = tmp_path / "model.zip", read_info(trained)
    with_info(trained, model, None)
    (tmp_path / "model.json").write_text(json.dumps(info))
    assert call(capsys, "evaluate", model, "--episodes", 3)[0] == 0
    (tmp_path / "model.json").unlink()
    assert "model.json" in error_line(capsys, "evaluate", model)


@pytest.mark.parametrize("n_bytes", [0, 1, 5_000, 30_000, 60_000])
@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_damaged_models_are_one_line(capsys, trained, tmp_path, n_bytes, damage):
    content = trained.read_bytes()
    model = tmp_path / "model.zip"
    end = b"" if damage == "cut" else bytes(3_000) + content[n_bytes + 3_000 :]
    model.write_bytes(content[:n_bytes] + end)
    assert "damaged" in error_line(capsys, "evaluate", model)


def test_files_are_named_when_they_can_be_read(capsys, tmp_path, monkeypatch):
    empty = tmp_path / "theory.csv"
    empty.touch()
    run = SimpleNamespace(paths=[empty], table=list, failed=[])
    monkeypatch.setattr("seeupo_gym.theory.report.run_theory", lambda *arguments: run)
    code, _, err = call(capsys, "theory", "--no-plots")
    assert code == 2
    assert f"{empty} is empty" in err
    empty.write_text("content")
    assert str(empty) in call(capsys, "theory", "--no-plots")[1]


@pytest.mark.process
def test_the_reader_may_stop_reading():
    command = [Path(sys.executable).parent / "seeupo-gym", "envs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.process
def test_a_terminal_may_lack_characters():
    code = "from seeupo_gym import cli; cli._envs = lambda a: print(chr(177)); cli.main(['envs'])"
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=ascii_only, capture_output=True, check=True)
    assert done.stdout == b"?\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_missing_is_not_replaced(capsys, tmp_path):
    arguments = ["--set", "device=cuda", "--no-progress", "--out", tmp_path]
    assert "torch finds no GPU here" in error_line(capsys, "train", "ppo", TRAP, *arguments)


def test_help_is_no_error(capsys):
    code, out, _ = call(capsys, "benchmark", "--help")
    assert code == 0
    assert "--preset" in out


def test_presets_name_things_that_exist():
    for preset in PRESETS.values():
        assert [get_algorithm(name).name for name in preset["algos"]] == preset["algos"]
        assert set(preset["envs"]) <= set(gym.registry)
        assert set(preset.get("env_kwargs", {})) <= set(preset["envs"])
        assert set(preset.get("settings", {})) <= set(preset["algos"])


@pytest.mark.process
def test_the_module_can_be_run_and_help_does_not_load_torch():
    code = "import sys; from seeupo_gym.cli import main; main(['--help']); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "False"
    command = [sys.executable, "-m", "seeupo_gym", "--help"]
    assert "benchmark" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
