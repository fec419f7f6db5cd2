"""TextWorldExpress's games: gold paths, seeds, commands, hostile messages, scores, vector environments."""

import string

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("textworld_express")

from helpers.suites import (
    check_global_generators_stay,
    check_transcript,
    check_wrong_calls,
)
from helpers.text_world_express import EASY_COIN, java_of, play_expert
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from seeupo_gym.envs.suites.text_world_express import (
    FOLD_SIZE,
    FOLD_STARTS,
    JavaProcess,
    TextWorldExpressEnv,
)

pytestmark = pytest.mark.process  # Java


@pytest.fixture(scope="module")
def shared():
    env = TextWorldExpressEnv("cookingworld", turns=100)
    yield env
    env.close()


def gold_path(env, seed):
    env.reset(seed=seed)
    path, done = [], False
    while not done:
        path.append(env.expert_message())
        done = env.step(path[-1])[2]
    return path


@pytest.mark.parametrize(
    "game", ["cookingworld", "coin", "twc", "mapreader", "arithmetic", "sorting", "simonsays", "peckingorder"]
)
def test_gold_path_solves_every_game(game):
    env = TextWorldExpressEnv(game, turns=100)
    try:
        for seed in (0, 1, FOLD_SIZE + 2):
            rewards, info = play_expert(env, seed)
            assert info["is_success"]
            assert info["score"] == 1.0
            assert rewards[-1] == 1.0
            assert not any(rewards[:-1])
    finally:
        env.close()


def test_a_seed_fixes_the_game_and_others_differ(shared):
    first, info = shared.reset(seed=3)
    again, info_again = shared.reset(seed=3)
    assert first == again
    assert info == info_again
    assert len({shared.reset(seed=seed)[0] for seed in range(10)}) == 10
    assert shared.reset(seed=3 + FOLD_SIZE)[0] == first


def test_seeds_stay_within_the_first_games(coin):
    coin.n_games = 2
    games = {coin.reset(seed=seed)[0] for seed in range(2)}
    assert all(coin.reset(seed=seed)[0] in games for seed in range(2, 12))
    for _ in range(5):
        assert coin.reset()[0] in games


def test_expert_does_not_change_the_game(shared):
    def texts(ask):
        texts = [shared.reset(seed=5)[0]]
        for command in gold:
            if ask:
                shared.expert_message()
            texts.append(shared.step(command)[0])
        return texts

    gold = gold_path(shared, 5)[:-1]
    assert texts(ask=True) == texts(ask=False)


def test_expert_asked_late_finds_its_place(shared):
    gold = gold_path(shared, 6)
    shared.reset(seed=6)
    for command in gold[:4]:
        shared.step(command)
    assert shared.expert_message() == gold[4]
    shared.step("inventory")
    with pytest.raises(RuntimeError, match="left the suite's gold path"):
        shared.expert_message()


def test_folds_are_the_suites():
    java = JavaProcess("coin", "", 5)
    lists = {"train": "getValidSeedsTrain", "dev": "getValidSeedsDev", "test": "getValidSeedsTest"}
    for fold, start in FOLD_STARTS.items():
        assert java.call(lists[fold]) == list(range(start, start + FOLD_SIZE))


def test_commands_are_sorted_and_in_the_text(shared):
    text, info = shared.reset(seed=1)
    commands = info["admissible_commands"]
    assert commands == sorted(commands)
    assert len(commands) > 10
    assert text.endswith(f"Commands: {'; '.join(commands)}")
    assert info["look"].strip() in text
    assert text.count(info["look"].strip()) == 1
    assert info["inventory"].strip() in text
    text, *_, info = shared.step("inventory")
    assert info["admissible_commands"] == sorted(info["admissible_commands"])
    assert info["look"].strip() in text


@pytest.mark.parametrize("command", ["", "frobnicate", "help", "x" * 1_000_000, "\ud800\x00\n", "__import__('os')"])
def test_other_messages_get_a_reply_and_cost_a_turn(coin, command):
    _, before = coin.reset(seed=0)
    text, reward, terminated, truncated, info = coin.step(command)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info.pop("seeupo_gym/malformed")
    assert info == before
    assert text
    assert coin.observation_space.contains(text)
    for _ in range(4):
        assert not coin.step(command)[2]
    _, reward, terminated, truncated, info = coin.step(command)
    assert (reward, terminated, truncated, info["is_success"]) == (0.0, True, False, False)
    with pytest.raises(gym.error.ResetNeeded):
        coin.step(command)


def test_delta_rewards_add_up_to_the_final_score():
    env = TextWorldExpressEnv("twc", turns=100, reward="delta")
    try:
        rewards, info = play_expert(env, 2)
        assert sum(rewards) == pytest.approx(info["score"])
        assert sum(reward > 0 for reward in rewards) > 1
    finally:
        env.close()


def test_part_of_a_task_pays_its_score_at_the_limit():
    env = TextWorldExpressEnv("twc", turns=6)
    try:
        rewards, info = play_expert(env, 3)  # four things to put away, one of them by then
        assert len(rewards) == 6
        assert not any(rewards[:-1])
        assert rewards[-1] == info["score"]
        assert 0 < info["score"] < 1
        assert not info["is_success"]
    finally:
        env.close()


def test_lost_game_ends():
    env = TextWorldExpressEnv("simonsays")
    try:
        _, info = env.reset(seed=0)
        wrong = next(c for c in info["admissible_commands"] if c != env.expert_message())
        _, reward, terminated, _, info = env.step(wrong)
        assert (reward, terminated, info["is_success"]) == (-1.0, True, False)
    finally:
        env.close()


def test_gymnasium_checker_and_registration():
    env = gym.make("seeupo_gym/TextWorldExpress-v0", params="numLocations=4, includeDoors=0", turns=7)
    try:
        assert env.unwrapped.max_turns == 7
        check_env(env.unwrapped, skip_render_check=True)
    finally:
        env.close()


def test_transcript(coin):
    check_transcript(coin, "inventory")
    assert set(coin.render()) <= set(string.printable)


@pytest.mark.parametrize(
    "arguments",
    [
        {"game": "chess"},
        {"game": 3},
        {"fold": "Train"},
        {"reward": "dense"},
        {"turns": 0},
        {"turns": "9"},
        {"n_games": 1001},
        {"params": "nonsense"},
        {"params": {"numLocations": "4"}},
        {"params": 4},
    ],
)
def test_wrong_arguments(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        TextWorldExpressEnv(**arguments)


@pytest.mark.parametrize("params", ["numLocation=4", {"numLocations": 400}, {"numLocations": 0}])
def test_what_the_game_refuses(params):
    env = TextWorldExpressEnv("coin", params)
    with pytest.raises(ValueError, match=r"numLocation|Number of locations"):
        env.reset(seed=0)
    assert java_of(env) is None


def test_what_the_game_makes_no_sense_of():
    env = TextWorldExpressEnv("twc", {"numItemsToPutAway": 0})
    with pytest.raises(ValueError, match="twc has no game for params 'numItemsToPutAway=0'"):
        env.reset(seed=3)
    assert java_of(env) is None


def test_wrong_calls(coin):
    check_wrong_calls(coin, "inventory")
    with pytest.raises(TypeError, match="render_mode"):
        TextWorldExpressEnv(render_mode="human")


def test_global_generators_are_left_alone(coin):
    check_global_generators_stay(lambda: (play_expert(coin, 0), coin.reset()))


def make_view():
    from seeupo_gym.envs.views.candidate_view import CandidateView

    return CandidateView(TextWorldExpressEnv("coin", EASY_COIN, turns=6), n_candidates=8, n_features=32)


@pytest.mark.parametrize("vec_env_class", [DummyVecEnv, SubprocVecEnv])
def test_vector_environments(vec_env_class):
    pytest.importorskip("sklearn")
    env = vec_env_class([make_view, make_view])
    try:
        env.seed(4)
        obs = env.reset()
        assert obs["candidates"].shape == (2, 8, 32)
        masks = np.stack(env.env_method("action_masks"))
        lasting = 0
        for _ in range(6):
            # "inventory" comes first in every room of this game, and never ends it.
            obs, _, dones, infos = env.step([0, 0])
            assert [info["command"] for info in infos] == ["inventory", "inventory"]
            lasting += not dones.any()
        assert lasting == 5
        assert dones.all()
        assert [info["is_success"] for info in infos] == [False, False]
        assert masks.any(axis=1).all()
    finally:
        env.close()
