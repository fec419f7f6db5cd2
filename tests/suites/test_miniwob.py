"""MiniWoB++'s tasks: experts, rewards, seeds, commands, hostile messages, vector environments."""

import random
import re
import string

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("miniwob")
pytest.importorskip("sklearn")

from helpers.miniwob import browser_of, expert_click_button, find, play
from helpers.suites import (
    check_global_generators_stay,
    check_groups_start_alike,
    check_transcript,
    check_wrong_calls,
    copy_of_the_arguments,
)
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from seeupo_gym.envs.suites.miniwob import MiniWoBEnv
from seeupo_gym.envs.suites.miniwob_browser import Browser, find_programs
from seeupo_gym.envs.views.candidate_view import CandidateView

pytestmark = pytest.mark.process  # the browser


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.stop()


def with_browser(env, browser):
    env._browser = browser
    return env


def script(env, code):
    """Run JavaScript in the page; nothing public shows what the page says about itself."""
    return browser_of(env)._driver.execute_script(code)


@pytest.fixture
def make(browser):
    """Environments that share a browser, as starting one takes a while."""
    return lambda *args, **kwargs: with_browser(MiniWoBEnv(*args, **kwargs), browser)


def expert_click_test(info):
    return [find(info, "click")]


def expert_enter_text(info):
    target = re.search('"(.*)"', info["utterance"])[0]
    return [find(info, f"type {target} into", "input_text#tt"), find(info, "click", "button#subbtn")]


def expert_checkboxes(info):
    targets = re.match("Select (.*) and click", info["utterance"])[1].split(", ")
    boxes = [] if targets == ["nothing"] else [find(info, "click", f'"{target}"') for target in targets]
    return [*boxes, find(info, "click", "button#subbtn")]


def expert_login(info):
    name, password = re.findall('"[^"]*"', info["utterance"])
    fields = [find(info, f"type {name} into", "#username"), find(info, f"type {password} into", "#password")]
    return [*fields, find(info, "click", "button#subbtn")]


def expert_delete(info):
    sender = re.search(r"(?:by|from) (\w+)", info["utterance"])[1]
    lines = info["page"].splitlines()
    start = next(i for i, line in enumerate(lines) if line.endswith(f'.email-sender "{sender}"'))
    return ["click " + next(line for line in lines[start:] if "span.trash" in line)]


def expert_enter(info):
    """Type the only string into the only field, and submit."""
    return [find(info, "type"), find(info, "click", '"Submit"')]


EXPERTS = {
    "click-test": expert_click_test,
    "click-button": expert_click_button,
    "enter-text": expert_enter_text,
    "click-checkboxes": expert_checkboxes,
    "login-user": expert_login,
    "choose-list": expert_enter,
    "enter-date": expert_enter,
    "enter-time": expert_enter,
    "unicode-test": expert_click_button,
    "email-inbox-delete": expert_delete,
}


@pytest.mark.parametrize("task", EXPERTS)
def test_scripted_experts_solve_tasks(make, task):
    env = make(task)
    for seed in range(3):
        text, info = env.reset(seed=seed)
        assert env.observation_space.contains(text)
        reward, info = play(env, EXPERTS[task](info))
        assert (reward, info["is_success"]) == (1.0, True)


def test_a_click_reaches_the_button_of_the_page(make):
    env = make("click-test")
    env.reset(seed=0)
    script(env, "document.getElementById('subbtn').addEventListener('click', () => { window.wasClicked = true; })")
    assert script(env, "return [WOB_DONE_GLOBAL, window.wasClicked]") == [False, None]
    text, reward, terminated, truncated, info = env.step("click [4]")
    assert script(env, "return [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL, window.wasClicked]") == [True, 1, True]
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info == {
        "admissible_commands": [],
        "utterance": "Click the button.",
        "page": "",
        "seeupo_gym/malformed": False,
        "is_success": True,
    }
    assert text == "The episode is over, with reward 1."


def test_a_wrong_click_loses(make):
    env = make("click-button")
    _, info = env.reset(seed=6)
    right = expert_click_button(info)
    wrong = next(c for c in info["admissible_commands"] if "button" in c and c not in right)
    reward, info = play(env, [wrong])
    assert (reward, info["is_success"]) == (-1.0, False)


def test_a_part_of_the_reward_is_no_success(make):
    env = make("click-checkboxes")
    _, info = env.reset(seed=3)
    *boxes, submit = expert_checkboxes(info)
    reward, info = play(env, [*boxes[1:], submit])
    assert 0 < reward < 1
    assert not info["is_success"]


def test_the_reward_is_the_raw_one_and_time_does_not_run_out(make):
    env = make("book-flight")
    env.reset(seed=0)
    assert script(env, "return core.EPISODE_MAX_TIME") == 2**31 - 1, "the page's own limit is another one"
    env = make("click-test")
    env.reset(seed=0)
    script(env, "core.ept0 -= core.EPISODE_MAX_TIME / 2;")
    assert env.step("click [4]")[1] == 1.0
    assert script(env, "return WOB_REWARD_GLOBAL") == pytest.approx(0.5, abs=0.01), "the decayed one is another one"


def test_a_seed_fixes_the_task_and_others_differ(make):
    env = make("click-button")
    assert env.reset(seed=3) == env.reset(seed=3)
    assert len({env.reset(seed=seed)[0] for seed in range(10)}) == 10
    assert env.reset(seed=2**53)[0] != env.reset(seed=2**53 + 1)[0]
    env.np_random = np.random.default_rng(0)
    assert env.reset()[0] != env.reset()[0]


def test_a_seed_fixes_the_whole_episode(make):
    def texts():
        env = make("click-collapsible-2-nodelay")
        choice = random.Random(1)
        text, info = env.reset(seed=2)
        texts, done = [text], False
        while not done:
            text, _, done, _, info = env.step(choice.choice(info["admissible_commands"]))
            texts.append(text)
        return texts

    first = texts()
    assert len(set(first)) > 2
    assert first == texts()


def test_nothing_is_left_of_the_episode_before(make):
    env = make("enter-text")
    first, info = env.reset(seed=0)
    env.step(find(info, "type"))
    assert env.reset(seed=0)[0] == first


def test_seeds_are_the_suites(make, monkeypatch):
    from miniwob.environment import MiniWoBEnvironment

    chromium, driver = find_programs()
    monkeypatch.setenv("MINIWOB_CHROME_BINARY", chromium)
    monkeypatch.setenv("MINIWOB_CHROMEDRIVER", driver)
    theirs = MiniWoBEnvironment("click-button")
    try:
        env = make("click-button")
        for seed in (0, 5, 2**31):
            observation, _ = theirs.reset(seed=seed)
            _, info = env.reset(seed=seed)
            assert info["utterance"] == observation["utterance"]
            buttons = [e for e in observation["dom_elements"] if e["tag"] == "button"]
            assert re.findall(r'^\[\d+\] button\S* "(.*)"', info["page"], re.MULTILINE) == [e["text"] for e in buttons]
    finally:
        theirs.close()


def test_commands_are_sorted_and_tell_elements_apart(make):
    env = make("login-user")
    text, info = env.reset(seed=0)
    commands = info["admissible_commands"]
    assert commands == sorted(set(commands))
    name, password = re.findall('"[^"]*"', info["utterance"])
    assert commands == sorted(
        [
            'click [6] label.bold "Username"',
            "click [7] input_text#username",
            'click [9] label.bold "Password"',
            "click [10] input_password#password",
            'click [11] button#subbtn.secondary-action "Login"',
            *(f"type {string} into [7] input_text#username" for string in (name, password)),
            *(f"type {string} into [10] input_password#password" for string in (name, password)),
        ]
    )
    assert text == f"Task: {info['utterance']}\n{info['page']}"
    assert info["page"].splitlines()[:2] == ['[6] label.bold "Username"', '[7] input_text#username value=""']
    text, *_, info = env.step(find(info, f"type {name} into", "#username"))
    assert info["page"].splitlines()[1] == f"[7] input_text#username value={name}"
    assert info["admissible_commands"] == commands, "what is in a field does not change its name"


def test_boxes_without_text_are_told_apart(make):
    env = make("click-color")
    _, info = env.reset(seed=1)
    assert info["admissible_commands"][0] == "click [4] div.color rgb(128, 128, 0)"
    # They would be missing from the page for a while, and the text with them.
    env = make("email-inbox-delete")
    env.reset(seed=1)
    icons = script(env, "return loadedIcons.map(icon => icon.complete && icon.naturalHeight)")
    assert len(icons) > 5
    assert all(icons)


def test_a_proxy_does_not_come_between(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    browser = Browser()
    assert browser.begin("click-test", 0, "train")["utterance"] == "Click the button."
    browser.stop()


def test_checked_boxes_and_long_texts_are_shown(make):
    env = make("click-checkboxes")
    _, info = env.reset(seed=0)
    box = expert_checkboxes(info)[0]
    assert f"{box.removeprefix('click ')} checked" in env.step(box)[0].splitlines()
    text, info = make("copy-paste").reset(seed=1)
    to_copy = script(env, "return document.querySelector('textarea').value")
    assert len(to_copy) > 60
    assert f'value="{to_copy}"' in text
    assert not any(to_copy in command for command in info["admissible_commands"])


def test_other_strings_can_be_typed(make):
    env = make("copy-paste", render_mode="ansi")
    _, info = env.reset(seed=0)
    to_copy = script(env, "return document.querySelector('textarea').value")
    field, submit = find(info, "click", "input_text"), find(info, "click", '"Submit"')
    begin, end = to_copy[:9], to_copy[9:]
    play(env, [f'TYPE "{begin}" into {field[6:9]}', f'type "{end}" into {field[6:]}', submit])
    assert "reward 1." in env.render(), "the second text was added to the first"


def test_json_escapes_are_typed_as_what_they_mean(make):
    env = make("enter-text")
    env.reset(seed=0)
    text = env.step(r'type "\u00e9 \"\\" into [5]')[0]
    assert script(env, "return document.querySelector('input').value") == 'é "\\'
    assert r'value="\u00e9 \"\\"' in text


HOSTILE = [
    "",
    "click",
    "click [0]",
    "click [-1]",
    "click [99]",
    f"click [{'9' * 5000}]",
    "click 4",
    "please click [4]",
    "click [\N{ARABIC-INDIC DIGIT FIVE}]",
    'type "x into [5]',
    'type "x" into [99]',
    r'type "\x" into [5]',
    r'type "\ud800" into [5]',
    'type "\ue009a" into [5]',
    r'type "a\nb" into [5]',
    f'type "{"x" * 257}" into [5]',
    'type "' + '\\"' * 400_000,
    "core.endEpisode(1)",
    "__import__('os').system('true')",
    "\ud800\x00\x7f\n",
    "x" * 1_000_000,
]


@pytest.mark.parametrize("message", HOSTILE, ids=range(len(HOSTILE)))
def test_other_messages_get_a_reply_and_cost_a_turn(make, message):
    env = make("enter-text", turns=2, render_mode="ansi")
    opening, before = env.reset(seed=0)
    text, reward, terminated, truncated, info = env.step(message)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info.pop("seeupo_gym/malformed")
    assert info == before
    assert text.startswith("Nothing was understood")
    assert text.endswith(opening)
    assert env.observation_space.contains(text)
    assert set(env.render()) <= set(string.printable)
    assert env.step(message)[2]


def test_the_turn_limit_ends_the_episode_as_the_time_limit_does(make):
    env = make("enter-text", turns=2)
    env.reset(seed=0)
    assert env.max_turns == 2
    assert not env.step("click [5]")[2]
    _, reward, terminated, truncated, info = env.step("click [5]")
    assert (reward, terminated, truncated, info["is_success"]) == (-1.0, True, False, False)
    assert script(env, "return WOB_REWARD_REASON") == "timed out"
    with pytest.raises(gym.error.ResetNeeded):
        env.step("click [5]")
    env = make("click-test", turns=1)
    env.reset(seed=0)
    assert env.step("click [4]")[1] == 1.0, "the last turn counts"


def test_data_modes_differ(make):
    targets = [make("click-test-transfer", data_mode=mode).reset(seed=0)[1]["utterance"] for mode in ("train", "test")]
    assert targets == ["Click button ONE.", "Click button TWO."]


def test_what_appears_after_a_while_can_be_waited_for(make):
    env = make("use-autocomplete", wait_ms=1500)
    _, info = env.reset(seed=1)
    text = env.step(find(info, 'type "Ce"'))[0]
    assert "Central African Republic" in text


def test_pickle_carries_the_arguments_only(make):
    env = make("click-button", turns=7)
    first, _ = env.reset(seed=0)
    copy = copy_of_the_arguments(env, "click [4]")
    assert (copy.task, copy.max_turns, browser_of(copy)) == ("click-button", 7, None)
    assert with_browser(copy, browser_of(env)).reset(seed=0)[0] == first


def test_gymnasium_checker_and_registration(browser):
    env = with_browser(gym.make("seeupo_gym/MiniWoB-v0", task="click-button", turns=7).unwrapped, browser)
    assert env.max_turns == 7
    check_env(env, skip_render_check=True, skip_close_check=True)


def test_transcript(make):
    check_transcript(make("enter-text", render_mode="ansi"), "click [5]")
    assert make().render() is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"task": "click"},
        {"task": "../core/core"},
        {"task": 3},
        {"turns": 0},
        {"turns": "9"},
        {"data_mode": "dev"},
        {"wait_ms": -1},
        {"wait_ms": 0.5},
    ],
)
def test_wrong_arguments(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        MiniWoBEnv(**arguments)


def test_wrong_calls(make):
    check_wrong_calls(make(), "click [4]")
    with pytest.raises(TypeError, match="render_mode"):
        MiniWoBEnv(render_mode="human")


def test_global_generators_are_left_alone(make):
    def episode():
        env = make("click-button")
        _, info = env.reset(seed=0)
        play(env, expert_click_button(info))
        env.reset()

    check_global_generators_stay(episode)


def make_view():
    return CandidateView(MiniWoBEnv("enter-text", turns=3), n_candidates=4, n_features=32)


@pytest.mark.parametrize("vec_env_class", [DummyVecEnv, SubprocVecEnv])
def test_candidates_in_vector_environments(vec_env_class):
    env = vec_env_class([make_view])
    try:
        env.seed(4)
        obs = env.reset()
        assert obs["candidates"].shape == (1, 4, 32)
        (mask,) = env.env_method("action_masks")
        assert mask.tolist() == [True, True, True, False]
        # The sorted commands: a click on the field, one on the button, and the typing of the name.
        _, rewards, dones, infos = env.step(np.array([2]))
        assert infos[0]["command"].startswith("type ")
        assert (rewards.tolist(), dones.tolist()) == ([0.0], [False])
        _, rewards, dones, infos = env.step(np.array([1]))
        assert (rewards.tolist(), dones.tolist()) == ([1.0], [True])
        assert infos[0]["is_success"]
    finally:
        env.close()


def test_groups_of_seeupo_play_it(make):
    env = CandidateView(make("enter-text", turns=3), n_candidates=4, n_features=32)
    model = check_groups_start_alike(env, "MultiInputPolicy", n_steps=12)
    assert model.masked
    assert {info["r"] for info in model.ep_info_buffer} <= {-1.0, 1.0}


def test_observations_have_a_limit(make):
    env = make("enter-text")
    env.reset(seed=0)
    script(env, f"document.querySelector('button').textContent = 'x'.repeat({2 * MiniWoBEnv.max_observation})")
    text, *_, info = env.step("click [5]")
    assert env.observation_space.contains(text)
    assert all(len(command) < 200 for command in info["admissible_commands"])
