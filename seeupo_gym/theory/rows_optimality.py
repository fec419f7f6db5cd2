"""Claims 6 and 7: the updates that reach the optimum, their speed, and the obstacles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from seeupo_gym.theory.checks import TOLERANCE, Batch, Check, must_vanish
from seeupo_gym.theory.mdp import (
    Array,
    Mdp,
    Paths,
    action_values,
    deterministic_policies,
    expected_return,
    greedy,
    state_distributions,
)
from seeupo_gym.theory.rows_sweeps import METHODS, TIES, run_method
from seeupo_gym.theory.staged import sampled_sweep, staged_policy
from seeupo_gym.theory.updates import (
    Improve,
    Tie,
    clipped_maximum,
    exponentiated_step,
    gradient_step,
    greedy_step,
    greedy_sweep,
    iterate,
)

BUDGETS = (100, 1_000, 10_000, 100_000)
"""Episodes per turn of the sampled methods."""


def greedy_rows(batches: Sequence[Batch]) -> tuple[list[Check], dict[str, Array]]:
    """
    Check claim 6 with exact inner maximisation, sweep after sweep.

    :param batches: MDPs
    :return: rows; the gap to the optimum after 0, 1, ... sweeps by order, shape (sweeps + 1, n)
    """
    n_sweeps = max(batch.paths.n_turns for batch in batches) + 1
    gaps = {}
    for name, direction, simultaneous in (("reverse", -1, False), ("forward", 1, False), ("simultaneous", 1, True)):
        runs = []
        for mdp, policy, paths in batches:
            order = range(paths.n_turns)[::direction]
            step = partial(greedy_sweep, mdp, order=order, simultaneous=simultaneous)
            runs.append(expected_return(mdp, None) - iterate(mdp, policy, step, n_sweeps)[0])
        gaps[name] = np.concatenate(runs, axis=1)
    n_turns = np.concatenate([np.full(len(batch.policy), batch.paths.n_turns) for batch in batches])
    later, difference = gaps["simultaneous"][1:], gaps["forward"] - gaps["simultaneous"]
    after_t_sweeps = gaps["simultaneous"][n_turns, np.arange(len(n_turns))]
    rows = [
        must_vanish("greedy, reverse: gap to the optimum after one sweep", gaps["reverse"][1], "gap"),
        must_vanish("greedy, forward less simultaneous: return", difference, "difference"),
        must_vanish("  gap after T sweeps", after_t_sweeps, "gap"),
    ]
    claim = f"  sweep {'/'.join(map(str, range(1, n_sweeps + 1)))}: "
    for name, values, form in (
        ("mean gap", later.mean(axis=1), ".1e"),
        ("largest gap", later.max(axis=1), ".1e"),
        ("share of MDPs optimal", (later < TOLERANCE).mean(axis=1), ".1%"),
    ):
        measured = "/".join("0" if abs(value) < TOLERANCE else format(value, form) for value in values)
        rows.append(Check(claim + name, measured, {"by_sweep": values.tolist()}))
    return rows, gaps


def convergence_rows(batches: Sequence[Batch], n_sweeps: int = 40) -> tuple[list[Check], dict[str, Array]]:
    """
    Check claim 6 with steps of limited size: the gap after many sweeps, and whether the optimum can still be reached.

    :param batches: MDPs
    :param n_sweeps: number of sweeps
    :return: rows; by update and method the gap to the optimum after 0, 1, ... sweeps, shape (n_sweeps + 1, n)
    """
    optimum = np.concatenate([expected_return(batch.mdp, None) for batch in batches])
    shown, rows, gaps = (1, 10, n_sweeps), [], {}
    for name, improve in (("clipped 0.2", clipped_maximum(0.2)), ("exponentiated 1", exponentiated_step(1.0))):
        lost = {}
        for method in METHODS:
            runs = [run_method(batch, method, improve, n_sweeps) for batch in batches]
            gap = optimum - np.concatenate([returns for returns, _ in runs], axis=1)
            left = (gap / gap[0]).mean(axis=1)
            measured = "/".join(f"{left[k]:.2%}" for k in shown)
            claim = f"{name}, {method}: gap left after {'/'.join(map(str, shown))} sweeps"
            rows.append(Check(claim, measured, {str(k): float(left[k]) for k in shown}))
            gaps[f"{name}, {method}"] = gap
            lost[method] = sum(
                int(lost_an_action(b.mdp, policy).sum()) for b, (_, policy) in zip(batches, runs, strict=True)
            )
        counts = "/".join(map(str, lost.values())) + f" of {len(optimum):,}"
        rows.append(Check("  MDPs that lost an action of the optimum, by method", counts, lost))
    return rows, gaps


def lost_an_action(mdp: Mdp, policy: Array) -> NDArray[np.bool_]:
    """
    Return True where an optimal action, of a state that the optimum visits, has probability 0 for good.

    :param mdp: n MDPs
    :param policy: shape (n, T, S, A)
    :return: shape (n,)
    """
    optimal = greedy(action_values(mdp, None))
    visited = state_distributions(mdp, optimal) > 0.0
    return np.asarray((((policy * optimal).sum(axis=-1) == 0.0) & visited).any(axis=(1, 2)))


def coordination_trap(n_turns: int = 4, n_actions: int = 4) -> Batch:
    """
    Make a tabular MDP of the package's CoordinationTrap. The states are "on track" and "decided".

    One first action pays 0.6 for certain. Another one pays 1 if the one right action of four is taken at each later
    turn.

    :param n_turns: T
    :param n_actions: A
    :return: the MDP, and the uniform policy
    """
    shape = (1, n_turns, 2, n_actions)
    transitions, rewards = np.zeros((*shape, 2)), np.zeros(shape)
    transitions[..., 1] = 1.0
    transitions[0, :, 0, 1] = [1.0, 0.0]
    rewards[0, 0, 0, 0], rewards[0, -1, 0, 1] = 0.6, 1.0
    mdp = Mdp(np.array([[1.0, 0.0]]), transitions, rewards)
    return Batch(mdp, np.full(shape, 1.0 / n_actions), Paths(mdp))


def coordination_rows(n_sweeps: int = 40) -> tuple[list[Check], dict[str, Array]]:
    """
    Check claim 6 where the turns depend on each other: the number of sweeps until the return exceeds 0.99.

    :param n_sweeps: sweeps after which to give up
    :return: rows; by method the return after each sweep of exponentiated steps of 1, shape (n_sweeps + 1,)
    """
    batch, rows, curves = coordination_trap(), [], {}
    inner: dict[str, Improve] = {
        "clipped 0.2": clipped_maximum(0.2),
        "exponentiated 1": exponentiated_step(1.0),
        "exponentiated 10": exponentiated_step(10.0),
        "gradient 10": gradient_step(10.0),
        "gradient 1000": gradient_step(1000.0),
    }
    for name, improve in inner.items():
        runs = {method: run_method(batch, method, improve, n_sweeps)[0][:, 0] for method in METHODS}
        needed = {method: int((run <= 0.99).sum()) for method, run in runs.items()}
        measured = "/".join(str(n) if n <= n_sweeps else f">{n_sweeps} ({runs[m][-1]:.2f})" for m, n in needed.items())
        rows.append(Check(f"trap, {name}: sweeps until J > 0.99, by method", measured, needed))
        if name == "exponentiated 1":
            curves = runs
    return rows, curves


def staged_rows(
    generator: np.random.Generator, batches: Sequence[Batch], n_repeats: int = 5
) -> tuple[list[Check], dict[str, Array]]:
    """
    Check claim 6 from samples: backward induction in stages, and one sweep with as many episodes in all.

    :param generator: source of the samples
    :param batches: MDPs
    :param n_repeats: independent samples for each MDP
    :return: rows; the gap to the optimum by method, shape (budgets, n_repeats * n)
    """
    gaps: dict[str, list[Array]] = {"staged": [], "one sweep": []}
    rows = []
    for budget in BUDGETS:
        found: dict[str, list[Array]] = {name: [] for name in gaps}
        for mdp, _, paths in batches:
            best = expected_return(mdp, None)
            for _ in range(n_repeats):
                staged = staged_policy(generator, mdp, budget)
                swept = sampled_sweep(generator, paths, budget * paths.n_turns)
                found["staged"].append(best - expected_return(mdp, staged))
                found["one sweep"].append(best - expected_return(mdp, swept))
        for name in gaps:
            gaps[name].append(np.concatenate(found[name]))
        numbers = {
            name: {"mean": float(gap[-1].mean()), "optimal": float((gap[-1] < TOLERANCE).mean())}
            for name, gap in gaps.items()
        }
        measured = ", ".join(f"{name} {n['mean']:.1e} ({n['optimal']:.1%} optimal)" for name, n in numbers.items())
        rows.append(Check(f"sampled, {budget:,} episodes per turn: mean gap", measured, numbers))
    return rows, {name: np.array(gap) for name, gap in gaps.items()}


def tied_rows(batches: Sequence[Batch], n_sweeps: int = 30) -> list[Check]:
    """
    Check claim 7: the end of reverse sweeps of tied policies, against the best deterministic policy with the same tie.

    :param batches: MDPs
    :param n_sweeps: number of sweeps
    :return: rows
    """
    rows = []
    cases: list[tuple[Tie, str, Improve]] = [
        ("states", "greedy", greedy_step),
        ("states", "exponentiated 1", exponentiated_step(1.0)),
        ("turns", "exponentiated 1", exponentiated_step(1.0)),
        ("turns", "gradient 10", gradient_step(10.0)),
    ]
    for tie, name, improve in cases:
        to_optimum, to_best = [], []
        for batch in batches:
            shape = n_turns, n_states, n_actions = batch.mdp.shape
            choices = deterministic_policies(*((n_turns, 1) if tie == "states" else (1, n_states)), n_actions)
            returns = [expected_return(batch.mdp, np.broadcast_to(choice, shape)) for choice in choices]
            last = run_method(batch, "reverse, exact F", improve, n_sweeps, tie)[0][-1]
            to_optimum.append(expected_return(batch.mdp, None) - last)
            to_best.append(np.max(returns, axis=0) - last)
        optimum, best = np.concatenate(to_optimum), np.concatenate(to_best)
        numbers = {"optimum": float(optimum.mean()), "best": float(best.mean()), "near": float((best < 1e-3).mean())}
        measured = "optimum {optimum:.3f}, best tied {best:.3f} ({near:.0%} within 0.001)".format(**numbers)
        rows.append(Check(f"{TIES[tie]}, {name}, {n_sweeps} reverse sweeps: gap to", measured, numbers))
    return rows
