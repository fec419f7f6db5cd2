"""Claim 8: several sweeps over the same data are block-coordinate ascent of the joint surrogate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from seeupo_gym.theory.checks import TOLERANCE, Batch, Check, must_vanish
from seeupo_gym.theory.mdp import Array, Mdp, Paths, expected_return, softmax
from seeupo_gym.theory.rows_sweeps import INNER, TIES, tied
from seeupo_gym.theory.updates import (
    EXACT,
    PAPER,
    Improve,
    Tie,
    block_updates,
    exponentiated_step,
    greedy_step,
    joint_surrogate,
)

ORDERS = {"reverse": -1, "forward": 1}

FACTORS = {
    "F of all others": (EXACT, True),
    "F of those before": (EXACT, False),
    "F of all others in [0.8, 1.2]": (PAPER, True),
}
"""Clip range of the factor, and whether it has the ratios of the turns still to come."""

Inner = Mapping[str, tuple[Callable[[float], Improve], tuple[float, ...]]]

ASCENT: Inner = {"greedy": (lambda _: greedy_step, (1.0,)), **{k: INNER[k] for k in ("exponentiated", "gradient")}}
"""Updates of one turn that maximise the unclipped surrogate, or take a step up, and their step sizes."""
CLIPPED: Inner = {"clipped": INNER["clipped"]}


def surrogate_changes(
    batch: Batch, order: str, factors: str, improve: Improve, n_sweeps: int, tie: Tie = "nothing"
) -> Array:
    """
    Compute by how much each update of a turn changes the joint surrogate.

    :param batch: MDPs, and the policies that collect
    :param order: one of ``ORDERS``
    :param factors: one of ``FACTORS``
    :param improve: the update of one turn
    :param n_sweeps: sweeps over the same data
    :param tie: the states or turns that share a policy
    :return: shape (n_sweeps * T, n)
    """
    paths, old = batch.paths, tied(batch.policy, tie)
    factor_clip, later_turns = FACTORS[factors]
    turns = range(paths.n_turns)[:: ORDERS[order]]
    updates = block_updates(paths, old, turns, improve, factor_clip, tie, n_sweeps=n_sweeps, later_turns=later_turns)
    values = [np.zeros(paths.n), *(joint_surrogate(paths, old, new) for new in updates)]
    return np.diff(np.array(values), axis=0)


def ascent_row(
    batches: Sequence[Batch], tie: Tie, order: str, factors: str, inner: Inner = ASCENT, n_sweeps: int = 3
) -> Check:
    """
    Count the MDPs where an update of a turn lowers the joint surrogate.

    :param batches: MDPs
    :param tie: the states or turns that share a policy
    :param order: one of ``ORDERS``
    :param factors: one of ``FACTORS``
    :param inner: updates of one turn
    :param n_sweeps: sweeps over the same data
    :return: a row
    """
    lowered: dict[str, dict[str, int]] = {name: {} for name in inner}
    largest = 0.0
    for name, (make, sizes) in inner.items():
        for size in sizes:
            runs = [surrogate_changes(batch, order, factors, make(size), n_sweeps, tie) for batch in batches]
            changes = np.concatenate([run.min(axis=0) for run in runs])
            lowered[name][str(size)] = int((changes < -TOLERANCE).sum())
            largest = max(largest, float(-changes.min()))
    # The factor of all other turns makes a turn's surrogate the joint one. Without the turns to come, a table still
    # improves at every state in reverse order, as all that follows the state is up to date.
    exact = factors == "F of all others" or (tie, order, factors) == ("nothing", "reverse", "F of those before")
    guaranteed = exact and tie != "turns" and inner is ASCENT
    counts = ", ".join("/".join(map(str, of_sizes.values())) for of_sizes in lowered.values())
    clipped = ", clipped" if inner is CLIPPED else ""
    return Check(
        f"{TIES[tie]}: {order}{clipped}, {factors}",
        f"{counts} of {sum(len(batch.policy) for batch in batches)} MDPs",
        {**lowered, "largest_loss": largest},
        "0" if guaranteed else "",
        largest < TOLERANCE if guaranteed else None,
    )


def moving_target() -> tuple[Mdp, Array]:
    """
    Make an MDP where the ratios of the turns to come are needed.

    It pays 1 if both turns choose the same; the second does
    not see the first. At first the one prefers action 0 (0.6) and the other action 1 (0.9). A step of turn 1 moves it
    a little to 0, and one of turn 0 moves that to 1. From then on turn 1 should move to 1 too; without the ratio of
    turn 0 it still answers the old policy, and goes on to 0.

    :return: the MDP, and the policy before the first sweep
    """
    transitions, rewards, policy = np.zeros((1, 2, 2, 2, 2)), np.zeros((1, 2, 2, 2)), np.empty((1, 2, 2, 2))
    transitions[0, 0, :, 0, 0] = transitions[0, 0, :, 1, 1] = transitions[0, 1, ..., 0] = 1.0
    rewards[0, 1] = np.eye(2)
    policy[0, 0], policy[0, 1] = [0.6, 0.4], [0.1, 0.9]
    return Mdp(np.array([[1.0, 0.0]]), transitions, rewards), policy


def block_rows(generator: np.random.Generator, batches: Sequence[Batch]) -> list[Check]:
    """
    Check claim 8: the joint surrogate, and the updates that lower it.

    :param generator: source of the new policies of the first row
    :param batches: MDPs
    :return: rows
    """
    errors = []
    for mdp, old, paths in batches:
        new = softmax(np.log(old) + generator.standard_normal(old.shape))
        errors.append(joint_surrogate(paths, old, new) - (expected_return(mdp, new) - expected_return(mdp, old)))
    rows = [must_vanish("E_old[rho_1 ... rho_T (R - b)] = J(new) - J(old)", np.concatenate(errors))]
    everything, before, clipped_factor = FACTORS
    ties: tuple[Tie, ...] = ("nothing", "states")
    for tie in ties:
        rows += [ascent_row(batches, tie, order, factors) for order in ORDERS for factors in (everything, before)]
        rows.append(ascent_row(batches, tie, "reverse", clipped_factor))
        rows.append(ascent_row(batches, tie, "reverse", everything, CLIPPED))
    mdp, policy = moving_target()
    batch = Batch(mdp, policy, Paths(mdp))
    changes = {
        factors: float(surrogate_changes(batch, "reverse", factors, exponentiated_step(1.0), 2, "states")[2, 0])
        for factors in (everything, before)
    }
    measured = ", ".join(f"{factors} {change:+.5f}" for factors, change in changes.items())
    lowers = changes[everything] > 0.0 > changes[before]
    claim = "constructed MDP: change by the first update of the second sweep"
    rows.append(Check(claim, measured, changes, "before: lowers it", lowers))
    rows.append(ascent_row(batches, "turns", "reverse", everything))
    return rows
