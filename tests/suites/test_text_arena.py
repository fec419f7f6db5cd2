"""TextArena's games: moves, ends, hostile messages, experts, groups; what GEM's promise too is in test_games.py."""

import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from helpers.games import BUTTONS, DIRECTIONS, TEXT_ARENA, bracketed
from helpers.suites import (
    check_groups_start_alike,
    check_worker_processes_play_the_same,
    copy_of_the_arguments,
)
from stable_baselines3.common.vec_env import DummyVecEnv

from seeupo_gym.envs.suites.text_arena import GAMES, TextArenaEnv

pytest.importorskip("textarena")

each_game = pytest.mark.parametrize("game", GAMES)
each_level = pytest.mark.parametrize(
    ("game", "level"), [(game, level) for game in GAMES for level in GAMES[game].levels]
)


# --- Contracts


@each_level
def test_the_turn_limit_is_not_beyond_that_of_the_game(game, level):
    env = gym.make(TEXT_ARENA.env_id, game=game, level=level)
    env.reset(seed=0)
    own = env.unwrapped.game.state.max_turns
    assert own is None or env.unwrapped.max_turns <= own + (game == "Bandit")


@each_game
def test_the_examples_of_the_format_are_moves(game):
    env = gym.make(TEXT_ARENA.env_id, game=game)
    text, _ = env.reset(seed=0)
    line = next(line for line in text.split("\n") if line.startswith("The format of a move"))
    examples = re.findall(r"\[.*?\]", line)
    assert examples
    for example in examples:
        env.reset(seed=0)
        reply = env.step(f"Not [this] one, but {example}, I think.")[0]
        assert "Invalid action" not in reply
        assert "did not respond" not in reply
        assert "must be" not in reply
        assert "format" not in reply


def test_one_move_a_message():
    env = TextArenaEnv("TowerOfHanoi")
    env.reset(seed=0)
    assert "You moved disk 1 from A to B." in env.step("[A C] then [A B]")[0]
    env.reset(seed=0)
    assert "invalid move" in env.step("[A B]" + "x" * 1_000)[0]


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="game must be one of"):
        TextArenaEnv("Wordle")
    with pytest.raises(ValueError, match="level of LightsOut must be one of"):
        TextArenaEnv("LightsOut", "hard")
    for turns in (0, -1, True, 2.0, "3", 15):
        with pytest.raises(ValueError, match="turns must be an integer from 1 to 14"):
            TextArenaEnv("TowerOfHanoi", turns=turns)


# --- Seeds and generators


@each_game
def test_a_pickle_carries_the_arguments_only(game):
    env = TextArenaEnv(game)
    env.reset(seed=5)
    copy = copy_of_the_arguments(env, bracketed(1))
    assert TEXT_ARENA.play(copy, game, seed=6) == TEXT_ARENA.play(env, game, seed=6)


def test_lights_out_never_starts_without_lights():
    env = TextArenaEnv("LightsOut")
    # TextArena cannot start the game with this seed: the presses that scramble it cancel each other.
    text, _ = env.reset(seed=10067)
    assert re.search(r"\d: .*O", text)
    assert env.reset(seed=10067)[0] == text


# --- Rewards, ends, success


@each_game
def test_random_play(game):
    env = TextArenaEnv(game)
    low = {"LightsOut": -5.0, "Bandit": -1.0, "Secretary": -1.0}.get(game, 0.0)
    for seed in range(30):
        episode = TEXT_ARENA.play(env, game, seed, action_seed=seed)
        rewards, ends, last = episode[2::4], episode[3::4], episode[-1]
        assert len(ends) <= env.max_turns
        assert ends == [False] * (len(ends) - 1) + [True]
        assert not any(rewards[:-1])
        assert low <= rewards[-1] <= 1.0
        assert last["reason"] in episode[-4]
        if last["is_success"]:
            assert rewards[-1] == 1.0 or (game == "Blackjack" and rewards[-1] > 0.2)


@each_level
@pytest.mark.parametrize("turns", [1, None])
def test_the_limit_holds_and_pays_the_share(game, level, turns):
    """Alternate invalid messages with moves, which no game takes for an end by itself."""
    env = TextArenaEnv(game, level, turns)
    env.reset(seed=1)
    rng = np.random.default_rng([7, 3])
    steps = []
    while not steps or not steps[-1][2]:
        steps.append(env.step("[?]" if len(steps) % 2 == 0 else TEXT_ARENA.random_move(game, rng)))
    assert len(steps) <= env.max_turns
    if turns == 1:
        # 2048 counts the first tiles as a share.
        assert 0.0 <= steps[0][1] < 0.1
        assert steps[0][2]
        assert steps[0][4] == {
            "seeupo_gym/malformed": True,
            "is_success": False,
            "reason": "The turn limit has been reached.",
        }


@pytest.mark.parametrize("game", GAMES)
def test_invalid_moves_are_malformed(game):
    def malformed(*messages):
        env.reset(seed=1)
        return [env.step(message)[4]["seeupo_gym/malformed"] for message in messages]

    env, rng = TextArenaEnv(game), np.random.default_rng([7, 3])
    assert malformed("no move") == [True]
    assert malformed("[?]", "[?]") == [True, True]  # the second one ends the game
    moves = [TEXT_ARENA.random_move(game, rng) for _ in range(50)]
    assert [False] in [malformed(move) for move in moves]


def test_tower_pays_its_share_at_the_limit():
    env = TextArenaEnv("TowerOfHanoi", turns=4)
    env.reset(seed=0)
    *_, last = [env.step(text) for text in ("[A C]", "[A B]", "[C B]", "[A C]")]
    assert last[1:4] == (pytest.approx(1 / 3), True, False)
    assert not last[4]["is_success"]


@pytest.mark.parametrize("message", ["", "I pass", "[]", "[" + "9" * 2000, "[[[[", "√" * 5000, "[٣]", "\ud800", "[\0]"])
@each_game
def test_two_invalid_moves_end_the_game(game, message):
    env = TextArenaEnv(game)
    env.reset(seed=0)
    text, *rest = env.step(message)
    assert rest == [0.0, False, False, {"seeupo_gym/malformed": True}]
    assert "You attempted an invalid move" in text
    assert env.observation_space.contains(text)
    text, reward, terminated, truncated, info = env.step(message)
    assert (terminated, truncated, info["is_success"]) == (True, False, False)
    assert info["reason"].startswith("Invalid Move")
    assert reward == -1.0 if game in ("Bandit", "Secretary") else 0.0 <= reward < 0.1
    assert env.observation_space.contains(text)


@each_game
@pytest.mark.parametrize(
    "inside", ["9" * 900, "9 " * 450 + "9", "9 9 9", "-1", "0", "1 1 1 1", "Player", "up down", "__import__('os')"]
)
def test_odd_moves_get_a_reply(game, inside):
    env = TextArenaEnv(game)
    env.reset(seed=2)
    text, reward, *_ = env.step("x" * 100_000 + "[" + inside + "]")
    assert reward == 0.0
    assert env.observation_space.contains(text)


def test_a_high_score_is_no_success():
    env = TextArenaEnv("2048", "ultra-easy", turns=1)
    env.reset(seed=0)
    env.game.state.game_state["score"] = 10_000
    _, reward, terminated, _, info = env.step("[left]")
    # TextArena's own reward: it is documented, and the success does not follow it.
    assert (reward, terminated, info["is_success"]) == (1.0, True, False)


# --- Scripted experts, which read what the agent reads


@pytest.mark.parametrize("level", GAMES["FrozenLake"].levels)
def test_a_search_crosses_the_lake(level):
    env = gym.make(TEXT_ARENA.env_id, game="FrozenLake", level=level)
    for seed in range(30):
        text, _ = env.reset(seed=seed)
        rows = [line.strip("|").split("|") for line in text.split("\n") if line.startswith("|")]
        grid = [[cell.strip() for cell in row] for row in rows]
        cells = {(r, c): grid[r][c] for r, c in np.ndindex(len(grid), len(grid))}
        queue = [next(cell for cell in cells if cells[cell] == "P")]
        ways = {queue[0]: []}
        for r, c in queue:
            for name, (dr, dc) in zip(DIRECTIONS, [(-1, 0), (1, 0), (0, -1), (0, 1)], strict=True):
                after = (r + dr, c + dc)
                if cells.get(after, "H") != "H" and after not in ways:
                    ways[after] = [*ways[r, c], name]
                    queue.append(after)
        way = ways[next(cell for cell in cells if cells[cell] == "G")]
        *_, last = [env.step(bracketed(name)) for name in way]
        assert last[1:4] == (1.0, True, False)
        assert last[4]["is_success"]


def test_a_hole_is_the_end():
    env = gym.make(TEXT_ARENA.env_id, game="FrozenLake")
    # The start of seed 3 has a hole below it, a sixth of the way.
    env.reset(seed=3)
    _, reward, terminated, _, info = env.step("[down]")
    assert (reward, terminated, info["is_success"]) == (pytest.approx(1 / 6), True, False)


def test_linear_algebra_puts_the_lights_out():
    cells = list(np.ndindex(5, 5))
    presses = np.array([[abs(r - a) + abs(c - b) <= 1 for a, b in cells] for r, c in cells], dtype=np.uint8).T
    # Gauss-Jordan elimination modulo 2, with the inverse on the right; two rows are zero, so four solutions exist.
    table = np.concatenate([presses, np.eye(25, dtype=np.uint8)], axis=1)
    pivots = []
    for column in range(25):
        below = [row for row in range(len(pivots), 25) if table[row, column]]
        if below:
            table[[len(pivots), below[0]]] = table[[below[0], len(pivots)]]
            for row in range(25):
                if row != len(pivots) and table[row, column]:
                    table[row] ^= table[len(pivots)]
            pivots.append(column)
    free = [column for column in range(25) if column not in pivots]
    env = gym.make(TEXT_ARENA.env_id, game="LightsOut")
    for seed in range(40):
        text, _ = env.reset(seed=seed)
        lit = np.array([[cell == "O" for cell in row.split()] for row in re.findall(r"\d: ([O. ]+)", text)])
        goal = table[:, 25:] @ lit.ravel().astype(np.uint8) % 2
        solutions = []
        for choice in np.ndindex(2, 2):
            solution = np.zeros(25, dtype=np.uint8)
            solution[free] = choice
            for row, column in enumerate(pivots):
                solution[column] = goal[row] ^ (table[row, free] @ np.array(choice, dtype=np.uint8) % 2)
            solutions.append(solution)
        shortest = min(solutions, key=np.sum)
        assert shortest.sum() <= 15
        *_, last = [env.step(bracketed(*cells[i])) for i in np.flatnonzero(shortest)]
        assert last[1:4] == (1.0, True, False)
        assert last[4]["is_success"]


def test_secretary_is_won_by_the_highest_value():
    env = TextArenaEnv("Secretary")
    for seed in range(20):
        env.reset(seed=seed)
        best = int(np.argmax(env.game.state.game_state["draws"]))
        steps = [env.step("[continue]") for _ in range(best)] + [env.step("[accept]")] * (best < 5)
        assert (steps[-1][1], steps[-1][4]["is_success"]) == (1.0, True)
        env.reset(seed=seed)
        first = env.step("Well: [accept]")
        assert (first[1], first[4]["is_success"]) == (float(best == 0), best == 0)


def test_bandit_is_won_by_the_best_button():
    env = TextArenaEnv("Bandit")
    for seed in range(10):
        for right in (True, False):
            env.reset(seed=seed)
            means = env.game.state.game_state["ground_truth"]
            steps = [env.step("[red]") for _ in range(20)]
            assert not any(done for _, _, done, _, _ in steps)
            assert "exhausted your budget" in steps[-1][0]
            best = max(means, key=means.get)
            other = next(button for button in BUTTONS if button != best)
            _, reward, done, _, info = env.step(bracketed(best if right else other))
            assert done
            assert info["is_success"] == right
            assert reward == float(right)


@pytest.mark.parametrize("level", GAMES["Minesweeper"].levels)
def test_minesweeper_is_won_when_the_safe_cells_are_revealed(level):
    env = TextArenaEnv("Minesweeper", level)
    for seed in range(5):
        env.reset(seed=seed)
        last = env.step(bracketed(2, 2))
        for row, column in np.ndindex(env.game.rows, env.game.cols):
            if not last[2] and env.game.grid[row][column] != -1 and not env.game.revealed[row][column]:
                last = env.step(bracketed(row, column))
        assert last[1:4] == (1.0, True, False)
        assert last[4]["is_success"]


def test_a_mine_is_an_invalid_move_but_not_malformed():
    env = TextArenaEnv("Minesweeper")
    env.reset(seed=0)
    assert not env.step(bracketed(2, 2))[2]
    mine = next(cell for cell in np.ndindex(5, 5) if env.game.grid[cell[0]][cell[1]] == -1)
    text, *rest = env.step(bracketed(*mine))
    assert rest == [0.0, False, False, {"seeupo_gym/malformed": False}]
    assert "You hit a mine" in text
    _, reward, terminated, _, info = env.step(bracketed(*mine))
    assert (terminated, info["is_success"], info["seeupo_gym/malformed"]) == (True, False, False)
    assert 0.0 <= reward < 1.0


def test_mastermind_is_won_by_the_code():
    for level in GAMES["Mastermind"].levels:
        env = TextArenaEnv("Mastermind", level)
        env.reset(seed=4)
        code = env.game.state.game_state["secret_code"]
        _, reward, terminated, _, info = env.step(bracketed(*code))
        assert (reward, terminated, info["is_success"]) == (1.0, True, True)


def test_corner_play_makes_the_tile():
    env = TextArenaEnv("2048")
    won = 0
    for seed in range(20):
        env.reset(seed=seed)
        done, turn = False, 0
        while not done:
            _, reward, done, _, info = env.step(bracketed(DIRECTIONS[[1, 2][turn % 2]] if turn % 9 else "right"))
            turn += 1
        assert info["is_success"] == (info["reason"].startswith("Congratulations"))
        won += info["is_success"]
        assert reward == 1.0 or not info["is_success"]
    assert won > 0


def test_blackjack_counts_hands():
    env = TextArenaEnv("Blackjack")
    outcomes = []
    for seed in range(40):
        text, _ = env.reset(seed=seed)
        done, hands = False, []
        while not done:
            score = int(re.findall(r"Score: (\d+)", text)[-1])
            text, reward, done, _, info = env.step("[stand]" if score >= 17 else "[hit]")
            hands += re.findall(r"Hand \d: you (\w+)\.", text)
        assert len(hands) == 5
        assert reward == pytest.approx(hands.count("win") / 5)
        assert info["is_success"] == (hands.count("win") > len(hands) - hands.count("win") - hands.count("draw"))
        outcomes.append(info["is_success"])
    assert 0 < sum(outcomes) < 40


# --- Groups of episodes


class Vectors(gym.Wrapper):
    """The tower in numbers: SB3's vector environments hold no texts."""

    observation_space = spaces.Box(0.0, 1.0, (9,), np.float32)
    action_space = spaces.Discrete(6)

    def reset(self, *, seed=None, options=None):
        text, info = self.env.reset(seed=seed, options=options)
        self.seen = self.vector(text)
        return self.seen, info

    def step(self, action):
        source, target = [(a, b) for a in "ABC" for b in "ABC" if a != b][action]
        text, *rest = self.env.step(bracketed(source, target))
        self.seen = self.vector(text) if "Current Board" in text else self.seen
        return self.seen, *rest

    def vector(self, text):
        vector = np.zeros((3, 3), np.float32)
        for tower, disks in re.findall(r"^([ABC]): \[(.*)\]$", text, re.MULTILINE):
            for disk in disks.split(", ") if disks else []:
                vector["ABC".index(tower), int(disk) - 1] = 1
        return vector.ravel()


def make_vectors():
    return Vectors(gym.make("seeupo_gym:" + TEXT_ARENA.env_id, game="TowerOfHanoi"))


def test_groups_start_alike_and_learn():
    model = check_groups_start_alike(DummyVecEnv([make_vectors] * 4), n_groups=4, group_size=4, n_steps=300)
    assert model.n_turns == 14


@pytest.mark.process
def test_worker_processes_play_the_same():
    check_worker_processes_play_the_same(make_vectors, (0, 1, 3, 1))
