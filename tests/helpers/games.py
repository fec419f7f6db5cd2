"""The two suites of games in text, GEM and TextArena, and how to play them."""

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from seeupo_gym.envs.suites import gem, text_arena

DIRECTIONS = ["up", "down", "left", "right"]
BUTTONS = ["red", "blue", "green", "yellow", "purple"]


def boxed(*words):
    """Write a move of GEM's games."""
    return "\\boxed{" + " ".join(map(str, words)) + "}"


def bracketed(*words):
    """Write a move of TextArena's games."""
    return "[" + " ".join(map(str, words)) + "]"


def gem_words(game, rng):
    """Draw any well-formed move of a game's first level."""
    if game == "GuessTheNumber":
        return [rng.integers(1, 11)]
    if game == "Mastermind":
        return rng.choice(np.arange(1, 7), size=2, replace=False)
    if game == "Minesweeper":
        return [rng.choice(["reveal", "flag"]), *rng.integers(0, 5, 2)]
    if game == "TowerofHanoi":
        return rng.choice(["A", "B", "C"], size=2, replace=False)
    if game == "Sudoku":
        return rng.integers(1, 5, 3)
    return [rng.choice(DIRECTIONS)]


def text_arena_words(game, rng):
    """Draw any well-formed move of a game's first level."""
    if game == "GuessTheNumber":
        return [rng.integers(1, 21)]
    if game == "Mastermind":
        return rng.permutation(np.arange(1, 7))[:4]
    if game == "TowerOfHanoi":
        return rng.choice(["A", "B", "C"], size=2, replace=False)
    if game in ("LightsOut", "Minesweeper"):
        return rng.integers(0, 5, 2)
    choices = {
        "Bandit": BUTTONS,
        "Secretary": ["accept", "continue", "continue"],
        "Blackjack": ["hit", "stand"],
    }
    return [rng.choice(choices.get(game, DIRECTIONS))]


@dataclass(frozen=True, eq=False)
class Suite:
    """One of the two."""

    name: str
    package: str
    make: Callable[..., Any]
    games: dict[str, Any]
    write: Callable[..., str]
    draw_words: Callable[..., Any]

    @property
    def env_id(self):
        return f"seeupo_gym/{self.name}-v0"

    def is_installed(self):
        """Tell whether the package is there."""
        return importlib.util.find_spec(self.package) is not None

    def random_move(self, game, rng):
        """Draw a move and write it."""
        return self.write(*self.draw_words(game, rng))

    def play(self, env, game, seed, action_seed=1):
        """Play at random; return all that is shown. The actions' generator has a seed that the game does not use."""
        rng = np.random.default_rng([7, action_seed])
        shown, done = [env.reset(seed=seed)[0]], False
        while not done:
            text, reward, done, truncated, info = env.step(self.random_move(game, rng))
            assert not truncated
            assert env.observation_space.contains(text)
            assert ("is_success" in info) == done
            shown += [text, reward, done, info]
        return shown

    def bisect(self, env, seed):
        """Guess a number as an expert who halves what is left of the range that the rules name."""
        text, _ = env.reset(seed=seed)
        low, high = map(int, re.search(r"between (\d+) and (\d+)", text).groups())
        while True:
            middle = (low + high) // 2
            text, reward, done, _, info = env.step(self.write(middle))
            if done:
                return reward, info["is_success"]
            low, high = (middle + 1, high) if "higher" in text else (low, middle - 1)

    def hanoi(self, n, source="A", target="C", spare="B"):
        """Write the moves that bring a tower of ``n`` disks from one place to another."""
        if n:
            yield from self.hanoi(n - 1, source, spare, target)
            yield self.write(source, target)
            yield from self.hanoi(n - 1, spare, target, source)


GEM = Suite("GEM", "gem", gem.GEMEnv, gem.GAMES, boxed, gem_words)
TEXT_ARENA = Suite("TextArena", "textarena", text_arena.TextArenaEnv, text_arena.GAMES, bracketed, text_arena_words)
