"""Update factors, sweeps and staged learning, exact and from samples."""

import numpy as np
import pytest
import torch as th

from seeupo_gym.agents.method import objective
from seeupo_gym.theory.checks import Batch
from seeupo_gym.theory.gradients import (
    policy_gradient,
)
from seeupo_gym.theory.mdp import (
    Mdp,
    Paths,
    action_values,
    expected_return,
    greedy,
    softmax,
    state_distributions,
)
from seeupo_gym.theory.rows_optimality import coordination_trap, greedy_rows, lost_an_action
from seeupo_gym.theory.rows_sweeps import METHODS, factor_trap, run_method, tied
from seeupo_gym.theory.staged import sampled_sweep, staged_policy
from seeupo_gym.theory.updates import (
    EXACT,
    NO_FACTOR,
    PAPER,
    clipped_maximum,
    exponentiated_step,
    factor_estimates,
    gradient_step,
    greedy_sweep,
    sweep,
    update_factor,
)

ORDERS = [(2, 1, 0), (0, 1, 2), (1, 2, 0)]


# ---------------------------------------------------------------- factors and sweeps


def test_the_factor_is_that_of_training(generator):
    factor, ratio = generator.uniform(0.8, 1.2, 50), generator.uniform(0.0, 3.0, 50)
    expected = objective.update_factor(th.tensor(factor), th.tensor(ratio), 0.2).numpy()
    np.testing.assert_array_equal(update_factor(factor, ratio, PAPER), expected)
    np.testing.assert_array_equal(update_factor(factor, ratio, EXACT), factor * ratio)
    np.testing.assert_array_equal(update_factor(factor, ratio, NO_FACTOR), 1.0)


def test_only_the_exact_factor_gives_the_return_of_the_mixed_policy(batch, generator):
    new = softmax(np.log(batch.policy) + generator.standard_normal(batch.policy.shape))
    estimates, exact = factor_estimates(batch.mdp, batch.paths, batch.policy, new, EXACT)
    np.testing.assert_allclose(estimates, exact, atol=1e-12)
    np.testing.assert_allclose(exact[-1], expected_return(batch.mdp, new), atol=1e-12)
    clipped, _ = factor_estimates(batch.mdp, batch.paths, batch.policy, new, PAPER)
    np.testing.assert_allclose(clipped[:2], exact[:2], atol=1e-12)  # no factor is needed for the last turn
    assert np.abs(clipped[2:] - exact[2:]).max() > 0.01


@pytest.mark.parametrize("order", ORDERS)
def test_a_sweep_with_the_exact_factor_steps_along_q_of_the_mixed_policy(batch, order):
    mdp, policy, paths = batch
    mixed, before = policy.copy(), state_distributions(mdp, policy)
    for turn in order:
        # In other than reverse order the states are weighted by how often the updated turns lead to them.
        now = state_distributions(mdp, mixed)[:, turn]
        share = np.divide(now, before[:, turn], out=np.zeros_like(now), where=before[:, turn] > 0)
        q = action_values(mdp, mixed)[:, turn]
        mixed[:, turn] = softmax(np.log(policy[:, turn]) + 0.7 * share[..., None] * q)
    found = sweep(paths, policy, order, exponentiated_step(0.7), EXACT)
    np.testing.assert_allclose(found, np.where(before[..., None] > 0, mixed, policy), atol=1e-12)


def test_without_a_factor_all_turns_step_along_q_of_the_old_policy(batch):
    mdp, policy, paths = batch
    reached = state_distributions(mdp, policy)[..., None] > 0
    expected = np.where(reached, softmax(np.log(policy) + 0.7 * action_values(mdp, policy)), policy)
    plain = softmax(np.log(policy) + 0.7 * policy_gradient(mdp, policy))
    for order in ORDERS:
        np.testing.assert_allclose(
            sweep(paths, policy, order, exponentiated_step(0.7), NO_FACTOR), expected, atol=1e-12
        )
        np.testing.assert_allclose(sweep(paths, policy, order, gradient_step(0.7), NO_FACTOR), plain, atol=1e-12)


@pytest.mark.parametrize("tie", ["states", "turns"])
def test_tied_policies_stay_tied_and_follow_the_sum_of_the_gradients(batch, tie):
    mdp, _, paths = batch
    policy = tied(batch.policy, tie)
    new = sweep(paths, policy, (2, 1, 0), gradient_step(1e-5), EXACT, tie)
    np.testing.assert_array_equal(new, tied(new, tie))
    gradient = policy_gradient(mdp, policy).sum(axis=2 if tie == "states" else 1, keepdims=True)
    step = (np.log(new) - np.log(policy)) / 1e-5
    step -= step.mean(axis=-1, keepdims=True)
    np.testing.assert_allclose(step, np.broadcast_to(gradient, step.shape), atol=1e-3)


def test_the_clipped_factor_can_lower_the_return_by_hand():
    # At turn 1, maximising with eps 0.2 moves (0.9, 0.1) to (1, 0) in state 1; in state 2, where every sample is
    # negative, (0.1, 0.9) to (0.28, 0.72). So action 1 is now worth (1 - 1.0572) / 2 = -0.0286, less than action 0.
    # The clipped ratios average to 0.9 / 0.9 + 0.1 * 0.8 = 1.08 and 0.1 * 1.2 + 0.9 * 0.8 = 0.84: it looks better.
    mdp, policy = factor_trap()
    paths = Paths(mdp)
    new = {clip: sweep(paths, policy, (1, 0), clipped_maximum(0.2), clip) for clip in (EXACT, PAPER)}
    for clip, of_action_1 in ((EXACT, 0.4), (PAPER, 0.6)):
        np.testing.assert_allclose(new[clip][0, 1, 1:], [[1.0, 0.0], [0.28, 0.72]], atol=1e-12)
        np.testing.assert_allclose(new[clip][0, 0, 0], [1 - of_action_1, of_action_1])
        assert expected_return(mdp, new[clip])[0] == pytest.approx(of_action_1 * -0.0286)
    assert expected_return(mdp, policy)[0] == pytest.approx(0.5 * -0.03)


@pytest.mark.parametrize("improve", [clipped_maximum(0.5), exponentiated_step(10.0), gradient_step(100.0)])
def test_the_exact_factor_is_monotone_in_any_order(batch, improve):
    for method in ("reverse, exact F", "forward, exact F"):
        for tie in ("nothing", "states"):
            returns, policy = run_method(batch, method, improve, 4, tie)
            assert (np.diff(returns, axis=0) >= -1e-12).all()
            assert (returns[-1] > returns[0]).all()
            np.testing.assert_allclose(policy.sum(axis=-1), 1.0)


def test_blind_turns_that_move_at_the_same_time_can_lower_the_return():
    # 1 if both turns choose the same, and the second does not see the first. Each turn's best answer to the other is
    # to change sides: one after the other they meet, together they swap.
    transitions, rewards, policy = np.zeros((1, 2, 2, 2, 2)), np.zeros((1, 2, 2, 2)), np.empty((1, 2, 2, 2))
    transitions[0, 0, :, 0, 0] = transitions[0, 0, :, 1, 1] = transitions[0, 1, ..., 0] = 1.0
    rewards[0, 1] = np.eye(2)
    mdp = Mdp(np.array([[1.0, 0.0]]), transitions, rewards)
    policy[0, 0], policy[0, 1] = [0.9, 0.1], [0.1, 0.9]
    assert expected_return(mdp, policy)[0] == pytest.approx(2 * 0.9 * 0.1)
    for clip, after in ((EXACT, 1.0), (NO_FACTOR, 0.0)):
        new = sweep(Paths(mdp), policy, (1, 0), exponentiated_step(30.0), clip, "states")
        assert expected_return(mdp, new)[0] == pytest.approx(after, abs=1e-6)


def test_the_clipped_surrogate_can_lose_an_action_of_the_optimum_for_ever():
    # Turn 0: action 0 pays 0.5, action 1 leads to a choice of 2 (found one time in a hundred) or -5. Action 0 can take
    # all probability at once, as 1.2 * 0.9 > 1, and does: action 1's weighted good samples pull less than its own.
    transitions, rewards, policy = np.zeros((1, 2, 2, 2, 2)), np.zeros((1, 2, 2, 2)), np.empty((1, 2, 2, 2))
    transitions[..., 1] = 1.0
    transitions[0, 0, 0, 1] = [1.0, 0.0]
    rewards[0, 0, 0, 0], rewards[0, 1, 0] = 0.5, [2.0, -5.0]
    mdp = Mdp(np.array([[1.0, 0.0]]), transitions, rewards)
    policy[0, 0], policy[0, 1] = [0.9, 0.1], [0.01, 0.99]
    batch = Batch(mdp, policy, Paths(mdp))
    assert expected_return(mdp, None) == [2.0]
    returns, last = run_method(batch, "reverse, exact F", clipped_maximum(0.2), 50)
    assert (np.diff(returns[:, 0]) >= 0).all()
    assert returns[-1, 0] == pytest.approx(0.5)
    assert last[0, 0, 0, 1] == 0.0
    assert lost_an_action(mdp, last).tolist() == [True]
    returns, last = run_method(batch, "reverse, exact F", exponentiated_step(1.0), 50)
    assert returns[-1, 0] > 1.9
    assert not lost_an_action(mdp, last).any()


def test_greedy_sweeps(batch):
    rows, gaps = greedy_rows([batch])
    assert all(row.holds for row in rows[:3])
    assert gaps["reverse"][1].max() < 1e-12
    assert gaps["simultaneous"][1].max() > 1e-3
    forward = greedy_sweep(batch.mdp, batch.policy, range(3))
    np.testing.assert_array_equal(forward, greedy(action_values(batch.mdp, batch.policy)))
    together = greedy_sweep(batch.mdp, batch.policy, (2, 1, 0), simultaneous=True)
    np.testing.assert_array_equal(together, forward)


def test_methods_on_the_trap():
    batch = coordination_trap()
    returns = {method: run_method(batch, method, exponentiated_step(10.0), 2)[0][:, 0] for method in METHODS}
    assert returns["reverse, exact F"][1] > 0.99
    assert all(run[1] < 0.61 for method, run in returns.items() if method != "reverse, exact F")


# ---------------------------------------------------------------- samples


def test_staged_learning_finds_the_optimum_from_enough_samples(batch):
    mdp, optimum = batch.mdp, expected_return(batch.mdp, None)
    gaps = [
        np.mean([optimum - expected_return(mdp, staged_policy(np.random.default_rng(s), mdp, n)) for s in range(20)])
        for n in (3, 10**7)
    ]
    assert gaps[0] > 0.01
    assert gaps[1] < 1e-4
    once, again = (staged_policy(np.random.default_rng(3), mdp, 20) for _ in range(2))
    np.testing.assert_array_equal(once, again)


def test_staged_means_are_those_of_the_continuation():
    # One action leads to a lottery at the next turn: its mean is that of multinomial counts.
    mdp = coordination_trap(2, 2).mdp
    policy = staged_policy(np.random.default_rng(0), mdp, 1000)
    np.testing.assert_array_equal(policy[0, :, 0], [[0, 1], [0, 1]])


def test_a_sampled_sweep_with_all_samples_is_the_exact_one(batch):
    found = sampled_sweep(np.random.default_rng(0), batch.paths, 10**9)
    np.testing.assert_allclose(expected_return(batch.mdp, found), expected_return(batch.mdp, None), atol=1e-3)
