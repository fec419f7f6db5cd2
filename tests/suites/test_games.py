"""GEM's and TextArena's games alike: seeds, protected generators, turn limits, transcripts, experts, groups."""

import random
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from helpers.games import GEM, TEXT_ARENA
from helpers.processes import run
from helpers.suites import check_global_generators_stay, check_transcript, check_wrong_calls

SUITES = [suite for suite in (GEM, TEXT_ARENA) if suite.is_installed()]
if not SUITES:
    pytest.skip("needs gem or textarena", allow_module_level=True)


def each(names, rows):
    """Parametrize a test with a suite and what else a row has, with names that say it."""
    rows = [(suite, *rest) for suite, *rest in rows if suite in SUITES]
    return pytest.mark.parametrize(names, rows, ids=["-".join([suite.name, *map(str, rest)]) for suite, *rest in rows])


BOTH = (GEM, TEXT_ARENA)
LEVELS = [(suite, game, level) for suite in BOTH for game in suite.games for level in suite.games[game].levels]
each_suite = each(("suite",), [(suite,) for suite in BOTH])
each_game = each(("suite", "game"), [(suite, game) for suite in BOTH for game in suite.games])
# Sokoban's hard rooms take GEM many seconds each.
each_level = each(("suite", "game", "level"), [row for row in LEVELS if row[1:] != ("Sokoban", "hard")])
ALWAYS_THE_SAME = ("TowerofHanoi", "TowerOfHanoi")


@pytest.mark.process
@each_suite
def test_import_is_lazy_and_has_no_side_effects(suite):
    code = f"""
import logging, random, sys
import numpy as np
from {suite.make.__module__} import {suite.make.__name__} as make
assert "{suite.package}" not in sys.modules
random.seed(5); np.random.seed(5)
make("Minesweeper").reset(seed=1)
assert "{suite.package}" in sys.modules
drawn = random.random(), np.random.random()
random.seed(5); np.random.seed(5)
assert drawn == (random.random(), np.random.random())
assert logging.getLogger().handlers == [] and logging.getLogger().level == logging.WARNING
"""
    run(sys.executable, "-W", "error", "-c", code)


@each_game
def test_checker_accepts(suite, game):
    check_env(gym.make(suite.env_id, game=game).unwrapped)


@each_level
def test_levels_say_their_turn_limit(suite, game, level):
    env = gym.make(suite.env_id, game=game, level=level)
    text, _ = env.reset(seed=0)
    assert f"At most {env.unwrapped.max_turns} turns." in text
    assert env.observation_space.contains(text)


@each_suite
def test_wrong_calls_are_refused(suite):
    env = suite.make("GuessTheNumber")
    check_wrong_calls(env, suite.write(1))
    env.reset(seed=0)
    while not env.step("no move")[2]:
        pass
    with pytest.raises(gym.error.ResetNeeded):
        env.step(suite.write(1))
    with pytest.raises(TypeError, match="render_mode"):
        suite.make(render_mode="human")


@each_suite
def test_transcript(suite):
    (tower,) = set(ALWAYS_THE_SAME) & set(suite.games)
    check_transcript(suite.make(tower, turns=2, render_mode="ansi"), suite.write("A", "B"), suite.write("A", "C"))
    assert suite.make(tower).render() is None


@each_game
def test_seeds_fix_the_task(suite, game):
    env, other = suite.make(game), suite.make(game)
    episodes = [suite.play(env, game, seed) for seed in range(6)]
    random.seed(99)
    # The other way round: nothing of an earlier episode is left in a later one.
    assert [suite.play(other, game, seed) for seed in reversed(range(6))] == episodes[::-1]
    assert (len({str(episode) for episode in episodes}) > 1) == (game not in ALWAYS_THE_SAME)


@each_game
def test_unseeded_resets_follow_the_last_seed_and_differ(suite, game):
    def episodes():
        env = suite.make(game)
        env.reset(seed=3)
        return [str(suite.play(env, game, None)) for _ in range(4)]

    assert episodes() == episodes()
    assert (len(set(episodes())) > 1) == (game not in ALWAYS_THE_SAME)


@each_game
def test_global_generators_stay_as_they_were(suite, game):
    check_global_generators_stay(lambda: suite.play(suite.make(game), game, seed=4))


@each(
    ("suite", "game"),
    [(suite, game) for suite in BOTH for game in ("2048", "Blackjack", "Bandit", "Minesweeper") if game in suite.games],
)
def test_interleaved_environments_do_not_disturb_each_other(suite, game):
    def moves(env, seed, between):
        rng = np.random.default_rng([7, 1])
        shown = [env.reset(seed=seed)[0]]
        for _ in range(4):
            between()
            # The first cell is revealed only now, which is when the mines are laid.
            first_cell = suite is GEM and game == "Minesweeper"
            text, *_, done, _, _ = env.step(suite.write("reveal", 2, 2) if first_cell else suite.random_move(game, rng))
            shown.append(text)
            if done:
                break
        return shown

    other = suite.make(game)
    rng = np.random.default_rng(8)

    def disturb():
        random.random()
        np.random.random()  # noqa: NPY002
        suite.play(other, game, seed=int(rng.integers(1000)))

    for seed in range(4):
        alone = moves(suite.make(game), seed, lambda: None)
        assert moves(suite.make(game), seed, disturb) == alone


@each(("suite", "game", "level"), [row for row in LEVELS if row[1] == "GuessTheNumber"])
def test_bisection_guesses_every_number(suite, game, level):
    env = gym.make(suite.env_id, game=game, level=level)
    assert {suite.bisect(env, seed) for seed in range(200)} == {(1.0, True)}


TOWERS = {(GEM, "easy"): 3, (GEM, "hard"): 5}
TOWERS |= {(TEXT_ARENA, level): disks for disks, level in enumerate(TEXT_ARENA.games["TowerOfHanoi"].levels, start=3)}


@each(("suite", "game", "level"), [row for row in LEVELS if row[1] in ALWAYS_THE_SAME])
def test_recursion_solves_the_tower(suite, game, level):
    env = gym.make(suite.env_id, game=game, level=level)
    env.reset(seed=0)
    *steps, last = [env.step(move) for move in suite.hanoi(TOWERS[suite, level])]
    assert len(steps) + 1 == 2 ** TOWERS[suite, level] - 1
    assert [reward for _, reward, *_ in steps] == [0.0] * len(steps)
    assert last[1:4] == (1.0, True, False)
    assert last[4]["is_success"]
