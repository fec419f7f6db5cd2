"""BFCL multi-turn: gold passes, verdicts are the official ones, and hostile text stays text."""

import copy
import importlib
import os
import pickle
import random
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from helpers.generators import global_states
from helpers.processes import run_python
from helpers.suites import check_wrong_calls
from stable_baselines3.common.vec_env import SubprocVecEnv

import seeupo_gym  # noqa: F401 (registers the ids)
from seeupo_gym.envs.suites.bfcl import CATEGORIES, load, tools_of
from seeupo_gym.envs.suites.bfcl_calls import read_calls

pytest.importorskip("bfcl_eval")
pytest.importorskip("mpmath")

ID = "seeupo_gym/BFCLMultiTurn-v0"


def make(**kwargs):
    return gym.make(ID, disable_env_checker=True, **kwargs).unwrapped


def play(env, messages):
    """Play a list of messages a user turn; each turn is closed with one without calls."""
    rewards = []
    for turn in messages:
        for message in [*turn, "Done."]:
            _, reward, done, truncated, info = env.step(message)
            rewards.append(reward)
            assert not truncated
    assert done
    return rewards, info


@pytest.mark.parametrize("category", CATEGORIES)
def test_gold_passes_every_task(category, record_property):
    env = make(category=category, dense_reward=True)
    passed = steps = 0
    start = time.perf_counter()
    for task in range(200):
        obs, info = env.reset(seed=task)
        assert info["task"] == f"multi_turn_{category}_{task}"
        done, rewards = False, []
        while not done:
            obs, reward, done, _, info = env.step(env.expert_message())
            assert len(obs) > 0
            rewards.append(reward)
        steps += len(rewards)
        passed += info["is_success"]
        assert sum(rewards) == pytest.approx(1)
    record_property("steps_per_s", steps / (time.perf_counter() - start))
    assert passed == 200


def perturb(rng, gold, others):
    """Drop, repeat, swap or alter gold calls, or put calls of another task's gold among them."""
    turns = [list(turn) for turn in gold]
    for _ in range(rng.choice([1, 1, 2])):
        turn = rng.choice([t for t in turns if t] or [[]])
        if not turn:
            continue
        i = rng.randrange(len(turn))
        kind = rng.choice(["drop", "repeat", "alter", "insert", "swap", "later"])
        if kind == "drop":
            turn.pop(i)
        elif kind == "repeat":
            turn.insert(rng.randrange(len(turn) + 1), turn[i])
        elif kind == "alter":
            turn[i] = turn[i].replace("'", "'x", 1) if "'" in turn[i] else turn[i].replace("1", "2")
        elif kind == "insert":
            rng.choice(turns).insert(0, rng.choice(others))
        elif kind == "swap":
            rng.shuffle(turn)
        else:
            rng.choice(turns).append(turn.pop(i))
    return turns


def official_verdict(steps, task, category):
    """What the official checker says of a task's calls, which it evaluates: only calls made of gold go there."""
    checker = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    utils = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
    data, known = load(category), set(vars(utils))
    verdict = checker.multi_turn_checker(steps, data.gold[task], data.entries[task], category, "m")
    for name in set(vars(utils)) - known:  # its cache of tools
        del vars(utils)[name]
    return verdict["valid"], verdict.get("error_type", "")


@pytest.mark.parametrize("category", CATEGORIES)
def test_perturbed_gold_gets_the_official_verdict(category):
    data, env, rng = load(category), make(category=category), random.Random(category)
    verdicts = []
    for episode in range(600):
        task = episode % 200
        gold = data.gold[task]
        turns = perturb(rng, gold, [c for turn in data.gold[(task + rng.choice([1, 2, 3])) % 200] for c in turn])
        # One or several messages a user turn.
        steps = [
            [[call] for call in turn] if len(turn) <= 20 and rng.random() < 0.5 else ([turn] if turn else [])
            for turn in turns
        ]
        env.reset(seed=task)
        _, info = play(env, [[f"[{', '.join(step)}]" for step in turn] for turn in steps])
        assert (info["is_success"], info["error"]) == official_verdict(steps, task, category), (task, steps)
        verdicts.append(info["is_success"])
    assert 0.05 < np.mean(verdicts) < 0.95


@pytest.mark.parametrize("task", [18, 22])  # whose gold has find and du
@pytest.mark.parametrize("content", ["5", "None", "['a', 5]", "0x" + "f" * 5000])
@pytest.mark.parametrize("name", ["'x'", "('x', 5)"])
def test_files_of_something_else_than_text_get_the_official_verdict(task, content, name):
    env, gold = make(task=task), load("base").gold[task]
    write, remove = [f"touch({name})", f"echo(content={content}, file_name={name})"], [f"rm({name})"]
    for calls in ([*write, *remove, *gold[0]], [*write, *gold[0], *remove], [*write, *gold[0]]):
        steps = [[calls], *([turn] if turn else [] for turn in gold[1:])]
        env.reset(seed=0)
        _, info = play(env, [[f"[{', '.join(step)}]" for step in turn] for turn in steps])
        assert (info["is_success"], info["error"]) == official_verdict(steps, task, "base")


HOSTILE = [
    "import os; os.system('touch hacked')",
    "__import__('os').system('touch hacked')",
    "[__import__('os').system('touch hacked')]",
    "open('hacked', 'w').write('x')",
    "open('hacked', 'w')",
    "eval('1')",
    "ls.__globals__",
    "ls().__class__.__mro__",
    "ls(a=__import__('os').system('touch hacked'))",
    "cd(*[1])",
    "cd(**{'folder': 'x'})",
    "self._load_scenario({})",
    "_load_scenario({})",
    "(lambda: 1)()",
    "power(base=10, exponent=300000000)",
    "power(10, exponent=300000000)",
    "power(exponent=300000000, base=10)",
    "power(-2, 10**9)",
    "logarithm(value=2, base=3, precision=2000000)",
    "logarithm(2, 3, '2000000')",
    "square_root(number=2, precision=3000000)",
    "square_root(2, 3000000)",
    "round_number(5, -1000000000)",
    "round_number(decimal_places=-1000000000, number=5)",
    "x" * 1_000_000,
    "[" * 10_000 + "]" * 10_000,
    "mean(numbers=" + "[" * 150 + "]" * 150 + ")",
    "mean(" + "-" * 15_000 + "1)",
    "mean(" + "1+" * 9_000 + "1)",
    "mean" + ".a" * 9_000 + "()",
    "mean" + "()" * 9_000,
    "add(a=0x" + "f" * 15_000 + ", b=1)",
    "\x00",
    "ls(\x00)",
    "\ud800",
    "ls('\ud800')",
    "echo('\\d \u2603')",
    "",
    "[]",
    ", ".join(["ls()"] * 3000),
]
# Each message puts a folder into another one twice, and that one in its place: 2**n paths from n messages.
TREE = ["mkdir('a')", *15 * ["[mkdir('b'), cp('a', 'b'), mv('a', 'c'), mv('c', 'b'), mv('b', 'a')]"]]


def state_outside(path):
    mpmath = importlib.import_module("mpmath")
    decimal = importlib.import_module("decimal")
    return os.listdir(path), global_states(), mpmath.mp.prec, decimal.getcontext().prec


@pytest.mark.parametrize("task", [0, 100])  # tools with files and with mathematics
def test_hostile_messages_get_a_reply_and_change_nothing_outside(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = load("base")
    tasks = [i for i, e in enumerate(base.entries) if "MathAPI" in e["involved_classes"]] if task else [task]
    env = make(task=tasks[0])
    before = state_outside(tmp_path)
    for message in HOSTILE:
        env.reset(seed=0)
        obs, reward, *_ = env.step(message)
        assert obs
        assert reward == 0
        assert env.observation_space.contains(obs)
    assert state_outside(tmp_path) == before
    env.reset(seed=0)
    assert play(env, [[f"[{', '.join(turn)}]"] if turn else [] for turn in base.gold[tasks[0]]])[1]["is_success"]


def test_shared_folders_do_not_hang():
    for messages in (TREE, ["[mkdir('a'), cp('a', 'a')]"]):
        env = make(task=0)
        env.reset(seed=0)
        assert "Error" not in "".join(env.step(message)[0] for message in messages)
        for call in ("find()", "du()", "cp('a', 'x')"):
            assert "too large" in env.step(call)[0]
        assert "Error" not in env.step("[ls(), touch('z')]")[0]


def test_a_message_goes_through_so_much_and_the_next_one_again():
    env = make(task=0)
    env.reset(seed=0)
    for message in TREE[:13]:
        env.step(message)
    start = time.perf_counter()
    replies = env.step("\n".join(100 * ["find()"]))[0].split("Tool: ")[1:]
    assert time.perf_counter() - start < 5
    refused = ["too large" in reply for reply in replies]
    assert refused == sorted(refused)
    assert 0 < sum(refused) < 100
    assert "too large" not in env.step("find()")[0]
    # Results count too; an observation is cut before the last of these.
    tools = tools_of("base", 0)
    tools.run(read_calls("[touch('x'), echo('" + 15_000 * '"' + "', 'x')]"))
    results = tools.run(read_calls("\n".join(100 * ["cat('x')"])))
    assert len(results[0]) > 30_000
    assert "too large" in results[-1]
    assert sum(map(len, results)) < 2_100_000


@pytest.mark.parametrize(
    "calls",
    [
        ["mkdir('a')", "cd('a')"],
        ["mkdir('a')", "mv('b', 'a')", "mv('a', 'b')"],
        ["mkdir('a')", "cp('a', 'b')", "cd('b')"],
    ],
)
def test_folders_in_folders_can_be_copied(calls):
    env = make(task=0)
    env.reset(seed=0)
    for _ in range(10):
        reply = env.step("\n".join(20 * calls))[0]
    assert "there are 100 folders" in reply
    assert pickle.loads(pickle.dumps(env)).step("pwd()") == copy.deepcopy(env).step("pwd()") == env.step("pwd()")


@pytest.mark.parametrize("call", ["power(2, 10)", "round_number(2.567, 1)", "square_root(2, 30)", "logarithm(8, 2, 5)"])
def test_modest_mathematics_is_not_refused(call):
    env = make(task=next(i for i, e in enumerate(load("base").entries) if "MathAPI" in e["involved_classes"]))
    env.reset(seed=0)
    obs, _, _, _, info = env.step(call)
    assert "result" in obs
    assert info["calls"] == 1


def test_calls_one_a_line_and_positional_arguments():
    env = make(task=0)
    env.reset(seed=0)
    assert env.step("ls(a=True)\ncd('document')")[0].count("Tool: ") == 2
    assert env.step("```\n[ls(True), pwd()]\n```")[0].count("Tool: ") == 2
    obs, *_, info = env.step("I shall call ls() now.")
    assert obs.startswith("User: ")
    assert info["calls"] == 0


@pytest.mark.parametrize(
    ("message", "malformed"),
    [
        ("[ls(a=True), cd('document')]", False),
        ("ls(5, b=3)", False),  # the function itself says what is wrong
        ("The file is in place; I called mean([1, 2]) and ls().", False),
        ("Done.", False),
        ("[ls(), list_files()]", True),
        ("files.ls()", True),
        ("ls(a=not_a_literal)", True),
        ("ls(*[True])", True),
        ("ls(a=" + "-" * 5000 + "1)", True),
        ("Here you are: [ls(a=True)]", True),
        ("```python\nls(a=True)\n```", True),
        ("[ls(" + "\n" * 500_000 + "[ " * 200_000, True),
        ("\n [" * 300_000, False),
        ("[ls(a=True), cd(folder='document')", True),
        ("[ls()]" + " " * 20_000, True),
    ],
)
def test_malformed_messages(message, malformed):
    env = make(task=0)
    env.reset(seed=0)
    assert env.step(message)[4]["seeupo_gym/malformed"] is malformed


def test_a_user_turn_has_twenty_messages():
    env = make(task=0)
    env.reset(seed=0)
    for _ in range(20):
        assert not env.step("pwd()")[2]
    _, reward, done, truncated, info = env.step("pwd()")
    assert (done, truncated, reward, info["is_success"]) == (True, False, 0.0, False)
    assert info["error"] == "multi_turn:force_terminated"
    with pytest.raises(gym.error.ResetNeeded):
        env.step("pwd()")


def test_the_longest_episode_has_max_turns():
    env = make(task=1)
    env.reset(seed=0)
    for turn in range(env.max_turns):
        done = env.step("pwd()" if turn % 21 < 20 else "Done.")[2]
        assert done == (turn == env.max_turns - 1)


def test_functions_are_held_back_until_their_turn():
    env = make(category="miss_func", task=0)
    _, info = env.reset(seed=0)
    assert "sort" not in [doc["name"] for doc in info["functions"]]
    for _ in range(3):
        obs, *_, info = env.step("Done.")
    assert "sort" in [doc["name"] for doc in info["functions"]]
    assert "updated some more functions" in obs


def test_splits_share_their_indices_across_categories():
    for category in CATEGORIES:
        train, test = (make(category=category, split=split).tasks for split in ("train", "test"))
        assert (len(train), len(test)) == (160, 40)
        assert sorted(train + test) == list(range(200))
        assert train == make(split="train").tasks


def test_seeds_fix_the_task():
    env, other = make(split="test"), make(split="test")
    assert env.reset(seed=3) == other.reset(seed=3)
    assert [env.reset() for _ in range(5)] == [other.reset() for _ in range(5)]
    assert env.reset(seed=3)[1]["task"] != env.reset(seed=4)[1]["task"]


@pytest.mark.parametrize("kwargs", [{"category": "x"}, {"split": "x"}, {"task": 200}, {"task": 0, "split": "test"}])
def test_wrong_arguments_are_refused(kwargs):
    with pytest.raises(ValueError, match="must be"):
        make(**kwargs)


def test_wrong_use_is_refused():
    check_wrong_calls(make(), "pwd()")


def test_gymnasium_checks_and_transcript():
    check_env(make(), skip_render_check=True)
    env = make(render_mode="ansi", task=0)
    env.reset(seed=0)
    env.step(env.expert_message())
    assert env.render().count("\n") >= 3
    assert "Agent: [cd(folder='document')" in env.render()


def test_it_pickles_in_the_middle_of_an_episode():
    env = make(task=0)
    env.reset(seed=0)
    env.step(env.expert_message())
    twin = pickle.loads(pickle.dumps(env))
    for e in (env, twin):
        done = False
        while not done:
            *_, done, _, info = e.step(e.expert_message())
        assert info["is_success"]


def make_first():
    return gym.make("seeupo_gym:" + ID, task=0)


@pytest.mark.process
def test_subproc_vec_env():
    # Not DummyVecEnv: SB3's has an array for the observations, and there is none for a Text space.
    env = SubprocVecEnv([make_first, make_first])
    try:
        env.seed(0)
        first = env.reset()
        assert first[0] == first[1]
        replies, _, _, infos = env.step(["[ls(a=True)]", "Done."])
        assert replies[0].startswith("Tool: ")
        assert replies[1].startswith("User: ")
        assert [info["calls"] for info in infos] == [1, 0]
    finally:
        env.close()


@pytest.mark.process
def test_nothing_that_writes_into_the_package_is_imported():
    code = f"import sys, gymnasium, seeupo_gym; e = gymnasium.make('{ID}').unwrapped; e.reset(seed=0); e.step('ls()')\n"
    code += "print([m for m in sys.modules if m.startswith('bfcl_eval') and m.endswith(('eval_config', '.utils'))])"
    assert run_python(code) == "[]\n"
