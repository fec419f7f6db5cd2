"""The tabular laboratory against brute force and values computed by hand, and the command ``seeupo-gym theory``."""

import itertools
import json
import shlex
import sys
from math import comb

import numpy as np
import pytest
import torch as th
from helpers.docs import ROOT, code_blocks

from seeupo_gym.agents.method import objective
from seeupo_gym.cli import main
from seeupo_gym.theory import report, rows_gradients
from seeupo_gym.theory.bandits import (
    LOTTERY,
    Bandit,
    batch_normalised_gradient,
    expected_parts,
    logit_gradient,
    multisets,
)
from seeupo_gym.theory.checks import Batch, random_batch
from seeupo_gym.theory.gradients import (
    centred_rewards_to_go,
    group_gradient,
    package_estimator,
    policy_gradient,
    reached_turn_scale,
)
from seeupo_gym.theory.mdp import (
    Mdp,
    Paths,
    action_values,
    deterministic_policies,
    discounted,
    expected_return,
    greedy,
    softmax,
    state_distributions,
)
from seeupo_gym.theory.rows_optimality import coordination_trap, greedy_rows, lost_an_action
from seeupo_gym.theory.rows_sweeps import METHODS, factor_trap, run_method, tied
from seeupo_gym.theory.staged import sampled_sweep, staged_policy
from seeupo_gym.theory.surrogates import ascend_clipped, clipped_value, exact_parts, maximise_clipped
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

PAGE = "docs/theory.md"
SHAPE = (3, 2, 2)
ORDERS = [(2, 1, 0), (0, 1, 2), (1, 2, 0)]


@pytest.fixture
def generator():
    return np.random.default_rng(7)


@pytest.fixture
def batch(generator):
    return random_batch(generator, 6, SHAPE)


def two_armed(p):
    """One turn, one state: the first arm pays 1, the second 0, and the first has probability p."""
    mdp = Mdp(np.ones((1, 1)), np.ones((1, 1, 1, 2, 1)), np.array([[[[1.0, 0.0]]]]))
    return mdp, np.array([[[[p, 1.0 - p]]]])


# ---------------------------------------------------------------- MDPs


def test_values_computed_by_hand():
    # The trap with 3 turns and 2 actions: going on twice pays 1, stopping at once 0.6.
    mdp, policy, paths = coordination_trap(3, 2)
    assert expected_return(mdp, None) == [1.0]
    assert expected_return(mdp, policy) == [0.5 * 0.6 + 0.5**3]
    np.testing.assert_array_equal(action_values(mdp, policy)[0, :, 0], [[0.6, 0.25], [0.0, 0.5], [0.0, 1.0]])
    np.testing.assert_array_equal(state_distributions(mdp, policy)[0], [[1, 0], [0.5, 0.5], [0.25, 0.75]])
    assert paths.probability(policy).sum() == 1.0


def test_the_optimum_is_the_best_of_all_deterministic_policies_from_every_turn_on(batch):
    policies = deterministic_policies(*SHAPE)
    assert len(policies) == 2**6
    assert len(np.unique(policies, axis=0)) == 64
    optimal = action_values(batch.mdp, None)
    for k in range(6):
        brute = np.max([action_values(batch.mdp[k], policy)[0] for policy in policies], axis=0)
        np.testing.assert_allclose(optimal[k], brute, atol=1e-12)
        best = max(expected_return(batch.mdp[k], policy)[0] for policy in policies)
        assert expected_return(batch.mdp, None)[k] == pytest.approx(best, abs=1e-12)
    np.testing.assert_allclose(expected_return(batch.mdp, greedy(optimal)), expected_return(batch.mdp, None))


def test_paths_are_what_stepping_through_the_mdp_gives(batch):
    mdp, policy, paths = batch
    probability = paths.probability(policy)
    steps = itertools.product(*[range(2)] * 6)
    for i, (s0, a0, s1, a1, s2, a2) in enumerate(steps):
        for k in range(6):
            chance = mdp.start[k, s0] * mdp.transitions[k, 0, s0, a0, s1] * mdp.transitions[k, 1, s1, a1, s2]
            played = policy[k, 0, s0, a0] * policy[k, 1, s1, a1] * policy[k, 2, s2, a2]
            assert probability[k, i] == pytest.approx(chance * played, abs=1e-15)
            rewards = mdp.rewards[k, 0, s0, a0] + mdp.rewards[k, 1, s1, a1] + mdp.rewards[k, 2, s2, a2]
            assert paths.returns[k, i] == pytest.approx(rewards, abs=1e-12)
    for turn in range(3):
        expected = state_distributions(mdp, policy)[:, turn, :, None] * policy[:, turn]
        np.testing.assert_allclose(paths.gather(probability, turn), expected, atol=1e-15)


def test_random_mdps_stop_and_are_deterministic_in_every_other_one(generator):
    mdp = random_batch(generator, 4, (3, 3, 2), stopping=True).mdp
    np.testing.assert_allclose(mdp.transitions.sum(axis=-1), 1.0)
    assert set(np.unique(mdp.transitions[1::2])) == {0.0, 1.0}
    assert not mdp.start[:, -1].any()
    assert not mdp.rewards[:, :, -1].any()
    np.testing.assert_array_equal(mdp.transitions[:, :, :, 0, -1], 1.0)
    np.testing.assert_array_equal(mdp.transitions[:, :, -1, :, -1], 1.0)


# ---------------------------------------------------------------- gradients


def test_the_policy_gradient_is_that_of_finite_differences(batch):
    mdp, policy, _ = batch
    logits, exact, h = np.log(policy), policy_gradient(mdp, policy), 1e-5
    for index in np.ndindex(*SHAPE):
        shift = np.zeros_like(logits)
        shift[(slice(None), *index)] = h
        slope = (expected_return(mdp, softmax(logits + shift)) - expected_return(mdp, softmax(logits - shift))) / (
            2 * h
        )
        np.testing.assert_allclose(exact[(slice(None), *index)], slope, atol=1e-8)


def test_grae_by_hand():
    # Groups of two that differ have probability 2 p (1-p): A = +-1/2, so (1/2) (1/2 (1-p) + 1/2 p) = 1/4 each.
    mdp, policy = two_armed(0.3)
    found = group_gradient(mdp, policy, 2, package_estimator("group_mean"))[0, 0]
    np.testing.assert_allclose(found, [0.5 * 0.3 * 0.7, -0.5 * 0.3 * 0.7], atol=1e-15)
    np.testing.assert_allclose(policy_gradient(mdp, policy)[0, 0, 0], [0.3 * 0.7, -0.3 * 0.7], atol=1e-15)


def test_the_expected_group_gradient_is_that_of_a_loop_over_all_groups(generator):
    mdp, policy, paths = random_batch(generator, 1, (2, 2, 2), stopping=True)
    probability, expected = paths.probability(policy)[0], np.zeros((2, 2, 2))
    everything = list(itertools.product(range(2), repeat=4))
    for group in itertools.product(range(16), repeat=2):
        steps = [everything[i] for i in group]
        if len({step[0] for step in steps}) > 1:
            continue  # not from one initial state
        start = mdp.start[0, steps[0][0]]
        weight = probability[list(group)].prod() / start if start else 0.0
        rewards = np.array([[mdp.rewards[0, 0, s0, a0], mdp.rewards[0, 1, s1, a1]] for s0, a0, s1, a1 in steps])
        reached = np.array([[s0 == 0, s1 == 0] for s0, _, s1, _ in steps])
        advantages = centred_rewards_to_go(rewards[None], reached[None])[0]
        for (s0, a0, s1, a1), advantage in zip(steps, advantages, strict=True):
            for turn, s, a in ((0, s0, a0), (1, s1, a1)):
                score = np.eye(2)[a] - policy[0, turn, s]
                expected[turn, s] += weight * advantage[turn] * score / 2
    np.testing.assert_allclose(group_gradient(mdp, policy, 2, centred_rewards_to_go), expected, atol=1e-15)


def test_group_gradients_against_the_gradient_of_j(generator):
    rows = rows_gradients.gradient_rows(generator, 2)
    assert [row.holds for row in rows] == [True] * 5 + [None, True]


def test_a_wrong_gradient_is_reported_as_failing(generator, monkeypatch):
    monkeypatch.setattr(rows_gradients, "policy_gradient", lambda mdp, policy: 1.001 * policy_gradient(mdp, policy))
    rows = rows_gradients.gradient_rows(generator, 2)
    assert [row.verdict for row in rows[:3]] == ["FAILS"] * 3


def test_reward_to_go_without_the_discount_of_its_turn(batch):
    mdp, policy = batch.mdp[0], batch.policy[:1]
    found = 2 * group_gradient(mdp, policy, 2, package_estimator("reward_to_go", 0.5))  # times G / (G - 1)
    weights = np.array([1.0, 2.0, 4.0])[:, None, None]  # gamma^-t
    np.testing.assert_allclose(found, weights * policy_gradient(discounted(mdp, 0.5), policy)[0], atol=1e-14)


def test_the_scale_of_turns_that_not_all_members_reach():
    # Action 1 goes on, with probability 0.25, and only then is there a reward: 1 for action 1.
    transitions, rewards = np.zeros((1, 2, 2, 2, 2)), np.zeros((1, 2, 2, 2))
    transitions[..., 1] = 1.0
    transitions[0, 0, 0, 1] = [1.0, 0.0]
    rewards[0, 1, 0, 1] = 1.0
    mdp = Mdp(np.array([[1.0, 0.0]]), transitions, rewards, stopping=True)
    policy = np.array([[[[0.75, 0.25]] * 2, [[0.5, 0.5]] * 2]])
    size = 4
    mean_share = sum(comb(3, k) * 0.25**k * 0.75 ** (3 - k) / (k + 1) for k in range(4))
    expected = policy_gradient(mdp, policy)[0] * np.array([0.75, 1 - mean_share])[:, None, None]
    np.testing.assert_allclose(reached_turn_scale(mdp, policy, size), expected, atol=1e-15)
    found = group_gradient(mdp, policy, size, package_estimator("reward_to_go"))
    np.testing.assert_allclose(found, expected, atol=1e-15)


# ---------------------------------------------------------------- clipping and normalisation


def test_multisets_have_multinomial_probabilities():
    drawn, chance = multisets(np.array([0.2, 0.8]), 3)
    assert drawn.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 1, 1]]
    np.testing.assert_allclose(chance, [0.008, 3 * 0.04 * 0.8, 3 * 0.2 * 0.64, 0.512])


@pytest.mark.parametrize("ratio_of_first", [0.5, 0.85, 1.0, 1.15, 1.6])
def test_the_expected_surrogate_is_the_mean_of_the_one_that_training_maximises(generator, ratio_of_first):
    bandit = Bandit(generator.standard_normal((2, 2)), generator.dirichlet(np.ones(2), 2))
    old = np.array([0.4, 0.6])
    ratio = np.array([ratio_of_first, (1 - 0.4 * ratio_of_first) / 0.6])
    total = 0.0
    for group in itertools.product(itertools.product(range(2), range(2)), repeat=3):
        arms, outcomes = map(list, zip(*group, strict=True))
        weight = (old[arms] * bandit.chances[arms, outcomes]).prod()
        payoffs = bandit.payoffs[arms, outcomes]
        surrogate = objective.clipped_surrogate(
            th.tensor(ratio[arms]), th.tensor(payoffs - payoffs.mean()), clip_low=0.2, clip_high=0.2
        )
        total += weight * surrogate.mean().item()
    up, down = expected_parts(bandit, old, 3)
    assert clipped_value(ratio, up, down, 0.2) == pytest.approx(total, abs=1e-12)
    advantage = bandit.means - old @ bandit.means
    np.testing.assert_allclose(up - down, 2 / 3 * old * advantage, atol=1e-15)


def test_the_maximum_of_the_surrogate_is_that_of_a_grid(generator):
    n = 40
    grid = np.array([(i, j, n - i - j) for i in range(n + 1) for j in range(n + 1 - i)]) / n
    for _ in range(20):
        old = softmax(generator.standard_normal(3))
        up, down = generator.exponential(size=(2, 3)) * old
        new = maximise_clipped(old, up, down, 0.3)
        assert new.sum() == pytest.approx(1.0)
        assert (new >= 0).all()
        found = clipped_value(new / old, up, down, 0.3)
        assert found >= clipped_value(grid / old, up, down, 0.3).max() - 1e-12
        # and its gain is a lower bound of the improvement
        assert found - clipped_value(np.ones(3), up, down, 0.3) <= (new / old - 1) @ (up - down) + 1e-12


def test_noise_holds_the_ratio_in_the_clip_range_by_hand():
    # p = 0.2 for the lottery: exact advantages stop when the other arm is at 0.8 * 0.8, noisy ones at 1.2 * 0.2.
    old = np.array([0.8, 0.2])
    advantage = LOTTERY.means - old @ LOTTERY.means
    np.testing.assert_allclose(maximise_clipped(old, *exact_parts(old, advantage), 0.2), [0.64, 0.36])
    np.testing.assert_allclose(maximise_clipped(old, *expected_parts(LOTTERY, old, 8), 0.2), [0.76, 0.24])


def test_no_advantage_leaves_the_policy():
    old = np.array([[0.3, 0.7], [0.5, 0.5]])
    up, down = np.array([[0.0, 0.0], [1.0, 0.0]]), np.zeros((2, 2))
    np.testing.assert_allclose(maximise_clipped(old, up, down, 0.2), [[0.3, 0.7], [0.6, 0.4]])


def test_a_gradient_step_on_the_surrogate_is_that_of_finite_differences(generator):
    old = softmax(generator.standard_normal(3))
    up, down = generator.exponential(size=(2, 3)) * old
    start = ascend_clipped(old, up, down, 0.2, 0.5, 3)
    h = 1e-6
    slope = [
        (
            clipped_value(softmax(np.log(start) + h * e) / old, up, down, 0.2)
            - clipped_value(softmax(np.log(start) - h * e) / old, up, down, 0.2)
        )
        / (2 * h)
        for e in np.eye(3)
    ]
    on = ascend_clipped(old, up, down, 0.2, 0.5, 4)
    moved = np.log(on) - np.log(start)
    np.testing.assert_allclose(moved - moved.mean(), 0.5 * (slope - np.mean(slope)), atol=1e-7)


def test_the_group_standard_deviation_turns_the_lottery_around_by_hand():
    # G = 2, p = 1/2: groups that differ give +-1 after division; (0, -1) has probability 0.45, (0, 20) 0.05.
    old = np.array([0.5, 0.5])
    divided = logit_gradient(expected_parts(LOTTERY, old, 2, "group"), old)
    np.testing.assert_allclose(divided, [0.5 * 0.4, -0.5 * 0.4], atol=1e-15)
    plain = logit_gradient(expected_parts(LOTTERY, old, 2), old)
    np.testing.assert_allclose(plain, [-0.5 * 0.25 * 1.1, 0.5 * 0.25 * 1.1], atol=1e-15)
    np.testing.assert_allclose(batch_normalised_gradient(LOTTERY, old, 2, 1), divided, atol=1e-15)


def test_batches_of_two_groups_against_a_loop():
    old, expected = np.array([0.5, 0.5]), np.zeros(2)
    outcomes = {(0, 0.0): 0.5, (1, -1.0): 0.45, (1, 20.0): 0.05}
    for members in itertools.product(outcomes, repeat=4):
        payoffs = np.array([payoff for _, payoff in members]).reshape(2, 2)
        advantages = payoffs - payoffs.mean(axis=1, keepdims=True)
        if advantages.any():
            weight = np.prod([outcomes[member] for member in members])
            scores = np.eye(2)[[arm for arm, _ in members]] - old
            expected += weight * (advantages.ravel() / advantages.std()) @ scores / 4
    np.testing.assert_allclose(batch_normalised_gradient(LOTTERY, old, 2, 2), expected, atol=1e-15)


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


# ---------------------------------------------------------------- the command


def theory(capsys, *argv):
    code = main(["theory", *map(str, argv)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def claims(table):
    """The cells below "claim" of a printed table."""
    lines = table[: table.index("\n(Sweeps")].splitlines()
    start, end = lines[0].index("claim"), lines[0].index("measured")
    return [line[start:end].rstrip() for line in lines[2:]]


@pytest.fixture(scope="module")
def page_command():
    (command,) = code_blocks(PAGE, "bash")
    program, name, *options = shlex.split(command)
    assert (program, name) == ("seeupo-gym", "theory")
    return [*options, "--mdps", 3]


@pytest.mark.docs
def test_the_command_on_the_page_and_its_seed(capsys, tmp_path, page_command, monkeypatch):
    code, out, err = theory(capsys, *page_command, "--out", tmp_path / "a")
    assert code == 0
    assert "FAILS" not in out
    assert "claim 7" in err
    (table,) = code_blocks(PAGE, "text")
    printed = claims(out)
    assert printed == claims(table)
    results = json.loads((tmp_path / "a/results.json").read_text())
    assert [check["claim"].strip() for check in results["checks"]] == [claim.strip() for claim in printed]
    for plot in ("theory_return.png", "theory_gap.png", "theory_staged.png"):
        assert (tmp_path / "a" / plot).stat().st_size > 10_000
        assert str(tmp_path / "a" / plot) in out
        assert f"images/{plot}" in (ROOT / PAGE).read_text()

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, again, _ = theory(capsys, *page_command, "--out", tmp_path / "b", "--no-plots")
    assert code == 0
    assert again[: again.index("written:")] == out[: out.index("written:")]
    assert (tmp_path / "a/results.json").read_bytes() == (tmp_path / "b/results.json").read_bytes()
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["results.json"]


def test_plots_without_matplotlib_are_an_error_before_anything_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = theory(capsys, "--mdps", 3, "--out", tmp_path)
    assert (code, out) == (2, "")
    assert "pip install matplotlib" in err


def test_a_claim_that_fails_is_an_error(capsys, tmp_path, monkeypatch, generator):
    monkeypatch.setattr(rows_gradients, "policy_gradient", lambda mdp, policy: 1.001 * policy_gradient(mdp, policy))
    rows = [(2, row) for row in rows_gradients.gradient_rows(generator, 1)]
    monkeypatch.setattr(report, "run_theory", lambda *arguments: report.TheoryRun(rows, []))
    code, out, _ = theory(capsys, "--out", tmp_path, "--no-plots")
    assert code == 1
    assert out.count("FAILS") == 3


def test_too_few_mdps_are_refused(capsys, tmp_path):
    code, out, err = theory(capsys, "--mdps", 2, "--out", tmp_path, "--no-plots")
    assert (code, out) == (2, "")
    assert "--mdps must be at least 3" in err
