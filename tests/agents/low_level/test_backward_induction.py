"""The low-level API's update against values computed by hand, the engine itself, and SeeUPO.train()."""

import copy
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers.updates import method_settings, sequential_update
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.preprocessing import preprocess_obs
from test_trajectories import LENGTHS, N_ACTIONS, Logits, one_hot, pair, parameters_of, record
from torch.distributions import Categorical, Independent, Normal

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.agents import BackwardInductionOptimizer, MultiTurnTrajectory, NonFiniteError
from seeupo_gym.agents.method.advantages import ADVANTAGE_ESTIMATORS, NORMALIZATIONS
from seeupo_gym.agents.method.batches import TurnBatch

PLAIN = dict(optimizer_class=th.optim.SGD, learning_rate=1.0, n_epochs=1, max_grad_norm=None)


def assert_close(policies, others, atol):
    for a, b in zip(parameters_of(policies), parameters_of(others), strict=True):
        th.testing.assert_close(a, b, atol=atol, rtol=0)


class Gaussian(th.nn.Module):
    """Two-dimensional actions around a mean that does not depend on the state; standard deviation 1."""

    def __init__(self, independent=False):
        super().__init__()
        self.mean = th.nn.Parameter(th.zeros(2))
        self.independent = independent

    def forward(self, states):
        normal = Normal(self.mean.expand(len(states), 2), 1.0)
        return Independent(normal, 1) if self.independent else normal


class OwnLogProb:
    """No module: log-probabilities of a softmax over one vector of logits, and a setting for what goes wrong."""

    def __init__(self, fault=None):
        self.logits = th.nn.Parameter(th.zeros(N_ACTIONS))
        self.fault = fault

    def parameters(self):
        return iter([self.logits])

    def log_prob(self, states, actions):
        log_prob = self.logits.log_softmax(dim=0)[actions]
        return {"column": log_prob.unsqueeze(1), "detached": log_prob.detach()}.get(self.fault, log_prob)


class OwnLogProbAndEntropy(OwnLogProb):
    def entropy(self, states):
        entropy = Categorical(logits=self.logits).entropy()
        return entropy if self.fault == "scalar entropy" else entropy.expand(len(states))


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


class Walk(gym.Env):
    """Episodes of 1 to 3 turns; the actions are discrete and masked, or continuous."""

    max_turns = 3

    def __init__(self, continuous):
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = spaces.Box(-5.0, 5.0, (2,), np.float32) if continuous else spaces.Discrete(3)
        if not continuous:
            self.action_masks = lambda: np.arange(3) != self.turn  # another choice is missing at every turn

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return self._observe(), {}

    def step(self, action):
        self.turn += 1
        done = self.turn == self.max_turns or self.np_random.random() < 0.3
        return self._observe(), float(np.sum(action) + self.np_random.normal()), done, False, {}

    def _observe(self):
        return self.np_random.normal(size=4).astype(np.float32)


class NetworkOfTurn(th.nn.Module):
    """One turn's network of a SeeUPOPolicy, as someone might have it: logits, or a Normal."""

    def __init__(self, policy, turn):
        super().__init__()
        self.network = copy.deepcopy(policy.turns[turn])
        self.space = policy.observation_space

    def forward(self, states):
        output = self.network(preprocess_obs(states, self.space))
        return output if self.network.log_std is None else Normal(output, self.network.log_std.exp().expand_as(output))


def tool_chain_policy(policy, turn):
    """MultiDiscrete actions through log_prob(states, actions), the third kind of policy."""
    policy = copy.deepcopy(policy)
    return SimpleNamespace(
        network=policy.turns[turn],
        parameters=policy.turns[turn].parameters,
        log_prob=lambda states, actions: policy.evaluate_actions(states, actions, turn)[0],
        entropy=lambda states: policy.get_distribution(states, turn).entropy(),
    )


def to_trajectories(buffer):
    """What SeeUPO collected, episode by episode."""
    rows = [[] for _ in range(buffer.n_groups * buffer.group_size)]
    rewards = buffer.rewards.reshape(len(buffer.rewards), -1)
    for turn, batch in enumerate(buffer.turn_batches):
        for row, episode in enumerate(batch.episodes.tolist()):
            mask = None if batch.action_masks is None else batch.action_masks[row]
            step = (batch.observations[row], batch.actions[row], rewards[turn, episode], batch.log_probs[row], mask)
            rows[episode].append(step)
    trajectories = []
    for episode, steps in enumerate(rows):
        *columns, masks = ([*column] for column in zip(*steps, strict=True))
        masks = None if masks[0] is None else masks
        trajectories.append(MultiTurnTrajectory(*columns, masks, group=episode // buffer.group_size))
    return trajectories


@pytest.mark.parametrize("optimizer_class", [th.optim.SGD, th.optim.Adam])
@pytest.mark.parametrize(
    ("env", "changes", "make_policy"),
    [
        ("discrete", {}, NetworkOfTurn),
        ("continuous", dict(batch_size=7, ent_coef=0.1), NetworkOfTurn),
        ("tools", {}, tool_chain_policy),
        ("tools", dict(ratio_level="token"), tool_chain_policy),
    ],
)
def test_an_epoch_is_what_seeupo_does_with_the_same_episodes(env, changes, make_policy, optimizer_class):
    shared = dict(learning_rate=0.003, gamma=0.9, advantage_estimator="reward_to_go") | changes
    model = SeeUPO(
        "MlpPolicy",
        make_vec("seeupo_gym/ToolChain-v0", 8) if env == "tools" else Walk(continuous=env == "continuous"),
        n_groups=4,
        group_size=5,
        use_masking=env == "discrete",
        policy_kwargs=dict(net_arch=[8], ortho_init=False, optimizer_class=optimizer_class),
        seed=0,
        **shared,
    )
    model.learn(20, log_interval=None)  # then the next episodes are collected off the initial weights
    model.collect_rollouts(model.env, model._init_callback(None), model.rollout_buffer)
    trajectories = to_trajectories(model.rollout_buffer)
    assert len({len(trajectory) for trajectory in trajectories}) > 1
    assert (trajectories[0].action_masks is None) == (env != "discrete")
    n_turns = len(model.rollout_buffer.turn_batches)
    policies = [make_policy(model.policy, turn) for turn in range(model.n_turns)]
    shared.pop("ratio_level", None)
    optimizer = BackwardInductionOptimizer(policies, optimizer_class=optimizer_class, **shared)
    if optimizer_class is th.optim.Adam:
        optimizer = with_state_of(model.policy.optimizer, optimizer)
    optimizer.generator.set_state(model.streams.updates.get_state())
    if "batch_size" in changes:  # minibatches are drawn from rows in SeeUPO's order, that of the vector steps
        assert all(
            batch.episodes.tolist() == sorted(batch.episodes.tolist()) for batch in model.rollout_buffer.turn_batches
        )
    before = parameters_of(model.policy.turns)
    optimizer.train_epoch(trajectories)
    model.train()
    after = parameters_of(model.policy.turns)
    assert sum(not th.equal(a, b) for a, b in zip(before, after, strict=True)) == len(after) * n_turns // model.n_turns
    assert_close([policy.network for policy in policies], model.policy.turns, atol=1e-6)


def with_state_of(source, optimizer):
    """Continue with the moments that a model's one optimizer has gathered."""
    for group, own in zip(source.param_groups, optimizer.turns.optimizers, strict=True):
        params = own.param_groups[0]["params"]
        for param, twin in zip(group["params"], params, strict=True):
            own.state[twin] = copy.deepcopy(source.state[param])
    return optimizer


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


# What is refused.


def corrupt(policy, value=np.nan):
    policy.linear.bias.data[0] = value
    return policy


class Broken(Logits):
    """Returns something else than a policy should."""

    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, states):
        return self.output(super().forward(states))


def categorical(logits):
    return Categorical(logits=logits)


def refused(message, *policies, error=ValueError, trajectories=pair, **settings):
    return policies or (Logits, Logits), trajectories, settings, error, message


MASKS = np.ones((2, 3))
EPOCH_ERRORS = {
    "no trajectories": refused("no trajectories", trajectories=list),
    "too long": refused("trajectory 0 has 2 turns.*policies for 1: pass one policy per turn", Logits),
    "groups of one": refused(
        "each of the 2 groups has one trajectory.*always 0 in a group of one",
        trajectories=lambda: pair(group="a")[:1] + pair(group="b")[:1],
    ),
    "different shapes": refused(
        r"at turn 0 trajectory 0.*'states': \(3,\).*trajectory 2 has.*'states': \(4,\).*padded to one shape",
        trajectories=lambda: [*pair(), MultiTurnTrajectory(np.zeros((2, 4)), [0, 1], [0, 0], [0, 0], group="g")],
    ),
    "masks in some": refused("'action_masks'", trajectories=lambda: pair() + pair(action_masks=MASKS)),
    "width of the logits": refused(
        "policy of turn 0 gives 1 logits, but its actions go from 0 to 1",
        lambda: Broken(lambda logits: logits[:, :1]),
        Logits,
    ),
    "negative action": refused("turn 1 gives 3 .* go from -1 to 1", trajectories=lambda: pair((0, -1))),
    "float actions": refused("turn 0 returns logits.*are floats", trajectories=lambda: pair((0.0, 1.0))),
    "columns of actions": refused(
        r"logits of turn 0 must have the shape of the actions, \(2, 1\), and a last dimension",
        trajectories=lambda: pair(([0], [0]), ([1], [1])),
    ),
    "NaN from the weights": refused("policy of turn 1 gives", Logits, lambda: corrupt(Logits()), error=NonFiniteError),
    "NaN refused by torch": refused(
        "turn 0 has non-finite weights", lambda: corrupt(Broken(categorical)), Logits, error=NonFiniteError
    ),
    "action ruled out": refused(
        "turn 0 gives a log-probability of -inf for trajectory 0.*rules out an action",
        lambda: corrupt(Logits(), -np.inf),
        Logits,
        error=NonFiniteError,
    ),
    "no distribution": refused("turn 0 returns a tuple: its forward", lambda: Broken(tuple), Logits),
    "distribution of another shape": refused(
        r"distribution of turn 0 is one over actions of shape \(2, 3\).*recorded have shape \(2,\)",
        lambda: Broken(lambda logits: Normal(logits, 1.0)),
        Logits,
    ),
    "per token": refused(
        r"log-probabilities of shape \(2,\).*recorded have shape \(2, 4\)",
        trajectories=lambda: pair(log_probs=np.zeros((2, 4))),
    ),
    "log_prob of wrong shape": refused(
        r"turn 1 gives log-probabilities of shape \(2, 1\).*recorded have shape \(2,\)",
        Logits,
        lambda: OwnLogProb("column"),
    ),
    "no gradient": refused("turn 1 have no gradient", Logits, lambda: OwnLogProb("detached")),
    "masks for log_prob": refused(
        "masks at turn 1, but its policy returns no logits",
        Logits,
        OwnLogProb,
        trajectories=lambda: pair(action_masks=MASKS),
    ),
    "masks for a distribution": refused(
        "masks at turn 0", lambda: Broken(categorical), Logits, trajectories=lambda: pair(action_masks=MASKS)
    ),
    "width of the masks": refused(
        r"masks of turn 0 must have the shape of the logits, \(2, 3\), got \(2, 4\)",
        trajectories=lambda: pair(action_masks=np.ones((2, 4))),
    ),
    "masked action": refused(
        "taken at turn 1 is invalid by its own mask", trajectories=lambda: pair(action_masks=[[1, 1, 1], [1, 0, 1]])
    ),
    "entropy bonus without an entropy": refused(
        "ent_coef is not 0, but the policy of turn 1 gives no entropy: add a method", Logits, OwnLogProb, ent_coef=0.1
    ),
    "shape of the entropy": refused(
        r"entropy\(states\) of turn 1 must have shape \(2,\), got \(\)",
        Logits,
        lambda: OwnLogProbAndEntropy("scalar entropy"),
    ),
}


@pytest.mark.parametrize("case", EPOCH_ERRORS)
def test_errors_leave_everything_as_it_was(case):
    factories, trajectories, changes, error, message = EPOCH_ERRORS[case]
    policies = [factory() for factory in factories]
    optimizer = BackwardInductionOptimizer(policies, **changes)
    before = parameters_of(policies)
    with pytest.raises(error, match=message):
        optimizer.train_epoch(trajectories())
    for a, b in zip(before, parameters_of(policies), strict=True):
        th.testing.assert_close(a, b, atol=0, rtol=0, equal_nan=True)
    assert not any(own.state for own in optimizer.turns.optimizers)


def test_log_prob_policies_train_and_may_have_an_entropy():
    for policy, ent_coef in ((OwnLogProb(), 0.0), (OwnLogProbAndEntropy(), 0.5)):
        optimizer = BackwardInductionOptimizer([Logits(), policy], ent_coef=ent_coef, **PLAIN)
        optimizer.train_epoch(pair())
        # The entropy of a uniform distribution has no gradient, so that both move as Logits does.
        np.testing.assert_allclose(policy.logits.detach(), [0.5, -0.5, 0.0], atol=1e-6)
        assert np.isnan(optimizer.stats[1].entropy) == (ent_coef == 0.0)


@pytest.mark.parametrize(
    ("turn", "factors", "message"),
    [
        (2, None, "no trajectory reaches turn 2: the longest has turns 0 to 1"),
        (-1, None, "no trajectory reaches turn -1"),
        (1, th.ones(3), r"factors must be 2 finite floats, one per trajectory, got shape \(3,\)"),
        (1, th.ones(2, dtype=th.int64), "start from torch.ones"),
        (1, th.tensor([1.0, np.nan]), "finite"),
    ],
)
def test_steps_that_are_refused(turn, factors, message):
    policies = [Logits(), Logits()]
    with pytest.raises(ValueError, match=message):
        BackwardInductionOptimizer(policies).step(pair(), turn, factors)
    assert not any(parameter.any() for parameter in parameters_of(policies))


class SharedTrunk(Logits):
    def __init__(self, trunk):
        super().__init__()
        self.trunk = trunk


@pytest.mark.parametrize(
    ("policies", "changes", "message"),
    [
        (list, {}, "policies is empty"),
        (lambda: [Logits(), lambda states: states], {}, "policy of turn 1 is a function: it must be a torch module"),
        (lambda: [Logits().requires_grad_(False)], {}, "turn 0 has no parameters that require a gradient"),
        (lambda: [Logits(), th.nn.Linear(3, 3, device="meta")], {}, r"one device, got \['cpu', 'meta'\]"),
        (lambda: [Logits()], dict(update_rule="ppo"), "update_rule must be one of.*'ppo'"),
        (lambda: [Logits()], dict(gamma=0.0), r"gamma must be a finite number of at most 1 and above 0"),
        (lambda: [Logits()], dict(n_epochs=0), "n_epochs must be an integer of at least 1"),
        (lambda: [Logits()], dict(update_rule="trust_region"), "needs target_kl"),
        (lambda: [Logits(), Logits()], dict(update_order=[0]), "each of the turns 0 to 1 once"),
        (
            lambda: [SharedTrunk(trunk) for trunk in [th.nn.Linear(1, 1)] * 2],
            dict(update_order="simultaneous"),
            "several steps with parameters that different policies share",
        ),
    ],
)
def test_optimizers_that_are_refused(policies, changes, message):
    with pytest.raises(ValueError, match=message):
        BackwardInductionOptimizer(policies(), **changes)
