"""The benchmark preset "real": environments of others, as many as are installed."""

import json

import gymnasium as gym
import numpy as np
import pytest

from seeupo_gym import make_vec
from seeupo_gym.agents.policies.turns import find_horizon
from seeupo_gym.baselines.presets import PRESETS
from seeupo_gym.baselines.registry import get_algorithm
from seeupo_gym.benchmark.environments import missing_packages
from seeupo_gym.cli import main

REAL = PRESETS["real"]
LAKE, ABSENT = "FrozenLake-v1", "test_real/Absent-v0"
SMALL = ["--steps", "40", "--evals", "1", "--episodes", "2", "--seeds", "0", "--no-plots", "--no-progress"]
SMALL += ["--algos", "seeupo", "--set", "seeupo.n_groups=1", "--set", "seeupo.group_size=2"]


def make_absent(**kwargs):
    raise ImportError("Absent-v0 needs a package:\n pip install absent==1.0")


@pytest.fixture
def absent(monkeypatch):
    gym.register(ABSENT, make_absent)
    monkeypatch.setitem(REAL, "envs", [ABSENT, LAKE])
    yield
    gym.registry.pop(ABSENT)


@pytest.mark.parametrize("env_id", REAL["envs"])
def test_every_environment_trains_or_says_what_to_install(env_id):
    kwargs = REAL["env_kwargs"].get(env_id, {})
    missing = missing_packages(env_id, kwargs)
    if missing:
        assert not env_id.endswith("-v1"), "toy text comes with Gymnasium"
        assert "install" in missing
        assert "\n" not in missing
        return
    env = make_vec(env_id, 2, **kwargs)
    try:
        assert find_horizon(env) is not None
        env.env_method("queue_episodes", [7])
        obs = env.reset()
        for part in obs.values() if isinstance(obs, dict) else [obs]:
            np.testing.assert_array_equal(part[0], part[1])
    finally:
        env.close()
    for name, settings in (("seeupo", {"n_groups": 1, "group_size": 2}), ("ppo", {"n_steps": 8, "batch_size": 16})):
        spec = get_algorithm(name).with_settings({**REAL["settings"][name], **settings, "n_envs": 2})
        model = spec.make_model(env_id, 0, kwargs)
        try:
            model.learn(2)
            assert model.num_timesteps >= 2
        finally:
            model.env.close()


@pytest.mark.process
def test_what_is_missing_is_left_out_and_named_before_the_start(absent, capsys, tmp_path):
    assert main(["benchmark", "--preset", "real", *SMALL, "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == f"left out: {ABSENT}: Absent-v0 needs a package: pip install absent==1.0\n"
    assert "FrozenLake-v1" in captured.out
    settings = json.loads((tmp_path / "FrozenLake-v1/seeupo/seed_0/result.json").read_text())["settings"]
    assert settings["n_envs"] == 8
    assert settings["algorithm_settings"]["turn_policies"] == "shared"
    assert settings["algorithm_settings"]["n_groups"] == 1, "--set wins over the preset"


def test_nothing_runs_where_nothing_is_installed(absent, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(REAL, "envs", [ABSENT])
    assert main(["benchmark", "--preset", "real", *SMALL, "--out", str(tmp_path)]) == 2
    assert "at least one environment is needed" in capsys.readouterr().err


def test_an_environment_that_was_asked_for_is_not_left_out(absent, capsys, tmp_path):
    assert main(["benchmark", "--preset", "real", "--envs", ABSENT, *SMALL, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "left out" not in error
    assert "pip install absent==1.0" in error


def test_only_missing_packages_are_excused(absent):
    assert missing_packages(ABSENT) == "Absent-v0 needs a package: pip install absent==1.0"
    assert missing_packages(LAKE) == ""
    assert missing_packages(LAKE, {"nope": 1}) == ""
    assert missing_packages("Nope-v0") == ""


@pytest.mark.process
def test_arguments_of_the_preset_reach_the_environment(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(REAL, "envs", ["CliffWalking-v1"])
    more = ["--set", "seeupo.n_envs=2", "--env-arg", "is_slippery=true"]
    assert main(["benchmark", "--preset", "real", *SMALL, *more, "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    result = json.loads((tmp_path / "CliffWalking-v1/seeupo/seed_0/result.json").read_text())
    assert result["settings"]["env_kwargs"] == {"max_episode_steps": 100, "is_slippery": True}
    assert result["settings"]["n_envs"] == 2
    assert result["evaluations"][0]["episode_length"] <= 100


def test_ten_numbers_of_which_one_is_right():
    pytest.importorskip("gem.envs.registration")
    pytest.importorskip("sklearn")
    env = gym.make("seeupo_gym/GEM-GuessTheNumber-v0")
    right = []
    for action in range(10):
        env.reset(seed=3)
        _, reward, done, _, info = env.step(action)
        assert info["played"].startswith(rf"\boxed{{{action + 1}}} ")
        assert done == (reward == 1)
        right.append(done)
    assert sum(right) == 1


@pytest.mark.process
def test_the_gold_path_of_the_coin_game():
    pytest.importorskip("textworld_express")
    pytest.importorskip("sklearn")
    env = gym.make("seeupo_gym/TextWorldExpress-Coin-v0")
    try:
        _, info = env.reset(seed=3)
        done = False
        while not done:
            command = env.unwrapped.expert_message()
            _, reward, done, _, info = env.step(info["admissible_commands"].index(command))
        assert (reward, info["is_success"]) == (1, True)
    finally:
        env.close()
