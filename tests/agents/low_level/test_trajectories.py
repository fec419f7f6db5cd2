"""Trajectories, their advantages, and the closed loop of the low-level API; see test_backward_induction.py too."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
import torch as th

from seeupo_gym.agents import BackwardInductionOptimizer, MultiTurnTrajectory, train_multi_turn_agent
from seeupo_gym.agents.method.advantages import ADVANTAGE_ESTIMATORS, NORMALIZATIONS

ROOT = Path(__file__).parents[3]
N_STATES, N_ACTIONS = 3, 3


class Logits(th.nn.Module):
    """Softmax over W state + b; zero weights to begin with, or random ones."""

    def __init__(self, seed=None):
        super().__init__()
        self.linear = th.nn.Linear(N_STATES, N_ACTIONS)
        rng = np.random.default_rng(seed)
        for parameter in self.parameters():
            parameter.data.copy_(th.as_tensor(0.0 if seed is None else rng.normal(size=parameter.shape)))

    def forward(self, states):
        return self.linear(states)


def one_hot(*states):
    return np.eye(N_STATES)[list(states)]


def record(lengths, policies=None, groups=None, seed=0, noise=0.3):
    """Episodes of these lengths, some way off the policies that are given or off uniform ones."""
    rng = np.random.default_rng(seed)
    trajectories = []
    for index, length in enumerate(lengths):
        states = th.as_tensor(one_hot(*rng.integers(N_STATES, size=length)), dtype=th.float32)
        actions = rng.integers(N_ACTIONS, size=length)
        log_probs = np.full(length, -np.log(N_ACTIONS))
        if policies is not None:
            with th.no_grad():
                rows = [policies[t](states[t : t + 1]).log_softmax(1)[0] for t in range(length)]
            log_probs = np.array([float(row[action]) for row, action in zip(rows, actions, strict=True)])
        log_probs = log_probs + noise * rng.normal(size=length)
        group = index % 2 if groups is None else groups[index]
        trajectories.append(MultiTurnTrajectory(states, actions, rng.normal(size=length), log_probs, group=group))
    return trajectories


LENGTHS = [3, 1, 2, 3, 3, 2, 1, 3]


def parameters_of(policies):
    return [p.detach().clone() for policy in policies for p in policy.parameters()]


def pair(action_0=(0, 0), action_1=(1, 1), **arguments):
    """Two episodes of two turns of a uniform policy over three actions, with returns 2 and 0: advantages 1 and -1."""
    fine = dict(log_probs=np.full(2, -np.log(3)), group="g") | arguments
    return [
        MultiTurnTrajectory(one_hot(0, 0), np.array(actions), [0.0, reward], **fine)
        for actions, reward in ((action_0, 2.0), (action_1, 0.0))
    ]


# The trajectory.


def test_returns_are_discounted_sums_of_what_follows():
    trajectory = MultiTurnTrajectory([0, 1, 2], [0, 0, 0], [1.0, 2.0, 3.0], [-1.0, -1.0, -1.0])
    assert trajectory.returns().tolist() == [6.0, 5.0, 3.0]
    assert trajectory.returns(gamma=0.5).tolist() == [2.75, 3.5, 3.0]
    assert len(trajectory) == 3


def test_get_turn():
    trajectory = MultiTurnTrajectory(
        [np.zeros(2), np.ones(4)], [2, 0], [0.0, 1.5], th.tensor([-0.1, 0.7]), [[1, 0, 1], [1, 1, 0]], group="a"
    )
    turn = trajectory.get_turn(1)
    assert turn.state.tolist() == [1.0, 1.0, 1.0, 1.0]
    assert (turn.action.item(), turn.reward) == (0, 1.5)
    assert turn.log_prob.item() == pytest.approx(0.7), "densities may exceed 1"
    assert turn.action_mask.tolist() == [True, True, False]
    for beyond in (2, -1):
        with pytest.raises(IndexError, match=rf"no turn {beyond}: the trajectory has 2, counted from 0 to 1"):
            trajectory.get_turn(beyond)


def test_dict_states_by_column_or_by_turn():
    by_column = MultiTurnTrajectory({"a": np.eye(2), "b": [[0], [1, 2]]}, [0, 1], [0, 0], [0, 0])
    by_turn = MultiTurnTrajectory([{"a": [1.0, 0.0], "b": [0]}, {"a": [0.0, 1.0], "b": [1, 2]}], [0, 1], [0, 0], [0, 0])
    for trajectory in (by_column, by_turn):
        assert {k: v.tolist() for k, v in trajectory.get_turn(1).state.items()} == {"a": [0.0, 1.0], "b": [1, 2]}


def test_what_is_recorded_stays_whatever_the_caller_does_with_its_arrays():
    states, actions = np.zeros((2, 3)), th.zeros(2)
    log_probs = [th.tensor(-1.0, requires_grad=True), th.tensor(-1.0)]
    trajectory = MultiTurnTrajectory(states, actions, [0.0, 0.0], log_probs)
    states += 1.0
    actions += 1.0
    assert trajectory.get_turn(0).state.sum() == trajectory.get_turn(0).action == 0.0
    assert not trajectory.log_probs.requires_grad


FINE = dict(states=np.zeros((2, 3)), actions=[0, 1], rewards=[0.0, 1.0], log_probs=[-1.0, -2.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(log_probs=None), "log_probs is None.*record log pi.*at collection"),
        (dict(rewards=[1.0]), "2 in states, 2 in actions, 1 in rewards, 2 in log_probs: record"),
        (dict(action_masks=np.ones((3, 2))), "3 in action_masks"),
        (dict(states=[], actions=[], rewards=[], log_probs=[]), "at least one turn, got none: leave out"),
        (dict(rewards=[0.0, np.nan]), "rewards of turn 1 holds NaN or infinity: drop"),
        (dict(log_probs=[-np.inf, 0.0]), "log_probs of turn 0 holds NaN"),
        (dict(states=[[0.0], [np.inf, 1.0]]), "states of turn 1 holds NaN"),
        (dict(states={"a": np.zeros((2, 1)), "b": [[0.0], [np.nan]]}), r"states\['b'\] of turn 1 holds NaN"),
        (dict(states={"a": np.zeros((2, 1)), "b": np.zeros((3, 1))}), "one row per turn, got.*'a': 2, 'b': 3"),
        (dict(states=[{"a": 0}, {"b": 0}]), "different entries"),
        (dict(states={}), "one row per turn"),
        (dict(actions=th.tensor([[0.0], [np.nan]])), "actions of turn 1 holds NaN"),
        (dict(actions=["left", "right"]), "actions of turn 0 must be numbers"),
        (dict(actions=3), "actions must have one entry per turn, got 3"),
        (dict(rewards=[[0.0], [1.0]]), r"rewards must have shape \(turns,\), got shape \(1,\) at turn 0"),
        (dict(log_probs=[[-1.0, -1.0], [-1.0]]), r"log_probs must have.*\(1,\) at turn 1 \(turn 0: \(2,\)\); sum them"),
    ],
)
def test_a_trajectory_is_checked_when_it_is_made(changes, message):
    MultiTurnTrajectory(**FINE)
    with pytest.raises(ValueError, match=message):
        MultiTurnTrajectory(**(FINE | changes))


# Advantages.


def with_rewards(*rewards_and_groups):
    return [
        MultiTurnTrajectory(
            one_hot(*[0] * len(rewards)), [0] * len(rewards), rewards, [0.0] * len(rewards), group=group
        )
        for rewards, group in rewards_and_groups
    ]


@pytest.mark.parametrize(
    ("estimator", "normalize", "expected"),
    [
        # Group a has the returns 1, 2, 6 with mean 3, group b 0 and 4 with mean 2.
        ("group_mean", "none", [-2, -2, -1, 2, 3]),
        ("leave_one_out", "none", [-3, -4, -1.5, 4, 4.5]),  # 1 - (2 + 6) / 2 = -3 and so on
        ("group_mean", "batch", np.array([-2, -2, -1, 2, 3]) / np.sqrt(22 / 5)),  # squares: 4 + 4 + 1 + 4 + 9
        ("leave_one_out", "batch", np.array([-3, -4, -1.5, 4, 4.5]) / np.sqrt((9 + 16 + 2.25 + 16 + 20.25) / 5)),
        ("group_mean", "group", np.array([-2, -2, -1, 2, 3]) / np.sqrt([14 / 3, 4, 14 / 3, 4, 14 / 3])),
    ],
)
def test_advantages_of_unequal_groups_by_hand(estimator, normalize, expected):
    trajectories = with_rewards(([1.0], "a"), ([0.0], "b"), ([2.0], "a"), ([4.0], "b"), ([5.0, 1.0], "a"))
    optimizer = BackwardInductionOptimizer(
        [Logits(), Logits()], advantage_estimator=estimator, normalize_advantage=normalize
    )
    np.testing.assert_allclose(optimizer.compute_advantages(trajectories, 0), expected, rtol=1e-6)
    later = optimizer.compute_advantages(trajectories, 1)
    np.testing.assert_allclose(later, expected[-1:], rtol=1e-6)


def brute_force_advantages(trajectories, turn, gamma, estimator, normalize):
    """Episode by episode, with Python's own sums."""
    reaching = [t for t in trajectories if len(t) > turn or estimator != "reward_to_go"]

    def value(trajectory):
        first = turn if estimator == "reward_to_go" else 0
        return sum(gamma**i * r for i, r in enumerate(trajectory.rewards.tolist()[first:]))

    advantages = []
    for trajectory in reaching:
        members = [t for t in reaching if t.group == trajectory.group]
        values = [value(t) for t in members]
        mean = np.mean(values)
        if estimator == "leave_one_out" and len(members) > 1:
            mean = np.mean([value(t) for t in members if t is not trajectory])
        spread = np.std(values)
        advantage = value(trajectory) - mean if spread > 1e-9 else 0.0
        advantages.append(advantage / (spread if normalize == "group" and spread > 1e-9 else 1.0))
    std = np.sqrt(np.mean(np.square(advantages)))
    advantages = np.array(advantages) / (std if normalize == "batch" and std > 0 else 1.0)
    return [a for a, t in zip(advantages, reaching, strict=True) if len(t) > turn]


@pytest.mark.parametrize("estimator", ADVANTAGE_ESTIMATORS)
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_advantages_of_unequal_groups_by_brute_force(estimator, normalize):
    # Groups of 4, 2, 1 and (without an id) 3; those of group "equal" all pay the same.
    groups = ["a", "alone", "equal", None, "a", None, "equal", "a", None, "a"]
    lengths = [3, 2, 2, 1, 2, 3, 2, 1, 2, 3]
    trajectories = record(lengths, groups=groups)
    for trajectory in trajectories:
        if trajectory.group == "equal":
            trajectory.rewards[:] = th.tensor([0.1, 0.7])
    optimizer = BackwardInductionOptimizer(
        Logits(), gamma=0.9, advantage_estimator=estimator, normalize_advantage=normalize
    )
    for turn in range(3):
        got = optimizer.compute_advantages(trajectories, turn)
        expected = brute_force_advantages(trajectories, turn, 0.9, estimator, normalize)
        assert len(expected) == [10, 8, 3][turn]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


def test_groups_that_are_tensors_are_compared_by_value():
    trajectories = with_rewards(([1.0], th.tensor(4)), ([0.0], 5), ([3.0], th.tensor(4)), ([4.0], th.tensor(5)))
    optimizer = BackwardInductionOptimizer(Logits(), normalize_advantage="none")
    assert optimizer.compute_advantages(trajectories, 0).tolist() == [-1.0, -2.0, 1.0, 2.0]


def test_advantages_are_bounded():
    trajectories = with_rewards(([0.0], 0), ([0.0], 0), ([0.0], 0), ([9.0], 0))
    bounded = BackwardInductionOptimizer(Logits(), advantage_clip=1.5).compute_advantages(trajectories, 0)
    np.testing.assert_allclose(bounded, [-1 / np.sqrt(3)] * 3 + [1.5], rtol=1e-6)


# The closed loop, the example and the page.


def test_training_loop():
    seen = []

    def collect(policies):
        seen.append(policies)
        assert th.get_num_threads() == 1
        return with_rewards(([1.0, 2.0], 0), ([0.0], 0), ([3.0, 4.0], 0))

    policies = [Logits(), Logits()]
    threads = th.get_num_threads()
    try:
        th.set_num_threads(2)
        history = train_multi_turn_agent(policies, collect, 5, lambda epoch, record: epoch < 2, gamma=0.5, seed=0)
        assert th.get_num_threads() == 2
    finally:
        th.set_num_threads(threads)
    assert [record["epoch"] for record in history] == [0, 1, 2], "False stops, after the epoch"
    assert all(got is policies for got in seen)
    assert history[0]["mean_return"] == pytest.approx((2 + 0 + 5) / 3)
    assert history[0]["n_trajectories"] == 3
    assert list(history[0]["losses"]) == [1, 0]
    optimizer = BackwardInductionOptimizer(policies, n_epochs=1)
    assert len(train_multi_turn_agent(optimizer, collect, n_epochs=2, callback=lambda epoch, record: None)) == 2
    assert optimizer.turns.optimizers[0].state[policies[0].linear.bias]["step"] == 2, "two epochs of one pass"
    with pytest.raises(ValueError, match="leave out gamma"):
        train_multi_turn_agent(optimizer, collect, 1, gamma=0.5)


def test_the_example_reaches_the_optimum():
    spec = importlib.util.spec_from_file_location("torch_only", ROOT / "examples" / "torch_only.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.main() == pytest.approx(1.0)


def test_the_page_runs_as_written():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "low_level_api.md").read_text(), flags=re.DOTALL)
    names = {}
    with th.random.fork_rng():
        th.manual_seed(0)  # the page leaves the networks' initial weights to torch
        exec(code, names)
    assert names["history"][-1]["mean_return"] > 0.9 > 0.6 > names["history"][0]["mean_return"]
