"""Text games of GEM (the package gem-llm) as a Gymnasium environment."""

from __future__ import annotations

import logging
import math
import string
from typing import Any, NamedTuple

from seeupo_gym.envs.arguments import check_choice, check_count
from seeupo_gym.envs.info_keys import MALFORMED
from seeupo_gym.envs.packages import require
from seeupo_gym.envs.suites.own_randomness import OwnRandomness
from seeupo_gym.envs.suites.text_suite import TextSuiteEnv

# The game reads only this many characters from the end of a message, as some of its patterns take quadratic time.
READ_LENGTH = 1_000

INSTALL = (
    "seeupo_gym/GEM-v0 needs the package gem-llm: pip install gem-llm==0.1.0 "
    "(from Python 3.12.1 on: pip install --ignore-requires-python gem-llm==0.1.0)"
)


class Game(NamedTuple):
    """A game as GEM registers it."""

    name: str
    move: str
    levels: tuple[str, ...] = ("easy", "hard")


_DIRECTION = r"a direction, one of \boxed{up}, \boxed{down}, \boxed{left} and \boxed{right}"

GAMES = {
    "GuessTheNumber": Game("GuessTheNumber", r"a number, for example \boxed{3}"),
    "Mastermind": Game("Mastermind", r"the digits of a code with spaces between them, for example \boxed{1 2}"),
    "Minesweeper": Game(
        "Minesweeper",
        r"a command, a row and a column counted from 0, for example \boxed{reveal 0 2} or \boxed{flag 1 1}",
    ),
    "2048": Game("Game2048", _DIRECTION, ("easy", "hard", "extreme-hard")),
    "FifteenPuzzle": Game("FifteenPuzzle", _DIRECTION),
    "TowerofHanoi": Game("TowerofHanoi", r"the tower to take from and the tower to put on, for example \boxed{A C}"),
    "Sudoku": Game("Sudoku", r"a row, a column (both counted from 1) and a digit, for example \boxed{1 2 4}"),
    "Sokoban": Game("Sokoban", _DIRECTION),
}


def load_gem() -> Any:
    """
    Import GEM's registry of environments, which takes seconds.

    :return: the module ``gem.envs.registration``
    :raises ImportError: if the package is missing; says how to install it
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        # Not "gem" alone, which an unrelated package provides, too.
        return require("gem.envs.registration", INSTALL)
    finally:
        # Importing gem configures the root logger, which only the application should configure.
        root.handlers[:] = handlers
        root.setLevel(level)


class GEMEnv(TextSuiteEnv):
    r"""
    One of eight text games of GEM, played in text.

    ## Description

    The games, their texts and their rewards are those of gem-llm 0.1.0 (Apache-2.0), at the levels it registers.
    They need no data and no network.

    | game | easy | hard | the return is 1 exactly if |
    | --- | --- | --- | --- |
    | `GuessTheNumber` | 1 to 10, 4 turns | 1 to 50, 7 turns | the number was guessed |
    | `Mastermind` | 2 of 6 digits, 10 turns | 4 of 8 digits, 30 turns | the code was guessed |
    | `Minesweeper` | 5 x 5, 5 mines, 25 turns | 8 x 8, 12 mines, 64 turns | all cells without mines were revealed |
    | `2048` | tile 64, 50 turns | tile 512, 50 turns | the tile was made |
    | `FifteenPuzzle` | 2 x 2, 10 turns | 4 x 4, 50 turns | the tiles are in order |
    | `TowerofHanoi` | 3 disks, 10 turns | 5 disks, 35 turns | all disks are on tower C |
    | `Sudoku` | 4 x 4, 15 turns | 9 x 9, 50 turns | the grid is full |
    | `Sokoban` | 6 x 6, 2 boxes, 20 turns | 8 x 8, 4 boxes, 50 turns | all boxes are on goals |

    `2048` has a third level, `extreme-hard`: tile 2048, 100 turns.

    ## Action Space

    Text. A move stands in `\boxed{}`. The last one of a message counts, and only the last 1,000 characters of a message
    are read. The first observation says what a move is in the game.

    ## Observation Space

    Text. First come the rules, the format of a move and the first board; then the reply to each move, with the board in
    games that have one. A reply does not repeat the earlier ones. The last reply has no board.

    ## Rewards

    Those of the game; the return is in [-0.1, 1] at every level.

    - `Mastermind`, `Minesweeper`, `2048` and `Sudoku` pay for progress when it is made, as a share of the whole task:
      for correct digits beyond the best guess so far, revealed cells, doublings of the highest tile, filled cells.
    - The others pay 1 for the solution. At the turn limit they pay less than 1, by how near it was: one minus the
      distance of the last guess over the width of the range, tiles in place, disks on tower C, boxes on goals.
    - A message without a move pays -0.1 (`info["seeupo_gym/malformed"]`). A move that the rules forbid pays nothing and
      costs the turn.

    ## Starting State

    The seed given to `reset`, below 2**32, fixes the task. This includes the tiles that 2048 adds, and the mines, which
    are laid around the first cell revealed. `TowerofHanoi` starts the same for every seed. Half of the starts of
    `FifteenPuzzle` cannot be solved, because GEM shuffles the tiles. In the other games, not every start is known to be
    solvable within the limit.

    ## Episode End

    The episode terminates when the game is solved or lost, at a message without a move, and at the turn limit, which is
    part of the task. It is never truncated. At the end `info["is_success"]` is True if the return is 1.
    `Minesweeper` goes on after the last safe cell until a reveal finds all mines flagged, or until the turn limit.

    ## Arguments

    While a call runs, the global generators of Python and numpy have this environment's states; afterwards they are as
    they were. So environments can be used in turn, but not in several threads at once.

    :param game: one of the names in the table
    :param level: `easy` or `hard`; GEM's level `random` is not offered, as it has no fixed turn limit
    :param turns: turn limit; None: that of the level
    :param render_mode: `"ansi"` makes :meth:`render` return the transcript of the episode so far
    :raises ImportError: if gem-llm is missing

    ## Version History

    - v0: first version.
    """

    # The games write ASCII, but for the root sign that Sokoban draws for a box on a goal.
    charset = string.printable + "√"
    # GEM seeds numpy's global generator, which takes no larger seeds.
    max_seed = 2**32 - 1

    def __init__(
        self,
        game: str = "GuessTheNumber",
        level: str = "easy",
        turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_choice("game", game, GAMES)
        check_choice(f"level of {game}", level, GAMES[game].levels)
        if turns is not None:
            check_count("turns", turns)
        self._randomness = OwnRandomness()
        with self._randomness:
            limit = {} if turns is None else {"max_turns": turns}
            self.game: Any = load_gem().make(f"game:{GAMES[game].name}-v0-{level}", **limit)
        super().__init__(int(self.game.max_turns), render_mode)
        self._move = GAMES[game].move

    def _begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        with self._randomness:
            rules, info = self.game.reset(seed)
        self._return = 0.0
        form = (
            f"The format of a move: {self._move}. The last one of a message counts; a message without one ends the "
            f"game. At most {self.max_turns} turns."
        )
        return _lines(rules, form, info.get("suffix", "")), {}

    def _play(self, message: str) -> tuple[str, float, bool, dict[str, Any]]:
        with self._randomness:
            reply, reward, terminated, truncated, info = self.game.step(message[-READ_LENGTH:])
        self._return += float(reward)
        # GEM sets both flags at its turn limit. Ours is counted here, whatever the game does with its own.
        done = bool(terminated or truncated) or self._is_last_turn
        shown = _lines(reply) if done else _lines(reply, info.get("suffix", ""))
        # Every game's rewards add up to 1 if and only if its task is done. Shares add up with rounding errors.
        outcome = {"is_success": math.isclose(self._return, 1.0, abs_tol=1e-9)} if done else {}
        # Only a message without a move has a negative reward.
        return shown, float(reward), done, {MALFORMED: reward < 0, **outcome}


def _lines(*parts: str) -> str:
    """Join parts by line breaks, without the blank lines at their ends."""
    return "\n".join(part.strip("\n") for part in parts if part)
