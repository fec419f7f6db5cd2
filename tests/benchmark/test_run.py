"""A whole benchmark: failures, going on, workers, Ctrl-C, budgets, wrong arguments."""

import csv
import json
import multiprocessing

import numpy as np
import pytest
from helpers import CHAIN, TRAP
from helpers.jobs import CLASSES, SMALL, small_job

from seeupo_gym import SeeUPO
from seeupo_gym.baselines import algorithm_names, get_algorithm, run_benchmark
from seeupo_gym.benchmark import run as benchmark
from seeupo_gym.benchmark import runner
from seeupo_gym.benchmark.jobs import run_job
from seeupo_gym.benchmark.results import COLUMNS, SettingsDifferError, read_rows
from seeupo_gym.envs.task import HELD_OUT_SEED

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.process
def test_failing_jobs_are_reported_and_a_stopped_benchmark_continues(tmp_path, registered):
    registered("raising", "helpers.jobs:RaisingA2C", n_envs=4)
    registered("dying", "helpers.jobs:DyingA2C", n_envs=4)
    arguments = {"env_ids": [TRAP], "total_timesteps": 128, "out": tmp_path, "n_evals": 2, "n_eval_episodes": 10}
    arguments |= {"progress": False, "settings": {"seeupo": SMALL}}
    reports = []
    run = run_benchmark(["raising", "dying", "seeupo"], seeds=[0], n_workers=2, report=reports.append, **arguments)
    assert set(run.failures) == {"CoordinationTrap-v0/raising/seed_0", "CoordinationTrap-v0/dying/seed_0"}
    assert "RuntimeError: out of luck" in run.failures["CoordinationTrap-v0/raising/seed_0"]
    assert "exit code 7" in run.failures["CoordinationTrap-v0/dying/seed_0"]
    assert sorted(text.split()[0] for text in reports) == sorted(run.failures)
    assert run.finished == ["CoordinationTrap-v0/seeupo/seed_0"]

    first = (tmp_path / "CoordinationTrap-v0/seeupo/seed_0/result.json").read_text()
    again = run_benchmark(["seeupo"], seeds=[0, 1], n_workers=1, **arguments)
    assert again.kept == ["CoordinationTrap-v0/seeupo/seed_0"]
    assert again.finished == ["CoordinationTrap-v0/seeupo/seed_1"]
    assert (tmp_path / "CoordinationTrap-v0/seeupo/seed_0/result.json").read_text() == first
    assert json.loads(first)["settings"]["algorithm_settings"]["use_masking"] is False

    with (tmp_path / "results.csv").open() as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == COLUMNS
    assert [(row["seed"], row["timesteps"]) for row in table] == [(s, t) for s in "01" for t in ("0", "64", "128")]
    merged = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [r["settings"]["seed"] for r in merged] == [0, 1]
    assert [r["timesteps"] for r in merged] == [128, 128]

    with pytest.raises(SettingsDifferError, match="total_timesteps was 128, now 129"):
        run_benchmark(["seeupo"], seeds=[0], **{**arguments, "total_timesteps": 129})
    assert (tmp_path / "CoordinationTrap-v0/seeupo/seed_0/result.json").read_text() == first


@pytest.mark.process
def test_algorithms_of_seeupo_get_no_masks_in_a_benchmark_unless_they_ask(registered, monkeypatch, tmp_path):
    registered("masked_seeupo", "seeupo_gym:SeeUPO", settings={"use_masking": True})
    specs = {}

    class Planned(benchmark.Runner):
        def __init__(self, jobs, *arguments):
            specs.update({job.spec.name: job.spec for job in jobs})
            super().__init__([], *arguments)

    monkeypatch.setattr(benchmark, "Runner", Planned)
    run_benchmark(algorithm_names(), [TRAP], [0], 64, tmp_path, progress=False)
    assert list(specs) == algorithm_names()
    for name, spec in specs.items():
        if name == "masked_seeupo":
            assert spec.settings["use_masking"] is True
        elif issubclass(CLASSES[name], SeeUPO):
            assert spec.settings == {**get_algorithm(name).settings, "use_masking": False}
        else:
            assert spec == get_algorithm(name)


@pytest.mark.process
def test_workers_start_like_new_processes(tmp_path, registered, monkeypatch):
    """Also those that are forked from a server that an earlier benchmark started; Ctrl-C is for the parent alone."""
    registered("telling", "helpers.jobs:TellingA2C", n_envs=4)
    told = []
    for value in ("one", "two"):
        monkeypatch.setenv("SEEUPO_TEST", value)
        if value == "two":
            monkeypatch.delenv("HOME")
        run = run_benchmark(["telling"], [TRAP], [0, 1], 64, tmp_path / value, progress=False)
        told += [json.loads(text.split("RuntimeError: ")[1]) for text in run.failures.values()]
    assert [row["variable"] for row in told] == ["one", "one", "two", "two"]
    assert [row["home"] is None for row in told] == [False, False, True, True]
    assert len({draw for row in told for draw in row["draws"]}) == 8


@pytest.mark.process
def test_ctrl_c_ends_the_workers_and_keeps_what_is_finished(tmp_path, monkeypatch):
    job = small_job(tmp_path, n_evals=2, settings={**SMALL, "use_masking": False})
    run_job(job)

    started = []

    def interrupted(connections):
        started.extend(p for p in multiprocessing.active_children() if p.name.startswith("CoordinationTrap-v0/seeupo"))
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(
            ["seeupo"],
            [TRAP],
            [0, 1],
            256,
            tmp_path,
            n_evals=2,
            n_eval_episodes=10,
            progress=False,
            settings={"seeupo": SMALL},
        )
    assert len(started) == 1
    assert not any(process.is_alive() for process in started)
    assert {row["seed"] for row in read_rows(tmp_path / "results.csv")} == {0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithms": ["nope"]}, "unknown algorithm 'nope'"),
        ({"env_ids": ["Nope-v0"]}, "cannot make the environment 'Nope-v0'"),
        ({"env_ids": [TRAP, TRAP]}, "'CoordinationTrap-v0' is given more than once"),
        ({"algorithms": ["a2c", "a2c"]}, "'a2c' is given more than once"),
        ({"seeds": [1, 1]}, "seed 1 is given more than once"),
        ({"seeds": [HELD_OUT_SEED]}, "seeds must be numbers from 0"),
        ({"seeds": []}, "at least one seed"),
        ({"total_timesteps": 0}, "total_timesteps must be at least 1"),
        ({"n_evals": 0}, "n_evals must be at least 1"),
        ({"n_workers": 0}, "n_workers must be at least 1"),
        ({"settings": {"ppo": {}}}, "settings for 'ppo', which takes no part"),
        ({"settings": {"a2c": {"foo": 1}}}, "a2c has no setting 'foo'"),
        ({"env_kwargs": {TRAP: {"turns": 1}}}, "turns must be an integer from 2 to 1000"),
        ({"env_kwargs": {CHAIN: {}}}, "takes no part"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(tmp_path, changes, message):
    arguments = {"algorithms": ["a2c"], "env_ids": [TRAP], "seeds": [0], "total_timesteps": 10, "out": tmp_path}
    with pytest.raises(ValueError, match=message):
        run_benchmark(**{**arguments, **changes}, progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.process
def test_algorithms_get_equal_budgets(tmp_path):
    run = run_benchmark(
        ["seeupo", "ppo", "a2c"], [TRAP], [0], 4096, tmp_path, n_evals=4, n_eval_episodes=10, progress=False
    )
    assert not run.failures
    for result in run.results:
        one_iteration = 16 * 128
        assert 4096 <= result["timesteps"] < 4096 + one_iteration
        steps = [row["timesteps"] for row in result["evaluations"]]
        np.testing.assert_allclose(steps[:4], [0, 1024, 2048, 3072], atol=127)
