"""Several sweeps over the same data in the tabular laboratory, and the same steps taken by the update of training."""

from functools import partial

import numpy as np
import pytest
import torch as th
from helpers.updates import method_settings

from seeupo_gym.agents.method.batches import TurnBatch
from seeupo_gym.agents.method.objective import log_importance_ratio
from seeupo_gym.agents.method.policy import TrainablePolicies
from seeupo_gym.agents.method.sequential import SequentialUpdate, UpdateRule
from seeupo_gym.theory import rows_blocks
from seeupo_gym.theory.checks import Batch, random_batch
from seeupo_gym.theory.mdp import Paths, expected_return, softmax
from seeupo_gym.theory.rows_blocks import FACTORS, ORDERS, ascent_row, moving_target, surrogate_changes
from seeupo_gym.theory.updates import (
    EXACT,
    PAPER,
    baseline,
    block_updates,
    exponentiated_step,
    gradient_step,
    greedy_step,
    joint_surrogate,
    update_factor,
)

SHAPE = (3, 2, 2)
SWEEPS = 3


@pytest.fixture
def batch():
    return random_batch(np.random.default_rng(11), 6, SHAPE)


def updates_of(batch, order, improve, factor_clip=EXACT, **arguments):
    """The policies after each update, each an array of its own."""
    return [new.copy() for new in block_updates(batch.paths, batch.policy, order, improve, factor_clip, **arguments)]


def ratio_along(batch, new, turn):
    return batch.paths.spread(new[:, turn] / batch.policy[:, turn], turn)


def test_the_joint_surrogate_is_the_improvement(batch):
    new = softmax(np.log(batch.policy) + np.random.default_rng(0).standard_normal(batch.policy.shape))
    improvement = expected_return(batch.mdp, new) - expected_return(batch.mdp, batch.policy)
    np.testing.assert_allclose(joint_surrogate(batch.paths, batch.policy, new), improvement, atol=1e-12)
    np.testing.assert_allclose(joint_surrogate(batch.paths, batch.policy, batch.policy), 0.0, atol=1e-12)


@pytest.mark.parametrize("later_turns", [True, False])
@pytest.mark.parametrize("order", [(2, 1, 0), (0, 1, 2), (1, 2, 0)])
def test_the_factor_is_the_product_of_the_current_ratios(batch, order, later_turns):
    seen = []

    def improve(turn_data):
        seen.append(turn_data.up - turn_data.down)
        return exponentiated_step(1.0)(turn_data)

    policies = [batch.policy, *updates_of(batch, order, improve, n_sweeps=SWEEPS, later_turns=later_turns)]
    probability = batch.paths.probability(batch.policy)
    weighted = probability * (batch.paths.returns - baseline(batch.paths, probability))
    assert len(seen) == SWEEPS * 3
    for i, (found, current) in enumerate(zip(seen, policies, strict=False)):
        place = i % 3
        others = set(order) - {order[place]} if later_turns else set(order[:place])
        factor = np.prod([np.ones_like(weighted), *(ratio_along(batch, current, turn) for turn in others)], axis=0)
        np.testing.assert_allclose(found, batch.paths.gather(weighted * factor, order[place]), atol=1e-12)


def test_the_clipped_factor_is_a_running_product_from_both_ends(batch):
    order, seen = (2, 1, 0), []

    def improve(turn_data):
        seen.append(turn_data.up - turn_data.down)
        return exponentiated_step(1.0)(turn_data)

    policies = updates_of(batch, order, improve, PAPER, n_sweeps=2)
    probability = batch.paths.probability(batch.policy)
    weighted = probability * (batch.paths.returns - baseline(batch.paths, probability))

    def product(new, turns):
        factor = np.ones_like(weighted)
        for turn in turns:
            factor = update_factor(factor, ratio_along(batch, new, turn), PAPER)
        return factor

    # The second update of the second sweep: turn 1, with turn 2 updated again and turn 0 as the first sweep left it.
    factor = np.clip(product(policies[3], [2]) * product(policies[2], [0]), 0.8, 1.2)
    np.testing.assert_allclose(seen[4], batch.paths.gather(weighted * factor, 1), atol=1e-12)
    # The first one: turn 2, with those to come from the last of the order backwards.
    np.testing.assert_allclose(seen[3], batch.paths.gather(weighted * product(policies[2], [0, 1]), 2), atol=1e-12)


@pytest.mark.parametrize("improve", [greedy_step, exponentiated_step(1.0), gradient_step(0.1), gradient_step(100.0)])
@pytest.mark.parametrize("tie", ["nothing", "states"])
@pytest.mark.parametrize("order", ORDERS)
def test_no_update_with_the_ratios_of_all_other_turns_lowers_the_joint_surrogate(batch, order, tie, improve):
    changes = surrogate_changes(batch, order, "F of all others", improve, SWEEPS, tie)
    assert changes.shape == (SWEEPS * 3, 6)
    assert changes.min() > -1e-12
    assert (changes.sum(axis=0) > 1e-4).all()


def test_rows_fail_if_the_ratios_of_the_turns_to_come_are_left_out(batch, monkeypatch):
    rows = {
        key: ascent_row([batch], *key, "F of all others") for key in (("nothing", "forward"), ("states", "reverse"))
    }
    assert [row.verdict for row in rows.values()] == ["holds", "holds"]
    without = lambda *arguments, later_turns, **named: block_updates(*arguments, later_turns=False, **named)  # noqa: E731
    monkeypatch.setattr(rows_blocks, "block_updates", without)
    for key in rows:
        assert ascent_row([batch], *key, "F of all others").verdict == "FAILS"
    # In tables and reverse order what follows a state is up to date without them.
    assert ascent_row([batch], "nothing", "reverse", "F of all others").verdict == "holds"


def test_the_turns_to_come_by_hand():
    mdp, policy = moving_target()
    paths = Paths(mdp)
    batch = Batch(mdp, policy, paths)
    # Sweep 1, steps of 1 in the logits along Q: turn 1 moves by the 0.6 - 0.4 of turn 0, which then answers turn 1.
    at_1 = softmax(np.log([0.1, 0.9]) + np.array([0.6, 0.4]))
    at_0 = softmax(np.log([0.6, 0.4]) + at_1)
    after = {"F of all others": at_0, "F of those before": np.array([0.6, 0.4])}  # what turn 1 answers in sweep 2
    for factors, seen in after.items():
        changes = surrogate_changes(batch, "reverse", factors, exponentiated_step(1.0), 2, "states")[:, 0]
        again = softmax(np.log(at_1) + seen)
        expected = [
            np.array([0.6, 0.4]) @ at_1 - (0.6 * 0.1 + 0.4 * 0.9),
            (at_0 - [0.6, 0.4]) @ at_1,
            at_0 @ (again - at_1),
        ]
        np.testing.assert_allclose(changes[:3], expected, atol=1e-12)
        assert (changes[2] > 0) == (factors == "F of all others")
        assert abs(changes[2]) > 0.003


# ---------------------------------------------------------------- the update of training


class Tables(TrainablePolicies):
    """A table of logits for each turn."""

    def __init__(self, policy):
        self.logits = [th.nn.Parameter(th.tensor(np.log(of_turn))) for of_turn in policy]

    def evaluate_actions(self, obs, actions, turn, action_masks=None, with_entropy=False):
        return self.logits[turn].log_softmax(dim=-1)[obs, actions], None

    def turn_parameters(self, turn):
        return [self.logits[turn]]

    def step_optimizer(self, *turns):
        with th.no_grad():
            for turn in turns:
                self.logits[turn] -= self.logits[turn].grad

    def probabilities(self):
        return np.stack([logits.detach().softmax(dim=-1).numpy() for logits in self.logits])


class Unclipped(UpdateRule):
    """The importance ratio times M."""

    def surrogate(self, log_prob, old_log_prob, lengths, weighted_advantage, settings):
        return log_importance_ratio(log_prob, old_log_prob, lengths).exp() * weighted_advantage


@pytest.mark.parametrize("factors", ["F of all others", "F of all others in [0.8, 1.2]"])
@pytest.mark.parametrize("order", ORDERS)
def test_training_takes_the_steps_of_the_laboratory(order, factors):
    # Every trajectory is an episode, whose advantage has its probability: the means of training are expectations.
    _, policy, paths = random_batch(np.random.default_rng(11), 1, SHAPE)
    probability = paths.probability(policy)
    advantages = th.tensor((probability * (paths.returns - baseline(paths, probability)))[0] * probability.shape[1])
    steps = [th.tensor(step) for step in np.unravel_index(np.arange(probability.shape[1]), (2, 2) * 3)]
    tables, episodes = Tables(policy[0]), th.arange(probability.shape[1])
    batches = []
    for turn in range(3):
        states, actions = steps[2 * turn], steps[2 * turn + 1]
        log_probs = tables.evaluate_actions(states, actions, turn)[0].detach()
        batches.append(TurnBatch(states, actions, log_probs, episodes, None))
    clip = {"F of all others": 1e9, "F of all others in [0.8, 1.2]": 0.2}[factors]
    settings = method_settings(n_sweeps=SWEEPS, ratio_level="joint", factor_clip=clip)
    blocks = [[turn] for turn in range(3)[:: ORDERS[order]]]
    update = SequentialUpdate(tables, batches, advantages, Unclipped(), settings, th.Generator())
    found = []
    for _ in range(SWEEPS):
        update.begin_sweep(blocks)
        for turns in blocks:
            update.maximise(turns)
            update.carry_over(turns)
            found.append(tables.probabilities())
    order_of_turns = range(3)[:: ORDERS[order]]
    step = partial(block_updates, paths, policy, order_of_turns, gradient_step(1.0), FACTORS[factors][0])
    expected = [new[0].copy() for new in step(n_sweeps=SWEEPS)]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    without = [new[0].copy() for new in step(n_sweeps=SWEEPS, later_turns=False)]
    np.testing.assert_allclose(found[:3], without[:3], atol=1e-12)
    assert np.abs(np.array(found) - without).max() > 1e-4
