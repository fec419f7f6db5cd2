"""DeadlinePlanner's look-ahead, against brute force and the best of all orders."""

from functools import cache
from itertools import permutations, product

import numpy as np
import pytest

from seeupo_gym.envs.tasks.deadline_planner_search import HOLD_UP, Jobs, look_ahead, serve_values


def some_jobs(rng, n, planned=None):
    """Jobs of one lane and where they are; the worker is at (1, 1)."""
    places = rng.integers(4, size=(n, 2))
    known = rng.integers(2, size=n) if planned is None else np.full(n, planned)
    return Jobs(
        values=rng.integers(1, 9, size=n),
        estimates=rng.integers(4, 7, size=n),
        planned=known,
        left=rng.integers(1, 26, size=n),
        travel=np.abs(places - 1).sum(axis=1),
        distances=np.abs(places[:, None] - places[None]).sum(axis=2),
    )


def outcomes(jobs, job, errors, hold_up):
    """Every duration that a job can have, and its probability."""
    unknown = errors[int(jobs.planned[job]) :]
    for signs in product((-1, 1), repeat=len(unknown)):
        duration = int(jobs.estimates[job]) + int(np.dot(signs, unknown))
        yield duration, (1 - hold_up) / 2 ** len(unknown)
        yield duration + HOLD_UP, hold_up / 2 ** len(unknown)


def brute_force(jobs, errors, hold_up, window, time_worth, start=0):
    """The expected value of serving each job first at time ``start``, by trying everything."""

    @cache
    def first(left, here, time, job):
        way = int(jobs.travel[job] if here is None else jobs.distances[here, job])
        total = 0.0
        for duration, probability in outcomes(jobs, job, errors, hold_up):
            done = time + way + duration
            total += probability * (jobs.values[job] * (done <= jobs.left[job]) + best(left - {job}, job, done))
        return total

    @cache
    def best(left, here, time):
        if time > window:
            return 0.0
        return max([time_worth * (window - time), *(first(left, here, time, job) for job in left)])

    return [first(frozenset(range(len(jobs.values))), None, start, job) for job in range(len(jobs.values))]


def batched(jobs):
    return Jobs(*(array[None] for array in jobs))


@pytest.mark.parametrize(("n", "errors", "hold_up"), [(3, (3, 1), 0.2), (4, (3,), 0.0), (5, (3,), 0.0)])
def test_the_look_ahead_equals_brute_force(n, errors, hold_up):
    rng = np.random.default_rng(n)
    for trial in range(8 - n):
        jobs = some_jobs(rng, n)
        time_worth = 0.1 * (trial % 2)
        serve, plan = look_ahead(batched(jobs), errors, hold_up, 28, np.array([time_worth]))
        np.testing.assert_allclose(serve[0], brute_force(jobs, errors, hold_up, 28, time_worth), atol=1e-9)
        assert plan[0] == pytest.approx(brute_force_plan(jobs, errors, hold_up, 28, time_worth), abs=1e-9)


def brute_force_plan(jobs, errors, hold_up, window, time_worth):
    n = len(jobs.values)
    total = 0.0
    for signs in product((-1, 1), repeat=n):
        steps = np.array([sign * [*errors, 0][p] for sign, p in zip(signs, jobs.planned, strict=True)])
        told = jobs._replace(estimates=jobs.estimates + steps, planned=np.minimum(jobs.planned + 1, len(errors)))
        values = brute_force(told, errors, hold_up, window, time_worth, start=1)
        total += max(time_worth * (window - 1), *values) / 2**n
    return total


def test_with_known_durations_the_look_ahead_finds_the_best_of_all_orders():
    rng = np.random.default_rng(0)
    for _ in range(20):
        jobs = some_jobs(rng, 5, planned=1)
        best = 0
        for order in permutations(range(5)):
            time, here, value = 0, None, 0
            for job in order:
                way = jobs.travel[job] if here is None else jobs.distances[here, job]
                if time + way + jobs.estimates[job] > jobs.left[job]:
                    continue
                time, here, value = time + way + jobs.estimates[job], job, value + jobs.values[job]
            best = max(best, value)
        assert serve_values(batched(jobs), (3,), 0.0, 28, np.zeros(1)).max() == best
