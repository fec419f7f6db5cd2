"""x"""

import json
import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env
from helpers.appworld import FIELDS, PERSON, TASKS, complete
from helpers.suites import (
    check_global_generators_stay,
    check_wrong_calls,
)

from seeupo_gym.envs.suites.appworld import AppWorldEnv, EnvironmentServer, RefusalError

ENV_ID = "seeupo_gym/AppWorld-v0"
REAL_PYTHON = os.environ.get("APPWORLD_PYTHON")


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """Data made up, and `appworld serve environment` in a process of its own."""
    root = tmp_path_factory.mktemp("appworld")
    subprocess.run([REAL_PYTHON, Path(__file__).parent / "appworld_made_up_data.py", root], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [REAL_PYTHON, "-m", "appworld.cli", "serve", "environment", "--root", root, "--port", str(port)]
    with (root / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=root)
    url = f"http://127.0.0.1:{port}"
    for _ in range(300):
        try:
            urllib.request.urlopen(url, timeout=1).close()
            break
        except OSError:
            time.sleep(0.2)
    yield url, root
    process.kill()
    process.wait()


@pytest.fixture(params=["stub", pytest.param("real", marks=pytest.mark.process)])
def url(request):
    """Address of a server, stand-in or real."""
    if request.param == "stub":
        return request.getfixturevalue("stub").url
    if not REAL_PYTHON:
        pytest.skip("APPWORLD_PYTHON is not set")
    return request.getfixturevalue("real")[0]


@pytest.fixture
def env(url):
    env = AppWorldEnv(url, tasks=list(TASKS), turns=4, timeout=1, render_mode="ansi")
    yield env
    env.close()


# --- The protocol, with both servers


def test_the_server_refuses(url):
    server = EnvironmentServer(url, 60)

    def status(route, **body):
        with pytest.raises(RefusalError) as error:
            server.ask(route, object, **body)
        return int(str(error.value).split("HTTP ")[1][:3])

    assert status("nowhere") == 404
    assert status("initialize") == 422
    assert status("execute", task_id="abc1_1") == 422
    assert status("initialize", task_id="abc1_1", ground_truth_mode="minimal") == 422
    assert status("initialize", task_id="nope_1") == 500
    assert status("execute", task_id="nope_1", code="print(1)") == 500
    server.ask("initialize", dict, task_id="abc1_1")
    assert status("execute", task_id="abc2_1", code="print(1)") == 500
    assert status("task_completed", task_id="abc2_1") == 500
    assert status("evaluate", task_id="abc1_1") == 500  # a test fails, and errors are not suppressed
    assert server.ask("task_completed", bool, task_id="abc1_1") is False
    # A second task ends the first.
    server.ask("initialize", dict, task_id="abc2_1")
    assert status("execute", task_id="abc1_1", code="print(1)") == 500
    # After this, and until something else was executed, the server cannot write and starts no task.
    for code in ("raise KeyboardInterrupt", "'\ud800'"):
        assert status("execute", task_id="abc2_1", code=code) == 500
        assert status("evaluate", task_id="abc2_1", suppress_errors=True) == 500
        assert status("initialize", task_id="abc2_1") == 500
        assert server.ask("execute", str, task_id="abc2_1", code="") == "No code available to execute."
        server.ask("initialize", dict, task_id="abc2_1")
    server.ask("close", type(None), task_id="abc2_1")
    assert status("evaluate", task_id="abc2_1", suppress_errors=True) == 500
    server.ask("initialize", dict, task_id="abc2_1")


@pytest.mark.skipif(not REAL_PYTHON, reason="APPWORLD_PYTHON is not set")
@pytest.mark.process
def test_the_stand_in_has_the_fields_of_the_real_server(real):
    with urllib.request.urlopen(f"{real[0]}/openapi.json") as response:
        document = json.load(response)
    names = {str: "string", int: "integer", bool: "boolean"}
    for route, (required, others) in FIELDS.items():
        content = document["paths"][f"/{route}"]["post"]["requestBody"]["content"]
        schema = document["components"]["schemas"][content["application/json"]["schema"]["$ref"].split("/")[-1]]
        assert schema["required"] == list(required)
        for name, kind in {**required, **others}.items():
            assert schema["properties"][name]["type"] == names[kind]


# --- Episodes, with both servers


def test_a_solved_task(env):
    text, info = env.reset(seed=1)
    assert text.startswith("What is 2 plus 2?\nThe task is from Ada Nobody, your supervisor (email ada@example.com,")
    assert "It is 2023-05-18T12:00:00." in text
    assert text.endswith("At most 4 messages.")
    assert info == {"task_id": "abc2_1", "supervisor": PERSON, "datetime": "2023-05-18T12:00:00"}
    assert env.step("print('six')") == ("six\n", 0.0, False, False, {"seeupo_gym/malformed": False})
    outcome = {"seeupo_gym/malformed": False, "is_success": True, "tests_passed": 2, "num_tests": 2}
    assert env.step(complete(4)) == ("Execution successful.", 1.0, True, False, outcome)
    with pytest.raises(gym.error.ResetNeeded):
        env.step("print(1)")
    done = "Execution successful."
    assert env.render() == f"{text}\nAgent: print('six')\nsix\n\nAgent: {complete(4)}\n{done}"


@pytest.mark.parametrize(("reward", "paid"), [("fraction", 0.5), ("success", 0.0)])
def test_a_failed_task_pays_its_passed_tests_or_nothing(url, reward, paid):
    env = AppWorldEnv(url, tasks=["abc3_1"], reward=reward)
    env.reset(seed=0)
    *_, info = step = env.step(complete(7))
    assert step[1:4] == (paid, True, False)
    assert info == {"seeupo_gym/malformed": False, "is_success": False, "tests_passed": 1, "num_tests": 2}
    env.close()


def test_the_turn_limit_is_part_of_the_task(env):
    env.reset(seed=0)
    assert [env.step("print(1)")[2] for _ in range(4)] == [False, False, False, True]
    env.reset(seed=0)
    *_, last = [env.step("print(1)") for _ in range(3)] + [env.step(complete(2))]
    assert last[1:3] == (1.0, True)


def test_seeds_select_tasks_and_tasks_start_the_same(env):
    texts = [env.reset(seed=seed)[0] for seed in range(3)]
    assert len(set(texts)) == 3
    env.step("print(1)")
    assert [env.reset(seed=seed)[0] for seed in range(3, 6)] == texts
    env.reset(seed=5)
    drawn = [env.reset()[1]["task_id"] for _ in range(8)]
    assert len(set(drawn)) > 1
    env.reset(seed=5)
    assert [env.reset()[1]["task_id"] for _ in range(8)] == drawn


@pytest.mark.parametrize(
    ("code", "reply", "malformed"),
    [
        ("", "No code available to execute.", True),
        ("x =", "Execution failed. Traceback:\nSyntax error in line:\nx =\nMessage: invalid syntax", True),
        ("print(1)\0", "source code string cannot contain null bytes", True),
        ("import subprocess", "Usage of the following module is not allowed: subprocess.", True),
        ("print('\ud800')", "?\n", False),
        ("print('\u2713 \xe9 \u20ac')", "? \xe9 \u20ac\n", False),
        ("print('" + "x" * 30_000 + "')", "A message may have 20,000 characters.", True),
        ("raise KeyboardInterrupt", "Execution failed. The server could not tell why.", False),
        ("while True: pass", "Execution timed out after 1 seconds.", False),
    ],
)
def test_odd_messages_get_a_reply_and_the_episode_goes_on(env, code, reply, malformed):
    env.reset(seed=0)
    text, *rest = env.step(code)
    assert rest == [0.0, False, False, {"seeupo_gym/malformed": malformed}]
    assert reply in text
    assert env.observation_space.contains(text)
    assert env.step(complete(2))[1:3] == (1.0, True)
    # As the last message of an episode too; then another task can be started.
    env.reset(seed=1)
    for _ in range(3):
        env.step("print(1)")
    assert env.step(code)[1:4] == (0.5, True, False)
    assert env.reset(seed=2)[0].startswith("What is 3 plus 3?")


def test_checker(url):
    env = gym.make(ENV_ID, url=url, tasks=["abc1_1"], turns=3, timeout=1)
    assert env.unwrapped.max_turns == 3
    env.action_space.seed(3)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


@pytest.mark.skipif(not REAL_PYTHON, reason="APPWORLD_PYTHON is not set")
@pytest.mark.process
def test_made_up_data_is_read_and_each_server_has_its_folder(real):
    url, root = real
    env = AppWorldEnv(url, root=str(root))
    assert env.tasks == list(TASKS)
    env.reset(seed=0)
    env.close()
    assert (root / "experiments" / "outputs" / f"seeupo_gym-{url[7:].replace(':', '-')}" / "tasks" / "abc1_1").is_dir()


@pytest.mark.skipif(not REAL_PYTHON, reason="APPWORLD_PYTHON is not set")
@pytest.mark.process
def test_code_is_executed_in_the_servers_process(real):
    env = AppWorldEnv(real[0], tasks=["abc1_1"])
    env.reset(seed=0)
    env.step("import os")
    assert int(env.step("print(os.getpid())")[0]) not in (os.getpid(), os.getppid())
    env.close()


# --- Arguments


def test_splits_are_read_from_the_data(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "datasets"
    folder.mkdir(parents=True)
    (folder / "train.txt").write_text("abc1_1\nabc2_1: tag\n\n")
    (folder / "dev.txt").write_text("abc3_1\n")
    assert AppWorldEnv(root=str(tmp_path)).tasks == ["abc1_1", "abc2_1"]
    monkeypatch.setenv("APPWORLD_ROOT", str(tmp_path))
    assert AppWorldEnv(split="dev").tasks == ["abc3_1"]
    with pytest.raises(ValueError, match=r"split must be one of \['dev', 'train'\], got 'test'"):
        AppWorldEnv(split="test")


def test_missing_data_is_one_line(tmp_path, monkeypatch):
    monkeypatch.delenv("APPWORLD_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportError, match=r"pip install appworld==0\.1\.3\.post1; .*appworld download data") as error:
        gym.make(ENV_ID)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": "127.0.0.1:8000"},
        {"url": "file:///etc/passwd"},
        {"url": "http://127.0.0.1:port"},
        {"url": "http://"},
        {"url": 8000},
        {"tasks": []},
        {"tasks": "abc1_1"},
        {"tasks": ["../abc1_1"]},
        {"tasks": ["abc1_1\n"]},
        {"tasks": [1]},
        {"turns": 0},
        {"turns": True},
        {"timeout": 2.5},
        {"reward": "dense"},
    ],
)
def test_wrong_arguments(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be"):
        AppWorldEnv(**{"tasks": ["abc1_1"], **arguments})


def test_wrong_calls(stub, stubbed):
    check_wrong_calls(stubbed, "print(1)")
    with pytest.raises(TypeError, match="render_mode"):
        AppWorldEnv(tasks=["abc1_1"], render_mode="human")
    assert stubbed.render() is None


def test_global_generators_are_left_alone(stubbed):
    def episode():
        stubbed.reset(seed=0)
        stubbed.step(complete(2))
        stubbed.reset()

    check_global_generators_stay(episode)
