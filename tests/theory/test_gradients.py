"""Gradients, clipped surrogates and normalisation, against finite differences, loops and values computed by hand."""

import itertools
from math import comb

import numpy as np
import pytest
import torch as th

from seeupo_gym.agents.method import objective
from seeupo_gym.theory import rows_gradients
from seeupo_gym.theory.bandits import (
    LOTTERY,
    Bandit,
    batch_normalised_gradient,
    expected_parts,
    logit_gradient,
    multisets,
)
from seeupo_gym.theory.checks import random_batch
from seeupo_gym.theory.gradients import (
    centred_rewards_to_go,
    group_gradient,
    package_estimator,
    policy_gradient,
    reached_turn_scale,
)
from seeupo_gym.theory.mdp import (
    Mdp,
    discounted,
    expected_return,
    softmax,
)
from seeupo_gym.theory.surrogates import ascend_clipped, clipped_value, exact_parts, maximise_clipped


def two_armed(p):
    """One turn, one state: the first arm pays 1, the second 0, and the first has probability p."""
    mdp = Mdp(np.ones((1, 1)), np.ones((1, 1, 1, 2, 1)), np.array([[[[1.0, 0.0]]]]))
    return mdp, np.array([[[[p, 1.0 - p]]]])


# ---------------------------------------------------------------- gradients


def test_the_policy_gradient_is_that_of_finite_differences(batch):
    mdp, policy, _ = batch
    logits, exact, h = np.log(policy), policy_gradient(mdp, policy), 1e-5
    for index in np.ndindex(*policy.shape[1:]):
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
