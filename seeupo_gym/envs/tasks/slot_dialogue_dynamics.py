"""The batched dynamics of SlotDialogue: the simulated user, what the agent has heard, and the expert."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.envs.counter_rng import uniform
from seeupo_gym.envs.task import ALL_LANES, NO_ACTION, Lanes, StepResult, Task, choose_level, one_hot
from seeupo_gym.envs.tasks.slot_dialogue_world import (
    LEVELS,
    MOODS,
    NOTHING,
    QUESTIONS,
    SPEECH,
    Act,
    Reply,
    act_text,
    opening,
    refusal,
    statement,
)

TURN_COST = 0.01
PARTIAL_CREDIT = 0.5
OFFER_ANNOYS = 2
# If at most this share of values is heard wrong, the expert leaves it to the offer to check values of the venue.
TRUSTED = 0.2

N_OBSERVED_REPLIES = len(Reply) - 2  # those that do not end the episode
# The reply to each kind of act if nothing goes wrong. The last one, for the index NOTHING, is that to a refused act.
_REPLIES = np.array(
    [Reply.INFORM, Reply.AFFIRM, Reply.ACCEPT, Reply.ACCEPT, Reply.BOOKED, Reply.FORGIVE, Reply.REFUSED]
)

# Random streams: for the start of an episode, and for its transitions.
_START, _TURN = range(2)
# The draws of a turn.
_LOST, _GARBLED, _ADDS, _ADDED_GARBLED, _CHANGES = range(5)
_TURN_DRAWS = np.arange(5)


class SlotDialogue(Task):
    """Batched dynamics; :class:`~seeupo_gym.envs.tasks.slot_dialogue.SlotDialogueEnv` documents the task."""

    has_action_masks: ClassVar[bool] = True
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)

    def __init__(self, n_lanes: int = 1, level: str = "easy") -> None:
        self.level = choose_level(level, LEVELS)
        self.max_turns = self.level.max_turns
        n_slots, n_values, n_items = len(self.level.slots), self.level.n_values, self.level.n_items
        counts = dict(zip(Act, (n_slots, n_slots, 1, n_items, 1, 1), strict=True))
        # The kind of each action, and the slot or item that it is about (0 if none).
        self._kinds = np.concatenate([np.full(n, kind) for kind, n in counts.items()])
        self._targets = np.concatenate([np.arange(n) for n in counts.values()])
        self.first = {kind: int((self._kinds < kind).sum()) for kind in counts}
        self.action_space = spaces.Discrete(len(self._kinds))
        size = n_slots * (2 * n_values + 3) + n_items + N_OBSERVED_REPLIES + len(MOODS) + 4
        self.observation_space = spaces.Box(0.0, 1.0, (size,), np.float32)
        super().__init__(n_lanes)
        self._lane_numbers = np.arange(n_lanes)
        # Draws for the goal, the agenda, the questions, the patience and the opening.
        self._start_draws = np.arange(2 * n_slots + n_items + 2)
        # The user: values wanted, slots stated so far, order of the agenda (smallest first), questions to ask, and so
        # on.
        self.goal = np.zeros((n_lanes, n_slots), dtype=np.int64)
        self.told = np.zeros((n_lanes, n_slots), dtype=bool)
        self.agenda = np.zeros((n_lanes, n_slots))
        self.questions = np.full((n_lanes, self.level.n_questions + 1), NOTHING)
        self.n_answered = np.zeros(n_lanes, dtype=np.int64)
        self.patience = np.zeros(n_lanes, dtype=np.int64)
        self.annoyed = np.zeros(n_lanes, dtype=bool)
        self.changed = np.full(n_lanes, NOTHING)
        # The agent's knowledge of each slot, from what it has heard.
        self.heard = np.full((n_lanes, n_slots), NOTHING)
        self.repeated = np.zeros((n_lanes, n_slots), dtype=bool)
        self.confirmed = np.zeros((n_lanes, n_slots), dtype=bool)
        self.denied = np.zeros((n_lanes, n_slots, n_values), dtype=bool)
        self.mentioned = np.zeros((n_lanes, n_slots), dtype=np.int64)
        # The agent's other knowledge of the user, and the last reply.
        self.accepted = np.zeros(n_lanes, dtype=bool)
        self.question = np.full(n_lanes, NOTHING)
        self.mood = np.zeros(n_lanes, dtype=np.int64)
        self.sounds_annoyed = np.zeros(n_lanes, dtype=bool)
        self.change_heard = np.zeros(n_lanes, dtype=bool)
        self.reply = np.full(n_lanes, Reply.INFORM)
        self.stated = np.full((n_lanes, 2), NOTHING)
        self.adds_change = np.zeros(n_lanes, dtype=bool)

    def _start(self, lanes: Lanes) -> None:
        level, ids = self.level, self._lane_numbers[lanes]
        n_slots = len(level.slots)
        draws = uniform(self.task_seeds[lanes][:, None], _START, self._start_draws)
        goal, agenda, order, last = np.split(draws, [n_slots, 2 * n_slots, 2 * n_slots + level.n_items], axis=1)
        low, high = level.patience
        self.goal[lanes] = (goal * level.n_values).astype(np.int64)
        self.agenda[lanes] = agenda
        self.questions[lanes, :-1] = order.argsort(axis=1, kind="stable")[:, : level.n_questions]
        self.patience[lanes] = low + (last[:, 0] * (high - low + 1)).astype(np.int64)
        for state in (self.told, self.repeated, self.confirmed, self.denied, self.accepted, self.annoyed):
            state[lanes] = False
        for state in (self.sounds_annoyed, self.change_heard, self.adds_change):
            state[lanes] = False
        for state in (self.changed, self.heard, self.question, self.stated):
            state[lanes] = NOTHING
        for state in (self.mentioned, self.n_answered, self.mood):
            state[lanes] = 0
        # The user opens with the first act of the agenda.
        slots, no = agenda.argmin(axis=1), np.zeros(len(ids), dtype=bool)
        self.told[ids, slots] = True
        self._hear(ids, slots, last[:, 1], no, no)
        self.reply[lanes] = Reply.INFORM
        self.stated[ids, 0] = slots

    def _garble(self, values: NDArray[np.int64], n: int, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        """Replace values below ``n`` by another one with probability ``wrong``, as the agent hears them."""
        # Below ``wrong`` a draw is uniform, so it also decides by how much the value is shifted.
        shift = (draws * ((n - 1) / self.level.wrong)).astype(np.int64) + 1
        return np.where(shift < n, (values + shift) % n, values)

    def _hear(
        self,
        ids: NDArray[np.int64],
        slots: NDArray[np.int64],
        draws: NDArray[np.float64],
        negated: NDArray[np.bool_],
        changes: NDArray[np.bool_],
    ) -> None:
        """
        Let the agent hear one stated value in each of some lanes.

        :param ids: numbers of the lanes
        :param slots: the slot in each lane
        :param draws: decide whether the value is heard wrong
        :param negated: True if the user denied the value heard before
        :param changes: True if the user says that this is a change of mind
        """
        before = self.heard[ids, slots]
        values = self._garble(self.goal[ids, slots], self.level.n_values, draws)
        self.denied[ids[changes], slots[changes]] = False
        self.denied[ids[negated], slots[negated], before[negated]] = True
        same = (values == before) & ~changes
        self.heard[ids, slots] = values
        self.repeated[ids, slots] = same
        self.confirmed[ids, slots] &= same
        self.mentioned[ids, slots] = self.turns[ids]
        self.change_heard[ids] |= changes
        # An offer holds as long as the values that it was made for.
        void = ids[(slots < self.level.n_venue) & (~same | negated)]
        self.accepted[void] = False
        self.question[void] = NOTHING

    def _change_minds(self, ids: NDArray[np.int64], draws: NDArray[np.float64]) -> None:
        """Let some users change their minds about a slot that they have stated, at most once in an episode."""
        n_slots, others = len(self.level.slots), self.level.n_values - 1
        # As in _garble, a draw below ``change`` also decides on the slot and the new value.
        outcomes = (draws * (n_slots * others / self.level.change)).astype(np.int64)
        changing = (outcomes < n_slots * others) & (self.changed[ids] == NOTHING)
        ids, (slots, shift) = ids[changing], np.divmod(outcomes[changing], others)
        stated = self.told[ids, slots]
        ids, slots, shift = ids[stated], slots[stated], shift[stated]
        self.goal[ids, slots] = (self.goal[ids, slots] + 1 + shift) % self.level.n_values
        self.changed[ids] = slots
        self.told[ids, slots] = False

    def _advance(self, actions: NDArray[np.int64], lanes: Lanes) -> StepResult:
        level, ids = self.level, self._lane_numbers[lanes]
        rows, turns = np.arange(len(ids)), self.turns[lanes]
        allowed = self.action_masks(lanes)[rows, actions] & (actions != NO_ACTION)
        kinds, targets = np.where(allowed, self._kinds[actions], NOTHING), self._targets[actions]
        requests, confirms, offers, answers, books, apologises = (kinds == kind for kind in Act)
        answering = allowed & ~books  # the user's turn to speak
        draws = uniform(self.noise_seeds[lanes][:, None], _TURN, turns[:, None], _TURN_DRAWS)
        if level.change:
            self._change_minds(ids[answering], draws[answering, _CHANGES])

        # The user considers the act. The answer to the question asked leads back to the offer.
        right = self.heard[lanes] == self.goal[lanes]
        answered = answers & (targets == self.questions[ids, self.n_answered[lanes]])
        self.n_answered[lanes] += answered
        considers = offers | answered
        mismatches = considers & ~right[:, : level.n_venue].all(axis=1)
        slots = np.where(mismatches, right[:, : level.n_venue].argmin(axis=1), targets)
        negates = mismatches | (confirms & ~right[rows, slots])
        states = requests | negates
        again = states & self.told[ids, slots]
        changes = states & ~again & (self.changed[lanes] == slots)
        asked = self.questions[ids, self.n_answered[lanes]]
        asks = (answers & ~answered) | (considers & ~mismatches & (asked != NOTHING))
        accepts = considers & ~mismatches & ~asks
        self.told[ids[states], slots[states]] = True

        # Having to say something again costs patience, unless the value has changed meanwhile.
        annoyance = again * np.where(mismatches, OFFER_ANNOYS, 1) + (answers & ~answered)
        self.patience[lanes] += (apologises & self.annoyed[lanes]) - annoyance
        self.annoyed[lanes] = (self.annoyed[lanes] | (annoyance > 0)) & ~apologises
        hangs_up = self.patience[lanes] <= 0
        understood = answering & ~hangs_up & (draws[:, _LOST] >= level.lost)

        # After a request, a confirmation or an apology the user may add the next slot of the agenda.
        waiting = np.where(self.told[lanes], 1.0, self.agenda[lanes])
        added = waiting.argmin(axis=1)
        adds = (requests | confirms | apologises) & ~hangs_up & (draws[:, _ADDS] < level.initiative)
        adds &= ~self.told[ids, added]
        added_changes = adds & (self.changed[lanes] == added)
        self.told[ids[adds], added[adds]] = True

        # The agent hears the reply and its tone. After an answer it takes the question as settled until it is asked
        # again.
        hearing = ids[understood]
        self.sounds_annoyed[hearing] = self.annoyed[hearing]
        self.mood[hearing] = len(MOODS) - np.minimum(self.patience[hearing], len(MOODS))
        self.question[ids[answers]] = NOTHING
        hears, hears_added = states & understood, adds & understood
        self._hear(ids[hears], slots[hears], draws[hears, _GARBLED], negates[hears], changes[hears])
        new, no = added_changes[hears_added], np.zeros(hears_added.sum(), dtype=bool)
        self._hear(ids[hears_added], added[hears_added], draws[hears_added, _ADDED_GARBLED], no, new)
        agreed = np.zeros(right.shape, dtype=bool)
        agreed[rows, slots] = confirms & ~negates & understood
        agreed[:, : level.n_venue] |= (considers & ~mismatches & understood)[:, None]
        self._settle(ids, agreed)
        self.accepted[ids[accepts & understood]] = True
        heard_asks = asks & understood
        self.question[ids[heard_asks]] = self._garble(asked[heard_asks], level.n_items, draws[heard_asks, _GARBLED])

        replies = _REPLIES[kinds]
        for condition, reply in (
            (negates, Reply.NEGATE),
            (changes, Reply.CHANGE),
            (asks, Reply.ASK),
            (answering & ~understood, Reply.LOST),
            (hangs_up, Reply.BYE),
        ):
            replies[condition] = reply
        self.reply[lanes] = replies
        self.refused[lanes] = ~allowed
        self.stated[lanes, 0] = np.where(hears, slots, NOTHING)
        self.stated[lanes, 1] = np.where(hears_added, added, NOTHING)
        self.adds_change[lanes] = hears_added & added_changes

        dones = books | hangs_up | (turns == self.max_turns)
        n_met = right.sum(axis=1)
        successes = books & (n_met == len(level.slots))
        scores = np.where(successes, 1.0, books * PARTIAL_CREDIT * n_met / len(level.slots))
        # A dialogue without a booking costs all turns of the level, so that it does not pay to make the user hang up
        # soon.
        rewards = np.where(dones, scores - TURN_COST * np.where(books, turns, self.max_turns), 0.0)
        return StepResult(rewards.astype(np.float32), dones, successes)

    def _settle(self, ids: NDArray[np.int64], agreed: NDArray[np.bool_]) -> None:
        """Note, in some lanes, the slots whose heard values the user has just agreed to."""
        rows, slots = np.nonzero(agreed)
        ids = ids[rows]
        self.confirmed[ids, slots] = True
        self.mentioned[ids, slots] = self.turns[ids]
        self.denied[ids, slots, self.heard[ids, slots]] = False

    def observe(self, lanes: Lanes = ALL_LANES) -> NDArray[np.float32]:
        heard, turns = self.heard[lanes], self.turns[lanes]
        n = len(heard)
        age = np.where(heard != NOTHING, turns[:, None] - self.mentioned[lanes], 0)
        parts = [
            (heard[:, :, None] == np.arange(self.level.n_values)).reshape(n, -1),
            self.denied[lanes].reshape(n, -1),
            self.repeated[lanes],
            self.confirmed[lanes],
            age / self.max_turns,
            one_hot(self.question[lanes], self.level.n_items),
            one_hot(self.reply[lanes], N_OBSERVED_REPLIES),
            one_hot(self.mood[lanes], len(MOODS)),
            self.sounds_annoyed[lanes][:, None],
            self.change_heard[lanes][:, None],
            self.accepted[lanes][:, None],
            turns[:, None] / self.max_turns,
        ]
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def action_masks(self, lanes: Lanes = ALL_LANES) -> NDArray[np.bool_]:
        known, first = self.heard[lanes] != NOTHING, self.first
        masks = np.ones((len(known), len(self._kinds)), dtype=bool)
        masks[:, first[Act.CONFIRM] : first[Act.OFFER]] = known
        masks[:, first[Act.OFFER]] = known[:, : self.level.n_venue].all(axis=1)
        masks[:, first[Act.ANSWER] : first[Act.BOOK]] = (self.question[lanes] != NOTHING)[:, None]
        masks[:, first[Act.BOOK]] = self.accepted[lanes] & known.all(axis=1)
        masks[:, first[Act.APOLOGISE]] = self.sounds_annoyed[lanes]
        return masks

    def expert_actions(self, lanes: Lanes = ALL_LANES) -> NDArray[np.int64]:
        heard, question, accepted = self.heard[lanes], self.question[lanes], self.accepted[lanes]
        venue, first = self.level.n_venue, self.first
        denied = np.take_along_axis(self.denied[lanes], np.maximum(heard, 0)[:, :, None], axis=2)[:, :, 0]
        missing = (heard == NOTHING) | denied
        unsure = ~(missing | self.confirmed[lanes] | self.repeated[lanes])
        doubtful = unsure[:, :venue] & (self.level.wrong > TRUSTED)
        n_open = (missing | unsure).sum(axis=1)
        unfinished = ~accepted | (n_open > 0)
        # An apology is worth a turn if little patience is left, or if much is still to be asked.
        soothes = self.sounds_annoyed[lanes] & unfinished & ((self.mood[lanes] > 0) | (n_open > 1))
        rules = [
            (question != NOTHING, first[Act.ANSWER] + question),
            (soothes, first[Act.APOLOGISE]),
            (doubtful.any(axis=1), first[Act.CONFIRM] + doubtful.argmax(axis=1)),
            (missing.any(axis=1), first[Act.REQUEST] + missing.argmax(axis=1)),
            (~accepted, first[Act.OFFER]),
            (unfinished, first[Act.CONFIRM] + venue + unsure[:, venue:].argmax(axis=1)),
        ]
        return np.select([rule[0] for rule in rules], [rule[1] for rule in rules], first[Act.BOOK])

    def opening_text(self, lane: int) -> str:
        slot = int(self.stated[lane, 0])
        return opening(self.level, statement(self.level, slot, int(self.heard[lane, slot])))

    def action_text(self, lane: int, action: NDArray[np.int64]) -> str:
        heard = [int(value) for value in self.heard[lane]]
        return act_text(self.level, int(self._kinds[action]), int(self._targets[action]), heard)

    def short_texts(self, lane: int) -> dict[str, int | NDArray[np.int64]]:
        # Without the values, which are those last heard anyway.
        confirm = {f"confirm {name}": self.first[Act.CONFIRM] + i for i, name in enumerate(self.level.slots)}
        return {**confirm, "offer": self.first[Act.OFFER], "book": self.first[Act.BOOK]}

    def reply_text(self, lane: int, action: NDArray[np.int64], result: StepResult) -> str:
        reply = Reply(self.reply[lane])
        if reply == Reply.REFUSED:
            kind = NOTHING if action == NO_ACTION else int(self._kinds[action])
            text = f"System: {refusal(self.level, kind, int(self._targets[action]))}"
        elif reply == Reply.BOOKED:
            text = f"User: {'Thank you, see you then.' if result.successes[0] else 'That is not the table I wanted.'}"
        else:
            text = self._speech_text(lane, reply)
        if not result.dones[0]:
            return text
        if reply not in (Reply.BYE, Reply.BOOKED):
            text += "\nUser: I have no more time. Goodbye."
        return f"{text}\nReward: {result.rewards[0]:.3g}"

    def _speech_text(self, lane: int, reply: Reply) -> str:
        """Write what the agent hears of a reply, and its tone."""
        if reply in (Reply.BYE, Reply.LOST):
            return f"User: {SPEECH[reply]}"
        stated = [statement(self.level, int(s), int(self.heard[lane, s])) for s in self.stated[lane] if s != NOTHING]
        if self.adds_change[lane]:
            stated.insert(-1, SPEECH[Reply.CHANGE])
        sentences = [QUESTIONS[self.question[lane]] if reply == Reply.ASK else SPEECH[reply], *stated]
        tones = ["annoyed" if self.sounds_annoyed[lane] else "", MOODS[self.mood[lane]]]
        tone = ", ".join(filter(None, tones))
        return f"User{f' ({tone})' if tone else ''}: {' '.join(filter(None, sentences))}"
