"""MiniGrid and BabyAI through the recipe: what it adds, seeds, and SeeUPO on it."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from helpers.processes import IN_PROCESSES
from stable_baselines3.common.vec_env import DummyVecEnv

pytest.importorskip("minigrid")

from seeupo_gym import SeeUPO, make_vec

EMPTY, DOOR = "seeupo_gym/MiniGrid-Empty-5x5-v0", "seeupo_gym/MiniGrid-DoorKey-5x5-v0"
BABY = "seeupo_gym/BabyAI-GoToRedBallGrey-v0"
RIGHT, FORWARD = 1, 2


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped version.*")
@pytest.mark.parametrize(("env_id", "max_turns"), [(EMPTY, 100), (DOOR, 250), (BABY, 64)])
def test_turn_limits_and_spaces(env_id, max_turns):
    env = gym.make(env_id)
    assert env.get_wrapper_attr("max_turns") == max_turns
    assert (env.observation_space.shape, env.action_space) == ((147,), gym.spaces.Discrete(7))
    check_env(gym.make(env_id).unwrapped, skip_render_check=True)
    obs, _ = env.reset(seed=0)
    for turn in range(max_turns):
        assert env.observation_space.contains(obs)
        obs, reward, terminated, truncated, info = env.step(RIGHT)
        assert (terminated, truncated) == (False, turn == max_turns - 1)
        assert ("is_success" in info) == truncated
    assert (reward, info["is_success"]) == (0, False)


def test_success_is_told_and_the_limit_is_an_argument():
    env = gym.make("seeupo_gym/MiniGrid-v0", name="MiniGrid-Empty-5x5-v0", max_steps=20)
    assert env.get_wrapper_attr("max_turns") == 20
    env.reset(seed=0)
    for action in [FORWARD, FORWARD, RIGHT, FORWARD, FORWARD]:
        _, reward, terminated, _, info = env.step(action)
    assert (terminated, info["is_success"]) == (True, True)
    assert reward == pytest.approx(1 - 0.9 * 5 / 20)


def test_a_limit_that_varies_is_refused():
    with pytest.raises(ValueError, match="set max_steps"):
        gym.make("seeupo_gym/MiniGrid-v0", name="BabyAI-GoToObj-v0")


def test_the_mission_can_be_seen():
    env = gym.make("seeupo_gym/MiniGrid-v0", name="BabyAI-GoToObj-v0", max_steps=64, mission=True)
    (first, _), (second, _) = env.reset(seed=0), env.reset(seed=1)
    assert env.observation_space.shape == (2835,)
    assert env.observation_space.contains(first)
    assert not np.array_equal(first[147:], second[147:]), "other missions"


@pytest.mark.parametrize("env_id", [DOOR, BABY])
def test_seeds_fix_the_task(env_id):
    env, other = gym.make(env_id), gym.make(env_id)
    starts = [env.reset(seed=seed)[0] for seed in range(10)]
    for seed, start in enumerate(starts):
        np.testing.assert_array_equal(other.reset(seed=seed)[0], start)
    assert len({start.tobytes() for start in starts}) > 5


def test_babyai_stays_silent(capsys):
    env = gym.make(BABY)
    for seed in range(30):
        env.reset(seed=seed)
    assert capsys.readouterr().out == ""
    bare = gym.make("BabyAI-GoToRedBallGrey-v0")
    for seed in range(30):
        bare.reset(seed=seed)
    assert "Sampling rejected" in capsys.readouterr().out, "what the recipe keeps away"


def test_it_pickles_in_the_middle_of_an_episode():
    env = gym.make(DOOR)
    env.reset(seed=0)
    env.step(RIGHT)
    twin = pickle.loads(pickle.dumps(env))
    for action in (FORWARD, RIGHT, FORWARD):
        np.testing.assert_array_equal(env.step(action)[0], twin.step(action)[0])


@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, IN_PROCESSES])
def test_vector_environments(vec_env_cls):
    # The general id with its argument, which no function of this package may take for one of its own.
    env = make_vec("seeupo_gym/MiniGrid-v0", 2, 0, vec_env_cls, name="MiniGrid-DoorKey-5x5-v0")
    try:
        starts = env.reset()
        np.testing.assert_array_equal(starts[1], gym.make(DOOR).reset(seed=1)[0])
        _, rewards, dones, _ = env.step([RIGHT, FORWARD])
        assert not rewards.any()
        assert not dones.any()
    finally:
        env.close()


@pytest.mark.parametrize("turn_policies", ["shared", "separate"])
def test_seeupo_runs(turn_policies, recwarn):
    env = make_vec(BABY, 4)
    model = SeeUPO("MlpPolicy", env, n_groups=2, group_size=4, n_epochs=1, turn_policies=turn_policies, seed=0)
    for iteration in (1, 2):
        model.learn(1, reset_num_timesteps=False)
        assert len(model.ep_info_buffer) == 8 * iteration
    assert len(model.policy.turns) == (1 if turn_policies == "shared" else 64)
    assert not [w for w in recwarn if "does not reproduce" in str(w.message)], "groups share their starts"
