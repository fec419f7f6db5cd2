"""Registry, evaluation, benchmark and plots."""

import csv
import json
import multiprocessing
import os
import random
import re
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from helpers.models import read_events
from sb3_contrib import TRPO, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, PPO

from seeupo_gym import SeeUPO
from seeupo_gym.baselines import (
    GRPO,
    GSPO,
    REINFORCE,
    RLOO,
    REINFORCEPlusPlus,
    algorithm_names,
    evaluate,
    get_algorithm,
    plot_learning_curves,
    register_algorithm,
    run_benchmark,
)
from seeupo_gym.baselines.registry import policy_for, unregister_algorithm
from seeupo_gym.benchmark import results as results_module
from seeupo_gym.benchmark import run as benchmark
from seeupo_gym.benchmark import runner
from seeupo_gym.benchmark.environments import check_env, env_name
from seeupo_gym.benchmark.jobs import Job, load_model, run_job
from seeupo_gym.benchmark.plots import learning_curve_figure
from seeupo_gym.benchmark.results import COLUMNS, SettingsDifferError, read_rows
from seeupo_gym.benchmark.watch import describe_policy
from seeupo_gym.envs.reference import reference_scores
from seeupo_gym.envs.task import ALL_LANES, HELD_OUT_SEED
from seeupo_gym.envs.tasks.tool_chain import ToolChain
from seeupo_gym.envs.vector import make_vec

pytestmark = pytest.mark.usefixtures("one_thread")

TRAP, CHAIN, TOOLS = "seeupo_gym/CoordinationTrap-v0", "seeupo_gym/ContextChain-v0", "seeupo_gym/ToolChain-v0"
SMALL = {"n_groups": 4, "group_size": 4, "n_envs": 16}
SMALL_ACTOR_CRITIC = {"n_envs": 4, "n_steps": 16, "batch_size": 16}


class RaisingA2C(A2C):
    def train(self):
        raise RuntimeError("out of luck")


class HandingOnA2C(A2C):
    def __init__(self, *args, n_steps=7, **kwargs):
        super().__init__(*args, n_steps=n_steps, **kwargs)


class DyingA2C(A2C):
    def train(self):
        os._exit(7)


class TellingA2C(A2C):
    def __init__(self, *args, **kwargs):  # before SB3 seeds the global generators
        os.kill(os.getpid(), signal.SIGINT)
        told = {"variable": os.environ.get("SEEUPO_TEST"), "home": os.environ.get("HOME")}
        raise RuntimeError(json.dumps({**told, "draws": [np.random.rand(), random.random()]}))  # noqa: NPY002


@pytest.fixture
def registered():
    names = []

    def register(name, entry_point, **kwargs):
        names.append(name)
        return register_algorithm(name, entry_point, **kwargs)

    yield register
    for name in names:
        unregister_algorithm(name)


def scripted(act, **attributes):
    """A model that is a function of the observations, the state and the episode starts."""
    policy = SimpleNamespace(training=True)
    policy.set_training_mode = lambda mode: setattr(policy, "training", mode)
    return SimpleNamespace(policy=policy, device=th.device("cpu"), predict=act, **attributes)


def small_job(out, algorithm="seeupo", env_id=TRAP, total_timesteps=256, settings=SMALL, **kwargs):
    spec = get_algorithm(algorithm).with_settings(settings)
    return Job(spec, env_id, 0, total_timesteps, Path(out), **{"n_evals": 4, "n_eval_episodes": 10, **kwargs})


# --- registry


CLASSES = {
    "seeupo": SeeUPO,
    "ppo": PPO,
    "a2c": A2C,
    "seeupo_staged": SeeUPO,
    "grpo": GRPO,
    "gspo": GSPO,
    "rloo": RLOO,
    "reinforce": REINFORCE,
    "reinforce_pp": REINFORCEPlusPlus,
    "trpo": TRPO,
    "recurrent_ppo": RecurrentPPO,
    "maskable_ppo": MaskablePPO,
}


def test_the_registered_algorithms():
    assert algorithm_names() == list(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_every_registered_algorithm_is_made_with_its_settings(name):
    spec = get_algorithm(name)
    model = spec.make_model(TRAP, seed=3)
    assert type(model) is CLASSES[name]
    assert model.n_envs == spec.n_envs
    assert model.seed == 3
    for setting, value in spec.settings.items():
        assert getattr(model, setting) == value


def test_a_registered_algorithm_can_be_looked_up_once(registered):
    registered("mine", "stable_baselines3:A2C", n_envs=2)
    assert get_algorithm("mine").make_model(TRAP, 0).n_envs == 2
    with pytest.raises(ValueError, match="registered already"):
        register_algorithm("mine", "stable_baselines3:PPO")
    with pytest.raises(ValueError, match=r"unknown algorithm 'nope'; there are: seeupo, ppo, a2c, .*, mine"):
        get_algorithm("nope")
    with pytest.raises(ValueError, match="letters, digits"):
        register_algorithm("../up", "stable_baselines3:PPO")
    with pytest.raises(ValueError, match="cannot import 'stable_baselines3:XYZ'"):
        registered("broken", "stable_baselines3:XYZ").load_class()


def test_settings_are_checked_and_completed_with_the_defaults():
    spec = get_algorithm("ppo").with_settings({"n_epochs": 3, "n_envs": 2})
    assert spec.n_envs == 2
    assert spec.all_settings()["n_epochs"] == 3
    assert spec.all_settings()["gae_lambda"] == 0.95
    with pytest.raises(ValueError, match=r"ppo has no setting 'n_epoch'; it has: .*n_epochs"):
        spec.with_settings({"n_epoch": 3})
    with pytest.raises(ValueError, match="no setting 'seed'"):
        spec.with_settings({"seed": 3})
    with pytest.raises(ValueError, match="n_envs must be"):
        spec.with_settings({"n_envs": 0})


def test_settings_of_base_classes_are_known_where_a_class_hands_them_on(registered):
    spec = registered("handing_on", "test_baselines:HandingOnA2C")
    assert spec.all_settings()["n_steps"] == 7  # its own default, not A2C's 5
    assert spec.all_settings()["gae_lambda"] == 1.0
    assert not {"args", "kwargs", "env"} & set(spec.all_settings())
    assert spec.with_settings({"gae_lambda": 0.9}).make_model(TRAP, 0).gae_lambda == 0.9
    with pytest.raises(ValueError, match="no setting 'kwargs'"):
        spec.with_settings({"kwargs": {}})


def test_fixed_settings_are_recorded_and_cannot_be_changed():
    spec = get_algorithm("grpo").with_settings({"n_epochs": 2, "turn_policies": "separate"})
    settings = spec.all_settings()
    assert (settings["n_epochs"], settings["clip_range"], settings["ratio_level"]) == (2, 0.2, "token")
    assert settings["turn_policies"] == "separate"
    assert get_algorithm("grpo").all_settings()["turn_policies"] == "shared"
    with pytest.raises(ValueError, match=r"grpo has no setting 'ratio_level'; it has: (?!.*ratio_level)"):
        spec.with_settings({"ratio_level": "sequence"})


def test_the_policy_follows_from_the_observation_space():
    spaces = [
        gym.spaces.Box(0, 255, (36, 36, 3), np.uint8),
        gym.spaces.Dict(a=gym.spaces.Discrete(2)),
        gym.spaces.Discrete(2),
    ]
    for cls in (A2C, SeeUPO, GRPO, MaskablePPO):
        assert [policy_for(space, cls) for space in spaces] == ["CnnPolicy", "MultiInputPolicy", "MlpPolicy"]
    aliases = ["CnnLstmPolicy", "MultiInputLstmPolicy", "MlpLstmPolicy"]
    assert [policy_for(space, RecurrentPPO) for space in spaces] == aliases


def test_environment_names_and_errors():
    assert env_name("my_module:space/Task-v0") == "Task-v0"
    with pytest.raises(ValueError, match="cannot make the environment 'Nope-v0'"):
        check_env("Nope-v0")
    with pytest.raises(ValueError, match="'armz': 3"):
        check_env(TRAP, {"armz": 3})


# --- evaluation


def test_evaluation_plays_the_held_out_seeds():
    def act(obs, state, episode_start, deterministic):
        state = np.where(episode_start, 0, 0 if state is None else state)
        return (obs.argmax(axis=1) + state) % 4, state + 1

    expected = []
    env = gym.make(CHAIN)
    for i in range(25):
        obs, _ = env.reset(seed=HELD_OUT_SEED + i)
        total, done, turn = 0.0, False, 0
        while not done:
            obs, reward, done, _, info = env.step((int(obs.argmax()) + turn) % 4)
            total, turn = total + reward, turn + 1
        expected.append((total, turn, info["is_success"]))
    result = evaluate(scripted(act), CHAIN, n_episodes=25)
    assert len({total for total, _, _ in expected}) > 1  # else the order of the episodes would not be tested
    np.testing.assert_allclose(result.returns, [e[0] for e in expected], rtol=1e-6)
    assert result.lengths.tolist() == [e[1] for e in expected]
    assert result.successes.tolist() == [e[2] for e in expected]
    assert result.mean_return == pytest.approx(np.mean([e[0] for e in expected]))


def test_evaluation_of_a_foreign_environment_has_no_success():
    def act(obs, state, episode_start, deterministic):
        turns = np.where(episode_start, 0, 0 if state is None else state)  # more episodes than lanes: it must restart
        return turns % 3 // 2, turns + 1

    expected = []
    env = gym.make("CartPole-v1", max_episode_steps=30)
    for i in range(20):
        env.reset(seed=HELD_OUT_SEED + i)
        length, done = 0, False
        while not done:
            _, _, terminated, truncated, _ = env.step(length % 3 // 2)
            length, done = length + 1, terminated or truncated
        expected.append(length)
    result = evaluate(scripted(act), "CartPole-v1", n_episodes=20, max_episode_steps=30)
    assert len(set(expected)) > 3
    assert result.lengths.tolist() == expected
    assert result.returns.tolist() == expected  # a reward of 1 at every turn
    assert result.successes is None
    assert result.success_rate is None


@pytest.mark.parametrize("masked", [True, False])
def test_masks_go_to_models_that_were_trained_with_them(masked):
    seen = []

    def act(obs, state, episode_start, deterministic, **kwargs):
        seen.append(kwargs)
        return np.zeros((len(obs), 2), dtype=int), None

    evaluate(scripted(act, masked=masked), TOOLS, n_episodes=3)
    assert [set(kwargs) for kwargs in seen] == [{"action_masks"} if masked else set()] * len(seen)
    if masked:
        assert seen[0]["action_masks"].shape == (3, 8)
        assert not seen[0]["action_masks"][:, 4].any()  # nothing to submit yet


def test_evaluation_hands_the_memory_of_a_recurrent_policy_on():
    # As it is made, before it is trained to look at its observations alone.
    model = RecurrentPPO("MlpLstmPolicy", make_vec(CHAIN, 4), policy_kwargs={"lstm_hidden_size": 16}, seed=0)

    def play(keep_memory):
        returns = []
        for i in range(20):
            env, state, done = gym.make(CHAIN), None, False
            obs, _ = env.reset(seed=HELD_OUT_SEED + i)
            while not done:
                action, state = model.predict(obs, state if keep_memory else None, deterministic=True)
                obs, reward, done, _, _ = env.step(int(action))
            returns.append(reward)  # paid at the end
        return returns

    result = evaluate(model, CHAIN, n_episodes=20)
    np.testing.assert_allclose(result.returns, play(keep_memory=True), rtol=1e-6)
    assert play(keep_memory=False) != play(keep_memory=True)


@pytest.mark.parametrize("algorithm", ["seeupo", "ppo"])
def test_evaluation_leaves_training_as_it_was(algorithm):
    def trained(evaluated):
        settings = SMALL if algorithm == "seeupo" else {"n_steps": 16, "batch_size": 16, "n_envs": 4}
        model = get_algorithm(algorithm).with_settings(settings).make_model(TRAP, seed=1)
        for _ in range(2):
            model.learn(64, reset_num_timesteps=False)
            if evaluated:
                model.policy.set_training_mode(True)
                evaluate(model, TRAP, 5, deterministic=False)
                assert model.policy.training
        return model

    plain, evaluated = trained(False), trained(True)
    assert plain.num_timesteps == evaluated.num_timesteps
    for a, b in zip(plain.policy.parameters(), evaluated.policy.parameters(), strict=True):
        assert th.equal(a, b)


def test_evaluation_needs_an_episode():
    with pytest.raises(ValueError, match="n_episodes must be at least 1"):
        evaluate(scripted(None), TRAP, n_episodes=0)


# --- one job


def test_a_job_evaluates_at_equally_spaced_steps_and_writes_its_files(tmp_path):
    job = small_job(tmp_path)
    steps = []
    result = run_job(job, steps.append)
    # 16 lanes, so that points at 64, 128, 192 steps are met exactly; then the end.
    assert [row["timesteps"] for row in result["evaluations"]] == [0, 64, 128, 192, 256]
    assert result["timesteps"] == 256
    reference = reference_scores(TRAP)
    for row in result["evaluations"]:
        normalized = (row["score"] - reference.random) / (reference.expert - reference.random)
        assert row["normalized_score"] == pytest.approx(normalized)
        assert row["episode_length"] == 4
    saved = json.loads((job.folder / "result.json").read_text())
    assert saved["settings"] == results_module.to_plain(job.settings())
    assert saved["settings"]["algorithm_settings"]["clip_range"] == 0.2
    assert saved["settings"]["algorithm_settings"]["group_size"] == 4
    assert saved["settings"]["algorithm_settings"]["device"] == "cpu"  # as it ran, not SB3's "auto"
    assert {"python", "platform", "torch", "seeupo-gym"} <= set(saved["versions"])
    assert list(job.folder.glob("events.out.tfevents.*"))
    model, info = load_model(job.folder / "model.zip")
    assert isinstance(model, SeeUPO)
    assert info["env_id"] == TRAP
    assert evaluate(model, TRAP, 10).mean_return == pytest.approx(saved["evaluations"][-1]["score"])


@pytest.mark.parametrize("algorithm", list(CLASSES)[3:])
def test_every_algorithm_does_a_job(tmp_path, algorithm):
    settings = SMALL if issubclass(CLASSES[algorithm], SeeUPO) else SMALL_ACTOR_CRITIC
    if algorithm == "recurrent_ppo":
        settings = {**settings, "policy_kwargs": {"lstm_hidden_size": 16}}  # 256 would take seconds
    job = small_job(tmp_path, algorithm, TOOLS, 200, settings, n_evals=2)
    result = run_job(job)
    assert len(result["evaluations"]) == 3
    assert result["timesteps"] >= 200
    model, _ = load_model(job.folder / "model.zip")
    assert type(model) is CLASSES[algorithm]
    assert evaluate(model, TOOLS, 10).mean_return == pytest.approx(result["evaluations"][-1]["score"])


@pytest.mark.parametrize("algorithm", ["maskable_ppo", "seeupo", "ppo"])
def test_actions_are_valid_where_an_algorithm_uses_masks(tmp_path, monkeypatch, algorithm):
    valid = []
    step = ToolChain.step

    def watched(task, actions, lanes=ALL_LANES):
        masks, (tools, arguments) = task.action_masks(lanes), actions.T
        rows, n_tools = np.arange(len(masks)), task.action_space.nvec[0]
        valid.extend(masks[rows, tools] & masks[rows, n_tools + arguments])
        return step(task, actions, lanes)

    monkeypatch.setattr(ToolChain, "step", watched)
    settings = SMALL if algorithm == "seeupo" else SMALL_ACTOR_CRITIC
    run_job(small_job(tmp_path, algorithm, TOOLS, 200, settings))
    assert len(valid) > 200
    assert all(valid) == (algorithm != "ppo")


def test_maskable_ppo_does_without_masks_where_there_are_none(tmp_path):
    result = run_job(small_job(tmp_path, "maskable_ppo", TRAP, 64, SMALL_ACTOR_CRITIC, n_evals=1))
    assert result["timesteps"] == 64


def test_a_job_writes_evaluations_to_tensorboard(tmp_path):
    job = small_job(tmp_path, total_timesteps=128, n_evals=2)
    result = run_job(job)
    events = read_events(job.folder)
    points = [(event.step, event.value) for event in events.Scalars("eval/score")]
    assert points == [(row["timesteps"], pytest.approx(row["score"])) for row in result["evaluations"]]
    assert [event.step for event in events.Scalars("rollout/ep_rew_mean")] == [64, 128]


@pytest.mark.parametrize("algorithm", ["seeupo", "a2c"])
def test_foreign_environments_have_no_normalized_score(tmp_path, algorithm):
    settings = {"n_groups": 2, "group_size": 2, "n_envs": 4} if algorithm == "seeupo" else {"n_envs": 2}
    job = small_job(tmp_path, algorithm, "FrozenLake-v1", 40, settings, n_evals=1, n_eval_episodes=3)
    result = run_job(job)
    assert [row["normalized_score"] for row in result["evaluations"]] == [None, None]
    results_module.merge_results(tmp_path)
    rows = read_rows(tmp_path / "results.csv")
    assert rows[0]["normalized_score"] is None
    assert learning_curve_figure(rows, "FrozenLake-v1").axes[0].get_ylabel() == "mean return"


def test_load_model_says_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match=r"there is no model .*nothing\.zip"):
        load_model(tmp_path / "nothing")
    SeeUPO("MlpPolicy", TRAP, n_groups=2, group_size=2).save(tmp_path / "lonely.zip")
    with pytest.raises(ValueError, match=r"cannot read .*lonely\.json"):
        load_model(tmp_path / "lonely.zip")


# --- files


class Linear:
    def __init__(self, start):
        self.start = start

    def __call__(self, progress):
        return self.start * progress


def test_settings_compare_equal_after_reading_back(tmp_path):
    def written(value):
        results_module.write_json(tmp_path / "settings.json", {"value": value})
        return results_module.read_json(tmp_path / "settings.json")

    assert written(partial(pow, 2)) == written(partial(pow, 2)) != written(partial(pow, 3))
    assert written(Linear(0.1)) == written(Linear(0.1)) != written(Linear(0.2))
    assert "0x" not in str(written([partial(written, 1), Linear(partial(written))]))


def test_what_is_no_result_is_named(tmp_path):
    path = tmp_path / "Env-v0/ppo/seed_0/result.json"
    results_module.write_json(path, {})
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))} lacks the entry 'settings'"):
        results_module.read_results(tmp_path)


def test_settings_must_agree_where_runs_are_compared(tmp_path):
    job = small_job(tmp_path)
    result = {"settings": job.settings(), "evaluations": []}
    results_module.write_json(job.folder / "result.json", result)
    check = lambda changed: results_module.check_same_settings(tmp_path, [changed.settings()])  # noqa: E731
    check(job)
    check(replace(job, seed=5))
    check(small_job(tmp_path, env_id=CHAIN, total_timesteps=9))
    check(small_job(tmp_path, "a2c", settings={}))
    with pytest.raises(SettingsDifferError, match=r"total_timesteps was 256, now 300.*--out.*--overwrite"):
        check(replace(job, seed=5, total_timesteps=300))
    with pytest.raises(SettingsDifferError, match="n_eval_episodes was 10, now 11"):
        check(small_job(tmp_path, "a2c", settings={}, n_eval_episodes=11))
    with pytest.raises(SettingsDifferError, match=r"env_kwargs\.turns was 'not set', now 3"):
        check(replace(job, env_kwargs={"turns": 3}))
    with pytest.raises(SettingsDifferError, match=r"algorithm_settings\.learning_rate was"):
        check(small_job(tmp_path, settings={**SMALL, "learning_rate": 0.5}))


# --- benchmark


@pytest.mark.process
def test_failing_jobs_are_reported_and_a_stopped_benchmark_continues(tmp_path, registered):
    registered("raising", "test_baselines:RaisingA2C", n_envs=4)
    registered("dying", "test_baselines:DyingA2C", n_envs=4)
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
    registered("telling", "test_baselines:TellingA2C", n_envs=4)
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


# --- plots


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


# --- what a policy thinks


@pytest.mark.parametrize(
    ("env_id", "kwargs", "pattern"),
    [
        (TRAP, {}, r"\d: \d+%, \d: \d+%, \d: \d+%"),
        (TOOLS, {}, r"\d: \d+%, \d: \d+%, \d: \d+% \| \d: \d+%, \d: \d+%, \d: \d+%"),
        ("Pendulum-v1", {"max_turns": 2}, r"-?[\d.e-]+ ± 1"),
    ],
)
@pytest.mark.parametrize("algorithm", ["seeupo", "ppo"])
def test_policies_are_described(algorithm, env_id, kwargs, pattern):
    settings = {**SMALL, "n_envs": 1, **kwargs} if algorithm == "seeupo" else {"n_envs": 2, "batch_size": 64}
    model = get_algorithm(algorithm).with_settings(settings).make_model(env_id, 0)
    obs, _ = gym.make(env_id).reset(seed=0)
    masks = None
    if env_id == TOOLS and algorithm == "seeupo":
        masks = np.array([True] * 4 + [False] + [True] * 3)
    text = describe_policy(model, obs, 1, masks)
    assert re.fullmatch(pattern, text)
