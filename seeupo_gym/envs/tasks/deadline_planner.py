"""DeadlinePlanner: jobs come in while the worker drives, works and plans, all of which take time."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.envs.counter_rng import uniform
from seeupo_gym.envs.task import ALL_LANES, NO_ACTION, Lanes, MaskedTaskEnv, StepResult, Task, choose_level
from seeupo_gym.envs.tasks.deadline_planner_search import HOLD_UP, Jobs, look_ahead


class Level(NamedTuple):
    """
    A level of difficulty. Ranges include both ends.

    :param n_jobs: number of jobs of a day
    :param n_first: number of jobs that have come at the start
    :param side: the town has ``side`` by ``side`` corners
    :param rough: range of the first estimates of durations
    :param errors: sizes of the parts of a first estimate's error, in the order in which planning reveals them
    :param slack: range of the time from arrival to deadline beyond the first estimate
    :param last_call: the latest arrival
    :param hold_up: probability that a job takes ``HOLD_UP`` longer
    :param lookahead: number of jobs that the expert considers
    """

    n_jobs: int
    n_first: int
    side: int
    rough: tuple[int, int]
    errors: tuple[int, ...]
    slack: tuple[int, int]
    last_call: int
    hold_up: float
    lookahead: int

    @property
    def window(self) -> int:
        """The longest time from arrival to deadline."""
        return self.rough[1] + self.slack[1]

    @property
    def horizon(self) -> int:
        """The end of the day, by which every deadline has passed."""
        return self.last_call + self.window


LEVELS = {
    "easy": Level(5, 4, 3, (5, 6), (4,), (3, 19), 8, 0.0, 5),
    "medium": Level(8, 4, 4, (6, 8), (4, 1), (3, 28), 36, 0.1, 4),
    "hard": Level(14, 5, 5, (7, 9), (4, 2), (3, 32), 80, 0.2, 4),
}
# A job pays 1, 2, 4 or 8.
N_VALUES, MAX_VALUE = 4, 8
# The share of the total value from which on a day is a success.
SUCCESS_SHARE = 0.7
# The value that the expert gives to a unit of time as long as more jobs are to come.
TIME_WORTH = 0.1
# Number of lanes and outcomes of planning that the expert looks ahead for at once, which bounds its memory.
_BLOCK = 1024
# Gains below this are rounding errors.
_EPSILON = 1e-9

# Random streams: jobs for the start of an episode, hold-ups for its transitions.
_JOBS, _HOLD_UPS = range(2)

JOB_NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class DeadlinePlanner(Task):
    """Batched dynamics; :class:`DeadlinePlannerEnv` documents the task."""

    has_action_masks: ClassVar[bool] = True
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)

    def __init__(self, n_lanes: int = 1, level: str = "easy") -> None:
        self.level = choose_level(level, LEVELS)
        n_jobs, n_parts, side = self.level.n_jobs, len(self.level.errors), self.level.side
        # Every action takes at least one unit of time.
        self.max_turns = self.level.horizon
        self.plan, self.wait = n_jobs, n_jobs + 1
        self.action_space = spaces.Discrete(n_jobs + 2)
        self.observation_space = spaces.Box(0.0, 1.0, (6 + 9 * n_jobs,), np.float32)
        super().__init__(n_lanes)
        # Of each job: place, estimate, slack, binary logarithm of the value, signs of the parts of the error.
        (low_rough, high_rough), (low_slack, high_slack) = self.level.rough, self.level.slack
        self._lowest = np.array([0, 0, low_rough, low_slack, 0, *[0] * n_parts])
        self._highest = np.array([side - 1, side - 1, high_rough, high_slack, N_VALUES - 1, *[1] * n_parts])
        # The numbers that the parts of an observation are divided by.
        reach, total, longest = side - 1, n_jobs * MAX_VALUE, high_rough + sum(self.level.errors)
        of_jobs = [1, 1, reach, reach, 2 * reach, longest, n_parts, MAX_VALUE, self.level.window]
        largest = [self.level.horizon, reach, reach, total, total, self.max_turns, *np.repeat(of_jobs, n_jobs)]
        self._largest = np.array(largest, dtype=np.float32)
        self.x, self.y, self.arrivals, self.deadlines, self.values = np.zeros((5, n_lanes, n_jobs), dtype=np.int64)
        # refined[:, :, p] is the estimate once p parts of the error are known, the last one the duration.
        self.refined = np.zeros((n_lanes, n_jobs, n_parts + 1), dtype=np.int64)
        self.planned, self.estimates = np.zeros((2, n_lanes, n_jobs), dtype=np.int64)
        self.served, self.open = np.zeros((2, n_lanes, n_jobs), dtype=bool)
        self.clock, self.here_x, self.here_y, self.earned, self.missed = np.zeros((5, n_lanes), dtype=np.int64)
        # The last turn, for its text.
        self.before, self.drive, self.work, self.gain = np.zeros((4, n_lanes), dtype=np.int64)

    def _start(self, lanes: Lanes) -> None:
        level, seeds = self.level, self.task_seeds[lanes]
        n_jobs, n_draws = level.n_jobs, len(self._lowest) + 1
        draws = uniform(seeds[:, None], _JOBS, np.arange(n_jobs * n_draws)).reshape(-1, n_jobs, n_draws)
        drawn = self._lowest + (draws[:, :, 1:] * (self._highest - self._lowest + 1)).astype(np.int64)
        rough = drawn[:, :, 2]
        arrivals = 1 + (draws[:, :, 0] * level.last_call).astype(np.int64)
        arrivals[:, : level.n_first] = 0
        arrivals.sort(axis=1)
        self.x[lanes], self.y[lanes], self.arrivals[lanes] = drawn[:, :, 0], drawn[:, :, 1], arrivals
        self.deadlines[lanes] = arrivals + rough + drawn[:, :, 3]
        self.values[lanes] = 2 ** drawn[:, :, 4]
        refined = np.concatenate([rough[:, :, None], np.array(level.errors) * (2 * drawn[:, :, 5:] - 1)], axis=2)
        self.refined[lanes] = refined.cumsum(axis=2)
        self.planned[lanes], self.estimates[lanes] = 0, rough
        self.served[lanes], self.open[lanes] = False, arrivals == 0
        self.here_x[lanes] = self.here_y[lanes] = level.side // 2
        for numbers in (self.clock, self.earned, self.missed, self.before, self.drive, self.work, self.gain):
            numbers[lanes] = 0

    def _advance(self, actions: NDArray[np.int64], lanes: Lanes) -> StepResult:
        level, rows = self.level, np.arange(len(actions))
        accepted = self.action_masks(lanes)[rows, actions] & (actions != NO_ACTION)
        serves, plans = accepted & (actions < self.plan), accepted & (actions == self.plan)
        # A lane that serves no job gets some job here, which has no effect.
        jobs = np.where(serves, actions, 0)
        job = (np.arange(self.n_lanes)[lanes], jobs)
        x, y, here_x, here_y = self.x[job], self.y[job], self.here_x[lanes], self.here_y[lanes]
        drive = np.where(serves, abs(x - here_x) + abs(y - here_y), 0)
        work = np.where(serves, self.refined[job][:, -1], 1)
        if level.hold_up:
            held_up = uniform(self.noise_seeds[lanes], _HOLD_UPS, self.turns[lanes]) < level.hold_up
            work += HOLD_UP * (serves & held_up)
        before = self.clock[lanes]
        done_at = before + drive + work
        gain = np.where(serves & (done_at <= self.deadlines[job]), self.values[job], 0)
        self.refused[lanes] = ~accepted
        self.before[lanes], self.drive[lanes], self.work[lanes], self.gain[lanes] = before, drive, work, gain
        self.here_x[lanes], self.here_y[lanes] = np.where(serves, x, here_x), np.where(serves, y, here_y)
        self._study(plans, lanes)
        self.served[job] |= serves
        clock = np.minimum(done_at, level.horizon)
        come = self.arrivals[lanes] <= clock[:, None]
        open_jobs = come & ~self.served[lanes] & (self.deadlines[lanes] > clock[:, None])
        closed, values = come & ~open_jobs, self.values[lanes]
        earned = self.earned[lanes] + gain
        self.clock[lanes], self.open[lanes], self.earned[lanes] = clock, open_jobs, earned
        self.missed[lanes] = (values * closed).sum(axis=1) - earned
        dones: NDArray[np.bool_] = np.all(closed, axis=1)
        share = earned / values.sum(axis=1)
        rewards = np.where(dones, share, 0.0).astype(np.float32)
        successes: NDArray[np.bool_] = dones & (share >= SUCCESS_SHARE)
        return StepResult(rewards, dones, successes)

    def _study(self, plans: NDArray[np.bool_], lanes: Lanes) -> None:
        """Refine the estimates of the open jobs, in lanes that plan."""
        chosen = np.arange(self.n_lanes)[lanes][plans]
        planned = self.planned[chosen]
        planned += self.open[chosen] & (planned < len(self.level.errors))
        self.planned[chosen] = planned
        self.estimates[chosen] = np.take_along_axis(self.refined[chosen], planned[:, :, None], axis=2)[:, :, 0]

    def observe(self, lanes: Lanes = ALL_LANES) -> NDArray[np.float32]:
        x, y, open_jobs, clock = self.x[lanes], self.y[lanes], self.open[lanes], self.clock[lanes][:, None]
        here_x, here_y = self.here_x[lanes][:, None], self.here_y[lanes][:, None]
        parts = [
            clock,
            here_x,
            here_y,
            self.earned[lanes][:, None],
            self.missed[lanes][:, None],
            self.turns[lanes][:, None],
            self.arrivals[lanes] <= clock,
            open_jobs,
            x * open_jobs,
            y * open_jobs,
            (abs(x - here_x) + abs(y - here_y)) * open_jobs,
            self.estimates[lanes] * open_jobs,
            self.planned[lanes] * open_jobs,
            self.values[lanes] * open_jobs,
            (self.deadlines[lanes] - clock) * open_jobs,
        ]
        observations: NDArray[np.float32] = np.concatenate(parts, axis=1, dtype=np.float32)
        observations /= self._largest
        return observations

    def action_masks(self, lanes: Lanes = ALL_LANES) -> NDArray[np.bool_]:
        open_jobs = self.open[lanes]
        unclear = (open_jobs & (self.planned[lanes] < len(self.level.errors))).any(axis=1, keepdims=True)
        return np.concatenate([open_jobs, unclear, np.ones_like(unclear)], axis=1)

    def expert_actions(self, lanes: Lanes = ALL_LANES) -> NDArray[np.int64]:
        plannable = self.action_masks(lanes)[:, self.plan]
        more_to_come = self.arrivals[lanes][:, -1] > self.clock[lanes]
        order, jobs = self._shortlist(lanes)
        n_listed = (jobs.values > 0).sum(axis=1)
        actions = np.where(plannable, self.plan, self.wait)
        for n in range(1, self.level.lookahead + 1):
            # Lanes with the same number of jobs are computed together, so that none waits for the jobs of others.
            same = np.flatnonzero(n_listed == n)
            for rows in np.array_split(same, -(-len(same) * 2**n // _BLOCK)) if same.size else ():
                shown = jobs.only(rows, n)
                time_worth = np.where(more_to_come[rows], TIME_WORTH, 0.0)
                serve, plan = look_ahead(shown, self.level.errors, self.level.hold_up, self.level.window, time_worth)
                first, value = serve.argmax(axis=1), serve.max(axis=1)
                serves = value > time_worth * self.level.window
                serves &= ~plannable[rows] | (value + _EPSILON >= plan)
                actions[rows] = np.where(serves, order[rows, first], actions[rows])
        return actions

    def _shortlist(self, lanes: Lanes) -> tuple[NDArray[np.int64], Jobs]:
        """List the open jobs that the expert considers, by pay for their time; missing ones have the value 0."""
        x, y, estimates = self.x[lanes], self.y[lanes], self.estimates[lanes]
        values = self.values[lanes] * self.open[lanes]
        left = self.deadlines[lanes] - self.clock[lanes][:, None]
        travel = abs(x - self.here_x[lanes][:, None]) + abs(y - self.here_y[lanes][:, None])
        order = np.argsort(-values / (travel + estimates), axis=1, kind="stable")[:, : self.level.lookahead]
        pick = partial(np.take_along_axis, indices=order, axis=1)
        x, y = pick(x), pick(y)
        distances = abs(x[:, :, None] - x[:, None]) + abs(y[:, :, None] - y[:, None])
        planned = self.planned[lanes]
        return order, Jobs(pick(values), pick(estimates), pick(planned), pick(left), pick(travel), distances)

    def opening_text(self, lane: int) -> str:
        level, first, last = self.level, JOB_NAMES[0], JOB_NAMES[self.level.n_jobs - 1]
        errors = " ".join(f"+-{error}" for error in level.errors)
        held_up = f" A job takes {HOLD_UP} longer with probability {level.hold_up}." if level.hold_up else ""
        rules = (
            f"System: {level.n_jobs} jobs, {first} to {last}, come in by {level.last_call}; {level.n_first} are there "
            f"now. You are at ({self.here_x[lane]}, {self.here_y[lane]}) in a town of {level.side} by {level.side} "
            "corners; the way to the next corner takes 1. The clock shows 0. A job pays if it is done by the time "
            f"when it is due; earn as much of the pay of all jobs as you can, {SUCCESS_SHARE:.0%} of it is a success. "
            f'"{errors}" means so much more or so much less, as likely as not.{held_up} Write '
            f'"serve job {first}" to go there and do it, "plan longer" to learn the next "+-" of every open '
            'job, which takes 1, or "wait", which takes 1.'
        )
        return "\n".join([rules, *(self._call(lane, job) for job in np.flatnonzero(self.open[lane]).tolist())])

    def _call(self, lane: int, job: int) -> str:
        return (
            f"Dispatch: Job {JOB_NAMES[job]} at ({self.x[lane, job]}, {self.y[lane, job]}) takes "
            f"{self._time(lane, job)}, pays {self.values[lane, job]}, is due at {self.deadlines[lane, job]}."
        )

    def _time(self, lane: int, job: int) -> str:
        errors = self.level.errors[int(self.planned[lane, job]) :]
        return " ".join([str(self.estimates[lane, job]), *(f"+-{error}" for error in errors)])

    def action_text(self, lane: int, action: NDArray[np.int64]) -> str:
        if action < self.plan:
            return f"serve job {JOB_NAMES[action]}"
        return "plan longer" if action == self.plan else "wait"

    def short_texts(self, lane: int) -> dict[str, int | NDArray[np.int64]]:
        # Within other words, "serve a" may be about something else than job A.
        return {f"serve {JOB_NAMES[job]}": job for job in range(self.level.n_jobs)}

    def reply_text(self, lane: int, action: NDArray[np.int64], result: StepResult) -> str:
        before, clock = self.before[lane], self.clock[lane]
        open_jobs, arrivals, deadlines = self.open[lane], self.arrivals[lane], self.deadlines[lane]
        missed = ~self.served[lane] & (before < deadlines) & (deadlines <= clock)
        lines = [
            f"Clock {clock}: {self._deed(lane, int(action))}",
            *(f"Dispatch: Job {JOB_NAMES[job]}, which pays {self.values[lane, job]}, is past its time."
              for job in np.flatnonzero(missed).tolist()),
            *(self._call(lane, job) for job in np.flatnonzero(open_jobs & (arrivals > before)).tolist()),
        ]  # fmt: skip
        if result.dones[0]:
            lines.append(f"Dispatch: The day is over. You earned {self.earned[lane]} of {self.values[lane].sum()}.")
            lines.append(f"Reward: {result.rewards[0]:.3g}")
        return "\n".join(lines)

    def _deed(self, lane: int, action: int) -> str:
        """Say what the action itself did."""
        if action == NO_ACTION:
            return "You did nothing."
        if self.refused[lane]:
            job = action < self.plan
            return f"Job {JOB_NAMES[action]} is not open." if job else "There was nothing to plan."
        if action == self.wait:
            return "You waited."
        if action == self.plan:
            seen = self.open[lane] & (self.arrivals[lane] <= self.before[lane])
            times = [f"job {JOB_NAMES[job]} takes {self._time(lane, job)}" for job in np.flatnonzero(seen).tolist()]
            return f"You planned: {', '.join(times) or 'too late for any of the jobs'}."
        late = self.work[lane] - self.refined[lane, action, -1]
        held_up = f" (held up for {late})" if late else ""
        paid = f"in time, {self.gain[lane]} earned" if self.gain[lane] else "too late, nothing earned"
        return (
            f"{self.drive[lane]} on the way to ({self.here_x[lane]}, {self.here_y[lane]}), "
            f"{self.work[lane]} at work{held_up}: job {JOB_NAMES[action]} done {paid}."
        )


class DeadlinePlannerEnv(MaskedTaskEnv):
    """
    ## Description
    Planning against the clock. Jobs come in during a day, each with a place, an estimated duration, a value and a
    deadline. A job pays its value if it is done in time. Serving a job takes the time of the way to it and its
    duration, and nothing else can be done meanwhile. The first estimates are wrong: the duration of a job is the first
    estimate, plus or minus each part of the error with equal probability. Planning longer reveals the next part for
    every open job, but takes time, and so does waiting. As a rule there is no time for all jobs.

    | level | jobs | at the start | corners | first estimate | error | slack | last call | held up | horizon |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | easy | 5 | 4 | 3 x 3 | 5 to 6 | 4 | 3 to 19 | 8 | never | 33 |
    | medium | 8 | 4 | 4 x 4 | 6 to 8 | 4, 1 | 3 to 28 | 36 | 10% of jobs | 72 |
    | hard | 14 | 5 | 5 x 5 | 7 to 9 | 4, 2 | 3 to 32 | 80 | 20% of jobs | 121 |

    All times are whole numbers. The way from one corner to another takes the sum of the two differences of
    coordinates. The deadline of a job is its arrival plus its first estimate plus its slack; a job that is done at just
    that time is in time. A worker who is held up takes 2 longer, which cannot be known in advance. Jobs that come in
    while the worker is busy are seen when the action is over. A job stays open until it is served or past its deadline.

    ## Action Space
    ``Discrete(jobs + 2)``: serve a job (numbered by arrival), then "plan longer", then "wait"; the last two take one
    unit of time. ``action_masks()`` tells which are accepted: the open jobs, "plan longer" if a part of the error of an
    open job is not known, and always "wait". Any other choice does nothing, and takes one unit of time.

    ## Observation Space
    ``Box(0, 1, (6 + 9 * jobs,))``. Six numbers come first: the clock, the worker's two coordinates, the value earned
    and the value missed so far, and the turn. Then come the following, each with one number for every job: whether it
    has come, whether it is open, its two coordinates, the way to it, its estimate, the fraction of the parts of its
    error that are known, its value, and the time left to its deadline. The last seven are 0 unless the job is open.

    All are divided by the largest value they can have: the clock and the turn by the horizon, coordinates by the
    corners of a side less one, ways by twice that, estimates by the largest first estimate plus the parts of the error,
    values by 8, values earned and missed by 8 times the number of jobs, and times to deadlines by the largest first
    estimate plus the largest slack. Jobs to come, unknown parts of errors and hold-ups are hidden. The length is 51
    (easy), 78 (medium), 132 (hard).

    ## Rewards
    At the end, the value of the jobs that were done in time, as a fraction of the value of all jobs of the day.
    ``info["is_success"]`` tells whether it is at least 0.7.

    ## Starting State
    Drawn from the seed, each number uniformly and independently: places, first estimates, slacks, signs of the parts of
    errors, values (1, 2, 4 or 8), and the arrivals of the jobs that are not there at the start, from 1 to the last
    call. The worker starts at the corner (side // 2, side // 2). Hold-ups depend on the seed of the transitions and the
    turn alone.

    ## Episode End
    The episode terminates when all jobs have come and none is open, at the latest by the horizon. Every action takes at
    least one unit of time, so the horizon also bounds the number of turns.

    ## Expert
    It sees what the agent sees, and knows the rules. At each turn it computes two kinds of expected values, by dynamic
    programming over sets of open jobs, places and times: that of serving each job first and going on in the best way,
    which may depend on how long the jobs take; and that of planning once and then doing the same, over all that
    planning may reveal. This is exact if no job comes in later and nothing is planned after the next turn. For jobs to
    come, each unit of time that is left after the open jobs counts 0.1, or 0 once all jobs have come. At level easy the
    expert considers all open jobs, at the others the four that pay most for their way and estimated duration. If no job
    is worth its time, it plans, or else waits.

    ## Arguments
    - ``level`` (default ``"easy"``): ``"easy"``, ``"medium"`` or ``"hard"``
    - ``render_mode``: ``"ansi"`` for a transcript

    ## Version History
    - v0: first version
    """

    def __init__(self, level: str = "easy", render_mode: str | None = None) -> None:
        super().__init__(partial(DeadlinePlanner, level=level), render_mode)
