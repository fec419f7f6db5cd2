"""The low-level API's update against values computed by hand and the engine itself."""

import copy

import numpy as np
import pytest
import torch as th
from helpers.low_level import PLAIN, Gaussian, assert_close
from helpers.updates import method_settings, sequential_update
from hypothesis import given, settings
from hypothesis import strategies as st
from test_trajectories import LENGTHS, Logits, one_hot, pair, parameters_of, record
from torch.distributions import Categorical, Normal

from seeupo_gym.agents import BackwardInductionOptimizer, MultiTurnTrajectory
from seeupo_gym.agents.method.advantages import ADVANTAGE_ESTIMATORS, NORMALIZATIONS
from seeupo_gym.agents.method.batches import TurnBatch

# The update.


def test_hand_computed_two_turns():
    """The example of test_sequential.py, where the numbers are derived: turn 1 moves first, and weights turn 0."""
    policies = [Logits(), Logits()]
    optimizer = BackwardInductionOptimizer(policies, **PLAIN)
    losses = optimizer.train_epoch(pair())
    np.testing.assert_allclose(policies[1].linear.bias.detach(), [0.5, -0.5, 0.0], atol=1e-6)
    np.testing.assert_allclose(policies[0].linear.bias.detach(), [3.2 / 6, -2.8 / 6, -0.4 / 6], atol=1e-6)
    assert list(losses) == [1, 0]
    assert losses == pytest.approx({1: 0.0, 0: -0.2}, abs=1e-6)
    assert optimizer.stats[0].factor_max == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("clip_range_high", "expected"), [(None, [1 / 6, -2 / 6, 1 / 6]), (1.5, [5 / 6, -4 / 6, -1 / 6])]
)
def test_old_log_probs_are_those_of_the_trajectory(clip_range_high, expected):
    """
    Recorded as pi_old = (1/6, 1/3): the ratios of a uniform policy are 2 and 1. The first is beyond 1 + clip_range
    with A = 1, so without a gradient; within 1 + clip_range_high it gives 2 * (2, -1, -1) / 3 / 2 = (4, -2, -2) / 6.
    The second, with A = -1, gives -1 * (-1, 2, -1) / 3 / 2 = (1, -2, 1) / 6.
    """
    policy = Logits()
    first, second = pair()
    first.log_probs -= np.log(2)
    optimizer = BackwardInductionOptimizer([policy, policy], clip_range_high=clip_range_high, **PLAIN)
    optimizer.step([first, second], 1)
    np.testing.assert_allclose(policy.linear.bias.detach(), expected, atol=1e-6)


class Reference:
    """The engine's protocol for modules that return logits, written out."""

    def __init__(self, policies, **optimizer):
        self.policies = policies
        self.optimizers = [th.optim.Adam(policy.parameters(), **optimizer) for policy in policies]

    def evaluate_actions(self, obs, actions, turn, action_masks=None, with_entropy=False):
        distribution = Categorical(logits=self.policies[turn](obs))
        return distribution.log_prob(actions), distribution.entropy() if with_entropy else None

    def turn_parameters(self, turn):
        return list(self.policies[turn].parameters())

    def step_optimizer(self, *turns):
        for turn in turns:
            self.optimizers[turn].step()


@pytest.mark.parametrize(
    ("changes", "rule", "order"),
    [
        (dict(), "clip", [[2], [1], [0]]),
        (dict(batch_size=3, ent_coef=0.1, target_kl=0.5), "clip", [[2], [1], [0]]),
        (dict(update_order="simultaneous", kl_coef=0.1), "kl_penalty", [[0, 1, 2]]),
        (dict(update_order=[1, 2, 0]), "reinforce", [[1], [2], [0]]),
        (dict(update_order="forward", target_kl=0.01), "trust_region", [[0], [1], [2]]),
    ],
)
def test_an_epoch_is_the_engine_bit_for_bit(changes, rule, order):
    policies = [Logits(seed) for seed in range(3)]
    twins = copy.deepcopy(policies)
    trajectories = record(LENGTHS, policies)
    optimizer = BackwardInductionOptimizer(policies, update_rule=rule, seed=5, **changes)
    batches = []
    for turn in range(3):
        episodes = [index for index, length in enumerate(LENGTHS) if length > turn]
        rows = [trajectories[index].get_turn(turn) for index in episodes]
        batches.append(
            TurnBatch(
                th.stack([row.state for row in rows]),
                th.stack([row.action for row in rows]),
                th.stack([row.log_prob for row in rows]).float(),
                th.tensor(episodes),
                None,
            )
        )
    # All returns of a turn are the same table's, so the advantages of turn 0 are those of all turns.
    advantages = optimizer.compute_advantages(trajectories, 0)
    values = dict(n_epochs=4, max_grad_norm=0.5)
    values |= {name: value for name, value in changes.items() if name != "update_order"}
    stats = sequential_update(
        Reference(twins, lr=3e-3, eps=1e-5, fused=True),
        batches,
        advantages,
        order,
        method_settings(update_rule=rule, **values),
        th.Generator().manual_seed(5),
    )
    before = parameters_of(policies)
    losses = optimizer.train_epoch(trajectories)
    assert losses == {turn: stats[turn].policy_loss for turn in (t for block in order for t in block)}
    assert all(th.equal(a, b) for a, b in zip(parameters_of(policies), parameters_of(twins), strict=True))
    assert not any(th.equal(a, b) for a, b in zip(parameters_of(policies), before, strict=True))


def test_a_step_leaves_all_other_turns_bit_identical():
    policies = [Logits(seed) for seed in range(3)]
    optimizer = BackwardInductionOptimizer(policies)
    trajectories = record(LENGTHS, policies)
    optimizer.train_epoch(trajectories)  # momentum, which moves parameters even on a zero gradient

    def of_turn(turn):
        states = optimizer.turns.optimizers[turn].state
        parameters = list(policies[turn].parameters())
        return [v.clone() for p in parameters for v in (p.detach(), states[p]["exp_avg"], states[p]["exp_avg_sq"])]

    before = [of_turn(turn) for turn in range(3)]
    loss = optimizer.step(trajectories, 1)
    assert isinstance(loss, float)
    for turn in range(3):
        same = [th.equal(a, b) for a, b in zip(before[turn], of_turn(turn), strict=True)]
        assert not any(same) if turn == 1 else all(same)


@pytest.mark.parametrize("dtype", [th.float32, th.float64])
def test_steps_chained_by_their_factors_are_an_epoch(dtype):
    policies = [Logits(seed) for seed in range(3)]
    twins = copy.deepcopy(policies)
    trajectories = record(LENGTHS, policies)
    losses = BackwardInductionOptimizer(policies, batch_size=3, seed=1, learning_rate=0.02).train_epoch(trajectories)
    by_hand = BackwardInductionOptimizer(twins, batch_size=3, seed=1, learning_rate=0.02)
    factors, expected = th.ones(len(LENGTHS), dtype=dtype), np.ones(len(LENGTHS))
    for turn in (2, 1, 0):
        assert by_hand.step(trajectories, turn, factors) == losses[turn]
        for index, trajectory in enumerate(trajectories):  # eq. 8, episode by episode
            if len(trajectory) > turn:
                state, action, _, old, _ = trajectory.get_turn(turn)
                ratio = (twins[turn](state.unsqueeze(0)).log_softmax(1)[0, action] - old).exp().item()
                expected[index] = np.clip(expected[index] * np.clip(ratio, 0.8, 1.2), 0.8, 1.2)
        np.testing.assert_allclose(factors, expected, rtol=1e-5)
    assert len(set(factors.tolist())) > 3
    assert_close(policies, twins, atol=0)


@pytest.mark.parametrize("independent", [False, True])
def test_continuous_actions_by_hand(independent):
    """d log N(a; mu, 1) / d mu = a - mu, so from mu = 0 and at ratio 1 the step is the mean of A * a."""
    actions = np.array([[1.0, 0.5], [-0.25, 2.0]])
    log_probs = -0.5 * (actions**2).sum(axis=1) - np.log(2 * np.pi)
    trajectories = [
        MultiTurnTrajectory(np.zeros((1, 1)), actions[i : i + 1], [reward], log_probs[i : i + 1])
        for i, reward in enumerate((2.0, 0.0))
    ]
    policy = Gaussian(independent)
    optimizer = BackwardInductionOptimizer([policy], **PLAIN)
    optimizer.train_epoch(trajectories)
    np.testing.assert_allclose(policy.mean.detach(), (actions[0] - actions[1]) / 2, atol=1e-6)
    # log(2 pi e) / 2 for each of the two dimensions.
    assert optimizer.stats[0].entropy == pytest.approx(np.log(2 * np.pi * np.e), abs=1e-5)


def test_one_ratio_per_token_by_hand():
    """As above, with a mean over the tokens too; the factor takes the ratio of the whole action."""
    actions = np.array([[1.0, 0.5], [-0.25, 2.0]])
    log_probs = -0.5 * actions**2 - np.log(2 * np.pi) / 2
    trajectories = [
        MultiTurnTrajectory(np.zeros((1, 1)), actions[i : i + 1], [reward], log_probs[i : i + 1])
        for i, reward in enumerate((2.0, 0.0))
    ]
    policy, factors = Gaussian(), th.ones(2)
    BackwardInductionOptimizer([policy], factor_clip=10.0, **PLAIN).step(trajectories, 0, factors)
    mean = (actions[0] - actions[1]) / 4
    np.testing.assert_allclose(policy.mean.detach(), mean, atol=1e-6)
    np.testing.assert_allclose(factors, np.exp((actions @ mean) - mean @ mean / 2), rtol=1e-5)


def test_logits_per_token():
    """Actions of two tokens, logits of shape (batch, 2, 3): each token's log-probability, or their sum."""

    class Tokens(Logits):
        def forward(self, states):
            return self.linear(states).unsqueeze(1).expand(-1, 2, -1)

    # Uniform to begin with: token gradients are one-hot - 1/3, weighted with 1 and -1, over two episodes.
    scores = np.array([[4 / 3, -2 / 3, -2 / 3], [1 / 3, 1 / 3, -2 / 3]])  # of tokens (0, 0) and (0, 1)
    for log_probs, share in ((np.full((1, 2), -np.log(3)), 4), (np.array([-2 * np.log(3)]), 2)):
        policy = Tokens()
        trajectories = [
            MultiTurnTrajectory(one_hot(0), [[0, token]], [reward], log_probs) for token, reward in ((0, 2.0), (1, 0.0))
        ]
        BackwardInductionOptimizer(policy, **PLAIN).train_epoch(trajectories)
        np.testing.assert_allclose(policy.linear.bias.detach(), (scores[0] - scores[1]) / share, atol=1e-6)


def test_invalid_actions_have_no_probability_and_no_gradient():
    """Uniform over actions 0 and 1: the scores are (1/2, -1/2, 0) and its opposite, so the step is (1/2, -1/2, 0)."""
    policy = Logits()
    trajectories = pair((0, 0), (1, 1), log_probs=np.full(2, -np.log(2)), action_masks=[[1, 1, 0]] * 2)
    optimizer = BackwardInductionOptimizer([policy, policy], **PLAIN)
    optimizer.step(trajectories, 0)
    np.testing.assert_allclose(policy.linear.bias.detach(), [0.5, -0.5, 0.0], atol=1e-6)
    assert policy.linear.bias[2] == 0.0
    # The state is one-hot, so that its weights move as the bias does: logits 1 and -1.
    p = np.array([np.e, 1 / np.e]) / (np.e + 1 / np.e)
    assert optimizer.stats[0].entropy == pytest.approx(-(p * np.log(p)).sum(), abs=1e-5)


def test_a_shared_module_plays_all_turns():
    single, listed = Logits(1), Logits(1)
    trajectories = record(LENGTHS, [single] * 3)
    one = BackwardInductionOptimizer(single)
    several = BackwardInductionOptimizer([listed] * 3)
    assert len(set(several.turns.optimizers)) == 1
    losses = [optimizer.train_epoch(trajectories) for optimizer in (one, several)]
    assert losses[0] == losses[1]
    assert_close([single], [listed], atol=0)
    # Three updates of one optimizer, of four passes each.
    assert one.turns.optimizers[0].state[single.linear.bias]["step"] == 12


def test_a_module_list_is_one_policy_per_turn_and_a_sequential_module_is_one_policy():
    per_turn = BackwardInductionOptimizer(th.nn.ModuleList([Logits(), Logits()]))
    assert len(set(per_turn.turns.optimizers)) == 2
    shared = BackwardInductionOptimizer(th.nn.Sequential(Logits(), th.nn.Tanh()))
    shared.train_epoch(record(LENGTHS))
    assert len(shared.turns.optimizers) == 1


def test_turns_may_differ_in_states_and_actions():
    class DictPolicy(Logits):
        def forward(self, states):
            return super().forward(states["seen"])

    policies = [DictPolicy(), Gaussian()]
    trajectories = [
        MultiTurnTrajectory(
            [{"seen": one_hot(i % 3)[0]}, {"seen": np.zeros(5, np.uint8)}],
            [i % 3, np.array([0.5, i])],
            [0.0, float(i)],
            [-1.0, -2.0],
        )
        for i in range(4)
    ]
    policies[1].forward = lambda states: Normal(policies[1].mean.expand(len(states["seen"]), 2), 1.0)
    before = parameters_of(policies)
    assert list(BackwardInductionOptimizer(policies).train_epoch(trajectories)) == [1, 0]
    assert not any(th.equal(a, b) for a, b in zip(before, parameters_of(policies), strict=True))


def test_double_precision_is_kept():
    policies = [Logits(seed).double() for seed in range(3)]
    trajectories = record(LENGTHS)
    optimizer = BackwardInductionOptimizer(policies, **PLAIN)
    assert optimizer.compute_advantages(trajectories, 0).dtype == th.float64
    optimizer.train_epoch(trajectories)
    twins = [Logits(seed) for seed in range(3)]
    BackwardInductionOptimizer(twins, **PLAIN).train_epoch(trajectories)
    for a, b in zip(parameters_of(policies), parameters_of(twins), strict=True):
        assert a.dtype == th.float64
        th.testing.assert_close(a.float(), b, atol=1e-5, rtol=0)


def test_small_weights_do_not_round_log_probabilities():
    policy, factors = Logits(0).bfloat16(), th.ones(len(LENGTHS))
    trajectories = record(LENGTHS)
    optimizer = BackwardInductionOptimizer(policy, learning_rate=0.0)
    optimizer.step(trajectories, 0, factors)
    # With the weights as they were, the factors are the clipped ratios of the unrounded recorded log-probabilities.
    for trajectory, factor in zip(trajectories, factors, strict=True):
        state, action, _, old, _ = trajectory.get_turn(0)
        ratio = (Categorical(logits=policy(state.bfloat16())).log_prob(action).double() - old).exp()
        assert factor.item() == pytest.approx(ratio.clamp(0.8, 1.2).item(), rel=1e-6)
    assert any(0.8 < factor < 1.2 for factor in factors)


def test_global_generators_are_left_alone_and_the_seed_decides():
    results = []
    for seed in (3, 3, 4):
        policies = [Logits(s) for s in range(3)]
        state = th.get_rng_state()
        BackwardInductionOptimizer(policies, batch_size=2, update_order="random", seed=seed).train_epoch(
            record(LENGTHS)
        )
        assert th.equal(state, th.get_rng_state())
        results.append(parameters_of(policies))
    assert all(th.equal(a, b) for a, b in zip(*results[:2], strict=True))
    assert not all(th.equal(a, b) for a, b in zip(*results[1:], strict=True))


@settings(deadline=None, max_examples=15)
@given(st.permutations(range(len(LENGTHS))), st.sampled_from(ADVANTAGE_ESTIMATORS), st.sampled_from(NORMALIZATIONS))
def test_the_order_of_trajectories_does_not_matter(order, estimator, normalize):
    results = []
    for indices in (range(len(LENGTHS)), order):
        policies = [Logits(seed) for seed in range(3)]
        trajectories = record(LENGTHS, policies, groups=[0, 1, 0, 0, 1, 2, 2, 2])
        optimizer = BackwardInductionOptimizer(
            policies, advantage_estimator=estimator, normalize_advantage=normalize, **(PLAIN | dict(n_epochs=3))
        )
        losses = optimizer.train_epoch([trajectories[index] for index in indices])
        results.append((policies, losses))
    assert results[0][1] == pytest.approx(results[1][1], abs=1e-5)
    assert_close(results[0][0], results[1][0], atol=1e-5)
