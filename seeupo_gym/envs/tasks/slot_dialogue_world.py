"""The table booking of SlotDialogue: slots, acts, levels of difficulty, and the words of user and agent."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

NOTHING = -1


class Act(IntEnum):
    """Kinds of the agent's acts."""

    REQUEST = 0
    CONFIRM = 1
    OFFER = 2
    ANSWER = 3
    BOOK = 4
    APOLOGISE = 5


class Reply(IntEnum):
    """Kinds of replies; the last two end the episode."""

    INFORM = 0
    AFFIRM = 1
    NEGATE = 2
    CHANGE = 3
    ASK = 4
    ACCEPT = 5
    FORGIVE = 6
    LOST = 7
    REFUSED = 8
    BOOKED = 9
    BYE = 10


class Slot(NamedTuple):
    """A slot: its name, its values, how the user states it and how the agent takes it up."""

    name: str
    values: tuple[str, ...]
    stated: str
    taken_up: str


class Level(NamedTuple):
    """
    A level of difficulty.

    :param slots: names of the slots; those of the venue first, then those of the booking
    :param n_venue: number of slots that describe the venue; an offer shows their values
    :param n_values: number of values of each slot
    :param n_items: number of items that a user can ask about a venue
    :param n_questions: number of these that a user asks before accepting an offer
    :param max_turns: length of the longest episode
    :param patience: least and most patience of a user at the start
    :param wrong: probability that a value or a question is heard as another one
    :param lost: probability that a reply is not heard at all
    :param initiative: probability that the user adds the next slot of the agenda to a reply
    :param change: probability, at each turn, that the user changes their mind about a slot (once in an episode)
    """

    slots: tuple[str, ...]
    n_venue: int
    n_values: int
    n_items: int
    n_questions: int
    max_turns: int
    patience: tuple[int, int]
    wrong: float
    lost: float
    initiative: float
    change: float


SLOTS = {
    slot.name: slot
    for slot in (
        Slot("food", ("Thai", "Indian", "Italian", "French", "Greek"), "I would like {} food.", "{} food"),
        Slot("area", ("north", "south", "east", "west", "centre"), "It should be in the {}.", "in the {}"),
        Slot("price", ("15", "20", "30", "40", "60"), "It may cost up to {} euros a head.", "for up to {} euros"),
        Slot("time", ("18:00", "18:30", "19:00", "19:30", "20:00"), "We will come at {}.", "at {}"),
        Slot("people", ("2", "3", "4", "5", "6"), "There will be {} of us.", "for {} people"),
    )
}

ITEMS = ("phone", "address", "parking")
QUESTIONS = ("What is the phone number?", "What is the address?", "Is there parking?")
SPEECH = {
    Reply.INFORM: "",
    Reply.AFFIRM: "Yes.",
    Reply.NEGATE: "No.",
    Reply.CHANGE: "I have changed my mind.",
    Reply.ACCEPT: "That sounds good.",
    Reply.FORGIVE: "All right.",
    Reply.LOST: "[inaudible]",
    Reply.BYE: "This leads nowhere. Goodbye.",
}
MOODS = ("", "impatient", "about to hang up")

LEVELS = {
    "easy": Level(
        slots=("food", "area", "people"),
        n_venue=2,
        n_values=3,
        n_items=0,
        n_questions=0,
        max_turns=12,
        patience=(4, 6),
        wrong=0.2,
        lost=0.0,
        initiative=0.5,
        change=0.0,
    ),
    "medium": Level(
        slots=("food", "area", "time", "people"),
        n_venue=2,
        n_values=4,
        n_items=2,
        n_questions=1,
        max_turns=24,
        patience=(4, 6),
        wrong=0.25,
        lost=0.1,
        initiative=0.3,
        change=0.02,
    ),
    "hard": Level(
        slots=("food", "area", "price", "time", "people"),
        n_venue=3,
        n_values=5,
        n_items=3,
        n_questions=2,
        max_turns=36,
        patience=(4, 6),
        wrong=0.3,
        lost=0.15,
        initiative=0.2,
        change=0.05,
    ),
}


def statement(level: Level, slot: int, value: int) -> str:
    """
    Write how a user states a slot.

    :param level: the level, which has the slots
    :param slot: the slot
    :param value: the value, as it is heard
    :return: a sentence
    """
    spoken = SLOTS[level.slots[slot]]
    return spoken.stated.format(spoken.values[value])


def opening(level: Level, first_statement: str) -> str:
    """
    Write the rules, as the agent reads them, and the user's opening.

    :param level: the level
    :param first_statement: the user's first statement
    :return: some lines
    """
    wishes = "; ".join(f"{name}: {', '.join(SLOTS[name].values[: level.n_values])}" for name in level.slots)
    venue, booking = " and ".join(level.slots[: level.n_venue]), " and ".join(level.slots[level.n_venue :])
    answer = f"answer {' or '.join(ITEMS[: level.n_items])} (once asked), " if level.n_items else ""
    return (
        f"System: Book the table that the user wants ({wishes}). The line is bad: you may hear a wrong value"
        f"{' or nothing' if level.lost else ''}. The user hangs up when out of patience.\n"
        f"System: Write one of: request SLOT, confirm SLOT (as heard), offer (a venue with {venue} as heard), {answer}"
        f"book (the accepted venue, with {booking} as heard), apologise. At most {level.max_turns} turns.\n"
        f"User: Hello, I need a table. {first_statement}"
    )


def act_text(level: Level, kind: int, target: int, heard: Sequence[int]) -> str:
    """
    Write an act of the agent.

    :param level: the level, which has the slots
    :param kind: kind of the act
    :param target: the slot or item that it is about
    :param heard: the value heard of each slot, or ``NOTHING``
    :return: a short command
    """
    slots = [SLOTS[name] for name in level.slots]
    words = [slot.taken_up.format(slot.values[v]) if v != NOTHING else "" for slot, v in zip(slots, heard, strict=True)]
    if kind == Act.REQUEST:
        parts = ["request", slots[target].name]
    elif kind == Act.CONFIRM:
        parts = ["confirm", slots[target].name, slots[target].values[heard[target]] if heard[target] != NOTHING else ""]
    elif kind == Act.OFFER:
        parts = ["offer", *words[: level.n_venue]]
    elif kind == Act.ANSWER:
        parts = ["answer", ITEMS[target]]
    elif kind == Act.BOOK:
        parts = ["book", *words[level.n_venue :]]
    else:
        parts = ["apologise"]
    return " ".join(filter(None, parts))


def refusal(level: Level, kind: int, target: int) -> str:
    """
    Say why an act is not accepted.

    :param level: the level, which has the slots
    :param kind: kind of the act, or ``NOTHING``
    :param target: the slot that it is about
    :return: a sentence
    """
    return {
        NOTHING: "You said nothing.",
        Act.CONFIRM: f"You have heard nothing about {level.slots[target]} yet.",
        Act.OFFER: f"You have to hear about {' and '.join(level.slots[: level.n_venue])} first.",
        Act.ANSWER: "There is no question to answer.",
        Act.BOOK: "You need an accepted offer, and have to hear about everything first.",
        Act.APOLOGISE: "The user does not sound annoyed.",
    }[kind]
