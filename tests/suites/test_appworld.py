"""
AppWorld's adapter, against a stand-in of the environment server's interface, and against the real server.

Both have three made-up tasks with empty apps, as AppWorld's data needs the internet. The real server takes part where
APPWORLD_PYTHON names the Python of an environment with appworld==0.1.3.post1, after `appworld install`.
"""

import ast
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from helpers.processes import IN_PROCESSES
from helpers.suites import (
    check_crash,
    check_global_generators_stay,
    check_groups_start_alike,
    check_wrong_calls,
    copy_of_the_arguments,
)
from stable_baselines3.common.vec_env import DummyVecEnv

from seeupo_gym.envs.suites.appworld import AppWorldEnv, EnvironmentServer, RefusalError

ENV_ID = "seeupo_gym/AppWorld-v0"
REAL_PYTHON = os.environ.get("APPWORLD_PYTHON")
TASKS = {"abc1_1": 1, "abc2_1": 2, "abc3_1": 3}
PERSON = {"first_name": "Ada", "last_name": "Nobody", "email": "ada@example.com", "phone_number": "5550000001"}
# Of the routes that the adapter uses: the required fields, and the others, with their types.
FIELDS = {
    "initialize": ({"task_id": str}, {"experiment_name": str, "max_interactions": int, "timeout_seconds": int}),
    "execute": ({"task_id": str, "code": str}, {}),
    "task_completed": ({"task_id": str}, {}),
    "evaluate": ({"task_id": str}, {"suppress_errors": bool, "report": bool}),
    "close": ({"task_id": str}, {}),
}
TESTS = {"assert answers match.": "no_op_fail", "assert no model changes.": "no_op_pass"}


def complete(answer):
    return f"apis.supervisor.complete_task(answer={answer})"


# --- The stand-in: it says what the real server was seen to say to the same requests


class Refused(Exception):
    """What is answered with an HTTP error."""


class World:
    """The state of one server: at most one task, executed without executing anything."""

    def __init__(self):
        self.task_id = None
        self.guarded = False
        self.executed = []

    def initialize(self, task_id, experiment_name="default", max_interactions=1000, timeout_seconds=100):
        if task_id not in TASKS or self.guarded:
            raise Refused(500)
        self.task_id, self.limit, self.seconds = task_id, max_interactions, timeout_seconds
        self.interactions, self.answer, self.open = 0, "<<not_given>>", True
        n = TASKS[task_id]
        instruction = f"What is {n} plus {n}?"
        return {"task_id": task_id, "instruction": instruction, "supervisor": PERSON, "datetime": "2023-05-18T12:00:00"}

    def check(self, task_id):
        if task_id != self.task_id:
            raise Refused(500)

    def execute(self, task_id, code):
        self.check(task_id)
        self.executed.append(code)
        failed = "Execution failed. Traceback:\n"
        self.guarded, code = False, code.strip()
        try:
            tree = ast.parse(code)
        except UnicodeEncodeError:
            self.guarded = True
            raise Refused(500) from None
        except SyntaxError as error:
            return f"{failed}Syntax error in line:\n{(error.text or '').rstrip()}\nMessage: {error.msg}"
        except ValueError as error:  # what Python 3.10 says to a null byte, instead of a SyntaxError
            return f"{failed}Syntax error in line:\n\nMessage: {error}"
        if not code:
            return "No code available to execute."
        if code == "import subprocess":
            return f"{failed}Usage of the following module is not allowed: subprocess."
        if self.interactions >= self.limit:
            reached = f"Maximum number of executions ({self.limit}) reached."
            raised = f'    raise Exception(f"{reached}")\nException: {reached}'
            return f'{failed}  File "<python-input>", line 1, in <module>\n{raised}'
        if code == "raise KeyboardInterrupt":
            self.guarded = True
            raise Refused(500)
        self.interactions += 1
        if code == "while True: pass":
            time.sleep(self.seconds)
            late = f"    while True: pass\nException: Execution timed out after {self.seconds} seconds."
            return f'{failed}  File "<python-input>", line 1, in <module>\n{late}'
        call = getattr(tree.body[0], "value", None)
        name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
        if name == "print":
            return f"{ast.literal_eval(call.args[0])}\n"
        if name == "apis.supervisor.complete_task":
            self.answer = str(ast.literal_eval(call.keywords[0].value))
            return "Execution successful."
        return f"{failed}NameError: only what the tests write is known here"

    def task_completed(self, task_id):
        self.check(task_id)
        return self.answer != "<<not_given>>"

    def evaluate(self, task_id, suppress_errors=False, report=False):
        self.check(task_id)
        right = self.answer == str(2 * TASKS[task_id])
        if self.guarded or not self.open or not (right or suppress_errors):
            raise Refused(500)
        passes = [{"requirement": text, "label": label} for text, label in TESTS.items()][0 if right else 1 :]
        failures = [] if right else [{"requirement": "assert answers match.", "label": "no_op_fail", "trace": "..."}]
        return {"success": right, "difficulty": 1, "num_tests": 2, "passes": passes, "failures": failures}

    def close(self, task_id):
        self.check(task_id)
        self.open = False


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        route = self.path.removeprefix("/")
        try:
            status, answer = 200, self.server.respond(route, body)
        except Refused as error:
            status = error.args[0]
            answer = b"Internal Server Error" if status == 500 else json.dumps({"detail": "..."}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


class Stub(HTTPServer):
    """A real HTTP server on loopback; it answers one request at a time, as AppWorld's does."""

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.world = World()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests = []
        self.faults = []  # what to do to the next requests in place of an answer
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def respond(self, route, body):
        if self.faults and (fault := self.faults.pop(0)):
            return fault()
        if route not in FIELDS:
            raise Refused(404)
        try:
            fields = json.loads(body)
        except ValueError:
            raise Refused(422) from None
        self.requests.append((route, fields))
        required, others = FIELDS[route]
        types = {**required, **others}
        wrong = [name for name, value in fields.items() if name in types and not isinstance(value, types[name])]
        if wrong or required.keys() - fields.keys() or "ground_truth_mode" in fields:
            raise Refused(422)
        known = {name: value for name, value in fields.items() if name in types}
        return json.dumps({"output": getattr(self.world, route)(**known)}).encode()

    def handle_error(self, request, client_address):
        pass  # the client went away

    def stop(self):
        self.shutdown()
        self.thread.join()
        self.server_close()
        for lock in Path(tempfile.gettempdir()).glob(f"seeupo_gym-appworld-*-{self.server_port}.lock"):
            lock.unlink()


@pytest.fixture
def stub():
    server = Stub()
    yield server
    server.stop()


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


@pytest.fixture
def stubbed(stub):
    """An environment of the stand-in."""
    env = AppWorldEnv(stub.url, tasks=list(TASKS), turns=4, timeout=1)
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


# --- What is sent, and what is done about a server that is gone: the stand-in alone


def test_what_is_sent(stub, stubbed):
    stubbed.reset(seed=0)
    stubbed.step(complete(2))
    stubbed.reset(seed=1)
    stubbed.close()
    start = {"experiment_name": f"seeupo_gym-127.0.0.1-{stub.server_port}", "max_interactions": 4, "timeout_seconds": 1}
    assert stub.requests == [
        ("initialize", {"task_id": "abc1_1", **start}),
        ("execute", {"task_id": "abc1_1", "code": complete(2)}),
        ("task_completed", {"task_id": "abc1_1"}),
        ("evaluate", {"task_id": "abc1_1", "suppress_errors": True}),
        ("initialize", {"task_id": "abc2_1", **start}),
        ("close", {"task_id": "abc2_1"}),
    ]


def test_importing_and_making_one_opens_nothing(stub, monkeypatch):
    AppWorldEnv(stub.url, tasks=["abc1_1"]).close()
    assert stub.requests == []
    # Nor does a proxy come in between.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    env = AppWorldEnv(stub.url, tasks=["abc1_1"])
    assert env.reset(seed=0)[1]["task_id"] == "abc1_1"
    env.close()


def test_long_outputs_are_cut(stub, stubbed):
    stubbed.reset(seed=0)
    stub.faults.append(lambda: json.dumps({"output": "y" * 300_000}).encode())
    text = stubbed.step("print('y' * 300_000)")[0]
    assert len(text) == 100_000
    assert text.endswith("yyy\n[300,000 characters, cut]")


def raise_refused(status):
    raise Refused(status)


# What may go wrong with a request: what is done in place of an answer, and what the warning says.
FAULTS = {
    "another task": (lambda: raise_refused(500), "refused 'execute': HTTP 500, Internal Server Error"),
    "no JSON": (lambda: b"<html>", "gave no answer to 'execute' .JSONDecodeError"),
    "no output": (lambda: b"{}", "gave no answer to 'execute' .KeyError"),
    "another type": (lambda: b'{"output": 3}', "answered 'execute' with int, not str"),
    "no answer": (lambda: 1 / 0, "gave no answer to 'execute' .RemoteDisconnected"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_that_fails_truncates_the_episode(stub, stubbed, fault):
    action, cause = FAULTS[fault]
    stubbed.reset(seed=0)
    # What is refused is followed by the empty program, which is refused as well.
    stub.faults += [action, action]
    check_crash(stubbed, "print(1)", cause)
    stub.faults.clear()
    assert stubbed.reset(seed=1)[0].startswith("What is 2 plus 2?")


@pytest.mark.parametrize("route", ["task_completed", "evaluate"])
def test_a_verdict_that_fails_truncates_the_episode(stub, stubbed, route):
    stubbed.reset(seed=0)
    for _ in range(3):
        stubbed.step("print(1)")
    stub.faults += [None] * (1 if route == "task_completed" else 2) + [lambda: raise_refused(500)]
    check_crash(stubbed, "print(1)", f"refused '{route}'")


def test_a_server_that_hangs(stub, stubbed):
    stubbed.reset(seed=0)
    stubbed.server.wait = 0.2
    stub.faults.append(lambda: time.sleep(0.5) or b"{}")
    check_crash(stubbed, "print(1)", "TimeoutError: timed out")
    stubbed.server.wait = 10
    assert stubbed.reset(seed=0)[1]["task_id"] == "abc1_1"


def test_a_server_that_dies_and_comes_back():
    stub = Stub()
    env = AppWorldEnv(stub.url, tasks=list(TASKS), turns=1)
    env.reset(seed=0)
    stub.stop()
    check_crash(env, "print(1)", "Connection refused")
    stub = Stub(stub.server_port)
    env.reset(seed=1)
    assert env.step(complete(4))[1] == 1.0
    # A regular end in between makes the next crash a first one; one that has lost the task is noticed like a dead one.
    env.reset(seed=0)
    stub.world = World()
    check_crash(env, "print(1)", "refused 'execute'")
    stub.stop()
    with pytest.raises(RuntimeError, match=r"Connection refused.*for the second time"):
        env.reset(seed=0)
    env.close()


def test_a_dead_server_is_tried_once_more_at_reset(stub, stubbed):
    stubbed.reset(seed=0)
    stub.faults.append(lambda: 1 / 0)
    with pytest.warns(RuntimeWarning, match="gave no answer to 'initialize'.*tried once more"):
        assert stubbed.reset(seed=1)[1]["task_id"] == "abc2_1"


def test_no_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env = AppWorldEnv(f"http://127.0.0.1:{free.getsockname()[1]}", tasks=["abc1_1"])
        with pytest.raises(RuntimeError, match="start one with `appworld serve environment") as error:
            env.reset(seed=0)
    assert "\n" not in str(error.value)
    env.close()


def test_a_task_that_the_server_does_not_have(stub):
    env = AppWorldEnv(stub.url, tasks=["abc1_1", "abc9_1"])
    with pytest.raises(RuntimeError, match="task 'abc9_1'; the server's log says why"):
        env.reset(seed=1)
    assert env.reset(seed=0)[1]["task_id"] == "abc1_1"
    env.close()


# --- One environment a server


@pytest.mark.process
def test_a_server_is_of_one_environment(stub, stubbed):
    stubbed.reset(seed=0)
    other = AppWorldEnv(stub.url.replace("127.0.0.1", "localhost"), tasks=list(TASKS))
    with pytest.raises(RuntimeError, match="in use by another environment"):
        other.reset(seed=1)
    code = f"from seeupo_gym.envs.suites.appworld import *; AppWorldEnv({stub.url!r}, tasks=['abc1_1']).reset(seed=0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "in use by another environment" in done.stderr
    assert stubbed.step(complete(2))[1] == 1.0
    stubbed.close()
    assert other.reset(seed=1)[1]["task_id"] == "abc2_1"
    # It is given back with the environment too.
    del other
    stubbed.reset(seed=0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.process
def test_forks_neither_keep_the_server_nor_give_it_back(stub):
    env = AppWorldEnv(stub.url, tasks=list(TASKS))
    env.reset(seed=0)
    other = AppWorldEnv(stub.url, tasks=list(TASKS))
    child = os.fork()
    if not child:
        signal.alarm(20)
        del env  # as its exit does
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(RuntimeError, match="in use by another environment"):
        other.reset(seed=1)
    child = os.fork()
    if not child:
        signal.alarm(20)
        signal.pause()
    try:
        env.close()
        assert other.reset(seed=1)[1]["task_id"] == "abc2_1"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        other.close()


def test_a_copy_has_the_arguments_only(stub, stubbed):
    stubbed.reset(seed=0)
    copy = copy_of_the_arguments(stubbed, "print(1)")
    stubbed.close()
    assert copy.reset(seed=2)[1]["task_id"] == "abc3_1"
    copy.close()
    copy.close()


class Choices(gym.Wrapper):
    """Three answers to choose from, and the task as a number: SB3's vector environments hold no texts."""

    observation_space = spaces.Box(0.0, 3.0, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        _, info = self.env.reset(seed=seed, options=options)
        self.number = np.float32([TASKS[info["task_id"]]])
        return self.number, info

    def step(self, action):
        return self.number, *self.env.step(complete(2 * (int(action) + 1)))[1:]


def make_choices(url):
    return Choices(gym.make("seeupo_gym:" + ENV_ID, url=url, tasks=list(TASKS), turns=2))


@pytest.fixture
def factories():
    stubs = [Stub() for _ in range(2)]
    # A lambda would not be pickled, but cloudpickle takes it to the workers.
    yield [lambda url=stub.url: make_choices(url) for stub in stubs]
    for stub in stubs:
        stub.stop()


@pytest.mark.parametrize("vec_env_class", [DummyVecEnv, IN_PROCESSES])
def test_vector_environments(factories, vec_env_class):
    env = vec_env_class(factories)
    env.seed(1)
    assert env.reset().ravel().tolist() == [2, 3]
    _, rewards, dones, infos = env.step(np.array([1, 1]))
    assert rewards.tolist() == [1.0, 0.5]
    assert dones.all()
    assert [info["is_success"] for info in infos] == [True, False]
    env.close()


def test_groups_of_one_task(factories):
    env = DummyVecEnv(factories)
    check_groups_start_alike(env, n_steps=16)
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
