import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from seeupo_gym.agents.method.advantages import (
    ADVANTAGE_ESTIMATORS,
    NORMALIZATIONS,
    discounted_returns,
    estimate_advantages,
    group_relative_advantages,
)

RETURNS = np.array([[1.0, 0.0, 0.5, 0.5], [2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 4.0]])


def test_grae_is_the_return_less_the_group_mean():
    advantages, degenerate = group_relative_advantages(RETURNS, "none")
    expected = [[0.5, -0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-1.0, -1.0, -1.0, 3.0]]
    np.testing.assert_array_equal(advantages, expected)
    np.testing.assert_array_equal(degenerate, [False, True, False])


def test_batch_normalization_divides_by_one_standard_deviation():
    # Squares of the advantages: 2 * 0.25 + 3 * 1 + 9 = 12.5 over 12 episodes, so std = sqrt(12.5 / 12).
    advantages, _ = group_relative_advantages(RETURNS, "batch")
    std = np.sqrt(12.5 / 12)
    np.testing.assert_allclose(advantages[0], [0.5 / std, -0.5 / std, 0, 0])
    np.testing.assert_allclose(advantages[2], [-1 / std, -1 / std, -1 / std, 3 / std])


def test_group_normalization_divides_each_group_by_its_own():
    # Group 0: std = sqrt((0.25 + 0.25) / 4) = 0.353553; group 2: sqrt((1 + 1 + 1 + 9) / 4) = 1.732051.
    advantages, _ = group_relative_advantages(RETURNS, "group")
    np.testing.assert_allclose(advantages[0], [np.sqrt(2), -np.sqrt(2), 0, 0])
    np.testing.assert_allclose(advantages[2], np.array([-1, -1, -1, 3]) / np.sqrt(3))


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_equal_returns_give_exactly_zero(normalize):
    # The mean of seven 0.1s is not 0.1 in floating point: divided by their tiny std it would give |A| near 1.
    returns = np.full((2, 7), 0.1)
    assert returns.mean(axis=1)[0] != 0.1
    advantages, degenerate = group_relative_advantages(returns, normalize)
    assert degenerate.all()
    np.testing.assert_array_equal(advantages, 0.0)
    mixed, degenerate = group_relative_advantages(np.vstack([returns[0], np.arange(7.0)]), normalize)
    np.testing.assert_array_equal(mixed[0], 0.0)
    assert degenerate.tolist() == [True, False]
    assert np.abs(mixed[1]).max() > 0.5


def test_float32_rounding_is_no_signal():
    returns = np.array([[0.1 + 0.2, 0.3, float(np.float32(0.3)), 0.3]])
    assert group_relative_advantages(returns, "batch").degenerate.all()


def test_unknown_normalization_is_refused():
    with pytest.raises(ValueError, match=r"batch.*group.*none.*'global'"):
        group_relative_advantages(RETURNS, "global")


@given(arrays(np.float64, (3, 4), elements=st.floats(-100, 100)), st.sampled_from(NORMALIZATIONS))
def test_group_advantages_sum_to_zero_and_keep_the_order_of_returns(returns, normalize):
    advantages, degenerate = group_relative_advantages(returns, normalize)
    assert np.isfinite(advantages).all()
    np.testing.assert_allclose(advantages.sum(axis=1), 0.0, atol=1e-7 * (1 + np.abs(advantages).max()))
    for group in np.flatnonzero(~degenerate):
        best, worst = returns[group].argmax(), returns[group].argmin()
        assert advantages[group, best] > 0 > advantages[group, worst]


# Two groups of three episodes over three turns; None where an episode is over.
EPISODES = [[(1, 2, 4), (0, 1), (2,)], [(1, 1, 1), (1, 1, 1), (0, 0, 3)]]


def tables(groups=EPISODES):
    shape = (max(len(e) for group in groups for e in group), len(groups), max(len(group) for group in groups))
    rewards, reached = np.zeros(shape), np.zeros(shape, dtype=bool)
    for g, group in enumerate(groups):
        for i, episode in enumerate(group):
            rewards[: len(episode), g, i], reached[: len(episode), g, i] = episode, True
    return rewards, reached


def brute_force(groups, gamma, estimator, normalize):
    """Episode by episode, in plain Python; turn by turn for the reward-to-go, else for turn 0 alone."""
    turns = range(max(len(e) for group in groups for e in group)) if estimator == "reward_to_go" else [0]
    result = np.zeros((len(turns), len(groups), max(len(group) for group in groups)))
    for turn in turns:
        rows = []
        for g, group in enumerate(groups):
            values = {
                i: sum(gamma**s * r for s, r in enumerate(e[turn:])) for i, e in enumerate(group) if len(e) > turn
            }
            for i, value in values.items():
                others = [v for j, v in values.items() if j != i or estimator != "leave_one_out"]
                result[turn, g, i] = value - np.mean(others) if len(values) > 1 else 0.0
                rows.append((turn, g, i))
            if normalize == "group" and np.std(list(values.values()) or [0.0]) > 0:
                result[turn, g] /= np.std(list(values.values()))
        if normalize == "batch":
            spread = np.sqrt(np.mean([result[row] ** 2 for row in rows]))
            result[turn] /= spread if spread > 0 else 1.0
    return result


def test_reward_to_go_by_hand():
    advantages, degenerate = estimate_advantages(*tables(), 1.0, "reward_to_go", "none")
    # Group 0: rewards to go 7, 1, 2 at turn 0; 6, 1 at turn 1; 4 alone at turn 2.
    np.testing.assert_allclose(advantages[:, 0], [[11 / 3, -7 / 3, -4 / 3], [2.5, -2.5, 0], [0, 0, 0]])
    np.testing.assert_allclose(advantages[:, 1], [[0, 0, 0], [-1 / 3, -1 / 3, 2 / 3], [-2 / 3, -2 / 3, 4 / 3]])
    np.testing.assert_array_equal(degenerate, [[False, True], [False, False], [True, False]])
    half, _ = estimate_advantages(*tables(), 0.5, "reward_to_go", "none")
    np.testing.assert_allclose(half[1, 0], [(4 - 1) / 2, -(4 - 1) / 2, 0])  # 2 + 4 / 2 against 1


def test_leave_one_out_by_hand():
    advantages, _ = estimate_advantages(*tables(), 1.0, "leave_one_out", "none")
    np.testing.assert_allclose(advantages, [[[7 - 1.5, 1 - 4.5, 2 - 4], [0, 0, 0]]])


@pytest.mark.parametrize("gamma", [1.0, 0.7])
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("estimator", ADVANTAGE_ESTIMATORS)
def test_estimators_against_brute_force(estimator, normalize, gamma):
    rng = np.random.default_rng(0)
    groups = [[tuple(rng.normal(size=rng.integers(1, 5))) for _ in range(4)] for _ in range(5)]
    for example in (EPISODES, groups):
        advantages, _ = estimate_advantages(*tables(example), gamma, estimator, normalize)
        np.testing.assert_allclose(advantages, brute_force(example, gamma, estimator, normalize), atol=1e-12)


def test_absent_members_take_no_part():
    """A group of two beside one of four, as with trajectories collected elsewhere."""
    groups = [[(1.0,), (3.0,)], [(0.0,), (0.0,), (1.0,), (3.0,)]]
    for estimator in ADVANTAGE_ESTIMATORS:
        for normalize in NORMALIZATIONS:
            advantages, _ = estimate_advantages(*tables(groups), 1.0, estimator, normalize)
            np.testing.assert_allclose(advantages, brute_force(groups, 1.0, estimator, normalize))
            np.testing.assert_array_equal(advantages[0, 0, 2:], 0.0)


@pytest.mark.parametrize("normalize", ["batch", "group"])
def test_normalised_leave_one_out_and_group_mean(normalize):
    """Leave-one-out is G / (G - 1) times the group mean: batch normalisation takes the factor away again."""
    rewards, reached = tables()
    mean, loo = (estimate_advantages(rewards, reached, 1.0, name, normalize)[0] for name in ADVANTAGE_ESTIMATORS[:2])
    np.testing.assert_allclose(loo, mean if normalize == "batch" else mean * 3 / 2)


def test_clip_and_returns():
    rewards, reached = tables()
    free, _ = estimate_advantages(rewards, reached, 1.0, normalize="none")
    clipped, _ = estimate_advantages(rewards, reached, 1.0, normalize="none", clip=3.0)
    assert free.max() > 3.0
    np.testing.assert_array_equal(clipped, free.clip(-3.0, 3.0))
    np.testing.assert_allclose(discounted_returns(rewards, 0.5), [[3, 0.5, 2], [1.75, 1.75, 0.75]])


def test_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match=r"group_mean.*'gae'"):
        estimate_advantages(*tables(), 1.0, "gae")
