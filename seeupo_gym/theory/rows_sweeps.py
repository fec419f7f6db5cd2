"""Claims 4, 5 and 7: the factor, and the sweeps that can lower the return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from seeupo_gym.theory.checks import TOLERANCE, Batch, Check, must_vanish
from seeupo_gym.theory.mdp import Array, Mdp, Paths, action_values, softmax, state_distributions
from seeupo_gym.theory.updates import (
    EXACT,
    NO_FACTOR,
    PAPER,
    Improve,
    Tie,
    clipped_maximum,
    exponentiated_step,
    factor_estimates,
    gradient_step,
    iterate,
    sweep,
)

METHODS = {
    "reverse, exact F": (-1, EXACT),
    "reverse, F in [0.8, 1.2]": (-1, PAPER),
    "forward, exact F": (1, EXACT),
    "simultaneous (no F)": (1, NO_FACTOR),
}
"""Name of a method -> direction of the order, and clip range of the factor."""

INNER: dict[str, tuple[Callable[[float], Improve], tuple[float, ...]]] = {
    "clipped": (clipped_maximum, (0.1, 0.2, 0.5)),
    "exponentiated": (exponentiated_step, (0.1, 1.0, 10.0)),
    "gradient": (gradient_step, (1.0, 10.0, 100.0)),
}
"""Name of an update of one turn -> function that makes it, and step sizes."""

TIES: dict[Tie, str] = {
    "nothing": "own policy per turn and state",
    "states": "turns blind to the state",
    "turns": "one policy for all turns",
}


def tied(policy: Array, tie: Tie) -> Array:
    """
    Tie policies: those that have to be the same become that of the first state or turn.

    :param policy: shape (..., T, S, A)
    :param tie: the states or turns that share a policy
    :return: same shape
    """
    if tie == "states":
        policy = np.repeat(policy[..., :1, :], policy.shape[-2], axis=-2)
    elif tie == "turns":
        policy = np.repeat(policy[..., :1, :, :], policy.shape[-3], axis=-3)
    return policy


def run_method(batch: Batch, method: str, improve: Improve, n_sweeps: int, tie: Tie = "nothing") -> tuple[Array, Array]:
    """
    Run a number of sweeps of a method.

    :param batch: MDPs and first policies
    :param method: one of ``METHODS``
    :param improve: the update of one turn
    :param n_sweeps: number of sweeps
    :param tie: the states or turns that share a policy
    :return: the return before and after each sweep, shape (n_sweeps + 1, n), and the last policy
    """
    direction, factor_clip = METHODS[method]
    order = range(batch.paths.n_turns)[::direction]
    step = partial(sweep, batch.paths, order=order, improve=improve, factor_clip=factor_clip, tie=tie)
    return iterate(batch.mdp, tied(batch.policy, tie), step, n_sweeps)


def factor_rows(generator: np.random.Generator, batches: Sequence[Batch]) -> list[Check]:
    """
    Check claim 4: the performance difference, the M-weighted estimator, and the error of clipping its factor.

    :param generator: source of the new policies, whose logits are the old ones with noise of some scale
    :param batches: MDPs
    :return: rows
    """
    scales, clips = (0.1, 0.5, 1.0), {"F clipped to [0.8, 1.2] (eq. 8)": PAPER, "F left out": NO_FACTOR}
    lemma, gains, weighted = [], [], []
    errors: dict[tuple[float, float], list[Array]] = {(s, c): [] for s in scales for c in clips.values()}
    changes: dict[float, list[Array]] = {s: [] for s in scales}
    for mdp, old, paths in batches:
        noise = generator.standard_normal(old.shape)
        for scale in scales:
            new = softmax(np.log(old) + scale * noise)
            found, exact = factor_estimates(mdp, paths, old, new, EXACT)
            weighted.append((found - exact).ravel())
            changes[scale].append(exact[-1] - exact[0])
            for clip in clips.values():
                errors[scale, clip].append(factor_estimates(mdp, paths, old, new, clip)[0][-1] - exact[-1])
            q = action_values(mdp, old)
            advantage = q - (old * q).sum(axis=-1, keepdims=True)
            by_turn = (state_distributions(mdp, new)[..., None] * new * advantage).sum(axis=(2, 3))
            lemma.append(by_turn.sum(axis=1) - changes[scale][-1])
            # Roll in with the old policy, continue with the new one; summed from the last turn on.
            own = state_distributions(mdp, old)[..., None] * (new - old) * action_values(mdp, new)
            from_last = np.cumsum(own.sum(axis=(2, 3))[:, ::-1], axis=1).T
            gains.append((from_last - (exact - exact[0])[1:]).ravel())
    rows = [
        must_vanish("J(new) - J(old) = sum_t E_new[A_old(s_t, a_t)]", np.concatenate(lemma)),
        must_vanish("  = sum_t of the gains of replacing turn t, after those behind it", np.concatenate(gains)),
        must_vanish("E_old[rho_t F (R - b)] + b = J(old before t, new from t on)", np.concatenate(weighted)),
    ]
    for name, clip in clips.items():
        shares = [
            float(np.abs(np.concatenate(errors[s, clip])).mean() / np.abs(np.concatenate(changes[s])).mean())
            for s in scales
        ]
        measured = "/".join(f"{share:.0%}" for share in shares) + " at noise 0.1/0.5/1"
        numbers = {str(s): share for s, share in zip(scales, shares, strict=True)}
        rows.append(Check(f"  {name}: error, as a share of |J(new) - J(old)|", measured, numbers))
    return rows


def monotone_rows(batches: Sequence[Batch], tie: Tie, n_sweeps: int = 5) -> list[Check]:
    """
    Check claims 5 and 7: the number of sweeps that lower J, by method, update of a turn and step size.

    :param batches: MDPs
    :param tie: the states or turns that share a policy
    :param n_sweeps: sweeps from each first policy
    :return: one row for each method
    """
    rows = []
    for method, (_, factor_clip) in METHODS.items():
        numbers: dict[str, Any] = {}
        total, largest = n_sweeps * sum(len(batch.policy) for batch in batches), 0.0
        for name, (make, sizes) in INNER.items():
            for size in sizes:
                runs = [run_method(batch, method, make(size), n_sweeps, tie)[0] for batch in batches]
                changes = np.concatenate([np.diff(run, axis=0) for run in runs], axis=1)
                numbers.setdefault(name, {})[str(size)] = int((changes < -TOLERANCE).sum())
                largest = max(largest, float(-changes.min()))
        counts = ", ".join("/".join(map(str, numbers[name].values())) for name in INNER)
        # With the exact factor each turn improves on J itself: monotone in any order, unless turns are tied.
        # Without a factor, tabular policies improve at every state, which is enough (policy improvement theorem).
        guaranteed = (tie == "nothing" and factor_clip != PAPER) or (tie == "states" and factor_clip == EXACT)
        measured, expected = f"{counts} of {total:,} each", "0" if guaranteed else ""
        numbers["largest_loss"] = largest
        holds = largest < TOLERANCE if guaranteed else None
        rows.append(Check(f"{TIES[tie]}: {method}", measured, numbers, expected, holds))
    return rows


def order_row(batches: Sequence[Batch], n_sweeps: int = 5) -> Check:
    """
    Check claim 5: without a factor the order of the turns has no effect.

    :param batches: MDPs
    :param n_sweeps: sweeps from each first policy
    :return: a row
    """
    differences = []
    for mdp, policy, paths in batches:
        step = partial(sweep, paths, improve=exponentiated_step(1.0), factor_clip=NO_FACTOR)
        turns = range(paths.n_turns)
        runs = [iterate(mdp, policy, partial(step, order=order), n_sweeps)[0] for order in (turns, turns[::-1])]
        differences.append((runs[0] - runs[1]).ravel())
    return must_vanish("no F, forward less reverse order: return", np.concatenate(differences), "difference")


def factor_trap() -> tuple[Mdp, Array]:
    """
    Make an MDP where the clipped factor of eq. 8 misleads.

    At turn 0, action 0 pays 0 in the end, and action 1 leads to state 1 or 2, which pay about +1 and -1.05. There, at
    turn 1, the two actions differ by only 0.01, so maximising the surrogate moves the policy far for almost no gain:
    with eps 0.2 from (0.9, 0.1) to (1, 0), and from (0.1, 0.9) to (0.28, 0.72). The clipped ratios average 1.08 in
    state 1 and 0.84 in state 2, which makes action 1 look good.

    :return: the MDP, and the policy before the sweep
    """
    transitions, rewards, policy = np.zeros((1, 2, 3, 2, 3)), np.zeros((1, 2, 3, 2)), np.full((1, 2, 3, 2), 0.5)
    transitions[..., 0] = 1.0
    transitions[0, 0, 0, 1] = [0.0, 0.5, 0.5]
    rewards[0, 1, 1:] = [[1.0, 0.99], [-1.05, -1.06]]
    policy[0, 1, 1:] = [[0.9, 0.1], [0.1, 0.9]]
    return Mdp(np.array([[1.0, 0.0, 0.0]]), transitions, rewards), policy


def factor_trap_row(eps: float = 0.2) -> Check:
    """
    Check claim 5 on a constructed MDP: one sweep that maximises the clipped surrogate in :func:`factor_trap`.

    :param eps: clip range of the ratio
    :return: a row
    """
    mdp, policy = factor_trap()
    batch = Batch(mdp, policy, Paths(mdp))
    changes = {m: float(np.diff(run_method(batch, m, clipped_maximum(eps), 1)[0][:, 0])[0]) for m in METHODS}
    exact, clipped, _, none = changes.values()
    measured = f"exact F {exact:+.5f}, in [0.8, 1.2] {clipped:+.5f}, no F {none:+.5f}"
    claim = f"constructed MDP, one reverse sweep (eps {eps}): change of J"
    return Check(claim, measured, changes, "clipped F lowers J", exact > 0 and none > 0 > clipped)
