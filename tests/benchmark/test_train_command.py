"""``seeupo-gym train`` loses nothing that was learned: checkpoints, signals, going on, two runs in one folder."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch as th
from helpers.models import read_events

from seeupo_gym import SeeUPO
from seeupo_gym.benchmark import jobs
from seeupo_gym.benchmark.jobs import load_model
from seeupo_gym.benchmark.models import read_info
from seeupo_gym.cli import main
from seeupo_gym.system.files import locked

TRAP = "seeupo_gym/CoordinationTrap-v0"
SMALL = ["--set", "n_groups=2", "--set", "group_size=2", "--set", "n_envs=4", "--no-progress"]
# 16 steps an iteration.
TRAIN = [
    "train",
    "seeupo",
    TRAP,
    "--steps",
    "320",
    "--evals",
    "4",
    "--episodes",
    "3",
    "--checkpoint-every",
    "50",
    *SMALL,
]


@pytest.fixture(autouse=True)
def listening():
    """Listen to Ctrl-C also where the tests run in the background, in which shells have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def train(out, *more):
    return main([*TRAIN, "--out", str(out), *more])


def run_folder(out):
    return out / "CoordinationTrap-v0/seeupo/seed_0"


def checkpoints(out):
    return sorted(path.name for path in (run_folder(out) / "checkpoints").iterdir())


def weights(path):
    model, _ = load_model(path)
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach()


def scores(out):
    rows = json.loads((run_folder(out) / "result.json").read_text())["evaluations"]
    return [{name: number for name, number in row.items() if name != "wall_time"} for row in rows]


def logged(out):
    events = read_events(run_folder(out))
    tags = ("train/loss", "rollout/ep_rew_mean", "eval/score")
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


class Crash(Exception):
    """Ends a run without a chance to save."""


def crash_at(monkeypatch, n_steps, error=Crash):
    """End the training when it has taken some steps, as a kill does: nothing is saved then."""
    step = jobs.EvaluationCallback._on_step

    def crash(callback):
        if callback.num_timesteps >= n_steps:
            raise error
        return step(callback)

    monkeypatch.setattr(jobs.EvaluationCallback, "_on_step", crash)
    if error is Crash:
        monkeypatch.setattr("seeupo_gym.benchmark.folder.RunFolder.save_so_far", lambda *arguments: None)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    out = tmp_path_factory.mktemp("straight")
    assert train(out) == 0
    return out


def test_the_last_checkpoints_are_kept(straight, tmp_path):
    assert checkpoints(straight) == ["model_208_steps.zip", "model_256_steps.zip", "model_304_steps.zip"]
    assert train(tmp_path, "--keep-checkpoints", "1") == 0
    assert checkpoints(tmp_path) == ["model_304_steps.zip"]
    assert train(tmp_path, "--checkpoint-every", "0", "--overwrite") == 0
    assert checkpoints(tmp_path) == []


@pytest.mark.parametrize("n_steps", [210, 256, 319])
def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(straight, tmp_path, monkeypatch, capsys, n_steps):
    crash_at(monkeypatch, n_steps)
    with pytest.raises(Crash):
        train(tmp_path)
    monkeypatch.undo()
    assert train(tmp_path, "--resume") == 0
    assert th.equal(weights(run_folder(tmp_path) / "model.zip"), weights(run_folder(straight) / "model.zip"))
    assert scores(tmp_path) == scores(straight)
    assert logged(tmp_path) == logged(straight)
    assert checkpoints(tmp_path) == checkpoints(straight)
    capsys.readouterr()
    before = (run_folder(tmp_path) / "model.zip").stat().st_mtime_ns
    assert train(tmp_path, "--resume") == 0, "there is nothing to do"
    assert "320 steps" in capsys.readouterr().out
    assert (run_folder(tmp_path) / "model.zip").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", ["n_envs=2", "n_steps=8", "batch_size=8", "n_epochs=1"]),
        (
            "recurrent_ppo",
            ["n_envs=2", "n_steps=8", "batch_size=8", "n_epochs=1", "policy_kwargs={'lstm_hidden_size': 8}"],
        ),
        ("grpo", ["n_groups=2", "group_size=2", "n_envs=4"]),
    ],
)
def test_other_algorithms_go_on_too(tmp_path, monkeypatch, algorithm, settings):
    arguments = [
        "train",
        algorithm,
        TRAP,
        "--steps",
        "64",
        "--evals",
        "2",
        "--episodes",
        "2",
        "--checkpoint-every",
        "16",
    ]
    arguments += [word for setting in settings for word in ("--set", setting)]
    arguments += ["--no-progress", "--out", str(tmp_path)]
    crash_at(monkeypatch, 40)
    with pytest.raises(Crash):
        main(arguments)
    monkeypatch.undo()
    assert main([*arguments, "--resume"]) == 0
    folder = tmp_path / "CoordinationTrap-v0" / algorithm / "seed_0"
    assert read_info(folder / "model.zip")["timesteps"] == 64
    rows = json.loads((folder / "result.json").read_text())["evaluations"]
    assert [row["timesteps"] for row in rows] == [0, 32, 64]


def test_going_on_takes_the_settings_of_before(tmp_path, monkeypatch, capsys):
    crash_at(monkeypatch, 100)
    with pytest.raises(Crash):
        train(tmp_path)
    monkeypatch.undo()
    for more in (["--steps", "640"], ["--set", "learning_rate=0.5"]):
        assert train(tmp_path, "--resume", *more) == 2
        assert "other settings" in capsys.readouterr().err
    assert train(tmp_path, "--resume", "--overwrite") == 2
    assert train(tmp_path, "--resume") == 0
    assert train(tmp_path, "--resume", "--steps", "640") == 2, "nor is a run that is over that of other settings"


def test_a_damaged_state_is_left_out(straight, tmp_path, monkeypatch):
    crash_at(monkeypatch, 220)
    with pytest.raises(Crash):
        train(tmp_path)
    monkeypatch.undo()
    *_, last = checkpoints(tmp_path)
    path = run_folder(tmp_path) / "checkpoints" / last
    path.write_bytes(path.read_bytes()[:5_000])
    with pytest.warns(UserWarning, match=rf"left out: .*{last}: it is no model, or damaged"):
        assert train(tmp_path, "--resume") == 0
    assert th.equal(weights(run_folder(tmp_path) / "model.zip"), weights(run_folder(straight) / "model.zip"))


def test_what_cannot_be_loaded_is_no_trained_model(tmp_path):
    run_folder(tmp_path).mkdir(parents=True)
    (run_folder(tmp_path) / "model.zip").write_bytes(b"half a mod")
    assert train(tmp_path) == 0


def test_the_old_model_stays_until_the_new_one_stands(tmp_path, monkeypatch, capsys):
    model = run_folder(tmp_path) / "model.zip"
    assert train(tmp_path, "--set", "seed=1") == 2
    assert train(tmp_path) == 0
    assert train(tmp_path) == 2
    assert "there is a trained model" in capsys.readouterr().err
    old = model.read_bytes()
    crash_at(monkeypatch, 20)  # before the first checkpoint
    with pytest.raises(Crash):
        train(tmp_path, "--overwrite", "--set", "learning_rate=0.5")
    assert (run_folder(tmp_path) / "result.json").exists()
    monkeypatch.undo()
    crash_at(monkeypatch, 100)
    with pytest.raises(Crash):
        train(tmp_path, "--overwrite", "--set", "learning_rate=0.5")
    assert model.read_bytes() == old
    assert not (run_folder(tmp_path) / "result.json").exists(), "the run that is there now is not over"
    assert checkpoints(tmp_path) == ["model_64_steps.zip"], "those of the old run are gone"
    monkeypatch.undo()
    assert train(tmp_path, "--resume", "--set", "learning_rate=0.5") == 0
    assert model.read_bytes() != old


def test_a_full_disk_ends_no_training(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "no space left")

    monkeypatch.setattr("seeupo_gym.benchmark.folder.RunFolder.save_checkpoint", full)
    with pytest.warns(UserWarning, match="no checkpoint: .*no space left; training goes on"):
        assert train(tmp_path) == 0


def test_an_update_is_finished_before_an_interrupt_ends_the_training(straight, tmp_path, monkeypatch, capsys):
    """So the state that is saved is that between two iterations."""
    update = SeeUPO.train

    def interrupted(model):
        if model.num_timesteps == 160:
            signal.raise_signal(signal.SIGINT)
        update(model)

    monkeypatch.setattr(SeeUPO, "train", interrupted)
    assert train(tmp_path, "--checkpoint-every", "0") == 130
    assert str(run_folder(tmp_path) / "model_so_far.zip") in capsys.readouterr().err
    monkeypatch.undo()
    assert train(tmp_path, "--resume") == 0
    assert th.equal(weights(run_folder(tmp_path) / "model.zip"), weights(run_folder(straight) / "model.zip"))
    assert logged(tmp_path) == logged(straight)


def test_a_second_interrupt_is_not_put_off(tmp_path, monkeypatch):
    done = []

    def interrupted(model):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        done.append(True)

    monkeypatch.setattr(SeeUPO, "train", interrupted)
    assert train(tmp_path) in (130, 143)
    assert done == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


LONG = [*TRAIN, "--steps", "100000000", "--evals", "1"]


def start(out, *words, command=LONG):
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    if "nohup" not in words:  # these tests may run under one themselves
        code += "signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    code += "from seeupo_gym.cli import main; raise SystemExit(main())"
    process = subprocess.Popen(
        [*words, sys.executable, "-c", code, *command, "--out", str(out)], stderr=subprocess.PIPE, text=True
    )
    while not list(out.glob("**/checkpoints/model_*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.process
def test_signals_leave_time_to_save(tmp_path, name, code):
    process = start(tmp_path, *(["nohup"] if name == "SIGTERM" else []))
    with pytest.raises(ValueError, match="another run is writing to"), locked(run_folder(tmp_path)):
        pass
    if name == "SIGTERM":
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert process.poll() is None, "it is to outlive its terminal"
    process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert f"what was learned so far is in {run_folder(tmp_path)}/" in err
    assert "Traceback" not in err
    assert load_model(run_folder(tmp_path) / "model_so_far.zip")[0].num_timesteps > 0
    with locked(run_folder(tmp_path)):  # which the process does not hold any longer
        pass


def test_a_folder_has_one_run_at_a_time(tmp_path, capsys):
    with locked(run_folder(tmp_path)):
        for more in ([], ["--resume"], ["--overwrite"]):
            assert train(tmp_path, *more) == 2
            assert f"another run is writing to {run_folder(tmp_path)}" in capsys.readouterr().err
    assert train(tmp_path) == 0
