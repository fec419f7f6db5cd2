"""Policies, trajectories and settings that BackwardInductionOptimizer refuses."""

import numpy as np
import pytest
import torch as th
from helpers.low_level import PLAIN, OwnLogProb, OwnLogProbAndEntropy
from test_trajectories import Logits, pair, parameters_of
from torch.distributions import Categorical, Normal

from seeupo_gym.agents import BackwardInductionOptimizer, MultiTurnTrajectory, NonFiniteError

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
