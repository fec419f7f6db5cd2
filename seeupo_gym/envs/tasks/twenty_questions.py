"""TwentyQuestions: find out by yes-no questions which animal the keeper thinks of; some answers are wrong."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.envs.counter_rng import hash_bits, integers, uniform
from seeupo_gym.envs.task import ALL_LANES, NO_ACTION, Lanes, StepResult, Task, TaskEnv, choose_level, one_hot

# Subtracted from the final reward for each turn that did not name an animal.
TURN_COST = 0.02
# The expert names an animal of at least this probability. It is the best of eight values from 0.7 to 0.98 at medium and
# hard.
CONFIDENCE = 0.92

# Random streams: the last one is for transitions, the others are for the start of an episode.
_TABLE, _RARE, _SECRET, _ANSWER = range(4)

# The attributes, things that an animal may do: "Does it fly?", "it flies".
ATTRIBUTES = (
    ("fly", "flies"),
    ("swim", "swims"),
    ("climb", "climbs"),
    ("dig", "digs"),
    ("sing", "sings"),
    ("glow", "glows"),
    ("hop", "hops"),
    ("purr", "purrs"),
    ("snore", "snores"),
    ("bite", "bites"),
    ("sting", "stings"),
    ("hum", "hums"),
    ("dance", "dances"),
    ("juggle", "juggles"),
    ("whistle", "whistles"),
    ("hibernate", "hibernates"),
)
OBJECTS = (
    *("Pebble", "Clover", "Biscuit", "Juniper", "Marble", "Nutmeg", "Pickle", "Sorrel", "Tansy", "Acorn", "Bobbin"),
    *("Cricket", "Dumpling", "Ember", "Fennel", "Ginger", "Hazel", "Icicle", "Jasper", "Kipper", "Lentil", "Mango"),
    *("Noodle", "Bramble"),
)


class Level(NamedTuple):
    """
    A level of difficulty.

    :param n_objects: number of animals, the first ones of the list
    :param n_attributes: number of attributes, the first ones of the list, at most 16
    :param max_turns: length of the longest episode
    :param noise: probability that an answer is wrong, below 0.5
    :param rare: whether about half of the attributes are rare, so that they tell little
    """

    n_objects: int
    n_attributes: int
    max_turns: int
    noise: float
    rare: bool


LEVELS = {
    "easy": Level(n_objects=6, n_attributes=6, max_turns=6, noise=0.0, rare=False),
    "medium": Level(n_objects=12, n_attributes=10, max_turns=12, noise=0.1, rare=True),
    "hard": Level(n_objects=24, n_attributes=16, max_turns=20, noise=0.15, rare=True),
}


class TwentyQuestions(Task):
    """Batched dynamics; :class:`TwentyQuestionsEnv` documents the task."""

    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)

    def __init__(self, n_lanes: int = 1, level: str = "easy") -> None:
        self.level = choose_level(level, LEVELS)
        self.max_turns = self.level.max_turns
        n_objects, n_attributes = self.level.n_objects, self.level.n_attributes
        self.action_space = spaces.Discrete(n_attributes + n_objects)
        size = n_attributes * n_objects + 2 * n_attributes + n_objects + self.max_turns
        self.observation_space = spaces.Box(0.0, 1.0, (size,), np.float32)
        super().__init__(n_lanes)
        self.table = np.zeros((n_lanes, n_attributes, n_objects), dtype=bool)
        self.secrets = np.zeros(n_lanes, dtype=np.int64)
        # For each attribute, the number of answers yes (row 0) and no (row 1).
        self.counts = np.zeros((n_lanes, 2, n_attributes), dtype=np.int64)
        # For each object, the number of answers that are wrong if it is the secret.
        self.contradictions = np.zeros((n_lanes, n_objects), dtype=np.int64)
        self.last_answers = np.zeros(n_lanes, dtype=bool)
        self._lane_ids = np.arange(n_lanes)
        self._attribute_bits = np.left_shift(1, np.arange(n_attributes)).astype(np.uint16)
        self._all_attributes = np.uint16(2**n_attributes - 1)
        # Powers of the factor by which a contradiction lowers the odds of an object, with 0 ** 0 = 1.
        factor = self.level.noise / (1.0 - self.level.noise)
        self._odds = np.cumprod([1.0] + [factor] * self.max_turns)

    def _start(self, lanes: Lanes) -> None:
        seeds = self.task_seeds[lanes]
        codes = self._draw_codes(seeds)
        self.table[lanes] = codes[:, None, :] & self._attribute_bits[:, None] != 0
        self.secrets[lanes] = integers(self.level.n_objects, seeds, _SECRET)
        self.counts[lanes] = 0
        self.contradictions[lanes] = 0

    def _draw_codes(self, seeds: NDArray[np.uint64]) -> NDArray[np.uint16]:
        """
        Draw the code of each object, whose bit ``k`` says whether the object has attribute ``k``.

        A table in which two objects are alike is drawn again.
        """
        objects = np.arange(self.level.n_objects)
        codes = np.zeros((len(seeds), len(objects)), dtype=np.uint16)
        rare = hash_bits(seeds, _RARE) if self.level.rare else np.zeros_like(seeds)
        undrawn = np.arange(len(seeds))
        n_draws = 0
        while undrawn.size:
            bits = hash_bits(seeds[undrawn, None], _TABLE, n_draws + objects)
            # A rare attribute needs two independent bits in place of one, so its probability is 1/4.
            bits &= bits >> np.uint64(16) | ~rare[undrawn, None]
            drawn = bits.astype(np.uint16) & self._all_attributes
            codes[undrawn] = drawn
            drawn.sort(axis=1)
            undrawn = undrawn[(drawn[:, 1:] == drawn[:, :-1]).any(axis=1)]
            n_draws += len(objects)
        return codes

    def _advance(self, actions: NDArray[np.int64], lanes: Lanes) -> StepResult:
        turns, secrets = self.turns[lanes], self.secrets[lanes]
        guesses = actions - self.level.n_attributes
        guessed = guesses >= 0
        asked = ~guessed & (actions != NO_ACTION)
        # A guess and no action get some attribute here, which has no effect.
        attributes = np.where(asked, actions, 0)
        ids = self._lane_ids[lanes]
        answers = self.table[ids, attributes, secrets]
        if self.level.noise:
            answers ^= uniform(self.noise_seeds[lanes], _ANSWER, turns) < self.level.noise
        self.last_answers[lanes] = answers
        self.counts[ids, np.where(answers, 0, 1), attributes] += asked
        self.contradictions[lanes] += (self.table[ids, attributes] != answers[:, None]) & asked[:, None]
        dones = guessed | (turns == self.max_turns)
        successes = guesses == secrets
        rewards = np.where(dones, successes - TURN_COST * (turns - guessed), 0.0)
        return StepResult(rewards.astype(np.float32), dones, successes)

    def posterior(self, lanes: Lanes = ALL_LANES) -> NDArray[np.float64]:
        """Compute the probability of each object, given the table, the answers so far and the share of wrong ones."""
        contradictions = self.contradictions[lanes]
        odds = self._odds[contradictions - contradictions.min(axis=1, keepdims=True)]
        probabilities: NDArray[np.float64] = odds / odds.sum(axis=1, keepdims=True)
        return probabilities

    def observe(self, lanes: Lanes = ALL_LANES) -> NDArray[np.float32]:
        turns, counts = self.turns[lanes], self.counts[lanes].reshape(-1, 2 * self.level.n_attributes)
        parts = [
            self.table[lanes].reshape(len(turns), -1),
            counts / (counts + 1),
            self.posterior(lanes),
            one_hot(turns, self.max_turns),
        ]
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def expert_actions(self, lanes: Lanes = ALL_LANES) -> NDArray[np.int64]:
        posterior = self.posterior(lanes)
        probability_yes = (self.table[lanes] * posterior[:, None]).sum(axis=2)
        # Errors are as frequent after yes as after no, so an answer tells more the nearer its probability is to one
        # half. Values are rounded, so that the first of equally good questions wins.
        questions = np.abs(probability_yes - 0.5).round(9).argmin(axis=1)
        names_it = (posterior.max(axis=1) >= CONFIDENCE) | (self.turns[lanes] == self.max_turns - 1)
        actions: NDArray[np.int64] = np.where(names_it, self.level.n_attributes + posterior.argmax(axis=1), questions)
        return actions

    def opening_text(self, lane: int) -> str:
        attributes = ATTRIBUTES[: self.level.n_attributes]
        objects = OBJECTS[: self.level.n_objects]
        has = self.table[lane].T
        lines = [
            f"{name}: {', '.join(does for (_, does), yes in zip(attributes, row, strict=True) if yes) or 'nothing'}"
            for name, row in zip(objects, has, strict=True)
        ]
        noise = self.level.noise
        errors = f" An answer is wrong with probability {noise}, so it can pay to ask again." if noise else ""
        return "\n".join(
            [
                f"Keeper: I am thinking of one of our {len(objects)} animals. Here is what each of them does.",
                *lines,
                f'Keeper: Ask "Does it {attributes[0][0]}?" (or {", ".join(verb for verb, _ in attributes[1:])}), '
                f'or name it once: "Is it {objects[0]}?"{errors} You have {self.max_turns} turns. '
                f"The right name earns 1, a wrong one 0, less {TURN_COST} for each other turn.",
            ]
        )

    def action_text(self, lane: int, action: NDArray[np.int64]) -> str:
        index = int(action)
        if index < self.level.n_attributes:
            return f"Does it {ATTRIBUTES[index][0]}?"
        return f"Is it {OBJECTS[index - self.level.n_attributes]}?"

    def reply_text(self, lane: int, action: NDArray[np.int64], result: StepResult) -> str:
        index, secret = int(action), OBJECTS[int(self.secrets[lane])]
        if index >= self.level.n_attributes:
            text = f"Keeper: Yes, it is {secret}!" if result.successes[0] else f"Keeper: No, it is {secret}."
        else:
            if index == NO_ACTION:
                text = "Keeper: That was no question."
            else:
                verb, does = ATTRIBUTES[index]
                text = f"Keeper: Yes, it {does}." if self.last_answers[lane] else f"Keeper: No, it does not {verb}."
            if result.dones[0]:
                text += f"\nKeeper: That was your last turn. It is {secret}."
        return f"{text}\nReward: {result.rewards[0]:.3g}" if result.dones[0] else text


class TwentyQuestionsEnv(TaskEnv):
    """
    ## Description
    The keeper thinks of an animal. A table, new in every episode, says what each animal does. The agent asks what this
    one does, and names it once it knows enough. The table shows which question splits the remaining animals most
    evenly. Answers may be wrong, so it can pay to ask again.

    | level | animals | attributes | turns | wrong answers | rare attributes |
    | --- | --- | --- | --- | --- | --- |
    | easy | 6 | 6 | 6 | none | none |
    | medium | 12 | 10 | 12 | 10% | about half |
    | hard | 24 | 16 | 20 | 15% | about half |

    ## Action Space
    ``Discrete(attributes + animals)``: ask about attribute ``k`` (action ``k``), or name animal ``i`` (action
    ``attributes + i``). Every action is valid at every turn: to name an animal without a question is a gamble, not an
    error.

    ## Observation Space
    ``Box(0, 1, (d,))``: what an agent would have in its context. In this order:

    - the table: for each attribute, which animals have it
    - for each attribute, how often the answer was yes (``n`` answers are shown as ``n / (n + 1)``)
    - for each attribute, how often the answer was no, in the same form
    - the probability of each animal
    - the turn (one-hot, zeros after the last)

    The probability of an animal follows by Bayes' rule from the table, the answers so far and the share ``p`` of wrong
    answers: it is proportional to ``(p / (1 - p)) ** contradictions``, where ``contradictions`` is the number of
    answers that are wrong if it is this animal. The animal itself is hidden. ``d`` is 60 (easy), 164 (medium), 460
    (hard).

    ## Rewards
    At the end: 1 if the agent named the right animal, 0 if it named another one or none; minus 0.02 for every turn that
    did not name an animal. ``info["is_success"]`` tells whether the right one was named.

    ## Starting State
    Drawn from the seed: the table and the animal. An animal has an attribute with probability 1/2. At medium and hard,
    each attribute is rare with probability 1/2, and an animal has a rare one with probability 1/4. Tables in which two
    animals are alike are drawn again. All animals are equally probable. Whether an answer is wrong depends on the seed
    and the turn alone, so asking the same again can give another answer.

    ## Episode End
    The episode terminates when an animal is named, and after the last turn of the level.

    ## Expert
    It uses the probabilities above, which follow from the observation and the level's share of wrong answers. It asks
    the question whose answer tells most about the animal (the largest mutual information): the one whose probability of
    yes is nearest to 1/2; of several the first. It names the most probable animal at the last turn, or once its
    probability is at least 0.92. It does not plan further ahead. Exact dynamic programming is better in 2 of 400 easy
    tables, by 0.003. In small tables with wrong answers (4 animals and 3 attributes, 6 and 4) it is better by less than
    0.01. Medium and hard are too large to solve.

    ## Arguments
    - ``level`` (default ``"easy"``): ``"easy"``, ``"medium"`` or ``"hard"``
    - ``render_mode``: ``"ansi"`` for a transcript

    ## Version History
    - v0: first version
    """

    def __init__(self, level: str = "easy", render_mode: str | None = None) -> None:
        super().__init__(partial(TwentyQuestions, level=level), render_mode)
