"""ToolChain: requests, episodes, observations and transcripts by hand; what times out or is switched off; masks."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from helpers.tasks import with_noise_of_their_own

from seeupo_gym.envs.tasks.tool_chain import NEEDS_INPUT, NONE, NOT_FOUND, OK, REFUSED, TIMEOUT, ToolChain
from seeupo_gym.envs.tasks.tool_chain_world import LEVELS, TOOLS, TYPES, paths

TOOL = "seeupo_gym/ToolChain-v0"
# Easy, seed 0: the customer number is given, the parcel wanted; the records of customer, order and parcel.
CUSTOMER, ORDER, PARCEL = 1, 1, 2
FIND_CUSTOMER, LIST_ORDERS, TRACK_PARCEL, FIND_PRODUCT, SUBMIT = range(5)


def make_tool_env(seed=0, **kwargs):
    env = gym.make(TOOL, **kwargs).unwrapped
    env.reset(seed=seed)
    return env


def test_requests_follow_the_tree_of_types():
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
def test_episodes_by_hand(name, flat):
    actions, replies, final_reward = EPISODES[name]
    env = make_tool_env(flat=flat)
    for i, ((tool, argument), reply) in enumerate(zip(actions, replies, strict=True), start=1):
        action = min(tool * 3 + argument, 12) if flat else (tool, argument)
        _, reward, done, _, info = env.step(action)
        assert env.task.status[0] == reply
        assert done == (i == len(actions))
        assert reward == (final_reward if done else 0.0)
    assert info == {"is_success": final_reward == 1.0}


def test_observation_by_hand():
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


def test_what_no_tool_has_returned_is_hidden():
    env = make_tool_env()
    before = env.task.observe()
    env.task.records[0, [0, 2, 3, 4]] = (env.task.records[0, [0, 2, 3, 4]] + 1) % 3
    np.testing.assert_array_equal(env.task.observe(), before)


def test_transcript_reads_like_one():
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
def test_tools_time_out_as_often_as_said_and_can_be_tried_again(level):
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


def test_timeouts_follow_the_noise_seeds_and_everything_else_the_task_seeds():
    def first_replies(task):
        task.step(task.expert_actions())
        return task.status.copy()

    own = with_noise_of_their_own(ToolChain(1000, "hard"), first_replies)
    assert (own == TIMEOUT).mean() == pytest.approx(0.2, abs=0.04)


def test_tools_that_the_request_needs_are_never_switched_off():
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


def every_action(task):
    """All elements of the action space, and the index of each component's choice in the masks."""
    if isinstance(task.action_space, spaces.Discrete):
        actions = np.arange(task.action_space.n)
        return actions, actions[:, None]
    actions = np.stack(np.meshgrid(*[np.arange(n) for n in task.action_space.nvec], indexing="ij"), -1)
    actions = actions.reshape(-1, len(task.action_space.nvec))
    return actions, actions + np.cumsum([0, *task.action_space.nvec[:-1]])


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n_before", [0, 1, 2])
def test_masks_agree_with_step(level, flat, n_before):
    actions, positions = every_action(ToolChain(1, level, flat))
    task = ToolChain(len(actions), level, flat)
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
    assert refusals or (n_before and level != "hard")


def test_masked_environment_offers_its_masks_through_wrappers():
    env = gym.make(TOOL, level="easy")
    env.reset(seed=0)
    masks = env.get_wrapper_attr("action_masks")()
    assert masks.tolist() == [True, True, True, True, False, True, True, True]
    env.step([LIST_ORDERS, CUSTOMER])
    assert env.get_wrapper_attr("action_masks")().all()


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
