"""SlotDialogue in words: the transcript, replies, actions, and levels."""

import gymnasium as gym
import numpy as np
import pytest
from helpers.slot_dialogue import (
    ANSWER,
    APOLOGISE,
    AREA,
    BOOK,
    CONFIRM,
    ENV_ID,
    FOOD,
    OFFER,
    PEOPLE,
    REQUEST,
    act,
    each_level,
    scripted,
    take,
)

from seeupo_gym.envs.messages import MessageError
from seeupo_gym.envs.task import HELD_OUT_SEED, NO_ACTION
from seeupo_gym.envs.tasks.slot_dialogue_dynamics import SlotDialogue
from seeupo_gym.envs.tasks.slot_dialogue_world import ITEMS, LEVELS, QUESTIONS, SLOTS


def test_transcript():
    env = gym.make(ENV_ID, level="easy", render_mode="ansi").unwrapped
    env.reset(seed=HELD_OUT_SEED)
    task = env.task
    for kind, target in [(OFFER, 0), (REQUEST, AREA), (REQUEST, PEOPLE), (OFFER, 0), (APOLOGISE, 0)]:
        env.step(act(task, kind, target))
    for kind, target in [(CONFIRM, PEOPLE), (BOOK, 0)]:
        env.step(act(task, kind, target))
    assert env.render() == (
        "System: Book the table that the user wants (food: Thai, Indian, Italian; area: north, south, east; "
        "people: 2, 3, 4). The line is bad: you may hear a wrong value. The user hangs up when out of patience.\n"
        "System: Write one of: request SLOT, confirm SLOT (as heard), offer (a venue with food and area as heard), "
        "book (the accepted venue, with people as heard), apologise. At most 12 turns.\n"
        "User: Hello, I need a table. I would like Italian food.\n"
        "Agent: offer Italian food\n"
        "System: You have to hear about food and area first.\n"
        "Agent: request area\n"
        "User: It should be in the north. There will be 3 of us.\n"
        "Agent: request people\n"
        "User (annoyed): There will be 3 of us.\n"
        "Agent: offer Italian food in the north\n"
        "User (annoyed): That sounds good.\n"
        "Agent: apologise\n"
        "User: All right.\n"
        "Agent: confirm people 3\n"
        "User: Yes.\n"
        "Agent: book for 3 people\n"
        "User: Thank you, see you then.\n"
        "Reward: 0.93"
    )
    env.reset(seed=HELD_OUT_SEED)
    for _ in range(12):
        env.step(act(task, CONFIRM, FOOD))
    assert env.render().endswith("User: Yes.\nUser: I have no more time. Goodbye.\nReward: -0.12")


def test_every_reply_has_its_words():
    task = scripted("hard", (0, 1, 2, 3, 4), opens=0, hears=3, questions=(2, 0))

    def say(kind, target=0):
        action = np.array(act(task, kind, target) if kind != NO_ACTION else NO_ACTION)
        result = task.step(action[None])
        return task.reply_text(0, action, result)

    assert say(NO_ACTION) == "System: You said nothing."
    assert say(CONFIRM, 1) == "System: You have heard nothing about area yet."
    assert say(OFFER) == "System: You have to hear about food and area and price first."
    assert say(ANSWER) == "System: There is no question to answer."
    assert say(BOOK) == "System: You need an accepted offer, and have to hear about everything first."
    assert say(APOLOGISE) == "System: The user does not sound annoyed."
    assert say(CONFIRM, 0) == "User (annoyed): No. I would like Thai food."
    assert say(APOLOGISE) == "User: All right."
    assert say(CONFIRM, 0) == "User: Yes."
    assert say(REQUEST, 1) == "User: It should be in the south."
    assert say(REQUEST, 2) == "User: It may cost up to 30 euros a head."
    assert say(OFFER) == "User: Is there parking?"
    assert say(ANSWER, 2) == "User: What is the phone number?"
    assert say(ANSWER, 0) == "User: That sounds good."
    task.goal[0, 0], task.told[0, 0], task.changed[0] = 4, False, 0
    assert say(OFFER) == "User: I have changed my mind. I would like Greek food."
    assert say(OFFER) == "User: That sounds good."
    task.goal[0, 1], task.told[0, 1], task.changed[0] = 4, False, 1
    task.agenda[0, 1] = -1.0
    task.level = task.level._replace(initiative=1.0)
    assert say(REQUEST, 3) == "User: We will come at 19:30. I have changed my mind. It should be in the centre."
    task.level = task.level._replace(initiative=0.0, lost=1.0)
    assert say(REQUEST, 4) == "User: [inaudible]"
    task.level = task.level._replace(lost=0.0)
    assert say(REQUEST, 4) == "User (annoyed): There will be 6 of us."
    assert say(REQUEST, 4) == "User (annoyed, impatient): There will be 6 of us."
    assert say(APOLOGISE) == "User: All right."
    assert say(REQUEST, 0) == "User (annoyed, impatient): I would like Greek food."
    assert say(REQUEST, 0) == "User (annoyed, about to hang up): I would like Greek food."
    assert say(REQUEST, 0) == "User: This leads nowhere. Goodbye.\nReward: -0.36"


def test_actions_are_written_with_the_values_heard_or_without():
    task = scripted("hard", (0, 1, 2, 3, 4), opens=1)
    texts = [task.action_text(0, np.array(action)) for action in range(16)]
    assert texts[5:11] == [
        "confirm food",
        "confirm area south",
        "confirm price",
        "confirm time",
        "confirm people",
        "offer in the south",
    ]
    for slot in (0, 2, 3, 4):
        take(task, REQUEST, slot)
    assert [task.action_text(0, np.array(action)) for action in range(16)] == [
        *("request food", "request area", "request price", "request time", "request people"),
        *("confirm food Thai", "confirm area south", "confirm price 30", "confirm time 19:30", "confirm people 6"),
        "offer Thai food in the south for up to 30 euros",
        *("answer phone", "answer address", "answer parking"),
        "book at 19:30 for 6 people",
        "apologise",
    ]
    for message, kind, target in [
        ("Confirm: area!", CONFIRM, 1),
        ("offer", OFFER, 0),
        ("Book.", BOOK, 0),
        ("I shall offer Thai food in the south for up to 30 euros, then.", OFFER, 0),
    ]:
        assert task.parse_action(0, message) == act(task, kind, target)
    for message in ("confirm area north", "request", "hello"):
        with pytest.raises(MessageError, match="You can write: request food"):
            task.parse_action(0, message)


@each_level
def test_levels_have_words_for_all_they_need(level):
    rules = LEVELS[level]
    assert 0 < rules.n_venue < len(rules.slots)
    assert all(rules.n_values <= len(set(SLOTS[name].values)) for name in rules.slots)
    assert rules.n_questions <= rules.n_items <= len(ITEMS) == len(QUESTIONS)
    assert rules.n_items <= len(rules.slots)


def test_unknown_level():
    with pytest.raises(ValueError, match="level must be one of 'easy', 'medium', 'hard', got 'huge'"):
        gym.make(ENV_ID, level="huge")
    with pytest.raises(ValueError, match="n_lanes must be an integer of at least 1, got 0"):
        SlotDialogue(0)
