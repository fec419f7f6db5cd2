"""The tasks as Gymnasium environments: API, reproducibility, masks, errors, and episodes computed by hand."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from seeupo_gym.envs import ENV_IDS, register_envs
from seeupo_gym.envs.task import HELD_OUT_SEED, Task
from seeupo_gym.envs.tasks import context_chain
from seeupo_gym.envs.tasks.context_chain import ContextChain
from seeupo_gym.envs.tasks.tool_chain import NEEDS_INPUT, NONE, NOT_FOUND, OK, REFUSED, TIMEOUT, ToolChain
from seeupo_gym.envs.tasks.tool_chain_world import LEVELS, TOOLS, TYPES, paths

TRAP, CHAIN, TOOL = ENV_IDS[:3]
VARIANTS = [
    (TRAP, {}),
    (TRAP, {"turns": 2, "arms": 5}),
    (CHAIN, {}),
    (CHAIN, {"turns": 3, "actions": 2, "reward": "all"}),
    *[(TOOL, {"level": level, "flat": flat}) for level in LEVELS for flat in (False, True)],
]
TOOL_VARIANTS = [kwargs for env_id, kwargs in VARIANTS if env_id == TOOL]
each_variant = pytest.mark.parametrize(("env_id", "kwargs"), VARIANTS)
# Easy, seed 0: the customer number is given, the parcel wanted; the records of customer, order and parcel.
CUSTOMER, ORDER, PARCEL = 1, 1, 2
FIND_CUSTOMER, LIST_ORDERS, TRACK_PARCEL, FIND_PRODUCT, SUBMIT = range(5)


def play(env, seed, action_seed=0):
    """All a random episode shows, as a list."""
    rng = np.random.default_rng(action_seed)
    obs, _ = env.reset(seed=seed)
    shown, done = [obs.tolist()], False
    while not done:
        obs, reward, done, truncated, info = env.step(sample(env.action_space, rng))
        assert not truncated
        shown += [obs.tolist(), reward, done, info]
    return shown


def sample(space, rng):
    return rng.integers(space.n if isinstance(space, spaces.Discrete) else space.nvec)


def digest():
    """A fingerprint of episodes of every variant, the same in every process."""
    episodes = [play(gym.make(i, **kw), seed) for i, kw in VARIANTS for seed in (0, 3, HELD_OUT_SEED, 2**63 - 1)]
    return hashlib.sha256(json.dumps(episodes).encode()).hexdigest()


def make_tool_env(seed=0, **kwargs):
    env = gym.make(TOOL, **kwargs).unwrapped
    env.reset(seed=seed)
    return env


# --- Gymnasium's and SB3's contracts


@each_variant
def test_checkers_accept(env_id, kwargs):
    check_env(gym.make(env_id, **kwargs).unwrapped)
    sb3_check_env(gym.make(env_id, render_mode="ansi", **kwargs), skip_render_check=False)


def test_registration_is_idempotent():
    spec = gym.spec(TOOL)
    register_envs()
    assert gym.spec(TOOL) is spec


@each_variant
def test_same_seed_same_episode(env_id, kwargs):
    env, other = gym.make(env_id, **kwargs), gym.make(env_id, **kwargs)
    other.reset(seed=99)
    assert play(env, 7) == play(other, 7) == play(env, 7)


@pytest.mark.parametrize(("env_id", "kwargs"), [v for v in VARIANTS if v[0] != TRAP])
def test_other_seed_other_task(env_id, kwargs):
    env = gym.make(env_id, **kwargs)
    assert len({json.dumps(play(env, seed)) for seed in range(20)}) > 5


def test_second_process_plays_the_same_episodes():
    code = "import test_envs; print(test_envs.digest())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == digest()


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


@each_variant
def test_max_turns_is_the_length_of_an_episode_that_never_submits(env_id, kwargs):
    env = gym.make(env_id, **kwargs).unwrapped
    env.reset(seed=0)
    for turn in range(1, env.max_turns + 1):
        *_, done, _, info = env.step(np.zeros(env.action_space.shape, dtype=int))
        assert done == (turn == env.max_turns)
        assert ("is_success" in info) == done
    assert isinstance(info["is_success"], bool)


@each_variant
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
    assert make_tool_env().render() is None


@settings(max_examples=60, deadline=None)
@given(
    variant=st.sampled_from(VARIANTS),
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


# --- Errors


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


@pytest.mark.parametrize(
    ("flat", "action", "message"),
    [
        (False, [0.0, 1.0], "must be integers"),
        (False, [0, 3], r"action \[0 3\] of lane 0 is outside MultiDiscrete"),
        (False, [-1, 0], "outside"),
        (False, 0, "must have shape"),
        (True, 13, "outside"),
        (True, [0, 0], "must have shape"),
        (True, "submit", "must be integers"),
        (True, None, "must be integers"),
    ],
)
def test_wrong_action_is_refused_and_changes_nothing(flat, action, message):
    env = make_tool_env(flat=flat)
    with pytest.raises(ValueError, match=message):
        env.step(action)
    assert env.task.turns[0] == 0


@each_variant
def test_step_needs_a_reset_before_the_first_episode_and_after_each(env_id, kwargs):
    env = gym.make(env_id, **kwargs).unwrapped
    action = np.zeros(env.action_space.shape, dtype=int)
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\)"):
        env.step(action)
    play(env, 0)
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\)"):
        env.step(action)


def test_reset_refuses_options_and_seeds_that_do_not_exist():
    env = make_tool_env()
    with pytest.raises(ValueError, match=r"ToolChainEnv has no reset options, got \['level'\]"):
        env.reset(options={"level": "hard"})
    with pytest.raises(ValueError, match="at most"):
        env.reset(seed=2**63)
    with pytest.raises(gym.error.Error, match="greater or equal to zero"):
        env.reset(seed=-1)


def test_tasks_without_invalid_actions_have_no_masks():
    env = gym.make(TRAP).unwrapped
    assert not hasattr(env, "action_masks")
    with pytest.raises(AttributeError, match="no invalid actions"):
        env.task.action_masks()


# --- CoordinationTrap by hand


@pytest.mark.parametrize(
    ("actions", "rewards"),
    [
        ([1, 2, 3, 0], [0, 0, 0, 1.0]),
        ([0, 2, 3, 0], [0, 0, 0, 0.6]),
        ([0, 0, 0, 0], [0, 0, 0, 0.6]),
        ([1, 2, 3, 1], [0, 0, 0, 0.0]),
        ([1, 0, 3, 0], [0, 0, 0, 0.0]),
        ([2, 2, 3, 0], [0, 0, 0, 0.0]),
    ],
)
def test_coordination_trap_pays(actions, rewards):
    env = gym.make(TRAP)
    env.reset(seed=0)
    paid = [env.step(action)[1] for action in actions]
    assert paid == pytest.approx(rewards)


def test_coordination_trap_shows():
    env = gym.make(TRAP)
    assert env.reset(seed=0)[0].tolist() == [1, 0, 0, 0, 1, 0, 0, 0]
    assert env.step(1)[0].tolist() == [0, 1, 0, 0, 0, 0, 1, 0]
    assert env.step(1)[0].tolist() == [0, 0, 1, 0, 0, 0, 0, 1]
    assert env.step(3)[0].tolist() == [0, 0, 0, 1, 0, 0, 0, 1]
    assert env.step(0)[0].tolist() == [0, 0, 0, 0, 0, 0, 0, 1]


# --- ContextChain by hand


@pytest.mark.parametrize(("reward", "paid"), [("fraction", 2 / 3), ("all", 0.0)])
def test_context_chain_pays_and_shows(monkeypatch, reward, paid):
    contexts = iter([2, 3, 1, 0])
    monkeypatch.setattr(context_chain, "integers", lambda *_: np.array([next(contexts)]))
    env = gym.make(CHAIN, turns=3, actions=4, reward=reward).unwrapped
    assert env.reset(seed=0)[0].tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    # 2 + 0 = 2 is right, then (3 + 2) % 4 = 1, and after the wrong 0 it is 1 + 0 = 1.
    obs, *_ = env.step(2)
    assert obs.tolist() == [0, 1, 0, 0, 0, 0, 1, 0, 0, 1, 0]
    assert env.task.expert_actions().tolist() == [1]
    env.step(0)
    _, got, done, _, info = env.step(1)
    assert (got, done, info) == (pytest.approx(paid), True, {"is_success": False})


def test_context_chain_contexts_are_uniform_at_every_turn():
    task = ContextChain(20_000, turns=3, actions=4)
    task.reset(np.arange(20_000))
    for _ in range(3):
        np.testing.assert_allclose(np.bincount(task.contexts, minlength=4) / 20_000, 0.25, atol=0.015)
        task.step(task.expert_actions())


# --- ToolChain by hand


def test_tool_chain_requests_follow_the_tree_of_types():
    labels = [record_type.label for record_type in TYPES]
    named = {
        level: [[labels[t] for t in path] for path in paths(LEVELS[level].n_tools, LEVELS[level].distance)]
        for level in LEVELS
    }
    assert named["easy"] == [
        ["name", "customer", "order"],
        ["customer", "order", "parcel"],
        ["customer", "order", "product"],
    ]
    assert named["medium"] == [
        ["name", "customer", "order", "parcel"],
        ["name", "customer", "order", "product"],
        ["name", "customer", "order", "invoice"],
        ["customer", "order", "parcel", "depot"],
    ]
    assert named["hard"] == [
        ["name", "customer", "order", "parcel", "depot"],
        ["name", "customer", "order", "product", "shelf"],
        ["name", "customer", "order", "invoice", "receipt"],
    ]
    assert len(TYPES) == len(TOOLS) + 1
    for level in LEVELS.values():
        assert all(level.n_records <= len(set(record_type.records)) for record_type in TYPES)
        assert level.max_turns > level.distance


EPISODES = {
    # actions, replies, the reward at the end
    "straight": (
        [(LIST_ORDERS, CUSTOMER), (TRACK_PARCEL, ORDER), (SUBMIT, 0)],
        [OK, OK, NONE],
        1.0,
    ),
    "errors cost turns only": (
        [
            (TRACK_PARCEL, ORDER),
            (SUBMIT, 0),
            (LIST_ORDERS, 0),
            (LIST_ORDERS, CUSTOMER),
            (TRACK_PARCEL, ORDER),
            (SUBMIT, 2),
        ],
        [NEEDS_INPUT, REFUSED, NOT_FOUND, OK, OK, NONE],
        1.0,
    ),
    "half of the way": ([(LIST_ORDERS, CUSTOMER), (SUBMIT, 1)], [OK, NONE], 0.25),
    "the detour earns nothing": (
        [(LIST_ORDERS, CUSTOMER), (FIND_PRODUCT, ORDER), (SUBMIT, 1)],
        [OK, OK, NONE],
        0.25,
    ),
    "found, not submitted": (
        [(LIST_ORDERS, CUSTOMER), (TRACK_PARCEL, ORDER)] + [(TRACK_PARCEL, ORDER)] * 4,
        [OK] * 6,
        0.5,
    ),
    "nothing found": ([(FIND_CUSTOMER, 0)] * 6, [NEEDS_INPUT] * 6, 0.0),
}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", EPISODES)
def test_tool_chain_episode(name, flat):
    actions, replies, final_reward = EPISODES[name]
    env = make_tool_env(flat=flat)
    for i, ((tool, argument), reply) in enumerate(zip(actions, replies, strict=True), start=1):
        action = min(tool * 3 + argument, 12) if flat else (tool, argument)
        _, reward, done, _, info = env.step(action)
        assert env.task.status[0] == reply
        assert done == (i == len(actions))
        assert reward == (final_reward if done else 0.0)
    assert info == {"is_success": final_reward == 1.0}


def test_tool_chain_observation():
    env = gym.make(TOOL)
    obs, _ = env.reset(seed=0)
    request, online, nothing = [0, 1, 0], [1, 1, 1, 1], [0, 0, 0]
    start = [*nothing, 0, 1, 0, *nothing, *nothing, *nothing]  # the customer number is known
    assert obs.tolist() == [*request, *online, *start, *nothing, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    obs, *_ = env.step([LIST_ORDERS, CUSTOMER])
    later = [*nothing, 0, 1, 0, 0, 1, 0, *nothing, *nothing]
    assert obs.tolist() == [*request, *online, *later, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    obs, *_ = env.step([FIND_CUSTOMER, 0])
    assert obs.tolist() == [*request, *online, *later, *nothing, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0]


def test_tool_chain_hides_what_no_tool_has_returned():
    env = make_tool_env()
    before = env.task.observe()
    env.task.records[0, [0, 2, 3, 4]] = (env.task.records[0, [0, 2, 3, 4]] + 1) % 3
    np.testing.assert_array_equal(env.task.observe(), before)


def test_tool_chain_transcript_reads_like_one():
    env = gym.make(TOOL, render_mode="ansi")
    env.reset(seed=0)
    for action in [(SUBMIT, 0), (LIST_ORDERS, 0), (LIST_ORDERS, CUSTOMER), (TRACK_PARCEL, ORDER), (SUBMIT, 0)]:
        env.step(action)
    assert env.render() == (
        "System: Tools online: find_customer, list_orders, track_parcel, find_product, submit. At most 6 turns.\n"
        "User: My customer number is C-118. Which parcel is my last order in?\n"
        "Agent: submit()\n"
        "Tool: error: nothing found yet that could be submitted\n"
        'Agent: list_orders("C-103")\n'
        "Tool: error: customer not found\n"
        'Agent: list_orders("C-118")\n'
        "Tool: order O-2077\n"
        'Agent: track_parcel("O-2077")\n'
        "Tool: parcel P-52\n"
        'Agent: submit("P-52")\n'
        "User: Thank you, that is what I wanted to know.\n"
        "Reward: 1"
    )
    env.reset(seed=0)
    for _ in range(6):
        env.step((FIND_CUSTOMER, 0))
    assert env.render().endswith("error: needs a known name\nUser: I cannot wait any longer. Goodbye.\nReward: 0")


@pytest.mark.parametrize("level", LEVELS)
def test_tool_chain_times_out_as_often_as_said_and_can_be_retried(level):
    n = 20_000
    task = ToolChain(n, level)
    task.reset(np.arange(n))
    task.step(task.expert_actions())
    timed_out = task.status == TIMEOUT
    assert timed_out.mean() == pytest.approx(LEVELS[level].timeout, abs=0.01)
    assert (task.known.sum(axis=1) == np.where(timed_out, 1, 2)).all()
    task.step(task.expert_actions())
    again = task.status[timed_out]
    assert set(again) <= {OK, TIMEOUT}
    if timed_out.any():
        assert (again == TIMEOUT).mean() == pytest.approx(LEVELS[level].timeout, abs=0.02)


def test_tool_chain_timeouts_follow_the_noise_seeds_and_everything_else_the_task_seeds():
    n = 1000
    task = ToolChain(n, "hard")

    def first_replies(noise_seeds):
        task.reset(np.full(n, 3), noise_seeds)
        assert (task.observe() == task.observe()[0]).all()
        task.step(task.expert_actions())
        return task.status.copy()

    assert len(set(first_replies(None))) == 1  # a group shares its timeouts unless it has noise of its own
    own = first_replies(np.arange(n))
    assert (own == TIMEOUT).mean() == pytest.approx(0.2, abs=0.04)
    np.testing.assert_array_equal(first_replies(np.arange(n)), own)


def test_tool_chain_switches_off_only_tools_that_the_request_does_not_need():
    n = 10_000
    task = ToolChain(n, "hard")
    task.reset(np.arange(n))
    needed = np.zeros((n, 8), dtype=bool)
    for request, path in enumerate(paths(8, 4)):
        needed[np.ix_(task.requests == request, np.array(path[1:]) - 1)] = True
    assert task.online[needed].all()
    assert task.online[~needed].mean() == pytest.approx(0.5, abs=0.01)
    np.testing.assert_allclose(np.bincount(task.requests) / n, 1 / 3, atol=0.02)
    np.testing.assert_allclose(np.bincount(task.records.ravel()) / task.records.size, 0.2, atol=0.01)


def every_action(task: Task):
    """All elements of the action space, and the index of each component's choice in the masks."""
    if isinstance(task.action_space, spaces.Discrete):
        actions = np.arange(task.action_space.n)
        return actions, actions[:, None]
    actions = np.stack(np.meshgrid(*[np.arange(n) for n in task.action_space.nvec], indexing="ij"), -1)
    actions = actions.reshape(-1, len(task.action_space.nvec))
    return actions, actions + np.cumsum([0, *task.action_space.nvec[:-1]])


@pytest.mark.parametrize("kwargs", TOOL_VARIANTS)
@pytest.mark.parametrize("n_before", [0, 1, 2])
def test_masks_agree_with_step(kwargs, n_before):
    actions, positions = every_action(ToolChain(1, **kwargs))
    task = ToolChain(len(actions), **kwargs)
    refusals = 0
    for seed in range(20):
        task.reset(np.full(len(actions), seed))
        for _ in range(n_before):
            task.step(task.expert_actions())
        valid = np.take_along_axis(task.action_masks(), positions, axis=1).all(axis=1)
        known = task.known.copy()
        result = task.step(actions)
        np.testing.assert_array_equal(task.status != REFUSED, valid)
        np.testing.assert_array_equal(task.known[~valid], known[~valid])
        assert not result.dones[~valid].any()
        assert (result.rewards[~valid] == 0).all()
        refusals += (~valid).sum()
    assert refusals or (n_before and kwargs["level"] != "hard")


def test_masked_environment_offers_its_masks_through_wrappers():
    env = gym.make(TOOL, level="easy")
    env.reset(seed=0)
    masks = env.get_wrapper_attr("action_masks")()
    assert masks.tolist() == [True, True, True, True, False, True, True, True]
    env.step([LIST_ORDERS, CUSTOMER])
    assert env.get_wrapper_attr("action_masks")().all()
