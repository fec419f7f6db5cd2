"""MiniWoB++'s browser: crashes, programs that are missing, and ends that leave nothing behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gymnasium as gym
import pytest

pytest.importorskip("miniwob")
pytest.importorskip("sklearn")

from helpers.miniwob import browser_of, expert_click_button, play
from helpers.processes import freeze
from helpers.suites import (
    check_crash,
    check_fork_leaves_alone,
)

from seeupo_gym.envs.suites.miniwob import MiniWoBEnv

pytestmark = pytest.mark.process  # the browser


@pytest.fixture
def own():
    env = MiniWoBEnv("click-button", turns=3)
    yield env
    env.close()


def processes(pid):
    """The living processes of a driver's session, itself among them."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = file.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue  # it has ended since
        if int(session) == pid and state != "Z":
            found.append(int(file.parent.name))
    return found


def assert_all_end(pid):
    deadline = time.monotonic() + 300  # a busy machine may take long
    while processes(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes(pid) == []


def kill_driver(pid):
    os.kill(pid, signal.SIGKILL)


def kill_browser(pid):
    (browser,) = (p for p in processes(pid) if f"\nPPid:\t{pid}\n" in Path(f"/proc/{p}/status").read_text())
    os.kill(browser, signal.SIGKILL)


def freeze_both(pid):
    freeze(*processes(pid))


@pytest.mark.parametrize("harm", [kill_driver, kill_browser, freeze_both])
def test_crash_truncates_and_the_browser_is_started_again(own, harm):
    first, before = own.reset(seed=6)
    pid = browser_of(own).pid
    browser_of(own)._driver.command_executor.client_config.timeout = 1.0
    harm(pid)
    text = check_crash(own, "click [4]", r"the browser of MiniWoB\+\+ died or hangs", **before)
    assert "died or hangs" in text
    assert_all_end(pid)
    assert own.reset(seed=6)[0] == first
    assert browser_of(own).pid != pid


def test_second_crash_in_a_row_is_an_error(own):
    _, info = own.reset(seed=0)
    kill_driver(browser_of(own).pid)
    with pytest.warns(RuntimeWarning, match="tried once more"):
        _, info = own.reset(seed=0)
    play(own, expert_click_button(info))
    # A regular end in between makes the next crash a first one.
    own.reset(seed=0)
    kill_driver(browser_of(own).pid)
    with pytest.warns(RuntimeWarning, match="tried once more"):
        own.step("click [4]")
    own.reset(seed=0)
    pid = browser_of(own).pid
    kill_driver(pid)
    with pytest.raises(RuntimeError, match="for the second time"):
        own.step("click [4]")
    assert_all_end(pid)


def test_a_browser_that_does_not_start_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "chromium").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "chromium").chmod(0o755)
    monkeypatch.setenv("MINIWOB_CHROME_BINARY", str(tmp_path / "chromium"))
    env = MiniWoBEnv()
    with pytest.raises(RuntimeError, match=r"browser of MiniWoB\+\+ did not start: SessionNotCreated"):
        env.reset(seed=0)
    monkeypatch.setenv("MINIWOB_CHROMEDRIVER", str(tmp_path / "chromium"))
    with pytest.raises(RuntimeError, match=r"browser of MiniWoB\+\+ did not start: .*exited"):
        env.reset(seed=0)
    assert browser_of(env) is None
    assert os.listdir(tmp_path) == ["chromium"]


def test_missing_programs_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("MINIWOB_CHROME_BINARY", raising=False)
    with pytest.raises(ImportError, match=r"on the PATH: .*apt-get install chromium chromium-driver") as error:
        MiniWoBEnv()
    assert "\n" not in str(error.value)


def test_close_leaves_nothing_behind(own, monkeypatch):
    # Not pytest's folder: Chromium makes a socket in it, whose path must not be as long.
    tmp_path = tempfile.mkdtemp()
    monkeypatch.setattr(tempfile, "tempdir", tmp_path)
    own.close()  # before anything was started
    first, _ = own.reset(seed=0)
    pid = browser_of(own).pid
    assert len(processes(pid)) > 2
    assert len(os.listdir(tmp_path)) == 1
    own.close()
    own.close()
    assert_all_end(pid)
    assert os.listdir(tmp_path) == []
    with pytest.raises(gym.error.ResetNeeded):
        own.step("click [4]")
    assert own.reset(seed=0)[0] == first
    own.close()
    os.rmdir(tmp_path)


def test_the_browser_ends_with_the_environment():
    env = MiniWoBEnv()
    env.reset(seed=0)
    pid = browser_of(env).pid
    del env
    assert_all_end(pid)


START = """
import signal
from stable_baselines3.common.vec_env import SubprocVecEnv
from seeupo_gym.envs.views.candidate_view import CandidateView
from seeupo_gym.envs.suites.miniwob import MiniWoBEnv

class Env(MiniWoBEnv):
    def reset(self, **kwargs):
        begin = super().reset(**kwargs)
        print(self._browser.pid, flush=True)
        return begin

"""


# The workers are daemons: they are terminated when the main process ends, without a word to their environments.
UNCLOSED = "SubprocVecEnv([lambda: CandidateView(Env())]).reset(); raise RuntimeError('training failed')"


LONE = "env = Env(); env.reset(seed=0); signal.pause()"


@pytest.mark.parametrize("code", [UNCLOSED, LONE])
def test_the_browser_ends_with_python_however_that_ends(code):
    folder = tempfile.mkdtemp()
    python = subprocess.Popen(
        [sys.executable, "-c", START + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": folder},
    )
    pid = int(python.stdout.readline())
    if code == LONE:
        assert len(processes(pid)) > 2
        assert os.listdir(folder)
        python.kill()
    python.communicate(timeout=60)
    assert_all_end(pid)
    deadline = time.monotonic() + 300  # a busy machine may take long
    while os.listdir(folder) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.rmdir(folder)


def test_a_fork_leaves_the_browser_alone(own):
    check_fork_leaves_alone(own, "click [4]")
