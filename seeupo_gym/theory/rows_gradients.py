"""Claims 1 and 2: optima by dynamic programming, and expected group-relative gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seeupo_gym.theory.checks import Batch, Check, must_vanish, random_batch
from seeupo_gym.theory.gradients import (
    centred_rewards_to_go,
    group_gradient,
    package_estimator,
    policy_gradient,
    reached_turn_scale,
)
from seeupo_gym.theory.mdp import Array, Mdp, deterministic_policies, discounted, expected_return, random_mdps

_GAMMA = 0.9
_GRAE, _GRAE_DISCOUNTED = package_estimator("group_mean"), package_estimator("group_mean", _GAMMA)
_RLOO, _TO_GO = package_estimator("leave_one_out"), package_estimator("reward_to_go")


def optimum_rows(generator: np.random.Generator, n: int, batches: Sequence[Batch]) -> list[Check]:
    """
    Check claim 1: dynamic programming against all deterministic policies, and against all trajectories.

    :param generator: source of randomness
    :param n: number of tiny MDPs of each shape for the brute force
    :param batches: MDPs whose trajectories are summed
    :return: rows
    """
    optima, returns = [], []
    for shape in ((2, 3, 2), (3, 2, 2)):
        mdp = random_mdps(generator, n, *shape)
        policies = deterministic_policies(*shape)
        optima += [expected_return(mdp[k], None) - expected_return(mdp[k], policies).max() for k in range(n)]
    for mdp, policy, paths in batches:
        returns.append((paths.probability(policy) * paths.returns).sum(axis=1) - expected_return(mdp, policy))
    return [
        must_vanish("optimum by dynamic programming = best of all deterministic policies", np.concatenate(optima)),
        must_vanish("return by dynamic programming = sum over all trajectories", np.concatenate(returns)),
    ]


def gradient_rows(generator: np.random.Generator, n: int) -> list[Check]:
    """
    Check claim 2: expectations over all groups of 2 and of 3 trajectories, for MDPs with and without early ends.

    :param generator: source of randomness
    :param n: number of tiny MDPs of each kind
    :return: rows
    """
    errors: dict[str, list[float]] = {name: [] for name in ("grae", "rloo", "discounted", "to_go")}
    cosines: dict[str, list[float]] = {name: [] for name in ("to_go", "centred")}
    for shape, stopping in (((2, 2, 2), False), ((3, 3, 2), True)):
        batch = random_batch(generator, n, shape, stopping)
        for k in range(n):
            mdp, policy = batch.mdp[k], batch.policy[k : k + 1]
            truth = policy_gradient(mdp, policy)[0]
            discounted_truth = policy_gradient(discounted(mdp, _GAMMA), policy)[0]
            for size in (2, 3):
                share = (size - 1) / size
                to_go = group_gradient(mdp, policy, size, _TO_GO)
                differences = {
                    "grae": group_gradient(mdp, policy, size, _GRAE) - share * truth,
                    "rloo": group_gradient(mdp, policy, size, _RLOO) - truth,
                    "discounted": group_gradient(mdp, policy, size, _GRAE_DISCOUNTED) - share * discounted_truth,
                    "to_go": to_go - reached_turn_scale(mdp, policy, size),
                }
                for name, difference in differences.items():
                    errors[name].append(float(np.abs(difference).max()))
                if stopping:
                    cosines["to_go"].append(_cosine(to_go, truth))
                    cosines["centred"].append(_cosine(group_gradient(mdp, policy, size, centred_rewards_to_go), truth))
    numbers = {name: {"mean": float(np.mean(c)), "least": float(np.min(c))} for name, c in cosines.items()}
    shown = {name: "mean {mean:.3f}, least {least:.3f}".format(**n) for name, n in numbers.items()}
    positive = numbers["to_go"]["least"] > 0
    return [
        must_vanish("GRAE on whole returns, gamma 1: (G-1)/G of the gradient of J", np.array(errors["grae"])),
        must_vanish("leave-one-out: the gradient of J", np.array(errors["rloo"])),
        must_vanish("GRAE, gamma 0.9: (G-1)/G of the gradient of the discounted J", np.array(errors["discounted"])),
        must_vanish("reward-to-go less the mean of who reached turn t: scaled by c_t(s_0)", np.array(errors["to_go"])),
        Check("  its cosine with the gradient of J", shown["to_go"], numbers["to_go"], "positive", positive),
        Check("rewards centred per turn, then summed to go: the same cosine", shown["centred"], numbers["centred"]),
        _stopping_trap(),
    ]


def _cosine(a: Array, b: Array) -> float:
    return float((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()))


def _stopping_trap() -> Check:
    """Check a task where going on costs 0.1 and then pays 1, and stopping pays 0. Centred rewards never see the 1."""
    transitions, rewards = np.zeros((1, 2, 2, 2, 2)), np.zeros((1, 2, 2, 2))
    transitions[..., 1] = 1.0
    transitions[0, 0, 0, 1] = [1.0, 0.0]
    rewards[0, 0, 0, 1], rewards[0, 1, 0] = -0.1, 1.0
    mdp = Mdp(np.array([[1.0, 0.0]]), transitions, rewards, stopping=True)
    policy = np.full((1, 2, 2, 2), 0.5)
    estimators = {"whole return": _GRAE, "centred": centred_rewards_to_go}
    found = {name: float(group_gradient(mdp, policy, 4, f)[0, 0, 1]) for name, f in estimators.items()}
    numbers = {"truth": float(policy_gradient(mdp, policy)[0, 0, 0, 1]), **found}
    return Check(
        "  going on costs 0.1, then pays 1; G = 4: d J / d logit of going on",
        ", ".join(f"{name} {value:+.4f}" for name, value in numbers.items()),
        numbers,
        "centred: wrong sign",
        numbers["truth"] > 0 and numbers["whole return"] > 0 > numbers["centred"],
    )


def discount_rows(batch: Batch, gammas: Sequence[float] = (0.99, 0.9, 0.5)) -> list[Check]:
    """
    Check claim 2 with gamma below 1: the errors of the estimators' expected gradients.

    :param batch: MDPs
    :param gammas: discount factors
    :return: rows
    """
    mdp, policy, rows = batch.mdp, batch.policy, []
    truth = policy_gradient(mdp, policy)
    for gamma in gammas:
        # sum_{s>=t} gamma^(s-t) r_s is gamma^-t times what the discounted return holds from turn t on.
        whole = policy_gradient(discounted(mdp, gamma), policy)
        to_go = whole * gamma ** -np.arange(mdp.shape[0], dtype=np.float64)[:, None, None]
        for name, found, target in (
            (f"gamma {gamma}: whole return, against the gradient of J", whole, truth),
            ("  reward-to-go without gamma^t, against the gradient of J", to_go, truth),
            ("  the same, against the gradient of the discounted J", to_go, whole),
        ):
            norm, length = (np.sqrt((x**2).sum(axis=(1, 2, 3))) for x in (target, found))
            error = float((np.sqrt(((found - target) ** 2).sum(axis=(1, 2, 3))) / norm).mean())
            cosine = float(((found * target).sum(axis=(1, 2, 3)) / norm / length).mean())
            measured = f"relative error {error:.3f}, cosine {cosine:.4f}"
            rows.append(Check(name, measured, {"gamma": gamma, "error": error, "cosine": cosine}))
    return rows
