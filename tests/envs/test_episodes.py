"""The bookkeeping of episodes in the lanes of native vector environments and of others."""

import gymnasium as gym
import numpy as np
import pytest
from helpers import CHAIN, TOOL
from helpers.tasks import any_actions
from helpers.vectors import make_native, no_submit, seeds_of, task_of
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from seeupo_gym import SeedQueue, make_vec
from seeupo_gym.envs.episodes import NO_EPISODE, EpisodeLanes
from seeupo_gym.envs.task import HELD_OUT_SEED
from seeupo_gym.envs.views.text_view import TextView


def make_queued(n_envs=3, seed=None, **kwargs):
    return make_vec(TOOL, n_envs, seed, vec_env_cls=DummyVecEnv, **kwargs)


def make_plain(n_envs=3, seed=None, **kwargs):
    env = DummyVecEnv([lambda: gym.make(TOOL, **kwargs)] * n_envs)
    if seed is not None:
        env.seed(seed)
    return env


MODES = {"native": make_native, "queued": make_queued, "rounds": make_plain}


each_mode = pytest.mark.parametrize("mode", MODES)


def play(env, seeds, noise_seeds=None, rng=None):
    """Play all episodes with random actions; check the bookkeeping at every step; returns what they showed."""
    rng = rng or np.random.default_rng(0)
    shown = [None] * len(seeds)
    finished, steps, lengths = [], 0, []
    with EpisodeLanes(env, np.asarray(seeds), None if noise_seeds is None else np.asarray(noise_seeds)) as lanes:
        obs = lanes.reset()
        while lanes.running:
            active = np.flatnonzero(lanes.active)
            assert (lanes.episodes[active] % env.num_envs == active).all()
            task_seeds, episode_noise = seeds_of(env), seeds_of(env, "noise_seeds")
            for lane in active:
                episode = lanes.episodes[lane]
                task, row = task_of(env, lane)
                assert task.turns[row] == lanes.turns[lane]
                assert task_seeds[lane] == seeds[episode]
                assert episode_noise[lane] == (seeds if noise_seeds is None else noise_seeds)[episode]
                if lanes.turns[lane] == 0:
                    assert shown[episode] is None
                    shown[episode] = []
                shown[episode].append(obs[lane].tolist())
            steps += lanes.n_steps
            next_obs, _, dones, infos = env.step(any_actions(env.action_space, rng, env.num_envs))
            for lane in active[dones[active]]:
                finished.append(int(lanes.episodes[lane]))
                shown[lanes.episodes[lane]].append(np.asarray(infos[lane]["terminal_observation"]).tolist())
                lengths.append(int(lanes.turns[lane]) + 1)
            obs = lanes.advance(next_obs, dones)
    assert sorted(finished) == list(range(len(seeds)))
    return shown, steps, lengths


@each_mode
@pytest.mark.parametrize("n_episodes", [1, 2, 3, 4, 9, 10])
@pytest.mark.parametrize("own_noise", [False, True])
def test_every_episode_is_played_once_with_its_own_seed(mode, n_episodes, own_noise):
    # The seed given here is still pending when the episodes begin, and must not get in their way.
    env = MODES[mode](3, seed=77, level="medium")
    seeds = HELD_OUT_SEED + np.arange(n_episodes)
    _, steps, lengths = play(env, seeds, seeds + 500 if own_noise else None)
    if mode == "rounds":
        assert steps >= sum(lengths)
        assert steps % env.num_envs == 0
    else:
        assert steps == sum(lengths)
    env.reset()
    assert not np.isin(seeds_of(env), seeds).any()


@settings(max_examples=25, deadline=None)
@given(
    mode=st.sampled_from(sorted(MODES)),
    n_envs=st.integers(1, 6),
    seeds=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=14),
    action_seed=st.integers(0, 1000),
)
def test_any_list_of_episodes_is_played_once(mode, n_envs, seeds, action_seed):
    play(MODES[mode](n_envs), np.array(seeds), rng=np.random.default_rng(action_seed))


def test_steps_of_rounds_count_the_idle_lanes():
    # Two rounds of six turns in three lanes, though there are only four episodes.
    class NeverSubmit:
        def integers(self, choices, size):
            return np.zeros(size, dtype=int)

    _, steps, lengths = play(make_plain(3), np.arange(4), rng=NeverSubmit())
    assert (steps, lengths) == (36, [6] * 4)
    _, steps, lengths = play(make_native(3), np.arange(4), rng=NeverSubmit())
    assert (steps, lengths) == (24, [6] * 4)


@pytest.mark.parametrize("mode", ["native", "queued"])
def test_running_statistics_see_no_parked_lanes(mode):
    env = VecNormalize(MODES[mode](3), norm_reward=False)
    with EpisodeLanes(env, np.arange(4)) as lanes:
        lanes.reset()
        steps = 0
        while lanes.running:
            assert lanes.n_steps == 3
            before = env.get_original_obs()
            obs, _, dones, _ = env.step(no_submit(3))
            assert (env.get_original_obs() != before).any(axis=1).all()
            lanes.advance(obs, dones)
            steps += 1
    assert steps == 12


@pytest.mark.parametrize("mode", ["native", "queued"])
def test_queue_mode_is_left_also_after_an_error(mode):
    env = MODES[mode](2)
    lanes = EpisodeLanes(env, np.array([8]))

    def fail():
        with lanes:
            lanes.reset()
            env.step("not an action")

    with pytest.raises((ValueError, IndexError)):
        fail()
    env.reset()
    assert 8 not in seeds_of(env)
    ends = sum(env.step(no_submit(2))[2] for _ in range(12))
    assert ends.tolist() == [2, 2]


def test_no_episodes_is_an_error():
    with pytest.raises(ValueError, match="at least one episode"):
        EpisodeLanes(make_native(1), np.array([], dtype=np.int64))


def test_lanes_without_an_episode_say_so():
    with EpisodeLanes(make_native(3), np.array([1])) as lanes:
        assert lanes.episodes.tolist() == [0, NO_EPISODE, NO_EPISODE]
        assert lanes.active.tolist() == [True, False, False]


@pytest.mark.parametrize("mode", MODES)
def test_own_noise_changes_the_transitions_and_not_the_start(mode):
    def contexts(noise_seeds):
        env = {
            "native": lambda: make_vec(CHAIN, 2),
            "queued": lambda: make_vec(CHAIN, 2, vec_env_cls=DummyVecEnv),
            "rounds": lambda: DummyVecEnv([lambda: gym.make(CHAIN)] * 2),
        }[mode]()
        shown, *_ = play(env, np.full(4, 123), noise_seeds)
        return [[np.argmax(obs[6:10]) for obs in episode] for episode in shown]

    shared, own = contexts(None), contexts([1, 2, 1, 3])
    assert shared[0] == shared[1] == shared[2] == shared[3]
    assert {episode[0] for episode in own} == {shared[0][0]}
    assert own[0] == own[2]
    assert own[0] != own[1] != own[3]


def test_own_noise_changes_the_transitions_of_a_task_in_words():
    env = SeedQueue(Monitor(TextView(gym.make(CHAIN))))

    def episode(noise_seeds):
        env.queue_episodes([4], noise_seeds)
        shown, done = [env.reset()[0]], False
        while not done:
            text, _, done, *_ = env.step("play 1")
            shown.append(text)
        return shown

    shared, own = episode(None), [episode([seed]) for seed in (1, 2, 1)]
    assert {shown[0] for shown in own} == {shared[0]}
    assert own[0] == own[2] != own[1]


# --- Environments of others


@pytest.mark.parametrize("queued", [False, True])
def test_foreign_environments_play_seeded_episodes_with_noise_of_their_own(queued):
    def walks(noise_seeds):
        env = make_vec("FrozenLake-v1", 2) if queued else DummyVecEnv([lambda: gym.make("FrozenLake-v1")] * 2)
        shown = [[] for _ in range(6)]
        with EpisodeLanes(env, np.full(6, 5), noise_seeds) as lanes:
            obs = lanes.reset()
            while lanes.running:
                for lane in np.flatnonzero(lanes.active):
                    shown[lanes.episodes[lane]].append(int(obs[lane]))
                obs, _, dones, _ = env.step(np.full(2, 2))
                obs = lanes.advance(obs, dones)
        return shown

    shared, own = walks(None), walks(np.array([1, 2, 1, 2, 3, 4]))
    assert all(walk == shared[0] for walk in shared)
    assert own[0] == own[2]
    assert own[1] == own[3]
    assert len({tuple(walk) for walk in own}) > 1


@pytest.mark.process
def test_subprocesses_give_the_same_episodes():
    seeds = HELD_OUT_SEED + np.arange(5)
    results = []
    for vec_env_cls in (DummyVecEnv, SubprocVecEnv):
        env = make_vec(TOOL, 2, vec_env_cls=vec_env_cls, level="hard")
        try:
            results.append(play(env, seeds, seeds + 1))
        finally:
            env.close()
    assert results[0] == results[1]
