"""SlotDialogue: dialogues by hand, what is seen and what is hidden, and the expert."""

import numpy as np
import pytest
from helpers.slot_dialogue import (
    ACCEPT,
    AFFIRM,
    ANSWER,
    APOLOGISE,
    AREA,
    ASK,
    BOOK,
    BOOKED,
    BYE,
    CHANGE,
    CONFIRM,
    FOOD,
    FORGIVE,
    INFORM,
    LOST,
    NEGATE,
    NO_NOISE,
    OFFER,
    PEOPLE,
    REFUSED,
    REQUEST,
    act,
    each_level,
    make,
    scripted,
    take,
)
from helpers.tasks import play

from seeupo_gym.envs.task import HELD_OUT_SEED, NO_ACTION
from seeupo_gym.envs.tasks.slot_dialogue_world import LEVELS, NOTHING

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
