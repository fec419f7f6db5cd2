"""GEM's games: seeds, protected generators, turn limits, success, hostile messages, scripted experts, groups."""

import pickle
import random
import re
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from seeupo_gym import SeeUPO
from seeupo_gym.envs.suites.gem import GAMES, GEMEnv, OwnRandomness

pytest.importorskip("gem.envs.registration")

ENV_ID = "seeupo_gym/GEM-v0"
DIRECTIONS = ["up", "down", "left", "right"]
# Sokoban's hard rooms take GEM many seconds each, and Sudoku's up to three.
QUICK = [(game, level) for game in GAMES for level in GAMES[game].levels if (game, level) != ("Sokoban", "hard")]
each_game = pytest.mark.parametrize("game", GAMES)


def random_move(game, rng, size):
    """Any well-formed move of a board of a given size."""
    if game == "GuessTheNumber":
        return boxed(rng.integers(1, size + 1))
    if game == "Mastermind":
        return boxed(*rng.choice(np.arange(1, 7), size=2, replace=False))
    if game == "Minesweeper":
        return boxed(rng.choice(["reveal", "flag"]), *rng.integers(0, size, 2))
    if game == "TowerofHanoi":
        return boxed(*rng.choice(["A", "B", "C"], size=2, replace=False))
    if game == "Sudoku":
        return boxed(*rng.integers(1, size + 1, 3))
    return boxed(rng.choice(DIRECTIONS))


def boxed(*words):
    return "\\boxed{" + " ".join(map(str, words)) + "}"


EASY_SIZES = {"GuessTheNumber": 10, "Minesweeper": 5, "Sudoku": 4}


def play(env, game, seed, action_seed=1):
    """A random episode: all that it shows. The actions' generator has a seed that the game does not use."""
    rng = np.random.default_rng([7, action_seed])
    shown, done = [env.reset(seed=seed)[0]], False
    while not done:
        text, reward, done, truncated, info = env.step(random_move(game, rng, EASY_SIZES.get(game, 0)))
        assert not truncated
        assert ("is_success" in info) == done
        shown += [text, reward, done, info]
    return shown


def global_states():
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 (the generator that GEM seeds)
    return random.getstate(), kind, keys.tolist(), rest


# --- Contracts


def test_import_is_lazy_and_has_no_side_effects():
    code = """
import logging, random, sys
import numpy as np
from seeupo_gym.envs.suites.gem import GEMEnv
assert "gem" not in sys.modules
random.seed(5); np.random.seed(5)
GEMEnv("Minesweeper").reset(seed=1)
assert "gem" in sys.modules
drawn = random.random(), np.random.random()
random.seed(5); np.random.seed(5)
assert drawn == (random.random(), np.random.random())
assert logging.getLogger().handlers == [] and logging.getLogger().level == logging.WARNING
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@each_game
def test_checker_accepts(game):
    check_env(gym.make(ENV_ID, game=game).unwrapped)


@pytest.mark.parametrize(("game", "level"), QUICK)
def test_registered_levels_say_their_turn_limit(game, level):
    env = gym.make(ENV_ID, game=game, level=level)
    text, _ = env.reset(seed=0)
    assert f"At most {env.unwrapped.max_turns} turns." in text
    assert env.observation_space.contains(text)


@each_game
def test_the_examples_of_the_format_are_moves(game):
    env = gym.make(ENV_ID, game=game)
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
    with pytest.raises(TypeError, match="render_mode"):
        GEMEnv(render_mode="human")


def test_wrong_calls_are_refused():
    env = GEMEnv("GuessTheNumber")
    with pytest.raises(gym.error.ResetNeeded):
        env.step(boxed(1))
    with pytest.raises(ValueError, match="no reset options"):
        env.reset(options={"level": "hard"})
    with pytest.raises(ValueError, match="at most 4294967295"):
        env.reset(seed=2**32)
    env.reset(seed=2**32 - 1)
    for action in (3, None, b"\\boxed{3}", ["\\boxed{3}"]):
        with pytest.raises(ValueError, match="must be a str"):
            env.step(action)
    env.step("no move")
    with pytest.raises(gym.error.ResetNeeded):
        env.step(boxed(1))


def test_transcript():
    env = GEMEnv("TowerofHanoi", turns=2, render_mode="ansi")
    opening, _ = env.reset(seed=0)
    first = env.step("\\boxed{A B}")[0]
    last = env.step("\\boxed{A C}")[0]
    assert env.render() == f"{opening}\nAgent: \\boxed{{A B}}\n{first}\nAgent: \\boxed{{A C}}\n{last}"
    assert GEMEnv("TowerofHanoi").render() is None


# --- Seeds and generators


@each_game
def test_seeds_fix_the_task(game):
    env, other = GEMEnv(game), GEMEnv(game)
    episodes = [play(env, game, seed) for seed in range(6)]
    random.seed(99)
    assert [play(other, game, seed) for seed in range(6)] == episodes
    distinct = {str(episode) for episode in episodes}
    # Every game of Hanoi starts the same.
    assert len(distinct) == 1 if game == "TowerofHanoi" else len(distinct) > 1


@each_game
def test_unseeded_resets_follow_the_last_seed_and_differ(game):
    def openings():
        env = GEMEnv(game)
        return [env.reset(seed=3)[0], *(env.reset()[0] for _ in range(4))]

    assert openings() == openings()
    assert len(set(openings())) == 1 if game == "TowerofHanoi" else len(set(openings())) > 1


@each_game
def test_global_generators_stay_as_they_were(game):
    random.seed(11)
    np.random.seed(11)  # noqa: NPY002
    before = global_states()
    play(GEMEnv(game), game, seed=4)
    assert global_states() == before


@pytest.mark.parametrize("game", ["2048", "Minesweeper"])
def test_interleaved_environments_do_not_disturb_each_other(game):
    def moves(env, seed, between):
        rng = np.random.default_rng([7, 1])
        shown = [env.reset(seed=seed)[0]]
        for _ in range(4):
            between()
            # The first cell is revealed only now, which is when the mines are laid.
            move = boxed("reveal", 2, 2) if game == "Minesweeper" else random_move(game, rng, 0)
            shown.append(env.step(move)[0])
        return shown

    other = GEMEnv(game)
    rng = np.random.default_rng(8)

    def disturb():
        random.random()
        np.random.random()  # noqa: NPY002
        play(other, game, seed=int(rng.integers(1000)))

    for seed in range(4):
        alone = moves(GEMEnv(game), seed, lambda: None)
        assert moves(GEMEnv(game), seed, disturb) == alone


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
    moves = [random_move(game, rng, EASY_SIZES.get(game, 0)) for _ in range(3)]
    env.step(moves[0])
    copy = pickle.loads(pickle.dumps(env))
    if env._running:
        assert copy.step(moves[1]) == env.step(moves[1])


# --- Rewards, ends, success


@each_game
@pytest.mark.parametrize("turns", [1, 3, 400])
def test_random_play(game, turns):
    env = GEMEnv(game, turns=turns)
    assert env.max_turns == turns
    lengths = []
    for seed in range(10):
        episode = play(env, game, seed, action_seed=seed)
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
    endings = [play(env, game, seed, action_seed=seed)[-4:] for seed in range(8)]
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


def numbers(env, seed):
    """Halve what is left of the range that the rules name."""
    text, _ = env.reset(seed=seed)
    low, high = map(int, re.search(r"between (\d+) and (\d+)", text).groups())
    while True:
        middle = (low + high) // 2
        text, reward, done, _, info = env.step(boxed(middle))
        if done:
            return reward, info["is_success"]
        low, high = (middle + 1, high) if "higher" in text else (low, middle - 1)


@pytest.mark.parametrize("level", ["easy", "hard"])
def test_bisection_guesses_every_number(level):
    env = gym.make(ENV_ID, game="GuessTheNumber", level=level)
    assert {numbers(env, seed) for seed in range(200)} == {(1.0, True)}


def hanoi(n, source, target, spare):
    if n:
        yield from hanoi(n - 1, source, spare, target)
        yield boxed(source, target)
        yield from hanoi(n - 1, spare, target, source)


@pytest.mark.parametrize(("level", "disks"), [("easy", 3), ("hard", 5)])
def test_recursion_solves_the_tower(level, disks):
    env = gym.make(ENV_ID, game="TowerofHanoi", level=level)
    env.reset(seed=0)
    *steps, last = [env.step(move) for move in hanoi(disks, "A", "C", "B")]
    assert len(steps) + 1 == 2**disks - 1
    assert [reward for _, reward, *_ in steps] == [0.0] * len(steps)
    assert last[1:] == (1.0, True, False, {"seeupo_gym/malformed": False, "is_success": True})


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
    return Vectors(gym.make("seeupo_gym:" + ENV_ID, game="FifteenPuzzle"))


def test_groups_start_alike_and_learn():
    env = DummyVecEnv([make_vectors] * 4)
    model = SeeUPO("MlpPolicy", env, n_groups=4, group_size=4, seed=0)
    # A warning, which is an error here, would say that the members of a group do not start alike.
    model.learn(300)
    assert model.num_timesteps >= 300
    assert model.n_turns == 10


def test_worker_processes_play_the_same():
    def first_steps(vec_env_cls):
        env = vec_env_cls([make_vectors])
        env.seed(3)
        shown = [env.reset(), *(env.step(np.array([action]))[0] for action in (0, 2, 1, 3))]
        env.close()
        return np.array(shown)

    np.testing.assert_array_equal(first_steps(SubprocVecEnv), first_steps(DummyVecEnv))
