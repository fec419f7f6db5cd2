import contextlib
import gc
import os
import signal
import string
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("textworld_express")

from helpers.processes import freeze
from helpers.suites import (
    check_crash,
    check_fork_leaves_alone,
    check_global_generators_stay,
    check_transcript,
    check_wrong_calls,
    copy_of_the_arguments,
)
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from seeupo_gym.envs.suites import text_world_express
from seeupo_gym.envs.suites.text_world_express import (
    FOLD_SIZE,
    FOLD_STARTS,
    JavaProcess,
    TextWorldExpressEnv,
)

pytestmark = pytest.mark.process  # Java

EASY_COIN = {"numLocations": 4, "numDistractorItems": 0, "includeDoors": 0}


@pytest.fixture(scope="module")
def shared():
    env = TextWorldExpressEnv("cookingworld", turns=100)
    yield env
    env.close()


@pytest.fixture
def coin():
    env = TextWorldExpressEnv("coin", EASY_COIN, turns=6, render_mode="ansi")
    yield env
    env.close()


def play_expert(env, seed):
    _, info = env.reset(seed=seed)
    rewards, done = [], False
    while not done:
        text, reward, done, truncated, info = env.step(env.expert_message())
        assert env.observation_space.contains(text)
        assert not truncated
        rewards.append(reward)
    return rewards, info


def gold_path(env, seed):
    env.reset(seed=seed)
    path, done = [], False
    while not done:
        path.append(env.expert_message())
        done = env.step(path[-1])[2]
    return path


def java_of(env):
    """The Java process of an environment, if it has one; nothing public tells of it."""
    return env.unwrapped._java


def kill_java(env):
    os.kill(java_of(env).pid, signal.SIGKILL)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    "game", ["cookingworld", "coin", "twc", "mapreader", "arithmetic", "sorting", "simonsays", "peckingorder"]
)
def test_gold_path_solves_every_game(game):
    env = TextWorldExpressEnv(game, turns=100)
    try:
        for seed in (0, 1, FOLD_SIZE + 2):
            rewards, info = play_expert(env, seed)
            assert info["is_success"]
            assert info["score"] == 1.0
            assert rewards[-1] == 1.0
            assert not any(rewards[:-1])
    finally:
        env.close()


def test_a_seed_fixes_the_game_and_others_differ(shared):
    first, info = shared.reset(seed=3)
    again, info_again = shared.reset(seed=3)
    assert first == again
    assert info == info_again
    assert len({shared.reset(seed=seed)[0] for seed in range(10)}) == 10
    assert shared.reset(seed=3 + FOLD_SIZE)[0] == first


def test_seeds_stay_within_the_first_games(coin):
    coin.n_games = 2
    games = {coin.reset(seed=seed)[0] for seed in range(2)}
    assert all(coin.reset(seed=seed)[0] in games for seed in range(2, 12))
    for _ in range(5):
        assert coin.reset()[0] in games


def test_expert_does_not_change_the_game(shared):
    def texts(ask):
        texts = [shared.reset(seed=5)[0]]
        for command in gold:
            if ask:
                shared.expert_message()
            texts.append(shared.step(command)[0])
        return texts

    gold = gold_path(shared, 5)[:-1]
    assert texts(ask=True) == texts(ask=False)


def test_expert_asked_late_finds_its_place(shared):
    gold = gold_path(shared, 6)
    shared.reset(seed=6)
    for command in gold[:4]:
        shared.step(command)
    assert shared.expert_message() == gold[4]
    shared.step("inventory")
    with pytest.raises(RuntimeError, match="left the suite's gold path"):
        shared.expert_message()


def test_folds_are_the_suites():
    java = JavaProcess("coin", "", 5)
    lists = {"train": "getValidSeedsTrain", "dev": "getValidSeedsDev", "test": "getValidSeedsTest"}
    for fold, start in FOLD_STARTS.items():
        assert java.call(lists[fold]) == list(range(start, start + FOLD_SIZE))


def test_commands_are_sorted_and_in_the_text(shared):
    text, info = shared.reset(seed=1)
    commands = info["admissible_commands"]
    assert commands == sorted(commands)
    assert len(commands) > 10
    assert text.endswith(f"Commands: {'; '.join(commands)}")
    assert info["look"].strip() in text
    assert text.count(info["look"].strip()) == 1
    assert info["inventory"].strip() in text
    text, *_, info = shared.step("inventory")
    assert info["admissible_commands"] == sorted(info["admissible_commands"])
    assert info["look"].strip() in text


@pytest.mark.parametrize("command", ["", "frobnicate", "help", "x" * 1_000_000, "\ud800\x00\n", "__import__('os')"])
def test_other_messages_get_a_reply_and_cost_a_turn(coin, command):
    _, before = coin.reset(seed=0)
    text, reward, terminated, truncated, info = coin.step(command)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info.pop("seeupo_gym/malformed")
    assert info == before
    assert text
    assert coin.observation_space.contains(text)
    for _ in range(4):
        assert not coin.step(command)[2]
    _, reward, terminated, truncated, info = coin.step(command)
    assert (reward, terminated, truncated, info["is_success"]) == (0.0, True, False, False)
    with pytest.raises(gym.error.ResetNeeded):
        coin.step(command)


def test_delta_rewards_add_up_to_the_final_score():
    env = TextWorldExpressEnv("twc", turns=100, reward="delta")
    try:
        rewards, info = play_expert(env, 2)
        assert sum(rewards) == pytest.approx(info["score"])
        assert sum(reward > 0 for reward in rewards) > 1
    finally:
        env.close()


def test_part_of_a_task_pays_its_score_at_the_limit():
    env = TextWorldExpressEnv("twc", turns=6)
    try:
        rewards, info = play_expert(env, 3)  # four things to put away, one of them by then
        assert len(rewards) == 6
        assert not any(rewards[:-1])
        assert rewards[-1] == info["score"]
        assert 0 < info["score"] < 1
        assert not info["is_success"]
    finally:
        env.close()


def test_lost_game_ends():
    env = TextWorldExpressEnv("simonsays")
    try:
        _, info = env.reset(seed=0)
        wrong = next(c for c in info["admissible_commands"] if c != env.expert_message())
        _, reward, terminated, _, info = env.step(wrong)
        assert (reward, terminated, info["is_success"]) == (-1.0, True, False)
    finally:
        env.close()


def test_crash_truncates_and_java_is_started_again(coin):
    first, _ = coin.reset(seed=0)
    coin.step("inventory")
    kill_java(coin)
    text = check_crash(coin, "inventory", "the Java process of TextWorldExpress died")
    assert "died (exit status -9)" in text
    assert coin.reset(seed=0)[0] == first
    _, info = play_expert(coin, 1)
    assert "seeupo_gym/crashed" not in info
    # A regular end in between makes the next crash a first one.
    kill_java(coin)
    with pytest.warns(RuntimeWarning, match="tried once more"):
        assert coin.reset(seed=0)[0] == first


def test_java_that_hangs_is_a_crash(coin, monkeypatch):
    monkeypatch.setattr(text_world_express, "TIMEOUT", 10.0)  # in which a busy machine starts Java
    first, _ = coin.reset(seed=0)
    pid = java_of(coin).pid
    freeze(pid)
    check_crash(coin, "inventory", "the Java process of TextWorldExpress hangs")
    assert not is_alive(pid)
    assert coin.reset(seed=0)[0] == first


def test_java_that_does_not_start_is_tried_twice(tmp_path):
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho x >> {tmp_path}/starts\nexit 1\n")
    java.chmod(0o755)
    # In a process of its own: py4j leaves the ends of the dead process's pipes open.
    code = "from seeupo_gym.envs.suites.text_world_express import *; TextWorldExpressEnv().reset(seed=0)"
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("RuntimeError: Java did not start TextWorldExpress")
    assert "does `java -version` say 17 or more?, for the second time in a row" in last
    assert (tmp_path / "starts").read_text() == "x\nx\n"


def test_second_crash_in_a_row_is_an_error(coin):
    coin.reset(seed=0)
    kill_java(coin)
    with pytest.warns(RuntimeWarning, match="tried once more"):
        coin.reset(seed=0)
    kill_java(coin)
    with pytest.raises(RuntimeError, match="for the second time"):
        coin.step("inventory")


def test_missing_java_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ImportError, match=r"needs Java 17 on the PATH: .*apt-get install openjdk-17-jre-headless"
    ) as error:
        TextWorldExpressEnv()
    assert "\n" not in str(error.value)


def test_close_ends_java_and_reset_starts_it(coin):
    coin.close()  # before anything was started
    first, _ = coin.reset(seed=0)
    pid = java_of(coin).pid
    assert is_alive(pid)
    coin.close()
    coin.close()
    assert not is_alive(pid)
    with pytest.raises(gym.error.ResetNeeded):
        coin.step("inventory")
    assert coin.reset(seed=0)[0] == first


def test_close_ends_java_whose_files_are_gone(coin):
    first, _ = coin.reset(seed=0)
    pid = java_of(coin).pid
    with contextlib.suppress(FileNotFoundError):
        os.unlink(java_of(coin)._server._obj_tree_tempfile.name)  # as a cleaner of temporary files does in a long run
    coin.close()
    assert not is_alive(pid)
    assert coin.reset(seed=0)[0] == first


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_leaves_java_alone(coin):
    check_fork_leaves_alone(coin, "inventory")


def test_java_ends_with_the_environment():
    env = TextWorldExpressEnv("coin", EASY_COIN)
    env.reset(seed=0)
    pid = java_of(env).pid
    del env
    assert not is_alive(pid)


def test_a_dead_java_is_not_spoken_to(coin, caplog):
    coin.reset(seed=0)
    kill_java(coin)
    with pytest.warns(RuntimeWarning, match="tried once more"):
        coin.step("inventory")
    # py4j has told of the command that failed; it must not try to connect for the objects that are dropped now.
    caplog.clear()
    gc.collect()
    assert caplog.records == []


def test_pickle_carries_the_arguments_only(coin):
    first, _ = coin.reset(seed=0)
    copy = copy_of_the_arguments(coin, "inventory")
    try:
        with pytest.raises(gym.error.ResetNeeded):
            copy.expert_message()
        assert copy.reset(seed=0)[0] == first
        assert java_of(copy).pid != java_of(coin).pid
        assert not coin.step("inventory")[2]
    finally:
        copy.close()


def test_gymnasium_checker_and_registration():
    env = gym.make("seeupo_gym/TextWorldExpress-v0", params="numLocations=4, includeDoors=0", turns=7)
    try:
        assert env.unwrapped.max_turns == 7
        check_env(env.unwrapped, skip_render_check=True)
    finally:
        env.close()


def test_transcript(coin):
    check_transcript(coin, "inventory")
    assert set(coin.render()) <= set(string.printable)


@pytest.mark.parametrize(
    "arguments",
    [
        {"game": "chess"},
        {"game": 3},
        {"fold": "Train"},
        {"reward": "dense"},
        {"turns": 0},
        {"turns": "9"},
        {"n_games": 1001},
        {"params": "nonsense"},
        {"params": {"numLocations": "4"}},
        {"params": 4},
    ],
)
def test_wrong_arguments(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        TextWorldExpressEnv(**arguments)


@pytest.mark.parametrize("params", ["numLocation=4", {"numLocations": 400}, {"numLocations": 0}])
def test_what_the_game_refuses(params):
    env = TextWorldExpressEnv("coin", params)
    with pytest.raises(ValueError, match=r"numLocation|Number of locations"):
        env.reset(seed=0)
    assert java_of(env) is None


def test_what_the_game_makes_no_sense_of():
    env = TextWorldExpressEnv("twc", {"numItemsToPutAway": 0})
    with pytest.raises(ValueError, match="twc has no game for params 'numItemsToPutAway=0'"):
        env.reset(seed=3)
    assert java_of(env) is None


def test_wrong_calls(coin):
    check_wrong_calls(coin, "inventory")
    with pytest.raises(TypeError, match="render_mode"):
        TextWorldExpressEnv(render_mode="human")


def test_global_generators_are_left_alone(coin):
    check_global_generators_stay(lambda: (play_expert(coin, 0), coin.reset()))


def make_view():
    from seeupo_gym.envs.views.candidate_view import CandidateView

    return CandidateView(TextWorldExpressEnv("coin", EASY_COIN, turns=6), n_candidates=8, n_features=32)


@pytest.mark.parametrize("vec_env_class", [DummyVecEnv, SubprocVecEnv])
def test_vector_environments(vec_env_class):
    pytest.importorskip("sklearn")
    env = vec_env_class([make_view, make_view])
    try:
        env.seed(4)
        obs = env.reset()
        assert obs["candidates"].shape == (2, 8, 32)
        masks = np.stack(env.env_method("action_masks"))
        lasting = 0
        for _ in range(6):
            # "inventory" comes first in every room of this game, and never ends it.
            obs, _, dones, infos = env.step([0, 0])
            assert [info["command"] for info in infos] == ["inventory", "inventory"]
            lasting += not dones.any()
        assert lasting == 5
        assert dones.all()
        assert [info["is_success"] for info in infos] == [False, False]
        assert masks.any(axis=1).all()
    finally:
        env.close()


def test_java_process_is_stopped_when_the_game_is_refused():
    with pytest.raises(ValueError, match="Unknown game"):
        JavaProcess("chess", "", 5)
