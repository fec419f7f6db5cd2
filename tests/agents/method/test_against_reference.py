"""The whole update against a slow reference in plain Python, over sizes, lengths, masks, orders and extreme numbers."""

import numpy as np
import pytest
import torch as th
from helpers.slow_reference import Iteration
from helpers.slow_reference import advantages as slow_advantages
from helpers.updates import method_settings, sequential_update
from hypothesis import given, settings
from hypothesis import strategies as st

from seeupo_gym.agents.method.advantages import estimate_advantages
from seeupo_gym.agents.method.batches import TurnBatch
from seeupo_gym.agents.method.policy import TrainablePolicies

STEP = 0.5


class Tables(TrainablePolicies):
    """A table of logits for each turn, in float64, changed by plain gradient steps."""

    def __init__(self, tables):
        self.tables = [th.nn.Parameter(th.tensor(table, dtype=th.float64)) for table in tables]

    def evaluate_actions(self, obs, actions, turn, action_masks=None, with_entropy=False):
        logits = self.tables[turn][obs].masked_fill(~action_masks, -th.inf)
        return logits.log_softmax(dim=-1).gather(1, actions[:, None])[:, 0], None

    def turn_parameters(self, turn):
        return [self.tables[turn]]

    def step_optimizer(self, *turns):
        with th.no_grad():
            for turn in turns:
                self.tables[turn] -= STEP * self.tables[turn].grad


@st.composite
def rollouts(draw):
    """Episodes of different lengths in groups, with masks, and recorded log-probabilities that may be anything."""
    n_groups, size = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    n_turns, n_states, n_actions = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(2, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([1.0, 1e-3, 1e6]))
    on_policy = draw(st.booleans())
    tables = rng.normal(scale=draw(st.sampled_from([0.5, 5.0])), size=(n_turns, n_states, n_actions)).tolist()
    rewards, rows = [], [[] for _ in range(n_turns)]
    for episode in range(n_groups * size):
        length = int(rng.integers(1, n_turns + 1)) if episode else n_turns
        rewards.append((rng.integers(-2, 3, size=length) * scale).tolist())
        for turn in range(length):
            mask = rng.random(n_actions) < 0.7
            action, state = int(rng.integers(n_actions)), int(rng.integers(n_states))
            mask[action] = True
            rows[turn].append([episode, state, action, 0.0, mask.tolist()])
    reference = Iteration(tables, rows, [], STEP, 0.2, 0.2)
    for turn in range(n_turns):
        for row in rows[turn]:
            now = reference.log_ratio(turn, row)  # its own log-probability, as 0 is recorded so far
            row[3] = now if on_policy else float(rng.choice([now + rng.normal(scale=0.3), -80.0, 0.0, now]))
    groups = [list(range(g * size, (g + 1) * size)) for g in range(n_groups)]
    return tables, rows, rewards, groups


def as_arrays(rewards, groups, n_turns):
    table, reached = np.zeros((n_turns, len(rewards))), np.zeros((n_turns, len(rewards)), dtype=bool)
    for episode, of_episode in enumerate(rewards):
        table[: len(of_episode), episode], reached[: len(of_episode), episode] = of_episode, True
    shape = (n_turns, len(groups), len(groups[0]))
    return table.reshape(shape), reached.reshape(shape)


@settings(max_examples=150, deadline=None)
@given(rollouts(), st.sampled_from(["batch", "group", "none"]), st.sampled_from([1.0, 0.9]))
def test_advantages(rollout, normalize, gamma):
    _, rows, rewards, groups = rollout
    found = estimate_advantages(*as_arrays(rewards, groups, len(rows)), gamma, normalize=normalize).advantages[0]
    expected = slow_advantages(rewards, groups, gamma, normalize)
    np.testing.assert_allclose(found.reshape(-1), expected, rtol=1e-9, atol=1e-9 * max(1, np.abs(expected).max()))


@settings(max_examples=250, deadline=None)
@given(
    rollouts(),
    st.sampled_from(["reverse", "forward", "simultaneous", "shuffled"]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([0.05, 0.2]),
    st.sampled_from([0.1, 0.2, 0.9]),
)
def test_the_update(rollout, order, n_sweeps, n_epochs, clip_range, factor_clip):
    tables, rows, rewards, groups = rollout
    turns = list(range(len(rows)))
    blocks = {
        "reverse": [[t] for t in reversed(turns)],
        "forward": [[t] for t in turns],
        "simultaneous": [turns],
        "shuffled": [[t] for t in sorted(turns, key=lambda t: (t * 7 + 3) % 5)],
    }[order]
    advantages = slow_advantages(rewards, groups, 1.0, "batch")
    reference = Iteration(tables, rows, advantages, STEP, clip_range, factor_clip)
    reference.run(blocks, n_sweeps, n_epochs)

    policy = Tables(tables)
    batches = [
        TurnBatch(
            th.tensor([row[1] for row in of_turn]),
            th.tensor([row[2] for row in of_turn]),
            th.tensor([row[3] for row in of_turn], dtype=th.float64),
            th.tensor([row[0] for row in of_turn]),
            th.tensor([row[4] for row in of_turn]),
        )
        for of_turn in rows
    ]
    chosen = method_settings(n_epochs=n_epochs, n_sweeps=n_sweeps, clip_range=clip_range, factor_clip=factor_clip)
    weights = th.tensor(advantages, dtype=th.float64)
    sequential_update(policy, batches, weights, blocks, chosen, th.Generator())
    for found, expected in zip(policy.tables, reference.tables, strict=True):
        wanted = th.tensor(expected, dtype=th.float64)
        th.testing.assert_close(found.data, wanted, rtol=1e-6, atol=1e-9 * max(1.0, float(wanted.abs().max())))


def test_the_reference_by_hand():
    """One state, two actions, two episodes of one turn: the policy is (0.5, 0.5), the advantages are 1 and -1."""
    rows = [[[0, 0, 0, np.log(0.5), [True, True]], [1, 0, 1, np.log(0.5), [True, True]]]]
    assert slow_advantages([[3.0], [1.0]], [[0, 1]], 1.0, "batch") == [1.0, -1.0]
    iteration = Iteration([[[0.0, 0.0]]], rows, [1.0, -1.0], STEP, 0.2, 0.2)
    iteration.run([[0]], 1, 1)
    # The gradient of (rho_0 - rho_1) / 2 with respect to the first logit: (0.5 + 0.5) / 2.
    assert iteration.tables == [[[STEP / 2, -STEP / 2]]]
    assert iteration.ratios[0][0] == pytest.approx(2 / (1 + np.exp(-STEP)))
    assert iteration.product(0, [0]) == pytest.approx(1.2), "clipped to 1 + delta"
