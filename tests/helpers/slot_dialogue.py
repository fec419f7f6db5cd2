"""Dialogues of the task SlotDialogue, with a user as drawn or as a test wants it."""

import numpy as np
import pytest

from seeupo_gym.envs.tasks.slot_dialogue_dynamics import SlotDialogue
from seeupo_gym.envs.tasks.slot_dialogue_world import LEVELS, NOTHING, Act, Reply

ENV_ID = "seeupo_gym/SlotDialogue-v0"
NO_NOISE = {"wrong": 1e-12, "lost": 0.0, "initiative": 0.0, "change": 0.0}
FOOD, AREA, PEOPLE = range(3)
REQUEST, CONFIRM, OFFER, ANSWER, BOOK, APOLOGISE = Act
INFORM, AFFIRM, NEGATE, CHANGE, ASK, ACCEPT, FORGIVE, LOST, REFUSED, BOOKED, BYE = Reply
each_level = pytest.mark.parametrize("level", LEVELS)


def make(n_lanes=1, level="easy", seed=0, **changes):
    """A task at a level that differs from a registered one."""
    task = SlotDialogue(n_lanes, level)
    task.level = task.level._replace(**changes)
    task.reset(seed + np.arange(n_lanes))
    return task


def scripted(level="easy", goal=(0, 1, 2), opens=FOOD, hears=None, patience=4, questions=(), **changes):
    """A dialogue without noise, with a given user; the opening is heard as ``hears``."""
    task = make(1, level, **{**NO_NOISE, **changes})
    task.goal[0] = goal
    task.told[0] = np.arange(len(goal)) == opens
    task.heard[0] = np.where(task.told[0], goal[opens] if hears is None else hears, NOTHING)
    task.stated[0] = opens, NOTHING
    task.patience[0] = patience
    task.questions[0] = [*questions, NOTHING]
    return task


def act(task, kind, target=0):
    return task.first[kind] + target


def take(task, kind, target=0):
    """One turn of a single lane: the reply, and the step's result."""
    result = task.step(np.array([act(task, kind, target)]))
    return int(task.reply[0]), result
