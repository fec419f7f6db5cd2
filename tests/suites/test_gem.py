"""GEM's games: moves, success, hostile messages, groups; what TextArena's promise too is in test_games.py."""

import pickle
import random
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from helpers.games import DIRECTIONS, GEM, boxed
from helpers.generators import global_states
from helpers.suites import check_groups_start_alike, check_worker_processes_play_the_same
from stable_baselines3.common.vec_env import DummyVecEnv

from seeupo_gym.envs.suites.gem import GAMES, GEMEnv, OwnRandomness

pytest.importorskip("gem.envs.registration")

each_game = pytest.mark.parametrize("game", GAMES)


# --- Contracts


@each_game
def test_the_examples_of_the_format_are_moves(game):
    env = gym.make(GEM.env_id, game=game)
    text, _ = env.reset(seed=0)
    line = next(line for line in text.split("\n") if line.startswith("The format of a move"))
    examples = re.findall(r"\\boxed\{.*?\}", line)
    assert examples
    for example in examples:
        env.reset(seed=0)
        assert env.step(f"I think that {example} is best.")[1] >= 0.0


def test_the_last_move_of_a_message_counts_and_its_start_is_not_read():
    env = GEMEnv("TowerofHanoi")
    env.reset(seed=0)
    assert "from tower A to tower B" in env.step("Not \\boxed{A C}, but \\boxed{A B}.")[0]
    env.reset(seed=0)
    assert env.step("\\boxed{A B}" + "x" * 1_000)[1] == pytest.approx(-0.1)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="game must be one of"):
        GEMEnv("Wordle")
    with pytest.raises(ValueError, match="level of Sudoku must be one of"):
        GEMEnv("Sudoku", "extreme-hard")
    for turns in (0, -1, True, 2.0, "3"):
        with pytest.raises(ValueError, match="turns must be"):
            GEMEnv("Sudoku", turns=turns)


# --- Seeds and generators


def test_callers_generators_come_back_after_an_error():
    before = global_states()

    def fail():
        with OwnRandomness():
            random.seed(3)
            np.random.seed(3)  # noqa: NPY002
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert global_states() == before


@each_game
def test_a_pickled_environment_goes_on_alike(game):
    env = GEMEnv(game)
    env.reset(seed=5)
    rng = np.random.default_rng([7, 2])
    moves = [GEM.random_move(game, rng) for _ in range(3)]
    done = env.step(moves[0])[2]
    copy = pickle.loads(pickle.dumps(env))
    if not done:
        assert copy.step(moves[1]) == env.step(moves[1])


# --- Rewards, ends, success


@each_game
@pytest.mark.parametrize("turns", [1, 3, 400])
def test_random_play(game, turns):
    env = GEMEnv(game, turns=turns)
    assert env.max_turns == turns
    lengths = []
    for seed in range(10):
        episode = GEM.play(env, game, seed, action_seed=seed)
        rewards, ends = episode[2::4], episode[3::4]
        lengths.append(len(rewards))
        assert ends == [False] * (len(ends) - 1) + [True]
        assert -0.1 <= sum(rewards) <= 1.0 + 1e-9
        # What the game itself says. Minesweeper and a solved start of the puzzle may end without its congratulations.
        if "Congratulations" in episode[-4]:
            assert episode[-1] == {"seeupo_gym/malformed": False, "is_success": True}
        elif game not in ("Minesweeper", "FifteenPuzzle"):
            assert episode[-1] == {"seeupo_gym/malformed": False, "is_success": False}
    assert max(lengths) <= turns


def test_turn_limit_holds_whatever_the_game_does():
    env = GEMEnv("TowerofHanoi")
    env.game.max_turns = 1_000_000
    env.reset(seed=0)
    ends = [env.step(boxed("A", "A"))[2:] for _ in range(env.max_turns)]
    assert ends[:-1] == [(False, False, {"seeupo_gym/malformed": False})] * 9
    assert ends[-1] == (True, False, {"seeupo_gym/malformed": False, "is_success": False})


@pytest.mark.parametrize("game", ["GuessTheNumber", "Mastermind", "2048", "FifteenPuzzle", "TowerofHanoi", "Sudoku"])
def test_random_play_without_hurry_succeeds(game):
    env = GEMEnv(game, turns=3_000)
    endings = [GEM.play(env, game, seed, action_seed=seed)[-4:] for seed in range(8)]
    assert any(info["is_success"] and "Congratulations" in text for text, *_, info in endings)


@each_game
@pytest.mark.parametrize(
    "message", ["", "I pass", "\\boxed{}", "\\boxed{" + "9" * 900, "\\boxed{A" + " " * 990, "√" * 5000]
)
def test_a_message_without_a_move_ends_the_game(game, message):
    env = GEMEnv(game)
    env.reset(seed=0)
    text, reward, terminated, truncated, info = env.step(message)
    assert (reward, terminated, truncated) == (pytest.approx(-0.1), True, False)
    assert info == {"seeupo_gym/malformed": True, "is_success": False}
    assert env.observation_space.contains(text)


@each_game
@pytest.mark.parametrize(
    "inside", ["9" * 900, "9 " * 450 + "9", "9 9 9", "reveal 99 " + "9" * 900, "٣", "__import__('os')"]
)
def test_odd_moves_get_a_reply_and_no_reward(game, inside):
    env = GEMEnv(game)
    env.reset(seed=2)
    text, reward, *_ = env.step("x" * 100_000 + "\\boxed{" + inside + "}")
    assert reward <= 0.0
    assert env.observation_space.contains(text)


def test_minesweeper_is_solved_when_the_safe_cells_are_revealed():
    env = GEMEnv("Minesweeper")
    env.reset(seed=0)
    env.step(boxed("reveal", 2, 2))
    grid = env.game.grid
    for row, col in np.ndindex(5, 5):
        if grid[row][col] != -1 and not env.game.revealed[row][col]:
            assert not env.step(boxed("reveal", row, col))[2]
    done = False
    while not done:
        _, _, done, _, info = env.step(boxed("reveal", 2, 2))
    assert info == {"seeupo_gym/malformed": False, "is_success": True}


# --- Scripted experts


def test_half_of_the_small_puzzles_are_solvable():
    """Search from the goal: 12 of the 24 boards, none over 6 moves away; then the wrapper plays the solutions."""
    away = {(1, 2, 3, 0): []}
    queue = [(1, 2, 3, 0)]
    for board in queue:
        gap = board.index(0)
        for (row, col), move in {(1, 0): "down", (-1, 0): "up", (0, 1): "right", (0, -1): "left"}.items():
            r, c = gap // 2 + row, gap % 2 + col
            if r in (0, 1) and c in (0, 1):
                after = list(board)
                after[gap], after[2 * r + c] = after[2 * r + c], 0
                # The gap came from there: the opposite move of the tile leads back.
                if tuple(after) not in away:
                    away[tuple(after)] = [move, *away[board]]
                    queue.append(tuple(after))
    assert (len(away), max(map(len, away.values()))) == (12, 6)
    env = GEMEnv("FifteenPuzzle")
    solvable = 0
    for seed in range(100):
        env.reset(seed=seed)
        moves = away.get(tuple(tile or 0 for row in env.game.board for tile in row))
        solvable += moves is not None
        if moves:
            assert [env.step(boxed(move)) for move in moves][-1][1:] == (
                1.0,
                True,
                False,
                {"seeupo_gym/malformed": False, "is_success": True},
            )
    assert 30 < solvable < 70


# --- Groups of episodes


class Vectors(gym.Wrapper):
    """The 2 x 2 puzzle in numbers: SB3's vector environments hold no texts."""

    observation_space = spaces.Box(0.0, 1.0, (16,), np.float32)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        text, info = self.env.reset(seed=seed, options=options)
        return self.vector(text), info

    def step(self, action):
        text, *rest = self.env.step(boxed(DIRECTIONS[action]))
        return self.vector(text), *rest

    def vector(self, text):
        rows = re.findall(r"^ *(__|\d+) +(__|\d+) *$", text, re.MULTILINE)
        tiles = [int(tile.replace("__", "0")) for row in rows for tile in row]
        return np.eye(4, dtype=np.float32)[tiles].ravel() if tiles else np.zeros(16, np.float32)


def make_vectors():
    return Vectors(gym.make("seeupo_gym:" + GEM.env_id, game="FifteenPuzzle"))


def test_groups_start_alike_and_learn():
    model = check_groups_start_alike(DummyVecEnv([make_vectors] * 4), n_groups=4, group_size=4, n_steps=300)
    assert model.n_turns == 10


@pytest.mark.process
def test_worker_processes_play_the_same():
    check_worker_processes_play_the_same(make_vectors, (0, 2, 1, 3))
