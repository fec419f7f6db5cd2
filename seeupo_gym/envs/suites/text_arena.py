"""Single-player text games of TextArena (the package textarena) as a Gymnasium environment."""

from __future__ import annotations

import importlib
import itertools
import re
import string
from typing import Any, NamedTuple

from seeupo_gym.envs.arguments import check_choice, check_count
from seeupo_gym.envs.info_keys import MALFORMED
from seeupo_gym.envs.packages import require
from seeupo_gym.envs.suites.own_randomness import OwnRandomness
from seeupo_gym.envs.suites.text_suite import TextSuiteEnv

# A move is looked for only in so many characters from the end of a message, as some patterns of the games are slow.
READ_LENGTH = 1_000
# Minesweeper calls this an invalid move, but the message means something.
_MINE = "You hit a mine"
_MOVE = re.compile(r"\[[^\[\]]*\]")

INSTALL = "seeupo_gym/TextArena-v0 needs the package textarena: pip install textarena==0.7.4"


class Game(NamedTuple):
    """A game as TextArena registers it, with the facts about it that are used here."""

    # Level -> turn limit. The first level is the default. No limit is beyond the game's own one, if that has an effect.
    levels: dict[str, int]
    move: str
    # A text that the game's last words contain if and only if the task was done.
    won: str = "Congratulations"


_DIRECTION = "[up], [down], [left] or [right]"

GAMES = {
    "GuessTheNumber": Game({"default": 10, "hardcore": 10}, "a number, for example [5]"),
    "Mastermind": Game({"default": 20, "hard": 30, "extreme": 50}, "a code, for example [2 1 4 5]", "cracked the code"),
    "TowerOfHanoi": Game(
        {"default": 14, "medium": 30, "hard": 62, "hardcore": 126, "extreme": 254},
        "the tower to take from and the tower to put on, for example [A C]",
    ),
    "FrozenLake": Game({"default": 30, "random": 30, "hardcore": 30}, _DIRECTION),
    "Bandit": Game(
        {"default": 21, "hard": 41}, "a button, for example [red]; the last one is the choice", "the best button"
    ),
    "Secretary": Game({"default": 5, "long": 10}, "[accept] or [continue]", "Perfect choice"),
    "LightsOut": Game({"default": 20}, "a row and a column counted from 0, for example [0 2]"),
    "2048": Game({"ultra-easy": 50, "mega-easy": 100, "super-easy": 200}, _DIRECTION),
    "Minesweeper": Game(
        {"small": 25, "default": 64, "medium": 100, "hard": 100}, "a row and a column counted from 0, for example [3 2]"
    ),
    # Its last words are the score, from which the outcome is read.
    "Blackjack": Game({"default": 50, "long": 150}, "[hit] or [stand]", ""),
}


class TextArenaEnv(TextSuiteEnv):
    """
    One of ten single-player games of TextArena, played in text.

    ## Description

    The games, their texts and their rewards are those of textarena 0.7.4 (MIT), at the levels it registers. These ten
    need no data, no network and no model. Other games of the package need one of these, or have several players.

    | game | levels (turn limit) | success |
    | --- | --- | --- |
    | `GuessTheNumber` | `default`: 1 to 20 (10), `hardcore`: 1 to 50 (10) | number guessed |
    | `Mastermind` | `default`: 4 of 6 digits (20), `hard`: 4 of 8 (30), `extreme`: 6 of 12 (50) | code guessed |
    | `TowerOfHanoi` | `default`: 3 disks (14), `medium`: 4 (30), `hard`: 5 (62), `hardcore`: 6 (126), `extreme`: 7 \
(254) | all disks on tower C |
    | `FrozenLake` | `default`: 4 x 4, 3 holes (30), `random`: from any corner (30), `hardcore`: 5 x 5, 6 holes \
(30) | goal reached |
    | `Bandit` | `default`: 5 buttons (21), `hard`: 10 buttons (41) | best button named at the end |
    | `Secretary` | `default`: 5 values (5), `long`: 10 values (10) | highest value accepted |
    | `LightsOut` | `default`: 5 x 5 (20) | all lights off |
    | `2048` | `ultra-easy`: tile 32 (50), `mega-easy`: 64 (100), `super-easy`: 128 (200) | tile made |
    | `Minesweeper` | `small`: 5 x 5, 5 mines (25), `default`: 8 x 8, 10 (64), `medium`: 10 x 10, 20 (100), `hard`: \
12 x 12, 30 (100) | all cells without mines revealed |
    | `Blackjack` | `default`: 5 hands (50), `long`: 15 hands (150) | all hands played, more won than lost |

    ## Action Space

    Text. A move stands in square brackets. The last one of a message counts, and only the last 1,000 characters of a
    message are read. The first observation says what a move is in the game. TextArena itself reads the first move of a
    message in some games, and several moves in `TowerOfHanoi`.

    ## Observation Space

    Text. First come the rules, the format of a move and the first board; then the game's reply to each move.

    ## Rewards

    Those of the game, once at the end: 1 for success (`Blackjack`: the share of hands won), otherwise mostly less, for
    a part of the task. At the turn limit it is the share of the task that is done, by the game's measure, and 0 in
    `Bandit` and `Secretary`. Two invalid moves in a row end the game, with -1 in `Bandit` and `Secretary`.

    Some rewards of TextArena are odd: `LightsOut` pays less than 0 if more lights are on than at the start;
    `FrozenLake` pays the distance from the start even in a hole; `2048` can pay 1 for a high score without the tile.
    One is replaced: TextArena's verdict in `Bandit` counts no choice as right, and pays most for the worst. Here the
    best button pays 1, and any other 0.

    ## Starting State

    The seed given to `reset` fixes the task and all random events in it. `TowerOfHanoi` starts the same for every seed.

    ## Episode End

    The episode terminates when the game is won or lost, at the second of two invalid moves in a row, and at the turn
    limit, which is part of the task. It is never truncated. An invalid move costs the turn, and
    `info["seeupo_gym/malformed"]` is True for it. In `Minesweeper` a mine counts as an invalid move and costs no more,
    but is not malformed. At the end `info` has `is_success` and `reason`, the game's last words.

    ## Arguments

    While a call runs, the global generators of Python and numpy have this environment's states; afterwards they are as
    they were. So environments can be used in turn, but not in several threads at once. A copy or a pickle has the
    arguments, but not the episode.

    :param game: one of the names in the table
    :param level: one of the game's levels; None: the first in the table
    :param turns: turn limit, at most that of the level; None: that of the level
    :param render_mode: `"ansi"` makes :meth:`render` return the transcript of the episode so far
    :raises ImportError: if textarena is missing

    ## Version History

    - v0: first version.
    """

    # Blackjack shows the suits of cards, and Secretary a cracker.
    charset = string.printable + "♠♥♦♣🎉"

    def __init__(
        self,
        game: str = "GuessTheNumber",
        level: str | None = None,
        turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_choice("game", game, GAMES)
        levels = GAMES[game].levels
        if level is None:
            level = next(iter(levels))
        check_choice(f"level of {game}", level, levels)
        # A game may fail beyond its own limit, as GuessTheNumber does at a message without a number.
        if turns is not None:
            check_count("turns", turns, most=levels[level])
        super().__init__(levels[level] if turns is None else turns, render_mode)
        self._randomness = OwnRandomness()
        with self._randomness:
            require("textarena", INSTALL)
        self._game = game
        # Without TextArena's wrappers, which keep the texts of earlier episodes.
        self._id = f"{game}-v0-{level}-raw".replace("-default", "")
        self.game: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # Some games cannot be copied: a copy of Secretary would draw from a generator of its own.
        return {**self.__dict__, "game": None, "_running": False}

    def _begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        with self._randomness:
            self.game = require("textarena", INSTALL).make(self._id)
            seeds = itertools.count(seed, self.max_seed)
            # LightsOut divides by the number of lights that are on, which is 0 for one seed in some thousand.
            while not self._start(next(seeds)):
                pass
        form = (
            f"The format of a move: {GAMES[self._game].move}. The last one of a message counts; a message without one "
            f"is an invalid move. At most {self.max_turns} turns."
        )
        rules, *rest = self._read()
        return "\n".join([rules, form, *rest]), {}

    def _play(self, message: str) -> tuple[str, float, bool, dict[str, Any]]:
        # The games accept other digits than those of ASCII, and would repeat them in their replies.
        moves = _MOVE.findall(message[-READ_LENGTH:].encode("ascii", "replace").decode())
        move = moves[-1] if moves else ""
        with self._randomness:
            over, _ = self.game.step(move)
        shown = self._read()
        done = bool(over) or self._is_last_turn
        reward, outcome = 0.0, {}
        if done:
            reward, reason = self._result(move) if over else self._share()
            shown.append(reason)
            outcome = {"is_success": self._is_success(reason), "reason": reason}
        text = "\n".join(shown)
        state = self.game.state
        invalid = state.error_count > 0 or state.game_info[0]["invalid_move"]
        return text, reward, done, {MALFORMED: bool(invalid) and _MINE not in text, **outcome}

    def _start(self, seed: int) -> bool:
        try:
            self.game.reset(num_players=1, seed=seed)
        except ZeroDivisionError:
            return False
        return True

    def _read(self) -> list[str]:
        """Collect the game's messages since the last call, without those of the player."""
        own = importlib.import_module("textarena").ObservationType.PLAYER_ACTION
        return [text.strip("\n") for _, text, kind in self.game.get_observation()[1] if kind != own]

    def _result(self, move: str) -> tuple[float, str]:
        """Return the reward of a game that ended with a move, and its last words."""
        rewards, info = self.game.close()
        reward, reason = float(rewards[0]), str(info[0]["reason"])
        if self._game == "Bandit" and not info[0]["invalid_move"]:
            # TextArena compares the button with the table of means, so no choice is right, and the worst one pays most.
            means = self.game.state.game_state["ground_truth"]
            right = means[move[1:-1]] == max(means.values())
            return float(right), "You chose the best button." if right else "You chose an incorrect button."
        return reward, reason

    def _share(self) -> tuple[float, str]:
        """Return the reward and last words of a game that is stopped at the turn limit."""
        share = getattr(self.game, "_get_percentage_completion", lambda: 0.0)()
        return float(share), "The turn limit has been reached."

    def _is_success(self, reason: str) -> bool:
        if self._game == "Blackjack":
            results = self.game.state.game_state["results_summary"]
            return reason.startswith("The game has concluded") and bool(results["win"] > results["lose"])
        return GAMES[self._game].won in reason
