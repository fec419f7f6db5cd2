"""One task as a Gymnasium environment: its registration, seeds, ends, transcript, and what is refused."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from helpers import CHAIN, TOOL, TRAP
from helpers.tasks import VARIANTS, any_actions
from hypothesis import given, settings
from hypothesis import strategies as st

from seeupo_gym.envs import register_envs
from seeupo_gym.envs.task import HELD_OUT_SEED
from seeupo_gym.envs.tasks.tool_chain import ToolChain

# The tasks whose expert knows all that it needs, and which pay at the end alone.
SURE = [variant for variant in VARIANTS if variant.values[0] in (TRAP, CHAIN, TOOL)]
each_sure_variant = pytest.mark.parametrize(("env_id", "kwargs"), SURE)


def test_registration_is_idempotent():
    spec = gym.spec(TOOL)
    register_envs()
    assert gym.spec(TOOL) is spec


def test_unseeded_resets_follow_from_the_last_seed_and_never_reach_the_held_out_seeds():
    env, other = gym.make(TOOL).unwrapped, gym.make(TOOL).unwrapped
    seeds = []
    for e in (env, other):
        e.reset(seed=5)
        for _ in range(50):
            e.reset()
            seeds.append(int(e.task.task_seeds[0]))
    assert seeds[:50] == seeds[50:]
    assert len(set(seeds)) == 50
    assert max(seeds) < HELD_OUT_SEED


@each_sure_variant
def test_max_turns_is_the_length_of_an_episode_that_never_submits(env_id, kwargs):
    env = gym.make(env_id, **kwargs).unwrapped
    env.reset(seed=0)
    for turn in range(1, env.max_turns + 1):
        *_, done, _, info = env.step(np.zeros(env.action_space.shape, dtype=int))
        assert done == (turn == env.max_turns)
        assert ("is_success" in info) == done
    assert isinstance(info["is_success"], bool)


@each_sure_variant
def test_expert_succeeds_and_random_transcript_is_complete(env_id, kwargs):
    env = gym.make(env_id, render_mode="ansi", **kwargs)
    env.reset(seed=HELD_OUT_SEED)
    task = env.unwrapped.task
    opening = env.render()
    assert opening == task.opening_text(0)
    done = False
    while not done:
        _, reward, done, _, info = env.step(task.expert_actions()[0])
        assert env.render().startswith(opening)
    assert reward == 1.0
    assert info == {"is_success": True}
    assert len(env.render().splitlines()) > int(task.turns[0])
    env.reset(seed=4)
    assert env.render() == task.opening_text(0)


def test_render_without_mode_is_none():
    env = gym.make(TOOL)
    env.reset(seed=0)
    assert env.render() is None


@settings(max_examples=60, deadline=None)
@given(
    variant=st.sampled_from([variant.values for variant in SURE]),
    seed=st.integers(0, 2**63 - 1),
    choices=st.lists(st.integers(0, 10**6), min_size=12, max_size=12),
    legal=st.booleans(),
)
def test_any_episode_keeps_the_contract(variant, seed, choices, legal):
    env = gym.make(variant[0], render_mode="ansi", **variant[1]).unwrapped
    obs, info = env.reset(seed=seed)
    assert info == {}
    for choice in choices:
        assert env.observation_space.contains(obs)
        action = nth_action(env, choice, legal)
        obs, reward, done, truncated, info = env.step(action)
        assert not truncated
        assert 0.0 <= reward <= 1.0
        if done:
            break
        assert reward == 0.0
        assert info == {}
    assert done
    assert env.task.turns[0] <= env.max_turns
    assert info["is_success"] == (reward == 1.0)
    assert env.observation_space.contains(obs)
    assert "\n" in env.render()


def nth_action(env, choice, legal):
    """The ``choice``-th action; if ``legal``, among the valid ones of each component."""
    n_choices = [env.action_space.n] if isinstance(env.action_space, spaces.Discrete) else env.action_space.nvec
    masks = env.action_masks() if hasattr(env, "action_masks") else np.ones(sum(n_choices), dtype=bool)
    parts = []
    for mask, n in zip(np.split(masks, np.cumsum(n_choices)[:-1]), n_choices, strict=True):
        assert mask.any()
        options = np.flatnonzero(mask) if legal else np.arange(n)
        parts.append(options[choice % len(options)])
        choice //= len(options)
    return np.array(parts) if isinstance(env.action_space, spaces.MultiDiscrete) else parts[0]


@pytest.mark.parametrize(
    ("env_id", "kwargs", "message"),
    [
        (TRAP, {"turns": 1}, "turns must be an integer from 2 to 1000"),
        (TRAP, {"arms": 1}, "arms must be an integer from 2 to 1000"),
        (CHAIN, {"turns": 0}, "turns must be an integer from 1 to 1000"),
        (CHAIN, {"actions": 1}, "actions must be an integer from 2 to 1000"),
        (CHAIN, {"reward": "sum"}, "reward must be one of .*fraction.*all.*'sum'"),
        (TOOL, {"level": "extreme"}, "level must be one of 'easy', 'medium', 'hard', got 'extreme'"),
        (TOOL, {"render_mode": "human"}, "render_mode must be None or one of .*ansi.*'human'"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*render.*")
def test_impossible_arguments_say_what_is_possible(env_id, kwargs, message):
    error = TypeError if "render_mode" in kwargs else ValueError
    with pytest.raises(error, match=message):
        gym.make(env_id, **kwargs)


def test_n_lanes_must_be_positive():
    with pytest.raises(ValueError, match="n_lanes must be an integer of at least 1, got 0"):
        ToolChain(0)


@each_sure_variant
def test_step_needs_a_reset_before_the_first_episode_and_after_each(env_id, kwargs):
    env = gym.make(env_id, **kwargs).unwrapped
    action = np.zeros(env.action_space.shape, dtype=int)
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\)"):
        env.step(action)
    env.reset(seed=0)
    rng, done = np.random.default_rng(0), False
    while not done:
        done = env.step(any_actions(env.action_space, rng))[2]
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\)"):
        env.step(action)


def test_tasks_without_invalid_actions_have_no_masks():
    env = gym.make(TRAP).unwrapped
    assert not hasattr(env, "action_masks")
    with pytest.raises(AttributeError, match="no invalid actions"):
        env.task.action_masks()
