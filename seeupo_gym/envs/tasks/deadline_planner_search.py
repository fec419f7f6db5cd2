"""DeadlinePlanner's look-ahead: the values of serving each of a few known jobs first, and of planning before."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# The additional time that a job takes if the worker is held up.
HOLD_UP = 2

Tables = NDArray[np.float64]


class Jobs(NamedTuple):
    """
    Open jobs of some lanes as the worker knows them. The shapes are (lanes, jobs), except for ``distances``.

    :param values: pay of each job by its deadline; 0 for entries that fill the row of a lane with fewer jobs
    :param estimates: expected durations without hold-ups
    :param planned: number of known parts of the error
    :param left: time to the deadline
    :param travel: time of the way from the worker to the job
    :param distances: time of the way from each job to each other one, shape (lanes, jobs, jobs)
    """

    values: NDArray[np.int64]
    estimates: NDArray[np.int64]
    planned: NDArray[np.int64]
    left: NDArray[np.int64]
    travel: NDArray[np.int64]
    distances: NDArray[np.int64]

    def only(self, lanes: NDArray[np.int64], n: int) -> Jobs:
        """Take the first ``n`` jobs of some of the lanes."""
        values, estimates, planned, left, travel = (array[lanes, :n] for array in self[:-1])
        return Jobs(values, estimates, planned, left, travel, self.distances[lanes, :n, :n])


def serve_values(jobs: Jobs, errors: tuple[int, ...], hold_up: float, window: int, time_worth: Tables) -> Tables:
    """
    Compute the expected values of serving each job first and going on in the best way, without new jobs and planning.

    This is exact: a dynamic program over the set of jobs left, the worker's place and the time. The worker sees the
    time whenever a job is done, so the best way to go on may depend on it.

    :param jobs: the jobs
    :param errors: sizes of the parts of the error of a first estimate; each is added or subtracted with equal
        probability
    :param hold_up: probability that a job takes ``HOLD_UP`` longer
    :param window: the longest time to a deadline
    :param time_worth: value of each unit of ``window`` that is left after the last job, shape (lanes,)
    :return: shape (lanes, jobs)
    """
    n, m = jobs.values.shape
    # Times beyond the window pay nothing, but a duration shorter than expected leads back into it. The last entry is
    # 0, and stands for all later times.
    size = window + sum(errors) + 2
    times = np.arange(size)
    rest = time_worth[:, None] * np.maximum(window - times, 0)
    pays = [jobs.values[:, [k]] * (times <= jobs.left[:, [k]]) for k in range(m)]
    starts = np.arange(n)[:, None] * size

    def later(shift: NDArray[np.int64]) -> NDArray[np.int64]:
        """Index the entries ``shift`` units later, for each lane of a table of shape (lanes, size)."""
        index: NDArray[np.int64] = starts + np.minimum(times + shift[:, None], size - 1)
        return index

    after = [[later(jobs.distances[:, j, k] + jobs.estimates[:, k]) for k in range(m)] for j in range(m)]
    full = 2**m - 1
    # onward[set][j]: the value by time once job j is done and the jobs of the set are left.
    onward: list[dict[int, Tables]] = [{} for _ in range(full + 1)]
    onward[0] = dict.fromkeys(range(m), rest)
    first = np.empty((n, m))
    for left in range(1, full + 1):
        members = [k for k in range(m) if left >> k & 1]
        served = {}
        for k in members:
            known = jobs.planned[:, [k]]
            served[k] = _expected(pays[k] + onward[left ^ 1 << k][k], known, errors, hold_up)
        if left == full:
            for k in members:
                due = np.minimum(jobs.travel[:, k] + jobs.estimates[:, k], size - 1)
                first[:, k] = served[k][np.arange(n), due]
        for j in set(range(m)) - set(members):
            best = rest
            for k in members:
                best = np.maximum(best, served[k].take(after[j][k]))
            onward[left][j] = best
    return first


def _expected(done_at: Tables, planned: NDArray[np.int64], errors: tuple[int, ...], hold_up: float) -> Tables:
    """Convert values by the time when a job is done to values by the time when it is expected to be done."""
    table = done_at
    for part, error in enumerate(errors):
        unknown = planned <= part
        if unknown.any():
            # The first entries are never looked up, as no estimate is less than the unknown parts of its error.
            mean = np.empty_like(table)
            mean[:, :error] = 0.0
            mean[:, error:-error] = table[:, : -2 * error] + table[:, 2 * error :]
            mean[:, -error:] = table[:, -2 * error : -error]
            mean *= 0.5
            table = np.where(unknown, mean, table)
    if hold_up:
        late = np.zeros_like(table)
        late[:, :-HOLD_UP] = table[:, HOLD_UP:]
        table = (1.0 - hold_up) * table + hold_up * late
    return table


def look_ahead(
    jobs: Jobs, errors: tuple[int, ...], hold_up: float, window: int, time_worth: Tables
) -> tuple[Tables, Tables]:
    """
    Compute the expected values of serving each job first, and of planning once and then serving in the best way.

    :param jobs: see :func:`serve_values`, as for the other parameters
    :return: the values of serving, shape (lanes, jobs), and of planning, shape (lanes,)
    """
    n, m = jobs.values.shape
    # All outcomes of planning: for each job, the next part of its error is added or subtracted.
    signs = 1 - 2 * (np.arange(2**m)[:, None] >> np.arange(m) & 1)
    steps = signs * np.array([*errors, 0])[jobs.planned][:, None]
    told = Jobs(*(np.repeat(array, 2**m, axis=0) for array in jobs))
    told = told._replace(
        estimates=told.estimates + steps.reshape(-1, m),
        planned=np.minimum(told.planned + 1, len(errors)),
        travel=told.travel + 1,
    )
    now_and_then = Jobs(*(np.concatenate(pair) for pair in zip(jobs, told, strict=True)))
    worth = np.concatenate([time_worth, np.repeat(time_worth, 2**m)])
    values = serve_values(now_and_then, errors, hold_up, window, worth)
    plan: Tables = np.maximum(values[n:].max(axis=1).reshape(n, -1), time_worth[:, None] * (window - 1))
    # In halves, so that jobs about which planning reveals nothing have no effect, not even by rounding.
    while plan.shape[1] > 1:
        plan = 0.5 * (plan[:, 0::2] + plan[:, 1::2])
    return values[:n], plan[:, 0]
