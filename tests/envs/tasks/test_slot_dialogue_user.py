"""SlotDialogue's user: dialogues by a plain second simulator, and what is drawn how often."""

import numpy as np
import pytest
from helpers.slot_dialogue import (
    ACCEPT,
    AFFIRM,
    ANSWER,
    APOLOGISE,
    ASK,
    BOOK,
    BOOKED,
    BYE,
    CHANGE,
    CONFIRM,
    FORGIVE,
    INFORM,
    LOST,
    NEGATE,
    OFFER,
    REQUEST,
    act,
    each_level,
    make,
)
from helpers.tasks import with_noise_of_their_own

from seeupo_gym.envs.counter_rng import uniform
from seeupo_gym.envs.tasks.slot_dialogue_dynamics import SlotDialogue
from seeupo_gym.envs.tasks.slot_dialogue_world import LEVELS, NOTHING


def meaning(task, action):
    """The kind and the target of an action."""
    kind = max(kind for kind, first in task.first.items() if first <= action)
    return kind, action - task.first[kind]


# --- A second simulator, of one dialogue, with the agenda as a list


class PlainUser:
    """The user and what is heard, from the description alone; draws are those of the task."""

    def __init__(self, level, seed):
        self.level, self.seed, self.turn = level, seed, 0
        n = len(level.slots)
        draws = uniform([seed], 0, np.arange(2 * n + level.n_items + 2))
        self.goal = [int(d * level.n_values) for d in draws[:n]]
        self.rank = list(draws[n : 2 * n])
        self.agenda = sorted(range(n), key=lambda slot: self.rank[slot])
        questions = draws[2 * n : 2 * n + level.n_items]
        self.questions = sorted(range(level.n_items), key=lambda item: questions[item])[: level.n_questions]
        low, high = level.patience
        self.patience = low + int(draws[-2] * (high - low + 1))
        self.annoyed, self.changed, self.accepted, self.question = False, None, False, None
        self.heard = [None] * n
        slot = self.agenda.pop(0)
        self.heard[slot] = self.garbled(self.goal[slot], level.n_values, draws[-1])

    def garbled(self, value, n, draw):
        step = int(draw * (n - 1) / self.level.wrong) + 1
        return (value + step) % n if draw < self.level.wrong else value

    def state(self, slot):
        """Take a slot from the agenda; whether that was no repetition, and whether it is news of a change of mind."""
        new = slot in self.agenda
        if new:
            self.agenda.remove(slot)
        return new, new and self.changed == slot

    def reply(self, kind, target):
        level, venue = self.level, range(self.level.n_venue)
        self.turn += 1
        lost, garbled, adds, added_garbled, changes = uniform([self.seed], 1, self.turn, np.arange(5))
        if kind == BOOK:
            right = [h == g for h, g in zip(self.heard, self.goal, strict=True)]
            return BOOKED, (1 if all(right) else 0.5 * sum(right) / len(right)) - 0.01 * self.turn
        if changes < level.change and self.changed is None:
            slot, shift = divmod(
                int(changes * len(self.goal) * (level.n_values - 1) / level.change), level.n_values - 1
            )
            if slot not in self.agenda:
                self.goal[slot] = (self.goal[slot] + 1 + shift) % level.n_values
                self.changed = slot
                self.agenda = sorted([*self.agenda, slot], key=lambda s: self.rank[s])
        act, states, price = None, None, 0
        if kind == REQUEST:
            act, states, price = INFORM, target, 1
        elif kind == CONFIRM:
            act, states, price = (AFFIRM, None, 0) if self.heard[target] == self.goal[target] else (NEGATE, target, 1)
        elif kind == ANSWER and target != self.questions[0]:
            act, price = ASK, 1
        elif kind in (OFFER, ANSWER):
            if kind == ANSWER:
                self.questions.pop(0)
            wrong = [slot for slot in venue if self.heard[slot] != self.goal[slot]]
            if wrong:
                act, states, price = NEGATE, wrong[0], 2
            else:
                act = ASK if self.questions else ACCEPT
        elif kind == APOLOGISE:
            act, price = FORGIVE, -1 if self.annoyed else 0
            self.annoyed = False
        if states is not None:
            new, change = self.state(states)
            act, price = CHANGE if change else act, 0 if new else price
        self.annoyed |= price > 0
        self.patience -= price
        self.question = None if kind == ANSWER else self.question
        if self.patience <= 0:
            return BYE, -0.01 * level.max_turns
        said = [] if states is None else [(states, garbled, act == CHANGE, kind != REQUEST)]
        if kind in (REQUEST, CONFIRM, APOLOGISE) and adds < level.initiative and self.agenda:
            slot = self.agenda[0]
            said.append((slot, added_garbled, self.state(slot)[1], False))
        if lost < level.lost:
            return LOST, 0.0
        for slot, draw, change, denied in said:
            value = self.garbled(self.goal[slot], level.n_values, draw)
            if slot in venue and (change or denied or value != self.heard[slot]):
                self.accepted, self.question = False, None
            self.heard[slot] = value
        self.accepted |= act == ACCEPT
        if act == ASK:
            self.question = self.garbled(self.questions[0], level.n_items, garbled)
        return act, 0.0


@each_level
@pytest.mark.parametrize("policy", ["random", "expert"])
def test_a_plain_simulator_gives_the_same_dialogues(level, policy):
    rng = np.random.default_rng(0)
    task = SlotDialogue(60, level)
    task.reset(np.arange(60))
    users = [PlainUser(task.level, seed) for seed in range(60)]
    live, seen = np.arange(60), set()
    while live.size:
        lottery = rng.random((len(live), int(task.action_space.n)))
        lottery[~task.action_masks(live)] = -1.0
        actions = lottery.argmax(axis=1) if policy == "random" else task.expert_actions(live)
        result = task.step(actions, live)
        for lane, action, reward, done in zip(live, actions, result.rewards, result.dones, strict=True):
            user = users[lane]
            reply, paid = user.reply(*meaning(task, int(action)))
            if done and reply not in (BYE, BOOKED):
                paid = -0.01 * task.max_turns
            assert (task.reply[lane], reward) == (reply, pytest.approx(paid))
            assert task.goal[lane].tolist() == user.goal
            assert task.heard[lane].tolist() == [NOTHING if value is None else value for value in user.heard]
            assert (task.patience[lane], task.accepted[lane]) == (user.patience, user.accepted)
            assert task.question[lane] == (NOTHING if user.question is None else user.question)
            assert set(np.flatnonzero(~task.told[lane])) == set(user.agenda)
            seen.add(reply)
        live = live[~result.dones]
    assert {INFORM, AFFIRM, NEGATE, FORGIVE} <= seen
    assert level == "easy" or policy == "random" or {LOST, CHANGE, ASK, ACCEPT, BOOKED} <= seen


# --- Draws


@each_level
def test_starts_are_uniform(level):
    n = 20_000
    task = make(n, level)
    rules = LEVELS[level]
    n_slots = len(rules.slots)
    for slot in range(n_slots):
        counts = np.bincount(task.goal[:, slot], minlength=rules.n_values)
        np.testing.assert_allclose(counts / n, 1 / rules.n_values, atol=0.015)
    np.testing.assert_allclose(np.bincount(task.stated[:, 0], minlength=n_slots) / n, 1 / n_slots, atol=0.015)
    assert (task.told.sum(axis=1) == 1).all()
    patience = np.unique(task.patience, return_counts=True)
    assert patience[0].tolist() == [4, 5, 6]
    np.testing.assert_allclose(patience[1] / n, 1 / 3, atol=0.015)
    questions = task.questions[:, : rules.n_questions]
    assert (task.questions[:, -1] == NOTHING).all()
    assert all(len(set(row)) == rules.n_questions for row in questions[:200])
    for column in questions.T:
        np.testing.assert_allclose(np.bincount(column) / n, 1 / rules.n_items, atol=0.015)


@each_level
def test_values_are_heard_wrong_and_replies_lost_as_often_as_said(level):
    n, rules = 20_000, LEVELS[level]
    task = make(n, level, change=0.0)
    rows, slots = np.arange(n), task.stated[:, 0].copy()
    for turn in range(2):  # the opening, and a request of the next slot
        if turn:
            slots = (slots + 1) % len(rules.slots)
            task.step(slots)
        heard = task.reply != LOST
        assert 1 - heard.mean() == pytest.approx(rules.lost if turn else 0, abs=0.01)
        shift = (task.heard[rows, slots] - task.goal[rows, slots])[heard] % rules.n_values
        assert (shift > 0).mean() == pytest.approx(rules.wrong, abs=0.012)
        for wrong in range(1, rules.n_values):
            assert (shift == wrong).mean() == pytest.approx(rules.wrong / (rules.n_values - 1), abs=0.01)
    added = task.stated[:, 1]
    assert (added[heard] != NOTHING).mean() == pytest.approx(rules.initiative, abs=0.012)
    added_to = np.flatnonzero(heard & (added != NOTHING))
    shift = (task.heard[added_to, added[added_to]] - task.goal[added_to, added[added_to]]) % rules.n_values
    assert (shift > 0).mean() == pytest.approx(rules.wrong, abs=0.015)


@pytest.mark.parametrize("level", ["medium", "hard"])
def test_questions_are_heard_wrong_as_often_as_said(level):
    n, rules = 20_000, LEVELS[level]
    task = make(n, level, change=0.0, lost=0.0)
    task.heard[:] = task.goal
    task.step(np.full(n, act(task, OFFER)))
    shift = (task.question - task.questions[:, 0]) % rules.n_items
    for wrong in range(1, rules.n_items):
        assert (shift == wrong).mean() == pytest.approx(rules.wrong / (rules.n_items - 1), abs=0.012)


@each_level
def test_users_change_their_mind_as_often_as_said_and_once(level):
    n, rules = 40_000, LEVELS[level]
    n_slots = len(rules.slots)
    task = make(n, level, lost=0.0)
    task.told[:] = True
    task.patience[:] = 99
    before = task.goal.copy()
    task.step(np.full(n, act(task, REQUEST, 0)))
    changed = task.changed != NOTHING
    assert changed.mean() == pytest.approx(rules.change, abs=0.005)
    assert ((task.goal != before).sum(axis=1) == changed).all()
    assert ((task.reply == CHANGE) == (task.changed == 0)).all()
    if not changed.any():
        return
    np.testing.assert_allclose(np.bincount(task.changed[changed]) / changed.sum(), 1 / n_slots, atol=0.05)
    shift = (task.goal - before)[changed].max(axis=1) % rules.n_values
    assert set(((task.goal - before)[changed] % rules.n_values).ravel()) == set(range(rules.n_values))
    assert set(shift) <= set(range(rules.n_values))
    once = task.goal[changed].copy()
    for _ in range(8):
        task.step(np.full(n, act(task, REQUEST, 0)))
    np.testing.assert_array_equal(task.goal[changed], once)
    assert (task.changed != NOTHING).mean() == pytest.approx(1 - (1 - rules.change) ** 9, abs=0.012)


def test_slots_not_stated_yet_do_not_change():
    task = make(5000, "hard")
    for _ in range(3):
        before, told = task.goal.copy(), task.told.copy()
        task.step(np.full(5000, act(task, CONFIRM, 0)))  # where not accepted, nothing changes
        assert not (~told & (task.goal != before)).any()
        assert not (task.goal != before)[task.refused].any()
    assert (task.changed != NOTHING).any()


def test_what_happens_on_the_way_follows_the_noise_seeds():
    def replies(task):
        task.step(np.full(task.n_lanes, act(task, REQUEST, 0)))
        return task.observe()

    own = with_noise_of_their_own(SlotDialogue(1000, "hard"), replies)
    assert len(np.unique(own, axis=0)) > 5
