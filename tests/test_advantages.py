import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from seeupo_gym.agents.advantages import NORMALIZATIONS, group_relative_advantages

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
