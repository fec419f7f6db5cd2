"""The sequential update against an independent NumPy implementation, and its invariants."""

from copy import deepcopy

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers.updates import method_settings, sequential_update

from seeupo_gym import SeeUPO
from seeupo_gym.agents import NonFiniteError, SeeUPOPolicy
from seeupo_gym.agents.method.batches import TurnBatch
from seeupo_gym.agents.method.sequential import Clip, clip_gradients, turn_order

CHAIN = "seeupo_gym/ContextChain-v0"
N_ACTIONS = 3
LEARNING_RATE = 1.0


def make_policy(n_turns=2, optimizer_class=th.optim.SGD, seed=0, learning_rate=LEARNING_RATE):
    """Softmax over W[:, state] + b, so that gradients can be written down."""
    with th.random.fork_rng():
        th.manual_seed(seed)
        return SeeUPOPolicy(
            spaces.Discrete(4),
            spaces.Discrete(N_ACTIONS),
            lambda _: learning_rate,
            n_policies=n_turns,
            net_arch=[],
            ortho_init=False,
            optimizer_class=optimizer_class,
        )


def make_batches(policy, episodes_by_turn, seed=0):
    rng = np.random.default_rng(seed)
    batches = []
    for turn, episodes in enumerate(episodes_by_turn):
        obs = th.as_tensor(rng.integers(4, size=len(episodes)))
        actions = th.as_tensor(rng.integers(N_ACTIONS, size=len(episodes)))
        with th.no_grad():
            log_probs, _ = policy.evaluate_actions(obs, actions, turn)
        batches.append(TurnBatch(obs, actions, log_probs, th.as_tensor(episodes), None))
    return batches


def settings(**changes):
    return method_settings(**changes)


def weights(policy, turn):
    net = policy.turns[policy.policy_index(turn)].action_net
    return net.weight.detach().double().numpy().copy(), net.bias.detach().double().numpy().copy()


def log_softmax(logits):
    logits = logits - logits.max(axis=0)
    return logits - np.log(np.exp(logits).sum(axis=0))


def clip_product(ratios, delta):
    """Equation 8, one ratio after the other."""
    factor = 1.0
    for ratio in ratios:
        factor = np.clip(factor * np.clip(ratio, 1 - delta, 1 + delta), 1 - delta, 1 + delta)
    return factor


def reference_update(policy, batches, advantages, order, n_epochs, learning_rate, delta=0.2, eps=0.2, n_sweeps=1):
    """One iteration with plain gradient ascent, in NumPy, episode by episode."""
    params = {turn: weights(policy, turn) for turn in order}
    # The ratio of each turn of each episode, 1 where the episode did not reach the turn or the turn is not updated yet.
    ratios = np.ones((len(batches), len(advantages)))
    olds = {}
    for turn in order * n_sweeps:
        weight, bias = params[turn]
        position = order.index(turn)
        later, earlier = order[position + 1 :], order[:position]
        before = [clip_product(ratios[earlier, e], delta) for e in range(len(advantages))]
        after = [clip_product(ratios[later[::-1], e], delta) for e in range(len(advantages))]
        factors = np.array([np.clip(b * a, 1 - delta, 1 + delta) for b, a in zip(before, after, strict=True)])
        obs, actions, episodes = (
            t.numpy() for t in (batches[turn].observations, batches[turn].actions, batches[turn].episodes)
        )
        if turn not in olds:
            olds[turn] = np.array([log_softmax(weight[:, s] + bias)[a] for s, a in zip(obs, actions, strict=True)])
        old = olds[turn]
        for _ in range(n_epochs):
            grad_weight, grad_bias = np.zeros_like(weight), np.zeros_like(bias)
            for s, a, e, before in zip(obs, actions, episodes, old, strict=True):
                log_pi = log_softmax(weight[:, s] + bias)
                ratio, m = np.exp(log_pi[a] - before), advantages[e] * factors[e]
                if (m > 0 and ratio > 1 + eps) or (m < 0 and ratio < 1 - eps):
                    continue  # clipped: no gradient
                score = (np.arange(N_ACTIONS) == a) - np.exp(log_pi)
                grad_bias += ratio * m * score / len(obs)
                grad_weight[:, s] += ratio * m * score / len(obs)
            weight, bias = weight + learning_rate * grad_weight, bias + learning_rate * grad_bias
        params[turn] = (weight, bias)
        for s, a, e, before in zip(obs, actions, episodes, old, strict=True):
            ratios[turn, e] = np.exp(log_softmax(weight[:, s] + bias)[a] - before)
    return params, np.array([clip_product(ratios[order, e], delta) for e in range(len(advantages))])


# Episode 1 ends after turn 0 and episode 3 after turn 1; rows are not in the order of episodes.
EPISODES_BY_TURN = ([2, 0, 1, 3], [3, 0, 2], [0, 2])
ADVANTAGES = np.array([2.0, -1.0, 0.5, -1.5])


@pytest.mark.parametrize("order", [[2, 1, 0], [0, 1, 2], [1, 2, 0]])
@pytest.mark.parametrize(("n_sweeps", "n_epochs"), [(1, 1), (1, 3), (2, 1), (3, 2)])
def test_iteration_equals_the_numpy_reference(order, n_sweeps, n_epochs):
    learning_rate = 0.1 if n_sweeps == 1 else 0.03
    policy = make_policy(n_turns=3, learning_rate=learning_rate)
    batches = make_batches(policy, EPISODES_BY_TURN)
    expected, factors = reference_update(policy, batches, ADVANTAGES, order, n_epochs, learning_rate, n_sweeps=n_sweeps)
    assert np.any(factors == 1.2), "the example should reach the clip range"
    assert np.any((factors > 0.8) & (factors < 1.2)), factors
    advantages = th.as_tensor(ADVANTAGES, dtype=th.float32)
    stats = sequential_update(
        policy,
        batches,
        advantages,
        [[t] for t in order],
        settings(n_sweeps=n_sweeps, n_epochs=n_epochs),
        th.Generator(),
    )
    for turn, (weight, bias) in expected.items():
        got_weight, got_bias = weights(policy, turn)
        np.testing.assert_allclose(got_weight, weight, atol=2e-6)
        np.testing.assert_allclose(got_bias, bias, atol=2e-6)
    assert (stats[order[0]].factor_mean == 1.0) == (n_sweeps == 1), "in later sweeps the other turns have moved"
    assert stats[order[0]].n_gradient_steps == n_sweeps * n_epochs


def test_hand_computed_two_turns():
    """
    Two episodes, two turns, uniform policies over three actions, learning rate 1, advantages +1 and -1.

    Turn 1, same state, actions 0 and 1: the gradient of the mean is ((2, -1, -1) - (-1, 2, -1)) / 6 = (1/2, -1/2, 0)
    for the logits; weight and bias both move by it, so the logits become (1, -1, 0) and
    pi = (e, 1/e, 1) / (e + 1/e + 1) = (0.66524, 0.09003, 0.24473). Ratios 1.99572 and 0.27009 clip to 1.2 and 0.8,
    so that turn 0 is weighted with M = (1.2, -0.8).
    Turn 0, actions 0 and 1: gradient (1.2 * (2, -1, -1) - 0.8 * (-1, 2, -1)) / 6 = (3.2, -2.8, -0.4) / 6.
    """
    policy = make_policy()
    for parameter in policy.parameters():
        parameter.data.zero_()
    state, actions = th.zeros(2, dtype=th.int64), th.tensor([0, 1])
    log_probs = th.full((2,), np.log(1 / 3), dtype=th.float32)
    batch = TurnBatch(state, actions, log_probs, th.tensor([0, 1]), None)
    stats = sequential_update(policy, [batch, batch], th.tensor([1.0, -1.0]), [[1], [0]], settings(), th.Generator())
    np.testing.assert_allclose(weights(policy, 1)[1], [0.5, -0.5, 0.0], atol=1e-6)
    np.testing.assert_allclose(weights(policy, 0)[1], [3.2 / 6, -2.8 / 6, -0.4 / 6], atol=1e-6)
    assert stats[1].policy_loss == pytest.approx(0.0, abs=1e-6)
    assert stats[0].policy_loss == pytest.approx(-(1.2 - 0.8) / 2), "at ratio 1 the loss is minus the mean of M"
    assert stats[0].factor_mean == pytest.approx(1.0)
    assert (stats[0].factor_min, stats[0].factor_max) == pytest.approx((0.8, 1.2))
    assert stats[0].advantage_abs_mean == pytest.approx(1.0)
    assert stats[1].clip_fraction == 1.0
    assert stats[1].entropy == pytest.approx(
        -(0.66524 * np.log(0.66524) + 0.09003 * np.log(0.09003) + 0.24473 * np.log(0.24473)), abs=1e-4
    )
    # k3 averaged over the two ratios 1.99572 and 0.27009.
    assert stats[1].approx_kl == pytest.approx((0.99572 - np.log(1.99572) - 0.72991 - np.log(0.27009)) / 2, abs=1e-4)


def test_reverse_and_forward_order_differ_by_known_numbers():
    """The example above in forward order: turn 0 moves as turn 1 did there, and turn 1 as turn 0."""
    results = {}
    for order in ([1, 0], [0, 1]):
        policy = make_policy()
        for parameter in policy.parameters():
            parameter.data.zero_()
        batch = TurnBatch(
            th.zeros(2, dtype=th.int64),
            th.tensor([0, 1]),
            th.full((2,), np.log(1 / 3), dtype=th.float32),
            th.tensor([0, 1]),
            None,
        )
        sequential_update(
            policy, [batch, batch], th.tensor([1.0, -1.0]), [[t] for t in order], settings(), th.Generator()
        )
        results[order[0]] = [weights(policy, turn)[1] for turn in (0, 1)]
    np.testing.assert_allclose(results[1], [[3.2 / 6, -2.8 / 6, -0.4 / 6], [0.5, -0.5, 0]], atol=1e-6)
    np.testing.assert_allclose(results[0], [[0.5, -0.5, 0], [3.2 / 6, -2.8 / 6, -0.4 / 6]], atol=1e-6)


def test_updating_a_turn_leaves_every_other_turn_bit_identical():
    policy = make_policy(n_turns=3, optimizer_class=th.optim.Adam)
    batches = make_batches(policy, EPISODES_BY_TURN)
    advantages = th.as_tensor(ADVANTAGES, dtype=th.float32)
    # Give every turn momentum first: it is what moves parameters on a zero gradient.
    sequential_update(policy, batches, advantages, [[2], [1], [0]], settings(), th.Generator())
    before = [[p.detach().clone() for p in policy.turn_parameters(t)] for t in range(3)]
    moments = [[policy.optimizer.state[p]["exp_avg"].clone() for p in policy.turn_parameters(t)] for t in range(3)]
    sequential_update(policy, batches, advantages, [[1]], settings(), th.Generator())
    for turn in range(3):
        same = [th.equal(a, b) for a, b in zip(before[turn], policy.turn_parameters(turn), strict=True)]
        same += [
            th.equal(a, policy.optimizer.state[p]["exp_avg"])
            for a, p in zip(moments[turn], policy.turn_parameters(turn), strict=True)
        ]
        assert not any(same) if turn == 1 else all(same)


def test_factors_stay_with_their_episodes_in_shuffled_minibatches():
    """Observations name the episode; the weight of every row must be the advantage times that episode's factor."""
    policy = SeeUPOPolicy(
        spaces.Discrete(32), spaces.Discrete(2), lambda _: 0.5, n_policies=2, net_arch=[], optimizer_class=th.optim.SGD
    )
    rng = np.random.default_rng(0)
    advantages = th.as_tensor(rng.normal(size=32), dtype=th.float32)
    batches = []
    for turn in range(2):
        episodes = th.as_tensor(rng.permutation(32)[: 32 - 8 * turn].copy())
        actions = th.as_tensor(rng.integers(2, size=len(episodes)))
        with th.no_grad():
            log_probs, _ = policy.evaluate_actions(episodes, actions, turn)
        batches.append(TurnBatch(episodes, actions, log_probs, episodes, None))
    seen = []

    class Spy(Clip):
        def objective(self, policy, part, settings):
            seen.extend((rows.turn, rows.batch.observations, rows.weighted_advantages) for rows in part)
            return super().objective(policy, part, settings)

    spied = settings(batch_size=5, n_epochs=2, update_rule=Spy())
    sequential_update(policy, batches, advantages, [[1], [0]], spied, th.Generator())
    with th.no_grad():
        log_probs, _ = policy.evaluate_actions(batches[1].observations, batches[1].actions, 1)
    factors = th.ones(32)
    factors[batches[1].episodes] = (log_probs - batches[1].log_probs).exp().clamp(0.8, 1.2)
    assert (factors != 1).sum() == 24
    for turn, obs, weighted in seen:
        th.testing.assert_close(weighted, advantages[obs] * (factors[obs] if turn == 0 else 1.0))
    for turn, size in ((1, 24), (0, 32)):
        for epoch in range(2):
            per_epoch = -(-size // 5)
            parts = [obs for t, obs, _ in seen if t == turn][epoch * per_epoch : (epoch + 1) * per_epoch]
            assert sorted(th.cat(parts).tolist()) == sorted(batches[turn].episodes.tolist())
    assert not th.equal(seen[0][1], batches[1].observations[:5]), "minibatches should be shuffled"


def test_shared_parameters_are_measured_against_the_collecting_policy():
    """With one network the turns updated later still use the log-probabilities recorded at collection."""
    policy = make_policy(n_turns=1)
    batches = make_batches(policy, ([0, 1, 2, 3], [0, 1, 2, 3]))
    advantages = th.as_tensor(ADVANTAGES, dtype=th.float32)
    sequential_update(policy, batches, advantages, [[1]], settings(), th.Generator())
    with th.no_grad():
        moved, _ = policy.evaluate_actions(batches[0].observations, batches[0].actions, 0)
    assert not th.allclose(moved, batches[0].log_probs)
    weight, bias = weights(policy, 0)
    grad = np.zeros(N_ACTIONS)
    with th.no_grad():
        after, _ = policy.evaluate_actions(batches[1].observations, batches[1].actions, 1)
    factors = (after - batches[1].log_probs).exp().clamp(0.8, 1.2).double().numpy()
    for row, (s, a) in enumerate(zip(batches[0].observations.tolist(), batches[0].actions.tolist(), strict=True)):
        log_pi = log_softmax(weight[:, s] + bias)
        ratio, m = np.exp(log_pi[a] - batches[0].log_probs[row].item()), ADVANTAGES[row] * factors[row]
        if not ((m > 0 and ratio > 1.2) or (m < 0 and ratio < 0.8)):
            grad += ratio * m * ((np.arange(N_ACTIONS) == a) - np.exp(log_pi)) / 4
    # The same iteration from the start, both turns.
    policy = make_policy(n_turns=1)
    sequential_update(policy, batches, advantages, [[1], [0]], settings(), th.Generator())
    np.testing.assert_allclose(weights(policy, 0)[1], bias + grad, atol=2e-6)


def test_entropy_and_kl_terms_have_their_gradients():
    policy = make_policy(n_turns=1)
    batches = make_batches(policy, ([0, 1, 2, 3],))
    zero = th.zeros(4)
    weight, bias = weights(policy, 0)
    sequential_update(policy, batches, zero, [[0]], settings(ent_coef=0.1), th.Generator())
    grad = np.zeros(N_ACTIONS)
    for s in batches[0].observations.tolist():
        log_pi = log_softmax(weight[:, s] + bias)
        pi = np.exp(log_pi)
        grad += 0.1 * -pi * (log_pi - (pi * log_pi).sum()) / 4  # gradient of the entropy of a softmax
    np.testing.assert_allclose(weights(policy, 0)[1], bias + grad, atol=1e-6)

    # Away from pi_old the penalty pulls back: coefficient * (ratio - 1) * score, against the ascent.
    policy = make_policy(n_turns=1)
    policy.turns[0].action_net.bias.data += th.tensor([0.3, 0.0, -0.2])
    weight, bias = weights(policy, 0)
    sequential_update(policy, batches, zero, [[0]], settings(kl_coef=0.5), th.Generator())
    grad = np.zeros(N_ACTIONS)
    for row, (s, a) in enumerate(zip(batches[0].observations.tolist(), batches[0].actions.tolist(), strict=True)):
        log_pi = log_softmax(weight[:, s] + bias)
        ratio = np.exp(log_pi[a] - batches[0].log_probs[row].item())
        grad += -0.5 * (ratio - 1) * ((np.arange(N_ACTIONS) == a) - np.exp(log_pi)) / 4
    np.testing.assert_allclose(weights(policy, 0)[1], bias + grad, atol=1e-6)
    assert np.abs(grad).max() > 1e-3


def test_target_kl_ends_the_update_of_the_turn():
    policy = make_policy(n_turns=2)
    batches = make_batches(policy, ([0, 1, 2, 3], [0, 1, 2, 3]))
    advantages = 5 * th.as_tensor(ADVANTAGES, dtype=th.float32)
    stats = sequential_update(
        policy, batches, advantages, [[1], [0]], settings(n_epochs=10, target_kl=0.01), th.Generator()
    )
    assert stats[1].n_gradient_steps == 1, "one step with learning rate 1 is far beyond the target"
    assert stats[0].n_gradient_steps >= 1, "the next turn starts afresh"


def test_target_kl_holds_over_sweeps():
    """In each sweep a turn that is too far from the collecting policy waits; the first one takes a step in any case."""
    policy = make_policy(n_turns=2)
    batches = make_batches(policy, ([0, 1, 2, 3], [0, 1, 2, 3]))
    advantages = 5 * th.as_tensor(ADVANTAGES, dtype=th.float32)
    free, bounded = ({"n_sweeps": 4}, {"n_sweeps": 4, "target_kl": 0.01})
    for changes, n_steps in ((free, 4), (bounded, 1)):
        policy = make_policy(n_turns=2)
        stats = sequential_update(policy, batches, advantages, [[1], [0]], settings(**changes), th.Generator())
        assert stats[1].n_gradient_steps == n_steps
        assert np.isfinite(stats[1].policy_loss)
    shared = make_policy(n_turns=1)
    batches = make_batches(shared, ([0, 1, 2, 3], [0, 1, 2, 3]))
    stats = sequential_update(shared, batches, advantages, [[1], [0]], settings(**bounded), th.Generator())
    assert stats[0].n_gradient_steps == 1, "turn 1 moved the network far, but turn 0 has its step"


def test_gradient_norm_is_clipped_for_the_turn_alone():
    policy = make_policy(n_turns=2)
    batches = make_batches(policy, ([0, 1, 2, 3], [0, 1, 2, 3]))
    before = [p.detach().clone() for p in policy.turn_parameters(0)]
    sequential_update(
        policy, batches, th.as_tensor(ADVANTAGES).float(), [[0]], settings(max_grad_norm=0.01), th.Generator()
    )
    moved = th.cat([(a - b).reshape(-1) for a, b in zip(before, policy.turn_parameters(0), strict=True)])
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_clip_gradients_matches_torch():
    parameters = [th.nn.Parameter(th.randn(3, 2)), th.nn.Parameter(th.randn(4)), th.nn.Parameter(th.randn(2))]
    grads = [th.randn(3, 2), th.randn(4)]
    for scale in (0.01, 10.0):
        for parameter, grad in zip(parameters, grads, strict=False):
            parameter.grad = grad.clone() * scale
        ours = clip_gradients(parameters, 0.5)
        got = [p.grad for p in parameters[:2]]
        for parameter, grad in zip(parameters, grads, strict=False):
            parameter.grad = grad.clone() * scale
        norm = th.nn.utils.clip_grad_norm_(parameters, 0.5)
        assert ours == pytest.approx(norm.item(), rel=1e-5)
        for a, b in zip(got, parameters[:2], strict=True):
            th.testing.assert_close(a, b.grad, atol=1e-6, rtol=1e-4)


def test_non_finite_loss_stops_before_the_step():
    policy = make_policy()
    batches = make_batches(policy, ([0, 1, 2, 3], [0, 1, 2, 3]))
    before = [p.detach().clone() for p in policy.parameters()]
    with pytest.raises(NonFiniteError, match="turn 1"):
        sequential_update(policy, batches, th.tensor([1.0, np.nan, 0.0, 0.0]), [[1], [0]], settings(), th.Generator())
    assert all(th.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_turn_orders():
    generator = th.Generator().manual_seed(0)
    assert turn_order(4, "reverse", generator) == [[3], [2], [1], [0]]
    assert turn_order(4, "forward", generator) == [[0], [1], [2], [3]]
    assert turn_order(4, "simultaneous", generator) == [[0, 1, 2, 3]]
    orders = [turn_order(4, "random", generator) for _ in range(20)]
    assert all(sorted(order) == [[0], [1], [2], [3]] for order in orders)
    assert len({str(order) for order in orders}) > 5
    assert turn_order(3, [1, 2, 0], generator) == [[1], [2], [0]]
    assert turn_order(2, [1, 2, 0], generator) == [[1], [0]], "no episode reached turn 2"
    assert turn_order(5, [1, 2, 0], generator) == [[1], [4], [3], [2], [0]], (
        "turns 3 and 4 are played by the last policy"
    )


@pytest.mark.parametrize("update_order", ["reverse", [1, 3, 0, 2, 5, 4]])
def test_seeupo_trains_by_algorithm_1(update_order):
    """Advantages, two sweeps, turn after turn in order, then factors: against the loop on a copy of the policy."""
    kwargs = dict(net_arch=[], optimizer_class=th.optim.SGD)
    settings = dict(n_groups=4, group_size=4, n_sweeps=2, n_epochs=2, learning_rate=0.5, max_grad_norm=None)
    model = SeeUPO("MlpPolicy", CHAIN, seed=0, update_order=update_order, policy_kwargs=kwargs, **settings)
    _, callback = model._setup_learn(10_000)
    model.collect_rollouts(model.env, callback, model.rollout_buffer)
    twin, buffer = deepcopy(model.policy), model.rollout_buffer
    model.train()

    returns = buffer.rewards.sum(axis=0)
    advantages = returns - returns.mean(axis=1, keepdims=True)
    advantages = th.as_tensor((advantages / advantages.std()).reshape(-1), dtype=th.float32)
    for group in twin.optimizer.param_groups:
        group["lr"] = 0.5
    order = [[t] for t in ([5, 4, 3, 2, 1, 0] if update_order == "reverse" else update_order)]
    by_hand = method_settings(n_sweeps=2, n_epochs=2, ratio_level="joint")
    sequential_update(twin, buffer.turn_batches, advantages, order, by_hand, th.Generator())
    for turn in range(6):
        th.testing.assert_close(
            model.policy.turns[turn].action_net.weight, twin.turns[turn].action_net.weight, rtol=1e-5, atol=1e-6
        )
