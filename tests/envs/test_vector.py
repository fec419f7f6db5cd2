"""The native vector environment, its queue, the queue of seeds around others, and ``make_vec``."""

import gymnasium as gym
import numpy as np
import pytest
from helpers import CHAIN, TOOL, TRAP
from helpers.tasks import any_actions
from helpers.vectors import make_native, no_submit, seeds_of
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from seeupo_gym import SeedQueue, make_vec
from seeupo_gym.envs.task import HELD_OUT_SEED
from seeupo_gym.envs.tasks.tool_chain import ToolChainEnv
from seeupo_gym.envs.vector import TaskVecEnv

VARIANTS = [
    (TRAP, {}),
    (CHAIN, {}),
    (TOOL, {"level": "easy"}),
    (TOOL, {"level": "hard"}),
    (TOOL, {"level": "medium", "flat": True}),
]
each_variant = pytest.mark.parametrize(("env_id", "kwargs"), VARIANTS)


# --- TaskVecEnv is the Gymnasium environment, many times


@each_variant
@pytest.mark.parametrize("own_noise", [False, True])
def test_lane_equals_the_gymnasium_environment(env_id, kwargs, own_noise):
    n = 5
    seeds = HELD_OUT_SEED + np.arange(10, 10 + 2 * n).reshape(2, n).T
    noise_seeds = seeds + 1000
    vec = make_vec(env_id, n, **kwargs)
    vec.queue_episodes(seeds, noise_seeds if own_noise else None)
    singles = [gym.make(env_id, **kwargs) for _ in range(n)]
    played = np.zeros(n, dtype=int)

    def start(lane):
        obs, _ = singles[lane].reset(seed=int(seeds[lane, played[lane]]))
        if own_noise:
            singles[lane].unwrapped.reseed_noise(int(noise_seeds[lane, played[lane]]))
        return obs

    obs, rng, returns = vec.reset(), np.random.default_rng(0), np.zeros(n)
    for lane in range(n):
        np.testing.assert_array_equal(obs[lane], start(lane))
    while (played < 2).any():
        actions = any_actions(vec.action_space, rng, n)
        obs, rewards, dones, infos = vec.step(actions)
        for lane in np.flatnonzero(played < 2):
            expected, reward, done, _, info = singles[lane].step(actions[lane])
            assert (rewards[lane], dones[lane]) == (np.float32(reward), done)
            returns[lane] += reward
            if not done:
                assert infos[lane] == {}
                np.testing.assert_array_equal(obs[lane], expected)
                continue
            np.testing.assert_array_equal(infos[lane]["terminal_observation"], expected)
            assert infos[lane]["is_success"] is info["is_success"]
            assert infos[lane]["TimeLimit.truncated"] is False
            assert infos[lane]["episode"]["r"] == pytest.approx(returns[lane])
            assert infos[lane]["episode"]["l"] == singles[lane].unwrapped.task.turns[0]
            returns[lane] = 0.0
            played[lane] += 1
            if played[lane] < 2:
                np.testing.assert_array_equal(obs[lane], start(lane))


@each_variant
def test_masks_of_a_lane_equal_those_of_the_gymnasium_environment(env_id, kwargs):
    vec, single = make_vec(env_id, 2, 8, **kwargs), gym.make(env_id, **kwargs)
    vec.reset()
    single.reset(seed=9)
    if env_id != TOOL:
        assert not vec.has_attr("action_masks")
        return
    assert vec.has_attr("action_masks")
    for action in single.unwrapped.task.expert_actions(), any_actions(vec.action_space, np.random.default_rng(0), 1):
        np.testing.assert_array_equal(vec.env_method("action_masks", indices=1)[0], single.unwrapped.action_masks())
        vec.step(np.repeat(action, 2, axis=0))
        single.step(action[0])
    assert len(vec.env_method("action_masks")) == 2


def test_automatic_resets_go_on_with_new_training_seeds():
    vec, other = make_native(4, seed=3), make_native(4, seed=3)
    seen = []
    for env in (vec, other):
        env.reset()
        seen.append([seeds_of(env)])
        for _ in range(60):
            _, _, dones, _ = env.step(no_submit(4))
            if dones.any():
                seen[-1].append(seeds_of(env))
    np.testing.assert_array_equal(seen[0], seen[1])
    seeds = np.array(seen[0])
    assert seeds[0].tolist() == [3, 4, 5, 6]
    assert len(np.unique(seeds)) == seeds.size == 44
    assert seeds.max() < HELD_OUT_SEED


def test_lanes_whose_training_seeds_coincide_part_again():
    vec = make_native(2)
    vec.queue_episodes(np.array([[7], [7 + HELD_OUT_SEED]]), park=False)
    vec.reset()
    for _ in range(vec.max_turns):
        vec.step(no_submit(2))
    first, second = seeds_of(vec)
    assert first != second


def test_unseeded_environments_differ():
    seeds = [seeds_of(env) for env in (make_native(4), make_native(4)) if env.reset() is not None]
    assert len(np.unique(seeds)) == 8


@pytest.mark.parametrize("seed", [-1, -5, 2**63 - 1])
def test_wrong_seed_is_refused_and_forgotten(seed):
    vec = make_native(2)
    vec.seed(seed)
    with pytest.raises(ValueError, match=r"seeds must be in \[0, 2\*\*63\)"):
        vec.reset()
    vec.reset()


def test_vector_environment_refuses_what_it_cannot_do():
    vec = make_native(2, seed=0)
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\)"):
        vec.step(no_submit(2))
    vec.reset()
    with pytest.raises(ValueError, match="expected 2 actions, one a lane, got 3"):
        vec.step(no_submit(3))
    with pytest.raises(ValueError, match="of lane 1 is outside"):
        vec.step(np.array([[0, 0], [5, 0]]))
    with pytest.raises(AttributeError, match="share one task"):
        vec.set_attr("max_turns", 3)
    with pytest.raises(AttributeError, match="no method 'reset' for a single lane"):
        vec.env_method("reset")
    with pytest.raises(AttributeError, match="nothing"):
        vec.get_attr("nothing")
    vec.set_options({"level": "hard"})
    with pytest.raises(ValueError, match="ToolChain has no reset options"):
        vec.reset()
    vec.reset()
    vec.close()


def test_monitor_statistics_are_taken_from_the_environment_itself():
    class Expert:
        def predict(self, observation, state=None, episode_start=None, deterministic=True):
            return vec.task.expert_actions(), None

    vec = make_native(3, seed=0)
    assert vec.env_is_wrapped(Monitor) == [True] * 3
    assert vec.env_is_wrapped(gym.Wrapper) == [False] * 3
    assert vec.get_attr("render_mode") == [None] * 3
    assert vec.get_images() == [None] * 3
    returns, lengths = evaluate_policy(Expert(), vec, n_eval_episodes=9, return_episode_rewards=True)
    assert (returns, lengths) == ([1.0] * 9, [3] * 9)


# --- The queue of TaskVecEnv


def test_queue_starts_each_lanes_episodes_in_order_and_then_parks():
    vec = make_native(3)
    vec.queue_episodes(np.array([[11, 12], [21, -1], [-1, -1]]), np.array([[1, 2], [3, -1], [-1, -1]]))
    vec.reset()
    turns, last = vec.max_turns, None
    assert seeds_of(vec)[:2].tolist() == [11, 21]
    assert seeds_of(vec, "noise_seeds")[:2].tolist() == [1, 3]
    for step in range(1, 2 * turns + 3):
        obs, rewards, dones, _ = vec.step(no_submit(3))
        assert dones.tolist() == [step in (turns, 2 * turns), step == turns, False]
        assert rewards[2] == 0.0
        if step == turns:
            assert seeds_of(vec)[0] == 12
            assert seeds_of(vec, "noise_seeds")[0] == 2
            last = obs[1]
        if step >= turns:
            np.testing.assert_array_equal(obs[1], last)
    with_seed = vec.seed(5)
    vec.reset()
    assert seeds_of(vec).tolist() == with_seed == [5, 6, 7]


def test_queue_without_parking_goes_on_with_unseeded_episodes():
    vec = make_native(2)
    vec.queue_episodes(np.array([[11], [-1]]), park=False)
    vec.reset()
    assert seeds_of(vec)[0] == 11
    ends = sum(vec.step(no_submit(2))[2] for _ in range(3 * vec.max_turns))
    assert ends.tolist() == [3, 3]


def test_leaving_the_queue_mode_with_parked_lanes_asks_for_a_reset():
    vec = make_native(2)
    vec.queue_episodes(np.array([[11], [-1]]))
    vec.reset()
    vec.step(no_submit(2))
    vec.queue_episodes(None)
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\)"):
        vec.step(no_submit(2))
    vec.reset()
    ends = sum(vec.step(no_submit(2))[2] for _ in range(2 * vec.max_turns))
    assert ends.tolist() == [2, 2]


# --- SeedQueue


def test_seed_queue_is_transparent_without_a_queue():
    env, wrapped = gym.make("FrozenLake-v1"), SeedQueue(gym.make("FrozenLake-v1"))
    rng = np.random.default_rng(0)
    assert env.reset(seed=1) == wrapped.reset(seed=1)
    for _ in range(100):
        action = int(rng.integers(4))
        expected, got = env.step(action), wrapped.step(action)
        assert expected == got
        if got[2] or got[3]:
            assert env.reset() == wrapped.reset()


def test_seed_queue_starts_queued_episodes_then_parks_until_an_explicit_reset():
    env = SeedQueue(ToolChainEnv())
    task = env.unwrapped.task
    env.queue_episodes([5, -1, 6], [50, -1, 60])
    for seed in (5, 6):
        env.reset()
        assert (task.task_seeds[0], task.noise_seeds[0]) == (seed, 10 * seed)
        env.step((0, 0))
    obs, _ = env.reset()
    turns = int(task.turns[0])
    parked_obs, reward, terminated, truncated, info = env.step((0, 0))
    np.testing.assert_array_equal(obs, parked_obs)
    assert (reward, terminated, truncated, info, int(task.turns[0])) == (0.0, False, False, {}, turns)
    env.reset(seed=9)
    env.step((0, 0))
    assert (int(task.task_seeds[0]), int(task.turns[0])) == (9, 1)


def test_seed_queue_can_begin_parked_and_can_go_on_unseeded():
    env = SeedQueue(ToolChainEnv())
    env.queue_episodes([])
    obs, _ = env.reset()
    assert env.observation_space.contains(obs)
    env.queue_episodes([3], park=False)
    env.reset()
    assert env.unwrapped.task.task_seeds[0] == 3
    env.reset()
    assert env.unwrapped.task.task_seeds[0] != 3
    env.queue_episodes([4])
    env.queue_episodes(None)
    env.reset()
    assert env.unwrapped.task.task_seeds[0] != 4
    with pytest.raises(ValueError, match="zip"):
        env.queue_episodes([1, 2], [3])


def test_make_vec_chooses_the_class():
    assert isinstance(make_vec(TOOL, 2), TaskVecEnv)
    foreign = make_vec("CartPole-v1", 2, seed=3)
    assert isinstance(foreign, DummyVecEnv)
    assert foreign.env_is_wrapped(Monitor) == foreign.env_is_wrapped(SeedQueue) == [True, True]
    np.testing.assert_array_equal(foreign.reset()[1], gym.make("CartPole-v1").reset(seed=4)[0])
    ours = make_vec(TOOL, 2, seed=3, vec_env_cls=DummyVecEnv, level="hard")
    assert isinstance(ours, DummyVecEnv)
    np.testing.assert_array_equal(ours.reset(), make_vec(TOOL, 2, seed=3, level="hard").reset())
    with pytest.raises(ValueError, match="n_envs must be an integer from 1 to 100000, got 0"):
        make_vec(TOOL, 0)
    with pytest.raises(ValueError, match="level must be one of"):
        make_vec(TOOL, level="none")


def test_wrappers_of_a_task_are_kept():
    env = make_vec(CHAIN, 2, seed=0, max_episode_steps=2)
    env.reset()
    assert [env.step(np.zeros(2, dtype=int))[2].tolist() for _ in range(2)] == [[False] * 2, [True] * 2]
