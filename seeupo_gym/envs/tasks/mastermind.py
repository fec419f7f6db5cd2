"""Mastermind: break a code of colours; the reply to every guess is black and white pegs."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.envs.arguments import MAX_SIZE, check_count, check_flag
from seeupo_gym.envs.counter_rng import integers
from seeupo_gym.envs.messages import MessageError, plain
from seeupo_gym.envs.task import ALL_LANES, NO_ACTION, Lanes, StepResult, Task, TaskEnv, choose_level, one_hot
from seeupo_gym.envs.tasks.mastermind_codes import all_codes, feedback_table, minimax_guess

COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "pink", "brown")
LATE_COST = 0.1
PARTIAL_CREDIT = 0.3
# The feedback of all pairs of codes is kept, which takes 16 MB for this number.
MAX_CODES = 4096
# With the fewest colours, two.
MAX_PEGS = 12
NOTHING = -1
# (pegs, colours) -> the smallest number of guesses, summed over all codes, that breaks them all; and the number of
# turns that this takes in the worst case. Exhaustive search gives all three. The last one is also in Koyama and Lai,
# "An optimal Mastermind strategy", Journal of Recreational Mathematics 25, 1993.
FEWEST_GUESSES = {(3, 4): (206, 4), (4, 4): (905, 4), (4, 6): (5625, 6)}

# Random stream of the only draw.
_SECRET = 0


class Level(NamedTuple):
    """
    A level of difficulty.

    :param pegs: length of a code
    :param colours: number of colours, the first ones of ``COLOURS``
    :param turns: number of guesses
    """

    pegs: int
    colours: int
    turns: int


LEVELS = {
    "easy": Level(pegs=3, colours=4, turns=6),
    "medium": Level(pegs=4, colours=4, turns=7),
    "hard": Level(pegs=4, colours=6, turns=8),
}


def _checked(level: Level) -> Level:
    level = Level(
        check_count("pegs", level.pegs, most=MAX_PEGS),
        check_count("colours", level.colours, least=2, most=len(COLOURS)),
        check_count("turns", level.turns, most=MAX_SIZE),
    )
    n_codes = level.colours**level.pegs
    if n_codes > MAX_CODES:
        raise ValueError(
            f"colours ** pegs, the number of codes, must be at most {MAX_CODES}, got {level.colours} ** {level.pegs} = "
            f"{n_codes}"
        )
    return level


class Mastermind(Task):
    """Batched dynamics; :class:`MastermindEnv` documents the task."""

    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)

    def __init__(
        self,
        n_lanes: int = 1,
        level: str = "easy",
        pegs: int | None = None,
        colours: int | None = None,
        turns: int | None = None,
        flat: bool = False,
    ) -> None:
        given: dict[str, Any] = {"pegs": pegs, "colours": colours, "turns": turns}
        self.level = _checked(choose_level(level, LEVELS)._replace(**{k: v for k, v in given.items() if v is not None}))
        self.flat = flat = check_flag("flat", flat)
        n_pegs, n_colours, self.max_turns = self.level
        self._codes = all_codes(n_pegs, n_colours)
        self._table = feedback_table(n_pegs, n_colours)
        n_codes = len(self._codes)
        self.action_space = spaces.Discrete(n_codes) if flat else spaces.MultiDiscrete([n_colours] * n_pegs)
        self._places = n_colours ** np.arange(n_pegs - 1, -1, -1)
        # How a guess and a reply are observed. NOTHING picks the last row, which has zeros.
        shown_codes = one_hot(self._codes.ravel(), n_colours).reshape(n_codes, -1)
        self._shown_codes = np.pad(shown_codes, ((0, 1), (0, 0)))
        replies = np.arange((n_pegs + 1) ** 2)
        shown_replies = [one_hot(replies // (n_pegs + 1), n_pegs + 1), one_hot(replies % (n_pegs + 1), n_pegs + 1)]
        self._shown_replies = np.pad(np.concatenate(shown_replies, axis=1), ((0, 1), (0, 0)))
        width = n_pegs * n_colours + 2 * (n_pegs + 1)
        self.observation_space = spaces.Box(0.0, 1.0, (self.max_turns * (width + 1),), np.float32)
        super().__init__(n_lanes)
        self.secrets = np.zeros(n_lanes, dtype=np.int64)
        self.guesses = np.full((n_lanes, self.max_turns), NOTHING)
        self.replies = np.full((n_lanes, self.max_turns), NOTHING)
        self.best_black = np.zeros(n_lanes, dtype=np.int64)
        self._history = np.zeros((n_lanes, self.max_turns, width), dtype=np.float32)
        self._rows = np.arange(n_lanes)

    def _start(self, lanes: Lanes) -> None:
        self.secrets[lanes] = integers(len(self._codes), self.task_seeds[lanes], _SECRET)
        self.guesses[lanes] = NOTHING
        self.replies[lanes] = NOTHING
        self.best_black[lanes] = 0
        self._history[lanes] = 0.0

    def to_codes(self, actions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the index of the code that each action guesses; ``NOTHING`` for no action."""
        if self.flat:
            return actions
        codes: NDArray[np.int64] = np.where(actions[..., 0] == NO_ACTION, NOTHING, actions @ self._places)
        return codes

    def _advance(self, actions: NDArray[np.int64], lanes: Lanes) -> StepResult:
        n_pegs = self.level.pegs
        rows, turns = self._rows[lanes], self.turns[lanes]
        guesses = self.to_codes(actions)
        passed = guesses == NOTHING
        # Without a guess the reply is that to the last code, which has no effect.
        replies = np.where(passed, NOTHING, self._table[guesses, self.secrets[lanes]].astype(np.int64))
        black = np.where(passed, 0, replies // (n_pegs + 1))
        best_black = np.maximum(self.best_black[lanes], black)
        self.best_black[lanes] = best_black
        self.guesses[rows, turns - 1] = guesses
        self.replies[rows, turns - 1] = replies
        shown = [self._shown_codes[guesses], self._shown_replies[replies]]
        self._history[rows, turns - 1] = np.concatenate(shown, axis=1)
        successes = black == n_pegs
        dones = successes | (turns == self.max_turns)
        partial_credit = np.where(dones, PARTIAL_CREDIT * best_black / n_pegs, 0.0)
        rewards = np.where(successes, 1.0 - LATE_COST * (turns - 1) / self.max_turns, partial_credit)
        return StepResult(rewards.astype(np.float32), dones, successes)

    def observe(self, lanes: Lanes = ALL_LANES) -> NDArray[np.float32]:
        history, turns = self._history[lanes], self.turns[lanes]
        return np.concatenate([history.reshape(len(turns), -1), one_hot(turns, self.max_turns)], axis=1)

    def expert_actions(self, lanes: Lanes = ALL_LANES) -> NDArray[np.int64]:
        guesses, replies = self.guesses[lanes], self.replies[lanes]
        consistent = np.ones((len(guesses), len(self._codes)), dtype=bool)
        for turn in range(int(self.turns[lanes].max(initial=0))):
            guess, reply = guesses[:, turn], replies[:, turn, None]
            consistent &= (self._table[guess] == reply) | (reply == NOTHING)
        n_pegs, n_colours, _ = self.level
        packed = np.packbits(consistent, axis=1)
        codes = np.array([minimax_guess(n_pegs, n_colours, row.tobytes()) for row in packed], dtype=np.int64)
        return codes if self.flat else self._codes[codes]

    def optimal_value(self) -> float | None:
        """
        Compute the optimum for the codes of the levels, if there are enough turns to break all codes with the fewest
        guesses.

        A further guess costs the same at every turn, so the smallest number of guesses is the best as long as no code
        is given up. To give up a code is worse: to go on guessing, at the same cost for each further turn, loses less.
        """
        total, worst_case = FEWEST_GUESSES.get(self.level[:2], (0, 0))
        if not total or worst_case > self.max_turns:
            return None
        return 1.0 - LATE_COST * (total / len(self._codes) - 1.0) / self.max_turns

    def code_text(self, code: int) -> str:
        """Name the colours of a code."""
        return " ".join(COLOURS[colour] for colour in self._codes[code])

    def opening_text(self, lane: int) -> str:
        n_pegs, n_colours, turns = self.level
        example = self.code_text(min(n_colours, len(self._codes) - 1))
        return (
            f"Codemaker: My code has {n_pegs} pegs, each of them {', '.join(COLOURS[: n_colours - 1])} or "
            f"{COLOURS[n_colours - 1]}; a colour may occur more than once. You have {turns} guesses. For each I tell "
            f"how many pegs have the right colour in the right place (black), and how many more of its colours are "
            f"in the code but in another place (white). Write for example: guess {example}"
        )

    def action_text(self, lane: int, action: NDArray[np.int64]) -> str:
        return f"guess {self.code_text(int(self.to_codes(action)))}"

    def reply_text(self, lane: int, action: NDArray[np.int64], result: StepResult) -> str:
        turn = self.turns[lane]
        reply = int(self.replies[lane, turn - 1])
        black, white = divmod(reply, self.level.pegs + 1)
        text = "Codemaker: That was no guess." if reply == NOTHING else f"Codemaker: {black} black, {white} white."
        if result.successes[0]:
            text += f" You have broken the code in {turn} {'turn' if turn == 1 else 'turns'}."
        elif result.dones[0]:
            text += f" That was the last turn; the code was {self.code_text(int(self.secrets[lane]))}."
        else:
            left = self.max_turns - turn
            return f"{text} {left} {'guess' if left == 1 else 'guesses'} left."
        return f"{text}\nReward: {result.rewards[0]:.3g}"

    def parse_action(self, lane: int, message: str) -> NDArray[np.int64]:
        n_pegs, n_colours, _ = self.level
        # The last part of the message counts that names as many colours as there are pegs.
        for part in reversed(re.split(r"\b(?:guess|action)\b", plain(message))):
            code = [COLOURS.index(word) for word in part.split() if word in COLOURS]
            if len(code) == n_pegs and max(code) < n_colours:
                return np.array(code @ self._places if self.flat else code)
        names = ", ".join(COLOURS[:n_colours])
        raise MessageError(f"I do not understand that. Write guess and {n_pegs} colours; there are {names}.")


class MastermindEnv(TaskEnv):
    """
    ## Description
    The codebreaker's side of Mastermind. The secret is a row of coloured pegs, in which a colour may occur more than
    once. The reply to a guess is one black peg for each right colour in the right place, and one white peg for each
    further peg of the guess whose colour is elsewhere in the secret (every peg of the secret counts once). A good guess
    depends on all earlier ones and their replies. The best guess need not be one that can be the secret itself.

    | level | pegs | colours | codes | turns |
    | --- | --- | --- | --- | --- |
    | easy | 3 | 4 | 64 | 6 |
    | medium | 4 | 4 | 256 | 7 |
    | hard (the classic game) | 4 | 6 | 1,296 | 8 |

    ## Action Space
    ``MultiDiscrete([colours] * pegs)``: the colour of each peg. With ``flat=True`` ``Discrete(colours ** pegs)``: the
    colours are digits in base ``colours``, and the first peg is the highest digit. All guesses are valid, even those
    that the replies have ruled out or that were made before.

    ## Observation Space
    ``Box(0, 1, (d,))``: the whole history. For each turn in order: the guess (for each peg a one-hot vector over the
    colours), the number of black pegs (one-hot over 0 to ``pegs``) and that of white pegs (likewise), all zeros for a
    turn without a guess. Then comes the turn (one-hot, zeros after the last). The secret is hidden. ``d`` is
    ``turns * (pegs * colours + 2 * (pegs + 1) + 1)``: 126 (easy), 189 (medium), 280 (hard).

    ## Rewards
    At the end: ``1 - 0.1 * (t - 1) / turns`` if the code was broken at turn ``t`` (counted from 1), else 0.3 times the
    largest number of black pegs so far divided by ``pegs``. ``info["is_success"]`` tells whether it was broken.

    ## Starting State
    The secret is uniform among all codes, drawn from the seed. Nothing else is random.

    ## Episode End
    The episode terminates when the code is broken, and after the last turn.

    ## Expert
    It sees the history, as the agent does. Of all codes it guesses the one that leaves the fewest consistent codes in
    the worst case; of several a consistent one, then the first (Knuth, "The computer as Master Mind", 1977). It needs
    at most 4, 4 and 5 turns at the three levels. On average slightly fewer guesses are possible: ``optimal_value()`` is
    the exact optimum at all three levels.

    ## Arguments
    - ``level`` (default ``"easy"``): ``"easy"``, ``"medium"`` or ``"hard"``
    - ``pegs`` (default: that of the level; 1 to 12): length of the code; there may be at most 4,096 codes
    - ``colours`` (default: that of the level; 2 to 8): number of colours
    - ``turns`` (default: that of the level; from 1 to 1,000): length of the longest episode
    - ``flat`` (default False): one ``Discrete`` action in place of a colour for each peg
    - ``render_mode``: ``"ansi"`` for a transcript

    ## Version History
    - v0: first version
    """

    def __init__(
        self,
        level: str = "easy",
        pegs: int | None = None,
        colours: int | None = None,
        turns: int | None = None,
        flat: bool = False,
        render_mode: str | None = None,
    ) -> None:
        make_task = partial(Mastermind, level=level, pegs=pegs, colours=colours, turns=turns, flat=flat)
        super().__init__(make_task, render_mode)
