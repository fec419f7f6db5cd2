"""Which action a written message means."""

import gymnasium as gym
import pytest

from seeupo_gym.envs.messages import plain
from seeupo_gym.envs.views.text_view import TextView


def play(name, *messages, seed=0, **kwargs):
    """Write messages one after another, and return what the last of them did, with the environment."""
    env = TextView(gym.make(f"seeupo_gym/{name}-v0", render_mode="ansi", **kwargs))
    env.reset(seed=seed)
    for message in messages:
        result = env.step(message)
    return env, *result


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Guess 5!", "guess 5"),
        ("guess: 5, then 12.", "guess 5 then 12"),
        ('list_orders("O-2041") at 18:30', "list orders o 2041 at 18 30"),
        ("-5 3.9 .5 ...5", "-5 3.9 .5 5"),
        ("1,000 1_000 1'000 1\u2019000", "1,000 1_000 1'000 1\u2019000"),
        ("5-10 5/10 5\u201310 \u22125 12th 1.5kg", "5-10 5/10 5\u201310 \u22125 12th 1.5kg"),
    ],
)
def test_numbers_stay_whole(text, words):
    assert plain(text) == words


@pytest.mark.parametrize("number", ["-5", "3.9", "1,000", "5-10", ".5", "5/10", "5e2", "9" * 6000])
@pytest.mark.parametrize(("name", "verb"), [("GuessNumber", "guess "), ("GuessNumber", ""), ("WebNav", "click ")])
def test_no_other_number_is_played_than_was_written(name, verb, number):
    *_, info = play(name, verb + number)
    assert info["seeupo_gym/malformed"]


@pytest.mark.parametrize(
    ("message", "means"),
    [
        ("7", 7),
        ("7.", 7),
        ("Action: 7", 7),
        ("The middle is best.\n7", 7),
        ("It is not 5. So I guess 7", 7),
        ("Is it 5? guess 7", 7),
        ("guess 5 or not, guess 7 is better", None),
        ("It cannot be 7, I think", None),
    ],
)
def test_guesses(message, means):
    env, *_, info = play("GuessNumber", message)
    assert info["seeupo_gym/malformed"] == (means is None)
    assert means is None or env.task.guesses[0] == means


FOUND = ['list_orders("C-118")', 'track_parcel("O-2077")']


@pytest.mark.parametrize(
    "message",
    ["submit", "Submit()", "Action: submit()", "I know it.\nsubmit", "Done. submit()", 'So submit("P-52") it is'],
)
def test_the_answer_is_submitted_with_its_name_or_without(message):
    _, _, reward, done, _, info = play("ToolChain", *FOUND, message)
    assert (reward, done, info) == (1.0, True, {"is_success": True, "seeupo_gym/malformed": False})
    assert play("ToolChain", *FOUND, message, flat=True)[2] == 1.0


@pytest.mark.parametrize(
    "message", ['submit("P-99")', 'Action: submit("P-31")', "I cannot submit yet", "Submitting is easy"]
)
def test_what_is_not_the_answer_is_not_submitted(message):
    for known in (FOUND[:1], FOUND):
        _, text, reward, done, _, info = play("ToolChain", *known, message)
        assert (reward, done, info) == (0.0, False, {"seeupo_gym/malformed": True})
        assert text.endswith("Tool: error: no tool was called")


@pytest.mark.parametrize(
    "message",
    ['Submit needs a parcel.\nAction: track_parcel("O-2077")', 'submitting is premature. track_parcel("O-2077")'],
)
def test_an_action_that_is_named_is_taken_whatever_the_message_begins_with(message):
    assert play("ToolChain", FOUND[0], message)[1] == "Tool: parcel P-52"


def test_the_last_action_is_named_with_the_first_ones():
    _, text, *_ = play("ToolChain", *FOUND, "What now?")
    assert 'find_product("O-2113"); and 1 more, such as submit("P-52").\n' in text
    assert "more" not in play("ToolChain", "What now?")[1], "before, there are no more than are shown"


@pytest.mark.parametrize("form", ["{}", "Action: {}", "So be it.\n{}!", "All right: {}"])
def test_acts_of_a_dialogue_need_no_values(form):
    messages = ["request area", "request people"]
    for short in ("confirm food", "offer", "confirm people", "book"):
        messages.append(form.format(short))
        *_, info = play("SlotDialogue", *messages, seed=2**31)
        assert not info["seeupo_gym/malformed"]
    assert info["is_success"]
    for message in ("I will book it later", "shall I offer it?"):
        assert play("SlotDialogue", message, seed=2**31)[-1]["seeupo_gym/malformed"]


@pytest.mark.parametrize(
    "message", ["click 3", "The shirts are third. click 3", "Shirts: click [3]", 'click [3] link "Shirts"']
)
def test_elements_are_clicked_by_number_and_as_the_page_shows_them(message):
    assert play("WebNav", message)[1].startswith("Page: Shirts, page 1 of 1")


@pytest.mark.parametrize("message", ["serve job D", "Serve D!", "Why wait: serve D", "I will serve job D next"])
def test_a_job_is_served_by_its_name(message):
    assert "job D done" in play("DeadlinePlanner", message)[1]


@pytest.mark.parametrize("message", ["I will serve a job that pays well: D", "Let us serve a customer", "serve job"])
def test_a_job_is_not_job_a(message):
    assert play("DeadlinePlanner", message)[-1]["seeupo_gym/malformed"]


def test_a_number_and_a_name_have_to_agree():
    assert play("WebNav", 'click [1] link "Shirts"')[-1]["seeupo_gym/malformed"]


def test_the_transcript_holds_the_complaint():
    env, text, *_ = play("ContextChain", "hello")
    assert text == (
        "I do not understand that. You can write: play 0; play 1; play 2; play 3.\nTurn 1: 0 right so far. Context 2."
    )
    assert env.render().endswith(f"\nAgent: hello\n{text}")
    text, *_ = env.step("play 1")
    assert env.render().endswith(f"\nAgent: play 1\n{text}")
    assert text.startswith("Turn 2:")


def test_of_several_actions_none_is_taken():
    _, text, *_, info = play("Blocksworld", "I would move A onto B, then move B onto C")
    assert info["seeupo_gym/malformed"]
    assert text.startswith("That could mean several things: move a onto b, move b onto c. Write only one.\n")
