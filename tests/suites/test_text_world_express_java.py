"""TextWorldExpress's Java: crashes, ends, forks and copies, and what it refuses."""

import contextlib
import gc
import os
import signal
import subprocess
import sys

import gymnasium as gym
import pytest

pytest.importorskip("textworld_express")

from helpers.processes import freeze
from helpers.suites import (
    check_crash,
    check_fork_leaves_alone,
    copy_of_the_arguments,
)
from helpers.text_world_express import EASY_COIN, java_of, play_expert

from seeupo_gym.envs.suites import text_world_express
from seeupo_gym.envs.suites.text_world_express import (
    JavaProcess,
    TextWorldExpressEnv,
)

pytestmark = pytest.mark.process  # Java


def kill_java(env):
    os.kill(java_of(env).pid, signal.SIGKILL)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


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


def test_java_process_is_stopped_when_the_game_is_refused():
    with pytest.raises(ValueError, match="Unknown game"):
        JavaProcess("chess", "", 5)
