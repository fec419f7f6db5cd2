import math

import pytest
import torch as th
from hypothesis import given
from hypothesis import strategies as st

from seeupo_gym.agents.method.objective import clipped_surrogate, kl_divergence, log_importance_ratio, update_factor


def test_ratio_is_the_quotient_of_probabilities():
    log_prob, old = th.tensor([0.6, 0.25]).log(), th.tensor([0.5, 0.5]).log()
    th.testing.assert_close(log_importance_ratio(log_prob, old).exp(), th.tensor([1.2, 0.5]))


def test_ratio_of_a_sequence_is_the_geometric_mean_over_its_tokens():
    # Two tokens with ratios 2 and 4.5: (2 * 4.5) ** (1 / 2) = 3.
    log_ratio = log_importance_ratio(th.tensor([math.log(9.0)]), th.zeros(1), th.tensor([2.0]))
    th.testing.assert_close(log_ratio.exp(), th.tensor([3.0]))


def test_ratio_cannot_overflow():
    log_ratio = log_importance_ratio(th.tensor([0.0, -1e6]), th.tensor([-1e6, 0.0]))
    assert log_ratio.exp().isfinite().all()
    assert log_ratio.tolist() == [20.0, -20.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.1, 2.0, 2.2),  # inside the range
        (1.5, 2.0, 2.6),  # a gain is capped at 1 + 0.3
        (0.5, 2.0, 1.0),  # a loss is not
        (1.5, -2.0, -3.0),
        (0.5, -2.0, -1.6),  # capped at 1 - 0.2
    ],
)
def test_clipped_surrogate(ratio, advantage, expected):
    value = clipped_surrogate(th.tensor([ratio]), th.tensor([advantage]), clip_low=0.2, clip_high=0.3)
    th.testing.assert_close(value, th.tensor([expected]))


@given(st.floats(0.01, 5.0), st.floats(-3.0, 3.0), st.floats(0.0, 0.9), st.floats(0.0, 2.0))
def test_gradient_of_the_clipped_surrogate(ratio, advantage, low, high):
    """rho * M with respect to log rho, and 0 beyond the bound on the side where M gains."""
    log_ratio = th.tensor([ratio], dtype=th.float64).log().requires_grad_()
    clipped_surrogate(log_ratio.exp(), th.tensor([advantage], dtype=th.float64), low, high).backward()
    if min(abs(ratio - (1 - low)), abs(ratio - (1 + high))) > 1e-6:  # no derivative at the bounds themselves
        clipped = ratio > 1 + high if advantage > 0 else ratio < 1 - low
        expected = 0.0 if clipped else ratio * advantage
        assert log_ratio.grad.item() == pytest.approx(expected, abs=1e-12, rel=1e-12)


def test_a_clip_range_of_zero_lets_the_first_gradient_through():
    log_ratio = th.zeros(2, requires_grad=True)
    clipped_surrogate(log_ratio.exp(), th.tensor([2.0, -2.0]), 0.0, 0.0).sum().backward()
    assert log_ratio.grad.tolist() == [2.0, -2.0]


def test_kl_is_k3_and_averages_to_the_true_divergence():
    old, new = th.tensor([0.2, 0.3, 0.5]), th.tensor([0.4, 0.3, 0.3])
    estimates = kl_divergence((new / old).log())
    th.testing.assert_close(estimates, new / old - 1 - (new / old).log())
    # Weighted by pi_old, the expectation over its samples is KL(pi_old || pi).
    th.testing.assert_close((old * estimates).sum(), (old * (old / new).log()).sum())
    assert (estimates >= 0).all()


def test_factor_is_clipped_at_each_turn_and_as_a_product():
    factor = th.tensor([1.0, 1.1, 0.9, 1.2])
    ratio = th.tensor([1.5, 1.15, 0.5, 0.9])
    # 1 * 1.2; 1.1 * 1.15 = 1.265 -> 1.2; 0.9 * 0.8 = 0.72 -> 0.8; 1.2 * 0.9
    th.testing.assert_close(update_factor(factor, ratio, 0.2), th.tensor([1.2, 1.2, 0.8, 1.08]))
