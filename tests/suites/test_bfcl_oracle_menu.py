"""BFCLOracleMenu: gold play passes, chance does not, and the menu follows the seed. Needs scikit-learn."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from helpers.processes import IN_PROCESSES
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

pytest.importorskip("bfcl_eval")
pytest.importorskip("mpmath")
pytest.importorskip("sklearn")

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.envs.suites.bfcl import CATEGORIES, load
from seeupo_gym.envs.suites.bfcl_calls import read_calls
from seeupo_gym.envs.suites.bfcl_oracle_menu import BFCLOracleMenuEnv, gold_fits

ID = "seeupo_gym/BFCLOracleMenu-v0"


def play_gold(env, seed):
    """Play what the expert chooses, without the features, which take most of the time."""
    menu = env.env
    _, info = menu.reset(seed=seed)
    done, rewards = False, []
    while not done:
        _, reward, done, truncated, info = menu.step(info["admissible_commands"][env.expert_action()])
        assert not truncated
        rewards.append(reward)
    return rewards, info


def menu_of(env, seed):
    return env.env.reset(seed=seed)[1]["admissible_commands"]


@pytest.mark.parametrize("category", CATEGORIES)
def test_gold_play_passes_every_task_that_fits(category):
    env = BFCLOracleMenuEnv(category=category, dense_reward=True)
    tasks = env.unwrapped.tasks
    assert len(tasks) == (198 if category == "long_context" else 200)
    for seed in range(len(tasks)):
        rewards, info = play_gold(env, seed)
        assert info["is_success"]
        assert sum(rewards) == pytest.approx(1)
        assert len(rewards) <= env.get_wrapper_attr("max_turns") / 2


@pytest.mark.parametrize("k", [32, 64])
def test_gold_play_passes_with_more_entries(k):
    env = BFCLOracleMenuEnv(k=k)
    assert all(play_gold(env, seed)[1]["is_success"] for seed in range(60))


def test_what_does_not_fit_is_left_out_or_refused():
    gold = load("long_context").gold
    left_out = [task for task in range(200) if not gold_fits(gold[task], 16)]
    assert len(left_out) == 2
    assert all(max(map(len, gold[task])) == 34 for task in left_out), "a limit of the user turn, whatever k is"
    assert set(BFCLOracleMenuEnv(k=64, category="long_context").unwrapped.tasks) == set(range(200)) - set(left_out)
    with pytest.raises(ValueError, match="do not fit into a menu of 64"):
        BFCLOracleMenuEnv(k=64, category="long_context", task=left_out[0])
    assert not gold_fits([[str(i) for i in range(16)]], 16)
    assert gold_fits([[str(i) for i in range(15)], ["0"]], 16)


@pytest.mark.parametrize("k", [16, 32, 64])
def test_a_menu_holds_the_gold_among_calls_of_the_same_classes(k):
    data = load("base")
    env = BFCLOracleMenuEnv(k=k)
    places = []
    for task in range(0, 200, 3):
        menu = menu_of(env, task)
        gold = {call for turn in data.gold[task] for call in turn}
        assert (len(set(menu)), menu[0]) == (k, "Done.")
        assert gold <= set(menu)
        documents = [doc for name in data.entries[task]["involved_classes"] for doc in data.documents[name]]
        assert {read_calls(call)[0].node.func.id for call in menu[1:]} <= {doc["name"] for doc in documents}
        others = {call for i in range(200) if i != task for turn in data.gold[i] for call in turn}
        assert set(menu[1:]) <= gold | others
        places += [menu.index(call) for call in gold]
    # Uniform over places 1 to k - 1: their mean is k / 2, with a standard deviation below 0.3 k a call.
    assert abs(np.mean(places) - k / 2) < 4 * 0.3 * k / np.sqrt(len(places))


def test_seeds_fix_task_and_menu():
    env, other = BFCLOracleMenuEnv(split="test"), BFCLOracleMenuEnv(split="test")
    first, second = env.reset(seed=3), other.reset(seed=3)
    assert first[1] == second[1]
    assert all(np.array_equal(first[0][key], second[0][key]) for key in first[0])
    assert [env.reset()[1] for _ in range(4)] == [other.reset()[1] for _ in range(4)]
    assert env.reset(seed=3)[1]["task"] == env.reset(seed=43)[1]["task"] != env.reset(seed=4)[1]["task"]
    assert menu_of(env, 3) != menu_of(env, 43), "the same task with another menu"
    assert sorted(menu_of(env, 3)) != sorted(menu_of(env, 43)), "and other distractors"
    # The menu has a generator of its own: which task an unseeded reset draws is BFCLMultiTurn's draw.
    text_env = gym.make("seeupo_gym/BFCLMultiTurn-v0", split="test").unwrapped
    text_env.reset(seed=5)
    env.reset(seed=5)
    assert text_env.reset()[1]["task"] == env.reset()[1]["task"]


def test_splits_are_those_of_the_text_environment():
    for split in ("train", "test"):
        env = BFCLOracleMenuEnv(split=split)
        assert env.unwrapped.tasks == gym.make("seeupo_gym/BFCLMultiTurn-v0", split=split).unwrapped.tasks
        assert env.get_wrapper_attr("max_turns") == 32


def test_chance_hardly_ever_passes():
    env, rng = BFCLOracleMenuEnv(), np.random.default_rng(1)
    passed = 0
    for seed in range(200):
        _, info = env.env.reset(seed=seed)
        done = False
        while not done:
            *_, done, _, info = env.env.step(info["admissible_commands"][rng.integers(16)])
        passed += info["is_success"]
    assert passed <= 3


def test_an_episode_ends_at_the_turn_limit():
    env = BFCLOracleMenuEnv(task=0, turns=3)
    env.reset(seed=0)
    for turn in range(3):
        _, reward, done, truncated, info = env.step(1)
        assert (done, truncated, reward) == (turn == 2, False, 0.0)
    assert (info["is_success"], info["error"]) == (False, "oracle_menu:turn_limit")
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)


def test_the_state_says_what_was_done_in_this_user_turn():
    env = BFCLOracleMenuEnv(task=0)
    obs, info = env.reset(seed=0)
    assert env.action_masks().all()
    assert (info["request"].startswith("User: "), info["made"], info["reply"]) == (True, "", "")
    call = env.expert_action()
    after, *_, now = env.step(call)
    assert now["made"] == now["command"] == info["admissible_commands"][call]
    assert now["request"] == info["request"]
    assert now["reply"].startswith("Tool: ")
    assert not np.array_equal(obs["state"], after["state"])
    np.testing.assert_array_equal(obs["candidates"], after["candidates"])
    *_, now = env.step(0)
    assert now["request"] != info["request"]
    assert (now["made"], now["reply"]) == ("", "")


@pytest.mark.parametrize(
    "kwargs", [{"k": 8}, {"k": 17}, {"turns": 0}, {"turns": True}, {"category": "x"}, {"split": "x"}, {"task": 200}]
)
def test_wrong_arguments_are_refused(kwargs):
    with pytest.raises(ValueError, match="must be"):
        BFCLOracleMenuEnv(**kwargs)


def test_wrong_use_is_refused():
    env = BFCLOracleMenuEnv()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    with pytest.raises(ValueError, match="options"):
        env.reset(options={"task": 1})
    env.reset(seed=0)
    with pytest.raises(ValueError, match="must be in Discrete"):
        env.step(16)


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped version.*")
def test_gymnasium_checks_and_transcript():
    check_env(BFCLOracleMenuEnv(), skip_render_check=True)
    env = gym.make(ID, render_mode="ansi", k=32)
    assert env.action_space == gym.spaces.Discrete(32)
    env.reset(seed=0)
    env.step(0)
    assert "Agent: Done." in env.render()


def test_it_pickles_in_the_middle_of_an_episode():
    env = BFCLOracleMenuEnv()
    env.reset(seed=0)
    env.step(env.expert_action())
    for twin in (env, pickle.loads(pickle.dumps(env))):
        done = False
        while not done:
            *_, done, _, info = twin.step(twin.expert_action())
        assert info["is_success"]


@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, IN_PROCESSES])
def test_vector_environments(vec_env_cls):
    env = make_vec(ID, 2, seed=0, vec_env_cls=vec_env_cls, task=0)
    try:
        obs = env.reset()
        assert not np.array_equal(obs["candidates"][0], obs["candidates"][1]), "seeds 0 and 1: other menus"
        _, _, dones, infos = env.step([0, 1])
        assert not dones.any()
        assert [info["calls"] for info in infos] == [0, 1]
    finally:
        env.close()


def test_seeupo_and_ppo_run():
    model = SeeUPO("MultiInputPolicy", make_vec(ID, 4), n_groups=2, group_size=2, turn_policies="shared", seed=0)
    for iteration in (1, 2):
        model.learn(1, reset_num_timesteps=False)
        assert len(model.ep_info_buffer) == 4 * iteration
    # All members of all groups may have failed, and then there is nothing to learn from.
    assert all(parameter.isfinite().all() for parameter in model.policy.parameters())
    PPO("MultiInputPolicy", make_vec(ID, 2), n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu").learn(32)
