"""The seed of a reset fixes also what the games hide, as the number that is to be guessed."""

import random

import pytest

from seeupo_gym.envs.hidden_state import find_hidden_state
from seeupo_gym.envs.suites.gem import GAMES as GEM_GAMES
from seeupo_gym.envs.suites.gem import GEMEnv
from seeupo_gym.envs.suites.text_arena import GAMES as ARENA_GAMES
from seeupo_gym.envs.suites.text_arena import TextArenaEnv


@pytest.mark.parametrize("game", ["GuessTheNumber", "Mastermind"])
def test_the_secret_follows_from_the_seed(game):
    pytest.importorskip("textarena")
    secrets = []
    for earlier in range(3):
        random.seed(earlier)  # what the program drew before has no influence
        env = TextArenaEnv(game=game)
        for seed in (5, 99, 5):
            env.reset(seed=seed)
            secrets.append((seed, str(env.game.state.game_state)))
            env.step("[3]")
    assert len(set(secrets)) == 2
    assert secrets[0][1] != secrets[1][1]


@pytest.mark.parametrize("game", ARENA_GAMES)
def test_games_of_text_arena_are_not_suspected(game):
    pytest.importorskip("textarena")
    assert find_hidden_state(TextArenaEnv(game=game), 5) is None


@pytest.mark.parametrize("game", GEM_GAMES)
def test_games_of_gem_are_not_suspected(game):
    pytest.importorskip("gem")
    assert find_hidden_state(GEMEnv(game=game), 5) is None
