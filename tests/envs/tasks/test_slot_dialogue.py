"""SlotDialogue: dialogues by hand and by a plain second simulator, noise rates, what is hidden, the transcript."""

import gymnasium as gym
import numpy as np
import pytest
from helpers.tasks import play, with_noise_of_their_own

from seeupo_gym.envs.counter_rng import uniform
from seeupo_gym.envs.messages import MessageError
from seeupo_gym.envs.task import HELD_OUT_SEED, NO_ACTION
from seeupo_gym.envs.tasks.slot_dialogue_dynamics import SlotDialogue
from seeupo_gym.envs.tasks.slot_dialogue_world import ITEMS, LEVELS, NOTHING, QUESTIONS, SLOTS, Act, Reply

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


def meaning(task, action):
    """The kind and the target of an action."""
    kind = max(kind for kind, first in task.first.items() if first <= action)
    return kind, action - task.first[kind]


def take(task, kind, target=0):
    """One turn of a single lane: the reply, and the step's result."""
    result = task.step(np.array([act(task, kind, target)]))
    return int(task.reply[0]), result


# --- Dialogues by hand: Thai food, in the south, for 4 (values 0, 1, 2), and a patience of 4


DIALOGUES = {
    # how the opening is heard; acts, replies and the patience after each; the reward at the end
    "straight": (
        0,
        [(REQUEST, AREA), (REQUEST, PEOPLE), (OFFER, 0), (BOOK, 0)],
        [(INFORM, 4), (INFORM, 4), (ACCEPT, 4), (BOOKED, 4)],
        1 - 0.04,
    ),
    "a confirmation finds a wrong value": (
        1,
        [(CONFIRM, FOOD), (CONFIRM, FOOD), (REQUEST, AREA), (OFFER, 0), (REQUEST, PEOPLE), (BOOK, 0)],
        [(NEGATE, 3), (AFFIRM, 3), (INFORM, 3), (ACCEPT, 3), (INFORM, 3), (BOOKED, 3)],
        1 - 0.06,
    ),
    "an offer finds it at twice the price": (
        1,
        [(REQUEST, AREA), (OFFER, 0), (APOLOGISE, 0), (OFFER, 0), (REQUEST, PEOPLE), (BOOK, 0)],
        [(INFORM, 4), (NEGATE, 2), (FORGIVE, 3), (ACCEPT, 3), (INFORM, 3), (BOOKED, 3)],
        1 - 0.06,
    ),
    "what is not possible costs turns": (
        0,
        [
            *((BOOK, 0), (OFFER, 0), (CONFIRM, AREA), (APOLOGISE, 0)),
            *((REQUEST, AREA), (REQUEST, PEOPLE), (OFFER, 0), (BOOK, 0)),
        ],
        [(REFUSED, 4)] * 4 + [(INFORM, 4)] * 2 + [(ACCEPT, 4), (BOOKED, 4)],
        1 - 0.08,
    ),
    "asked too often": (
        0,
        [(REQUEST, FOOD)] * 4,
        [(INFORM, 3), (INFORM, 2), (INFORM, 1), (BYE, 0)],
        -0.12,
    ),
    "no time left": (0, [(CONFIRM, FOOD)] * 12, [(AFFIRM, 4)] * 12, -0.12),
}


@pytest.mark.parametrize("name", DIALOGUES)
def test_dialogue(name):
    hears, acts, replies, final_reward = DIALOGUES[name]
    task = scripted(hears=hears)
    for i, (kind, target) in enumerate(acts, start=1):
        reply, (rewards, dones, successes) = take(task, kind, target)
        assert (reply, task.patience[0]) == replies[i - 1]
        assert dones[0] == (i == len(acts))
        assert rewards[0] == pytest.approx(final_reward if dones[0] else 0.0)
    assert successes[0] == (final_reward > 0.5)


def test_a_booking_with_wrong_values_pays_half_of_the_fraction_that_is_right():
    task = scripted()
    for kind, target in [(REQUEST, AREA), (REQUEST, PEOPLE), (OFFER, 0)]:
        take(task, kind, target)
    task.goal[0, PEOPLE] = 0  # the offer does not show the number of people
    reply, result = take(task, BOOK)
    assert reply == BOOKED
    assert (result.dones[0], result.successes[0]) == (True, False)
    assert result.rewards[0] == pytest.approx(0.5 * 2 / 3 - 0.04)


def test_offers_name_the_first_wrong_slot_and_new_values_make_them_void():
    task = scripted(goal=(0, 1, 2), hears=1, patience=6)
    task.told[0, AREA], task.heard[0, AREA] = True, 2
    assert take(task, OFFER)[0] == NEGATE
    assert task.stated[0].tolist() == [FOOD, NOTHING]
    assert task.heard[0].tolist() == [0, 2, NOTHING]
    assert task.denied[0].nonzero()[0].tolist() == [FOOD]
    assert take(task, OFFER)[0] == NEGATE
    assert task.heard[0].tolist() == [0, 1, NOTHING]
    assert take(task, OFFER)[0] == ACCEPT
    assert task.confirmed[0].tolist() == [True, True, False]
    take(task, REQUEST, PEOPLE)  # not a slot of the venue
    assert task.accepted[0]
    task.goal[0, FOOD] = 2
    assert take(task, CONFIRM, FOOD)[0] == NEGATE
    assert not task.accepted[0]
    assert task.confirmed[0].tolist() == [False, True, False]
    assert task.patience[0] == 1
    assert not task.action_masks()[0, act(task, BOOK)]


def test_questions_come_before_the_acceptance():
    task = scripted("hard", (0, 1, 2, 3, 4), opens=0, questions=(2, 0))
    for slot in range(1, 5):
        take(task, REQUEST, slot)
    assert not task.action_masks()[0, act(task, ANSWER) : act(task, BOOK)].any()
    assert take(task, OFFER)[0] == ASK
    assert task.question[0] == 2
    assert task.action_masks()[0, act(task, ANSWER) : act(task, BOOK)].all()
    assert not task.action_masks()[0, act(task, BOOK)]
    assert take(task, ANSWER, 1)[0] == ASK
    assert (task.question[0], task.patience[0]) == (2, 3)
    assert take(task, ANSWER, 2)[0] == ASK
    assert (task.question[0], task.patience[0]) == (0, 3)
    # An offer made again repeats the question, another value ends the talk about it.
    assert take(task, OFFER)[0] == ASK
    assert (task.question[0], task.patience[0]) == (0, 3)
    assert take(task, ANSWER, 0)[0] == ACCEPT
    assert (task.question[0], task.accepted[0]) == (NOTHING, True)
    reply, result = take(task, BOOK)
    assert (reply, result.successes[0]) == (BOOKED, True)
    assert result.rewards[0] == pytest.approx(1 - 0.1)


def test_an_answer_leads_back_to_the_offer_which_the_user_may_no_longer_want():
    task = scripted("medium", (0, 1, 2, 3), opens=0, questions=(1,))
    take(task, REQUEST, AREA)
    assert take(task, OFFER)[0] == ASK
    task.goal[0, FOOD], task.told[0, FOOD], task.changed[0] = 3, False, FOOD
    assert take(task, ANSWER, 1)[0] == CHANGE
    assert (task.heard[0, FOOD], task.accepted[0], task.question[0]) == (3, False, NOTHING)
    assert task.patience[0] == 4
    assert take(task, OFFER)[0] == ACCEPT


@pytest.mark.parametrize("kind", [REQUEST, CONFIRM, OFFER])
def test_a_change_of_mind_is_said_when_the_slot_comes_up_and_costs_no_patience(kind):
    task = scripted(hears=2)
    take(task, CONFIRM, FOOD)
    take(task, REQUEST, AREA)
    assert (task.heard[0, FOOD], task.denied[0, FOOD].tolist()) == (0, [False, False, True])
    task.goal[0, FOOD], task.told[0, FOOD], task.changed[0] = 2, False, FOOD
    assert take(task, kind, 0)[0] == CHANGE
    assert (task.patience[0], task.heard[0, FOOD], task.change_heard[0]) == (3, 2, True)
    # "No" to the old value, unless it was not named; what was denied before may be right now.
    assert task.denied[0, FOOD].tolist() == [kind != REQUEST, False, False]
    assert take(task, kind, 0)[0] == {REQUEST: INFORM, CONFIRM: AFFIRM, OFFER: ACCEPT}[kind]
    assert task.patience[0] == (2 if kind == REQUEST else 3)


def test_the_user_goes_on_with_the_agenda():
    task = scripted(initiative=1.0)
    task.agenda[0] = 0.0, 0.9, 0.5
    assert take(task, CONFIRM, FOOD)[0] == AFFIRM
    assert task.stated[0].tolist() == [NOTHING, PEOPLE]
    assert task.heard[0].tolist() == [0, NOTHING, 2]
    task.goal[0, PEOPLE], task.told[0, PEOPLE], task.changed[0] = 1, False, PEOPLE
    assert take(task, REQUEST, AREA)[0] == INFORM
    assert (task.stated[0].tolist(), task.adds_change[0]) == ([AREA, PEOPLE], True)
    assert task.heard[0].tolist() == [0, 1, 1]
    take(task, REQUEST, AREA)
    assert (task.stated[0].tolist(), task.adds_change[0]) == ([AREA, NOTHING], False)


def test_an_apology_gives_back_no_more_than_was_lost():
    task = scripted(lost=0.0)
    take(task, REQUEST, FOOD)
    task.level = task.level._replace(lost=1.0)
    assert take(task, APOLOGISE)[0] == LOST
    assert (task.patience[0], task.sounds_annoyed[0]) == (4, True)
    task.level = task.level._replace(lost=0.0)
    assert take(task, APOLOGISE)[0] == FORGIVE
    assert (task.patience[0], task.sounds_annoyed[0]) == (4, False)
    assert not task.action_masks()[0, act(task, APOLOGISE)]


def test_a_lost_reply_tells_nothing():
    task = scripted(hears=1, lost=1.0)
    before = task.observe()[0]
    for kind, target, patience in [(CONFIRM, FOOD, 3), (REQUEST, FOOD, 2), (REQUEST, PEOPLE, 2), (REQUEST, PEOPLE, 1)]:
        assert take(task, kind, target)[0] == LOST
        assert task.patience[0] == patience
    after = task.observe()[0]
    # The last reply, the age of the one value heard, and the turn.
    assert np.flatnonzero(before != after).tolist() == [24, 27, 34, 42]


def test_brute_force_finds_no_faster_way_than_the_rules_say():
    n_actions = 9
    sequences = np.stack(np.unravel_index(np.arange(n_actions**4), (n_actions,) * 4))
    task = make(sequences.shape[1], **NO_NOISE)
    task.reset(np.zeros(task.n_lanes, dtype=np.int64))
    returns, live = np.zeros(task.n_lanes), np.arange(task.n_lanes)
    for turn, actions in enumerate(sequences):
        rewards, dones, successes = task.step(actions[live], live)
        returns[live] += rewards
        assert successes.any() == (turn == 3)
        live = live[~dones]
    assert returns.max() == pytest.approx(0.96)
    # The two missing slots, in any order, then offer and book; or the offer as soon as the venue is known.
    assert 2 <= (returns > 0.9).sum() <= 3


def test_no_action_passes_the_turn():
    task = scripted()
    take(task, REQUEST, FOOD)  # annoys, so that the last action of the space would be accepted
    before = (task.patience.copy(), task.told.copy(), task.heard.copy(), task.sounds_annoyed.copy())
    result = task.step(np.array([NO_ACTION]))
    assert (task.refused[0], task.reply[0], task.turns[0], result.dones[0]) == (True, REFUSED, 2, False)
    for old, new in zip(before, (task.patience, task.told, task.heard, task.sounds_annoyed), strict=True):
        np.testing.assert_array_equal(old, new)


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


# --- What the agent sees


def test_observation():
    task = scripted(goal=(0, 1, 2), hears=1)
    shown = task.observe()[0]
    heard, denied = [0, 1, 0] + [0] * 6, [0] * 9
    flags = [0] * 3 + [0] * 3 + [0] * 3  # repeated, confirmed, age
    assert shown.tolist() == [*heard, *denied, *flags, 1, *[0] * 8, 1, 0, 0, 0, 0, 0, 0]
    take(task, CONFIRM, FOOD)  # Thai, not Indian
    take(task, REQUEST, FOOD)
    take(task, REQUEST, AREA)
    take(task, OFFER)
    take(task, BOOK)  # refused
    heard = [1, 0, 0, 0, 1, 0, 0, 0, 0]
    denied[1] = 1
    age = [1 / 12, 1 / 12, 0]  # the offer was accepted a turn ago
    reply, mood = [0] * 8 + [1], [0, 1, 0]
    expected = [*heard, *denied, 1, 0, 0, 1, 1, 0, *age, *reply, *mood, 1, 0, 1, 5 / 12]
    np.testing.assert_allclose(task.observe()[0], expected, rtol=1e-6)
    assert task.observation_space.shape == (43,)


def test_observation_of_questions_and_changes():
    task = scripted("medium", (0, 1, 2, 3), opens=0, questions=(1,))
    take(task, REQUEST, AREA)
    take(task, OFFER)
    start = 4 * (2 * 4 + 3)
    question, reply, end = [0, 1], [0, 0, 0, 0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 2 / 24]
    np.testing.assert_allclose(task.observe()[0, start:], [*question, *reply, *end], rtol=1e-6)
    task.goal[0, FOOD], task.told[0, FOOD], task.changed[0] = 3, False, FOOD
    take(task, CONFIRM, FOOD)
    question, reply, end = [0, 0], [0, 0, 0, 1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 1, 0, 3 / 24]
    np.testing.assert_allclose(task.observe()[0, start:], [*question, *reply, *end], rtol=1e-6)


@each_level
def test_what_the_user_wants_and_feels_is_hidden(level):
    n = 200
    task = make(n, level)
    for _ in range(4):
        live = np.arange(n)
        task.step(task.expert_actions(live), live)
        shown, masks, chosen = task.observe(), task.action_masks(), task.expert_actions()
        hidden = (task.goal, task.told, task.agenda, task.questions, task.n_answered, task.patience, task.changed)
        kept = [state.copy() for state in (*hidden, task.annoyed)]
        task.goal[:] = (task.goal + 1) % task.level.n_values
        task.told[:] = ~task.told
        task.agenda[:] = 1 - task.agenda
        task.questions[:] = 0
        task.n_answered[:], task.patience[:], task.changed[:], task.annoyed[:] = 0, 99, 0, ~task.annoyed
        np.testing.assert_array_equal(task.observe(), shown)
        np.testing.assert_array_equal(task.action_masks(), masks)
        np.testing.assert_array_equal(task.expert_actions(), chosen)
        for state, old in zip((*hidden, task.annoyed), kept, strict=True):
            state[:] = old


def test_the_mood_is_heard_with_the_next_reply_that_is_not_lost():
    task = scripted(hears=1, lost=1.0)
    take(task, CONFIRM, FOOD)
    take(task, CONFIRM, FOOD)
    assert (task.patience[0], task.mood[0], task.sounds_annoyed[0]) == (2, 0, False)
    assert not task.action_masks()[0, act(task, APOLOGISE)]
    task.level = task.level._replace(lost=0.0)
    take(task, REQUEST, PEOPLE)
    assert (task.mood[0], task.sounds_annoyed[0]) == (1, True)
    take(task, REQUEST, FOOD)
    assert task.mood[0] == 2
    take(task, APOLOGISE)
    assert (task.mood[0], task.sounds_annoyed[0]) == (1, False)


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


# --- The expert


@each_level
def test_the_expert_takes_the_shortest_way_where_nothing_is_noisy(level):
    task = make(200, level, **NO_NOISE)
    returns, successes = play(task)
    assert successes.all()
    # Requests of all slots but the first, a confirmation of each one of the booking, offer, answers, book.
    rules = LEVELS[level]
    n_slots = len(rules.slots)
    n_turns = (n_slots - 1) + (n_slots - rules.n_venue) + 1 + rules.n_questions + 1
    assert returns == pytest.approx(1 - 0.01 * n_turns)


@each_level
@pytest.mark.parametrize("never", ["confirms", "apologises"])
def test_it_pays_to_confirm_and_to_apologise(level, never):
    def incomplete(task, live):
        if never == "apologises":
            kept, task.sounds_annoyed = task.sounds_annoyed, np.zeros_like(task.sounds_annoyed)
            actions = task.expert_actions(live)
            task.sounds_annoyed = kept
        else:
            kept, task.confirmed = task.confirmed, np.ones_like(task.confirmed)
            actions = task.expert_actions(live)
            task.confirmed = kept
        return actions

    n = 2000
    expert = play(make(n, level, HELD_OUT_SEED))[0].mean()
    without = play(make(n, level, HELD_OUT_SEED), incomplete)[0].mean()
    margin = {"confirms": {"easy": 0.05, "medium": 0.2, "hard": 0.4}, "apologises": {"easy": 0.0, "medium": 0.02}}
    assert expert > without + margin[never].get(level, 0.1)


@pytest.mark.parametrize(("level", "least"), [("easy", 0.98), ("medium", 0.94), ("hard", 0.87)])
def test_the_expert_mostly_succeeds(level, least):
    _, successes = play(make(3000, level, HELD_OUT_SEED))
    assert successes.mean() > least


# --- Text


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
