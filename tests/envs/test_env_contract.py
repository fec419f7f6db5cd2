"""What every task of the package promises, at every level: seeds, spaces, masks, text, errors, and the two views."""

import hashlib
import json
import os
import re
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TimeLimit
from helpers.processes import run_python
from helpers.tasks import VARIANTS, any_actions, each_variant
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from seeupo_gym import make_vec
from seeupo_gym.envs import ENV_IDS
from seeupo_gym.envs.messages import MessageError
from seeupo_gym.envs.reference import expert_policy, measure
from seeupo_gym.envs.task import HELD_OUT_SEED, MAX_SEED, NO_ACTION
from seeupo_gym.envs.views.text_view import TextView

each_task = pytest.mark.parametrize("env_id", ENV_IDS)
# hypothesis draws this many batches of episodes for each task: 10,000 episodes in all.
N_BATCHES, N_LANES = 20, 500


def sample_valid(task, rng, lanes=slice(None)):
    """One valid action for each lane, uniformly in each component."""
    sizes = [int(task.action_space.n)] if isinstance(task.action_space, spaces.Discrete) else task.action_space.nvec
    lottery = rng.random((task.n_lanes, int(np.sum(sizes))))[lanes]
    if task.has_action_masks:
        lottery[~task.action_masks(lanes)] = -1.0
    parts = np.split(lottery, np.cumsum(sizes)[:-1], axis=1)
    actions = np.stack([part.argmax(axis=1) for part in parts], axis=1)
    return actions[:, 0] if isinstance(task.action_space, spaces.Discrete) else actions


def play(env, seed, action_seed=0):
    """All that a random episode shows, as a list."""
    rng = np.random.default_rng(action_seed)
    obs, _ = env.reset(seed=seed)
    shown, done = [obs.tolist()], False
    while not done:
        action = any_actions(env.action_space, rng) if rng.random() < 0.3 else sample_valid(env.unwrapped.task, rng)[0]
        obs, reward, done, truncated, info = env.step(action)
        assert not truncated
        shown += [obs.tolist(), reward, done, info]
    return shown


def digest(env_id):
    """A fingerprint of episodes at every level, the same in every process."""
    chosen = [v.values for v in VARIANTS if v.values[0] == env_id]
    episodes = [play(gym.make(i, **kw), seed) for i, kw in chosen for seed in (0, 3, HELD_OUT_SEED, MAX_SEED)]
    return hashlib.sha256(json.dumps(episodes).encode()).hexdigest()


@each_variant
def test_checkers_accept(env_id, kwargs):
    check_env(gym.make(env_id, **kwargs).unwrapped)
    sb3_check_env(gym.make(env_id, render_mode="ansi", **kwargs), skip_render_check=False)


@each_variant
def test_a_seed_fixes_the_episode(env_id, kwargs):
    env, other = gym.make(env_id, **kwargs), gym.make(env_id, **kwargs)
    other.reset(seed=99)
    assert play(env, 7) == play(other, 7) == play(env, 7)
    if "CoordinationTrap" not in env_id:
        assert len({json.dumps(play(env, seed)) for seed in range(20)}) > 5


@pytest.mark.process
def test_another_process_plays_the_same_episodes():
    code = f"import test_env_contract as t; print([t.digest(i) for i in {ENV_IDS}])"
    folders = os.pathsep.join(sys.path)  # of this file and of the helpers
    assert run_python(code, env={**os.environ, "PYTHONPATH": folders}) == f"{[digest(i) for i in ENV_IDS]}\n"


@each_variant
def test_a_lane_equals_the_single_environment(env_id, kwargs):
    env, single = make_vec(env_id, 3, seed=5, **kwargs), gym.make(env_id, **kwargs)
    obs = env.reset()
    rng = np.random.default_rng(1)
    for lane in range(3):
        np.testing.assert_array_equal(obs[lane], single.reset(seed=int(env.task.task_seeds[lane]))[0])
    lane, done = 2, False
    while not done:
        actions = sample_valid(env.task, rng)
        if rng.random() < 0.2:
            actions[lane] = any_actions(env.action_space, rng)
        single_obs, reward, done, _, info = single.step(actions[lane])
        obs, rewards, dones, infos = env.step(actions)
        assert (rewards[lane], dones[lane]) == (pytest.approx(reward), done)
        shown = infos[lane]["terminal_observation"] if done else obs[lane]
        np.testing.assert_array_equal(shown, single_obs)
        assert not done or infos[lane]["is_success"] == info["is_success"]


@each_task
@settings(max_examples=N_BATCHES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_invariants_hold_in_any_episode(env_id, data):
    """
    Legal and illegal actions in any mixture: observations stay in the space, the mask agrees with what is refused and
    leaves a choice, rewards are finite, episodes end by the horizon, successes come at the end.
    """
    kwargs = data.draw(st.sampled_from([v.values[1] for v in VARIANTS if v.values[0] == env_id]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    share_illegal = data.draw(st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0]))
    share_none = data.draw(st.sampled_from([0.0, 0.05]))
    task = make_vec(env_id, N_LANES, **kwargs).task
    task.reset(rng.integers(MAX_SEED, size=N_LANES), rng.integers(MAX_SEED, size=N_LANES))
    space, live = task.observation_space, np.arange(N_LANES)
    offsets = None
    if isinstance(task.action_space, spaces.MultiDiscrete):
        offsets = np.concatenate([[0], np.cumsum(task.action_space.nvec)[:-1]])
    returns, turns = np.zeros(N_LANES), 0
    while live.size:
        actions = sample_valid(task, rng, live)
        wild = rng.random(len(live)) < share_illegal
        actions[wild] = any_actions(task.action_space, rng, len(live))[wild]
        none = rng.random(len(live)) < share_none
        actions[none] = NO_ACTION
        allowed = np.ones(len(live), dtype=bool)
        if task.has_action_masks:
            masks = task.action_masks(live)
            first = masks[np.arange(len(live)), np.maximum(actions, 0)] if offsets is None else None
            allowed = (
                first
                if first is not None
                else masks[np.arange(len(live))[:, None], np.maximum(actions, 0) + offsets].all(1)
            )
        rewards, dones, successes = task.step(actions, live)
        turns += 1
        if task.has_action_masks:
            np.testing.assert_array_equal(task.refused[live][~none], ~allowed[~none])
            assert task.refused[live][none].all(), "no action is a refused one"
        obs = task.observe(live)
        assert obs.dtype == space.dtype
        assert np.all((obs >= space.low) & (obs <= space.high))
        assert rewards.dtype == np.float32
        assert np.isfinite(rewards).all()
        assert not np.signbit(rewards[rewards == 0.0]).any(), "no -0.0, which prints as a cost"
        assert not np.any(successes & ~dones)
        assert turns < task.max_turns or dones.all()
        assert (task.turns[live] == turns).all()
        returns[live] += rewards
        live = live[~dones]
        if live.size and task.has_action_masks:
            masks = task.action_masks(live)
            parts = [masks] if offsets is None else np.split(masks, offsets[1:], axis=1)
            assert all(part.any(axis=1).all() for part in parts)
    assert returns.max() <= 1.0 + 1e-6, "returns are at most 1"
    assert returns.min() >= -1.0 - 1e-6, "and at least -1"


@each_variant
def test_the_expert_is_far_above_chance_and_plays_valid_actions(env_id, kwargs):
    def checked(env, rng):
        actions = expert_policy(env, rng)
        task = env.task
        task.check_actions(actions)
        if task.has_action_masks:
            one_hot = np.zeros_like(task.action_masks())
            columns = (
                actions[:, None]
                if actions.ndim == 1
                else actions + np.concatenate([[0], np.cumsum(task.action_space.nvec)[:-1]])
            )
            np.put_along_axis(one_hot, columns, True, axis=1)
            assert not np.any(one_hot & ~task.action_masks())
        return actions

    expert = measure(env_id, checked, 200, **kwargs)
    chance = measure(env_id, lambda env, rng: sample_valid(env.task, rng), 200, **kwargs)
    assert expert > chance + 0.2


@each_variant
def test_the_experts_messages_reproduce_its_score_in_words(env_id, kwargs):
    view = TextView(gym.make(env_id, **kwargs))
    n = 20
    total = 0.0
    for seed in range(HELD_OUT_SEED, HELD_OUT_SEED + n):
        text, _ = view.reset(seed=seed)
        assert view.observation_space.contains(text)
        done = False
        while not done:
            message = view.expert_message()
            assert view.action_space.contains(message)
            text, reward, done, truncated, info = view.step(message)
            assert view.observation_space.contains(text)
            assert text
            assert not info["seeupo_gym/malformed"]
            assert not truncated
            total += reward
    assert total / n == pytest.approx(measure(env_id, expert_policy, n, **kwargs), abs=1e-5)


@each_variant
def test_messages_mean_their_actions_and_nonsense_costs_a_turn(env_id, kwargs):
    view, twin = TextView(gym.make(env_id, **kwargs)), gym.make(env_id, **kwargs)
    rng = np.random.default_rng(0)
    for seed in range(5):
        view.reset(seed=seed)
        twin.reset(seed=seed)
        done, turn = False, 0
        while not done:
            action = sample_valid(view.task, rng)[0]
            message = view.task.action_text(0, action)
            for written in (message, f"  {message.upper()}! ", f"I think this is best.\nAction: {message}"):
                meant = view.task.parse_action(0, written)
                assert view.task.action_text(0, meant) == message
            if turn == 1:
                with pytest.raises(MessageError):
                    view.task.parse_action(0, "qwertz")
                before = int(view.task.turns[0])
                text, *_, info = view.step("qwertz")
                assert info["seeupo_gym/malformed"]
                assert len(text) > 20
                assert int(view.task.turns[0]) == before + 1
                break
            expected = twin.step(action)
            _, reward, done, _, info = view.step(message)
            assert (reward, done) == (pytest.approx(expected[1]), expected[2])
            turn += 1


@each_variant
def test_transcripts_are_text_a_person_can_read(env_id, kwargs):
    env = gym.make(env_id, render_mode="ansi", **kwargs)
    env.reset(seed=HELD_OUT_SEED)
    task = env.unwrapped.task
    assert env.render() == task.opening_text(0)
    done = False
    while not done:
        _, _, done, _, info = env.step(task.expert_actions()[0])
    text = env.render()
    assert text.isascii()
    assert len(re.findall(r"^Agent: \S", text, flags=re.MULTILINE)) == int(task.turns[0])
    assert set(info) == {"is_success"}


@each_task
def test_mistakes_are_refused(env_id):
    env = gym.make(env_id).unwrapped
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        env.step(env.action_space.sample())
    with pytest.raises(ValueError, match="no reset options, got \\['speed'\\]"):
        env.reset(seed=0, options={"speed": 1})
    with pytest.raises(ValueError, match="seed must be at most"):
        env.reset(seed=2**63)
    with pytest.raises(gym.error.Error):
        env.reset(seed=-1)
    env.reset(seed=0)
    before = env.task.observe().tolist()
    n = env.action_space.n if isinstance(env.action_space, spaces.Discrete) else env.action_space.nvec
    for action in (np.asarray(n), np.asarray(n) * 0 - 1, np.asarray(n) * 0.5, "one", None):
        with pytest.raises(ValueError, match="action"):
            env.step(action)
    assert env.task.observe().tolist() == before
    if env.task.levels:
        with pytest.raises(ValueError, match=r"level must be one of 'easy', .*got 'huge'"):
            gym.make(env_id, level="huge")
    with pytest.raises(TypeError, match="render_mode"):
        type(env)(render_mode="human")
    with pytest.raises(ValueError, match="must be a str"):
        TextView(env).step(3)


def test_text_view_needs_a_task():
    with pytest.raises(TypeError, match="one of this package's tasks"):
        TextView(gym.make("CartPole-v1"))
    with pytest.raises(TypeError, match="put them around TextView, got <TimeLimit"):
        TextView(gym.make(ENV_IDS[0], max_episode_steps=2))
    view = TimeLimit(TextView(gym.make(ENV_IDS[0], disable_env_checker=True)), 2)
    view.reset(seed=0)
    assert [view.step("pull arm 0")[3] for _ in range(2)] == [False, True]
