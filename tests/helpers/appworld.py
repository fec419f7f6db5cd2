"""A stand-in of AppWorld's environment server: it says what the real one was seen to say to the same requests."""

import ast
import json
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

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
