"""GuessNumber: find a secret number; every wrong guess gets a hint."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.envs.arguments import MAX_SIZE, check_choice, check_count, check_number
from seeupo_gym.envs.counter_rng import integers, uniform
from seeupo_gym.envs.task import ALL_LANES, NO_ACTION, Lanes, StepResult, Task, TaskEnv, choose_level, one_hot

LATE_COST = 0.1
MAX_RANGE = 500
NO_REPLY = -1

# The replies to a wrong guess. The reply to the right guess comes after these.
HIGHER, LOWER = range(2)
HINTS = {"higher_lower": ("higher", "lower"), "warmth": ("burning", "hot", "warm", "cool", "cold")}
# The smallest distances that are no longer burning, hot, warm and cool.
_WARMTH_BOUNDS = (2, 4, 8, 16)

# Random streams: for the start of an episode, and for its transitions.
_SECRET, _LIE = range(2)


class Level(NamedTuple):
    """
    A level of difficulty.

    :param range: how many numbers there are, from 0 on
    :param turns: number of guesses
    :param feedback: a key of ``HINTS``
    :param noise: probability that "higher" and "lower" are exchanged
    """

    range: int
    turns: int
    feedback: str
    noise: float


LEVELS = {
    "easy": Level(range=24, turns=5, feedback="higher_lower", noise=0.0),
    "medium": Level(range=50, turns=5, feedback="warmth", noise=0.0),
    "hard": Level(range=100, turns=15, feedback="higher_lower", noise=0.2),
}


def _checked(level: Level) -> Level:
    check_choice("feedback", level.feedback, HINTS)
    noise = check_number("noise", level.noise, least=0.0, below=0.5)
    if noise and level.feedback != "higher_lower":
        raise ValueError(f"noise must be 0 with feedback {level.feedback!r}, got {level.noise}")
    n_numbers = check_count("range", level.range, least=2, most=MAX_RANGE)
    return Level(n_numbers, check_count("turns", level.turns, most=MAX_SIZE), level.feedback, noise)


class GuessNumber(Task):
    """Batched dynamics; :class:`GuessNumberEnv` documents the task."""

    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)

    def __init__(
        self,
        n_lanes: int = 1,
        level: str = "easy",
        range: int | None = None,
        turns: int | None = None,
        feedback: str | None = None,
        noise: float | None = None,
    ) -> None:
        if isinstance(feedback, str) and feedback == "warmth" and noise is None:
            noise = 0.0  # the noise of the level is for the other feedback
        given: dict[str, Any] = {"range": range, "turns": turns, "feedback": feedback, "noise": noise}
        self.level = _checked(choose_level(level, LEVELS)._replace(**{k: v for k, v in given.items() if v is not None}))
        n = self.level.range
        self.max_turns = self.level.turns
        self.hints = HINTS[self.level.feedback]
        self.found = len(self.hints)
        self.action_space = spaces.Discrete(n)
        self.observation_space = spaces.Box(0.0, 1.0, (2 * n + self.found + 1 + self.max_turns,), np.float32)
        super().__init__(n_lanes)
        guesses, secrets = np.arange(n)[:, None], np.arange(n)
        # The true reply to each guess, for each secret.
        if self.level.feedback == "warmth":
            self._truth = np.searchsorted(_WARMTH_BOUNDS, abs(guesses - secrets), side="right")
        else:
            self._truth = np.where(secrets > guesses, HIGHER, LOWER)
        self._truth[guesses == secrets] = self.found
        # The factor of each number's likelihood for each guess and reply. NO_REPLY picks the last row, which changes
        # nothing.
        replies = np.arange(self.found + 1)[:, None]
        truth = self._truth[:, None, :]
        odds = self.level.noise / (1.0 - self.level.noise)
        impossible = (truth == self.found) | (replies == self.found)
        factors = np.where(truth == replies, 1.0, np.where(impossible, 0.0, odds))
        self._factors = np.concatenate([factors, np.ones((n, 1, n))], axis=1)
        self.secrets = np.zeros(n_lanes, dtype=np.int64)
        self.likelihood = np.ones((n_lanes, n))
        self.guesses = np.full(n_lanes, NO_ACTION)
        self.replies = np.full(n_lanes, NO_REPLY)

    def _start(self, lanes: Lanes) -> None:
        self.secrets[lanes] = integers(self.level.range, self.task_seeds[lanes], _SECRET)
        self.likelihood[lanes] = 1.0
        self.guesses[lanes] = NO_ACTION
        self.replies[lanes] = NO_REPLY

    def _advance(self, actions: NDArray[np.int64], lanes: Lanes) -> StepResult:
        turns, secrets = self.turns[lanes], self.secrets[lanes]
        replies = self._truth[actions, secrets]
        found = actions == secrets
        if self.level.noise:
            lies = uniform(self.noise_seeds[lanes], _LIE, turns) < self.level.noise
            replies = np.where(lies & ~found, HIGHER + LOWER - replies, replies)
        # A lane without an action gets some guess here, which has no effect.
        replies[actions == NO_ACTION] = NO_REPLY
        likelihood = self.likelihood[lanes] * self._factors[actions, replies]
        self.likelihood[lanes] = likelihood / likelihood.max(axis=1, keepdims=True)
        self.guesses[lanes] = actions
        self.replies[lanes] = replies
        dones = found | (turns == self.max_turns)
        rewards = np.where(found, 1.0 - LATE_COST * (turns - 1) / self.max_turns, 0.0)
        return StepResult(rewards.astype(np.float32), dones, found)

    def observe(self, lanes: Lanes = ALL_LANES) -> NDArray[np.float32]:
        parts = [
            self.likelihood[lanes].astype(np.float32),
            one_hot(self.guesses[lanes], self.level.range),
            one_hot(self.replies[lanes], self.found + 1),
            one_hot(self.turns[lanes], self.max_turns),
        ]
        return np.concatenate(parts, axis=1)

    def expert_actions(self, lanes: Lanes = ALL_LANES) -> NDArray[np.int64]:
        likelihood, noise = self.likelihood[lanes], self.level.noise
        belief = likelihood / likelihood.sum(axis=1, keepdims=True)
        # The probability of each hint to each guess, shape (lanes, guesses). The probability of "found" is the belief.
        hints = [belief @ (self._truth == hint).T.astype(np.float64) for hint in range(self.found)]
        if noise:
            hints = [(1.0 - noise) * one + noise * other for one, other in (hints, hints[::-1])]
        certainty = sum((hint * hint for hint in hints), belief * belief)
        # Rounded, so that ties are the same on every platform. The most likely number wins, then the lowest.
        guesses = (np.round(certainty, 9) - 1e-10 * likelihood).argmin(axis=1)
        most_likely = likelihood.argmax(axis=1)
        chosen: NDArray[np.int64] = np.where(self.turns[lanes] == self.max_turns - 1, most_likely, guesses)
        return chosen

    def optimal_value(self) -> float | None:
        """
        Compute the optimum for "higher" and "lower" without noise, by dynamic programming over the length of the
        interval left.

        ``total[n]`` is the sum of the returns over ``n`` secrets. So a guess that leaves ``k`` or ``n - 1 - k`` of them
        adds its own reward to the totals of both. A guess outside of the interval tells nothing.
        """
        if self.level.feedback != "higher_lower" or self.level.noise:
            return None
        n_numbers = self.level.range
        total = np.zeros(n_numbers + 1)
        for turn in range(self.max_turns, 0, -1):
            reward = 1.0 - LATE_COST * (turn - 1) / self.max_turns
            split = [(total[:n] + total[:n][::-1]).max() for n in range(1, n_numbers + 1)]
            total = np.concatenate([[0.0], reward + np.array(split)])
        return float(total[-1]) / n_numbers

    def opening_text(self, lane: int) -> str:
        hint = "whether my number is higher or lower"
        if self.level.feedback == "warmth":
            hint = "how near it is: burning if 1 away, hot if 2 or 3, warm if 4 to 7, cool if 8 to 15, else cold"
        noise = f" Each of these hints is false with probability {self.level.noise:g}." if self.level.noise else ""
        return (
            f"Host: I am thinking of a number from 0 to {self.level.range - 1}. You have {self.max_turns} guesses. "
            f"After a wrong one I say {hint}.{noise} Write for example: guess {self.level.range // 3}"
        )

    def action_text(self, lane: int, action: NDArray[np.int64]) -> str:
        return f"guess {action}"

    def reply_text(self, lane: int, action: NDArray[np.int64], result: StepResult) -> str:
        if result.successes[0]:
            return f"Host: Yes, it is {action}!\nReward: {result.rewards[0]:.3g}"
        text = "Host: That was no guess."
        if action != NO_ACTION:
            hint = self.hints[self.replies[lane]]
            text = f"Host: {hint.capitalize()}." if self.level.feedback == "warmth" else f"Host: My number is {hint}."
        if result.dones[0]:
            return f"{text} That was the last turn; it was {self.secrets[lane]}.\nReward: 0"
        left = self.max_turns - self.turns[lane]
        return f"{text} {left} {'guess' if left == 1 else 'guesses'} left."

    def short_texts(self, lane: int) -> dict[str, int | NDArray[np.int64]]:
        return {str(number): number for number in range(self.level.range)}


class GuessNumberEnv(TaskEnv):
    """
    ## Description
    The host thinks of a number, and answers every wrong guess with a hint. A guess is valuable for what it tells the
    later ones: the agent has to learn to ask for information before it can be right.

    The hints are "higher" and "lower" (``feedback="higher_lower"``), or how near the guess was (``"warmth"``): burning
    for a distance of 1, hot for 2 and 3, warm for 4 to 7, cool for 8 to 15, cold beyond. With ``noise`` each "higher"
    or "lower" is false with that probability, independently at each turn, even if a number is guessed again. "Found" is
    always true.

    | level | numbers | turns | feedback | noise |
    | --- | --- | --- | --- | --- |
    | easy | 24 | 5 | higher or lower | none |
    | medium | 50 | 5 | warmth | none |
    | hard | 100 | 15 | higher or lower | 0.2 |

    ## Action Space
    ``Discrete(range)``: the number guessed. All guesses are valid, even those that the hints have ruled out: not to
    waste a turn on them is part of the task.

    ## Observation Space
    ``Box(0, 1, (d,))``. In this order:

    - the likelihood of each number after all hints so far, relative to the most likely one (``range`` entries). Without
      noise it is 1 for a number that is still possible, else 0. With noise each contradicting hint multiplies it by
      ``noise / (1 - noise)``, and a wrong guess has 0
    - the last guess (one-hot, zeros if none)
    - the last reply (one-hot: the hints in the order of the description, then "found"; zeros if none)
    - the turn (one-hot, zeros after the last)

    The likelihoods hold all that the hints have told, so a policy needs no memory. The secret is hidden, and so is
    which hints were false. ``d`` is 56 (easy), 111 (medium), 218 (hard).

    ## Rewards
    When the secret is found at turn ``t`` (counted from 1): ``1 - 0.1 * (t - 1) / turns``. Otherwise 0.
    ``info["is_success"]`` tells whether it was found.

    ## Starting State
    The secret is uniform, drawn from the seed. Which hints are false depends on the seed and the turn alone.

    ## Episode End
    The episode terminates when the secret is found, and after the last turn.

    ## Expert
    It sees the likelihoods, as the agent does. It makes the guess whose reply is hardest to predict: the one with the
    smallest sum of squared probabilities of the replies; of several the most likely number, then the lowest. At the
    last turn it guesses the most likely number. For "higher" and "lower" without noise this is binary search, which is
    optimal (``optimal_value()`` is exact, by dynamic programming over intervals). For the other feedback it is a strong
    rule, but not a proven optimum.

    ## Arguments
    - ``level`` (default ``"easy"``): ``"easy"``, ``"medium"`` or ``"hard"``
    - ``range`` (default: that of the level; 2 to 500): how many numbers there are, from 0 on
    - ``turns`` (default: that of the level; from 1 to 1,000): length of the longest episode
    - ``feedback`` (default: that of the level): ``"higher_lower"`` or ``"warmth"``
    - ``noise`` (default: that of the level, 0 with warmth; at least 0, below 0.5): probability that a "higher" or
      "lower" is false
    - ``render_mode``: ``"ansi"`` for a transcript

    ## Version History
    - v0: first version
    """

    def __init__(
        self,
        level: str = "easy",
        range: int | None = None,
        turns: int | None = None,
        feedback: str | None = None,
        noise: float | None = None,
        render_mode: str | None = None,
    ) -> None:
        make_task = partial(GuessNumber, level=level, range=range, turns=turns, feedback=feedback, noise=noise)
        super().__init__(make_task, render_mode)
