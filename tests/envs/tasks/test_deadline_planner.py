"""DeadlinePlanner: days computed by hand, the expert against the optimum, what is hidden, and what is said."""

from functools import cache
from itertools import product

import gymnasium as gym
import numpy as np
import pytest

from seeupo_gym.envs.task import HELD_OUT_SEED, NO_ACTION
from seeupo_gym.envs.tasks.deadline_planner import LEVELS, DeadlinePlanner, DeadlinePlannerEnv
from seeupo_gym.envs.tasks.deadline_planner_search import HOLD_UP, Jobs

ENV_ID = "seeupo_gym/DeadlinePlanner-v0"
A, B, C, D, E, PLAN, WAIT = range(7)

# A day at level easy, the worker at (1, 1): place, arrival, deadline, value, first estimate, sign of its error of 4.
DAY = [
    ((1, 0), 0, 10, 4, 5, +1),  # way 1, duration 9: done at 10, in time by a hair
    ((0, 1), 0, 14, 8, 6, -1),  # from A way 2, duration 2: done at 14
    ((2, 2), 0, 5, 2, 5, -1),  # way 2, duration 1: done at 3 if served first
    ((0, 1), 6, 20, 1, 6, -1),  # comes while A is served
    ((2, 0), 7, 13, 2, 5, +1),  # comes while A is served, and is due while B is
]


def make_day(day=DAY, n_lanes=1):
    """A task at level easy whose jobs are the given ones."""
    task = DeadlinePlanner(n_lanes)
    task.reset(np.arange(n_lanes))
    for job, (place, arrival, deadline, value, rough, sign) in enumerate(day):
        task.x[:, job], task.y[:, job] = place
        task.arrivals[:, job], task.deadlines[:, job], task.values[:, job] = arrival, deadline, value
        task.estimates[:, job] = task.refined[:, job, 0] = rough
        task.refined[:, job, 1] = rough + 4 * sign
    task.open[:] = task.arrivals == 0
    return task


def play(task, *actions):
    """Take actions in all lanes; what the last step gave in lane 0, and the clock."""
    for action in actions:
        rewards, dones, successes = task.step(np.full(task.n_lanes, action))
    return float(rewards[0]), bool(dones[0]), bool(successes[0]), int(task.clock[0])


# --- Days computed by hand


def test_a_day_without_planning():
    task = make_day()
    assert play(task, A) == (0.0, False, False, 10)
    assert task.earned[0] == 4, "done at 10, due at 10"
    assert task.missed[0] == 2, "C was due at 5"
    assert task.open[0].tolist() == [False, True, False, True, True]
    assert play(task, B) == (0.0, False, False, 14)
    assert (task.earned[0], task.missed[0]) == (12, 4), "done at 14, due at 14; E was due at 13"
    reward, done, success, clock = play(task, D)
    assert reward == pytest.approx(13 / 17)
    assert (done, success, clock) == (True, True, 16)


def test_planning_takes_a_unit_of_time_and_can_cost_a_job():
    task = make_day()
    play(task, PLAN)
    assert task.estimates[0, :4].tolist() == [9, 2, 1, 6], "D has not come yet"
    assert task.planned[0].tolist() == [1, 1, 1, 0, 0]
    play(task, A)
    assert (task.clock[0], task.earned[0], task.missed[0]) == (11, 0, 6), "A was done at 11, due at 10"
    reward, done, success, clock = play(task, D)
    assert (clock, done, success) == (15, True, False)
    assert reward == pytest.approx(1 / 17)


def test_a_job_is_served_late_for_nothing_and_the_way_counts():
    task = make_day()
    play(task, B)
    assert (task.clock[0], task.here_x[0], task.here_y[0]) == (3, 0, 1), "way 1, duration 2"
    play(task, A)
    assert (task.clock[0], task.earned[0], task.missed[0]) == (14, 8, 8), "way 2, duration 9: A was due at 10, E at 13"


@pytest.mark.parametrize(("served", "share", "success"), [((C,), 2 / 17, False), ((B,), 8 / 17, False)])
def test_a_day_ends_when_the_last_job_is_due(served, share, success):
    task = make_day()
    play(task, *served)
    for clock in range(int(task.clock[0]) + 1, 21):
        reward, done, was_success, now = play(task, WAIT)
        assert (now, done) == (clock, clock == 20)
    assert reward == pytest.approx(share)
    assert was_success is success


def test_success_takes_seven_tenths_of_the_value():
    for values, success in (([7, 1, 1, 1, 0], True), ([6, 2, 1, 1, 0], False)):
        task = make_day([((1, 1), 0, 8, value, 5, -1) for value in values])
        play(task, A)
        reward, done, was_success, _ = play(task, *[WAIT] * 7)
        assert (reward, done, was_success) == (pytest.approx(values[0] / 10), True, success)


@pytest.mark.parametrize("level", LEVELS)
def test_a_hold_up_makes_a_job_longer_by_two(level):
    task = DeadlinePlanner(4000, level)
    task.reset(np.arange(4000))
    expected = task.refined[:, 0, -1].copy()
    play(task, 0)
    late = task.work - expected
    assert set(late.tolist()) <= {0, HOLD_UP}
    assert (late > 0).mean() == pytest.approx(LEVELS[level].hold_up, abs=0.02)


def test_hold_ups_follow_the_noise_seeds_and_the_day_the_task_seeds():
    task = DeadlinePlanner(300, "hard")
    task.reset(np.full(300, 9), np.arange(300))
    assert (task.refined == task.refined[0]).all()
    play(task, 0)
    assert set((task.work - task.work.min()).tolist()) == {0, HOLD_UP}


def test_what_is_drawn_keeps_to_the_table():
    for level, name in ((LEVELS[name], name) for name in LEVELS):
        task = DeadlinePlanner(3000, name)
        task.reset(np.arange(3000))
        n_first = level.n_first
        assert (np.diff(task.arrivals) >= 0).all(), "jobs are numbered by arrival"
        assert (task.arrivals[:, :n_first] == 0).all()
        assert (task.arrivals[:, n_first:].min(), task.arrivals.max()) == (1, level.last_call)
        assert (task.x.min(), task.x.max(), task.y.min(), task.y.max()) == (0, level.side - 1, 0, level.side - 1)
        rough = task.refined[:, :, 0]
        assert (rough.min(), rough.max()) == level.rough
        slack = task.deadlines - task.arrivals - rough
        assert (slack.min(), slack.max()) == level.slack
        assert task.deadlines.max() <= task.max_turns == level.last_call + level.window
        values, counts = np.unique(task.values, return_counts=True)
        assert values.tolist() == [1, 2, 4, 8]
        np.testing.assert_allclose(counts / counts.sum(), 0.25, atol=0.02)
        signs = np.diff(task.refined, axis=2) / np.array(level.errors)
        assert set(np.unique(signs).tolist()) == {-1.0, 1.0}
        np.testing.assert_allclose(signs.mean(axis=(0, 1)), 0.0, atol=0.03)
        assert abs((signs[:, 0] * signs[:, 1]).mean()) < 0.05, "the jobs' errors are independent"
        assert task.refined.min() >= 1, "every action takes time"


def test_every_part_of_the_error_takes_a_plan_of_its_own():
    task = DeadlinePlanner(50, "medium")
    task.reset(np.arange(50))
    seen = task.open & (task.deadlines > 2)
    for part in (1, 2):
        play(task, 8)
        np.testing.assert_array_equal(task.estimates[seen], task.refined[:, :, part][seen])
    nothing_left = ~(task.open & (task.planned < 2)).any(axis=1)
    assert nothing_left.any()
    before = task.estimates.copy()
    play(task, 8)
    np.testing.assert_array_equal(task.refused, nothing_left)
    np.testing.assert_array_equal(task.estimates[nothing_left], before[nothing_left])


# --- Masks, observations, and what is hidden


def test_masks_and_refusals():
    task = make_day()
    assert task.action_masks()[0].tolist() == [True, True, True, False, False, True, True]
    play(task, PLAN)
    assert task.action_masks()[0].tolist() == [True, True, True, False, False, False, True]
    for action in (D, PLAN, NO_ACTION):
        task = make_day()
        play(task, PLAN)
        before = task.observe()[0]
        play(task, action)
        waited = make_day()
        play(waited, PLAN, WAIT)
        assert task.refused[0]
        assert not waited.refused[0]
        np.testing.assert_array_equal(task.observe(), waited.observe())
        assert (task.observe()[0] != before).sum() == 2 + 3, "the clock, the turn and the time left for three jobs"


def test_the_observation_entry_by_entry():
    task = make_day()
    play(task, PLAN, C)
    # At 4 the worker is at (2, 2); C is done, D comes at 6.
    expected = np.concatenate(
        [
            [4 / 33, 2 / 2, 2 / 2, 2 / 40, 0 / 40, 2 / 33],  # clock, place, earned, missed, turn
            [1, 1, 1, 0, 0],  # come
            [1, 1, 0, 0, 0],  # open
            [1 / 2, 0, 0, 0, 0],
            [0, 1 / 2, 0, 0, 0],
            [3 / 4, 3 / 4, 0, 0, 0],  # way
            [9 / 10, 2 / 10, 0, 0, 0],  # estimate
            [1, 1, 0, 0, 0],  # planned
            [4 / 8, 8 / 8, 0, 0, 0],
            [6 / 25, 10 / 25, 0, 0, 0],  # time left
        ]
    )
    np.testing.assert_allclose(task.observe()[0], expected, rtol=1e-6)
    play(task, WAIT, WAIT)
    shown = task.observe()[0]
    np.testing.assert_allclose(shown[6:16], [1, 1, 1, 1, 0, 1, 1, 0, 1, 0])
    np.testing.assert_allclose(shown[31:36], [9 / 10, 2 / 10, 0, 6 / 10, 0], rtol=1e-6)
    np.testing.assert_allclose(shown[36:41], [1, 1, 0, 0, 0])


@pytest.mark.parametrize(("level", "size"), [("easy", 51), ("medium", 78), ("hard", 132)])
def test_sizes_of_the_levels(level, size):
    task = DeadlinePlanner(1, level)
    assert task.observation_space.shape == (size,)
    assert task.action_space.n == task.level.n_jobs + 2
    row = next(line for line in DeadlinePlannerEnv.__doc__.splitlines() if line.strip().startswith(f"| {level} "))
    jobs, first, _, _, error, slack, last_call, _, horizon = (cell.strip() for cell in row.split("|")[2:-1])
    assert (jobs, first) == (str(task.level.n_jobs), str(task.level.n_first))
    assert error == ", ".join(map(str, task.level.errors))
    assert slack == "{} to {}".format(*task.level.slack)
    assert (last_call, horizon) == (str(task.level.last_call), str(task.max_turns))


def test_hidden_durations_and_jobs_to_come_do_not_show():
    other_day = [(*job[:5], -job[5]) if job[1] == 0 else ((0, 0), 3, 25, 8, 5, 1) for job in DAY]
    task, other = make_day(), make_day(other_day)
    for action in (WAIT, WAIT):
        np.testing.assert_array_equal(task.observe(), other.observe())
        np.testing.assert_array_equal(task.action_masks(), other.action_masks())
        np.testing.assert_array_equal(task.expert_actions(), other.expert_actions())
        assert task.opening_text(0) == other.opening_text(0)
        play(task, action)
        play(other, action)
    play(task, WAIT)
    play(other, WAIT)
    assert (task.observe() != other.observe()).any(), "at 3 the other days' jobs come"


# --- The expert


def optimum(jobs):
    """What the best policy earns in expectation if all jobs have come; it may plan at any time."""

    @cache
    def value(left, here, time, known):
        left = frozenset(job for job in left if jobs.left[job] > time)
        if not left:
            return 0.0
        values = []
        for job in left:
            way = int(jobs.travel[job] if here is None else jobs.distances[here, job])
            durations = [known[job]] if known[job] else [int(jobs.estimates[job]) + error for error in (-4, 4)]
            done = [time + way + duration for duration in durations]
            later = [jobs.values[job] * (t <= jobs.left[job]) + value(left - {job}, job, t, known) for t in done]
            values.append(sum(later) / len(later))
        unknown = [job for job in left if not known[job]]
        if unknown:
            total = 0.0
            for signs in product((-4, 4), repeat=len(unknown)):
                told = list(known)
                for job, sign in zip(unknown, signs, strict=True):
                    told[job] = int(jobs.estimates[job]) + sign
                total += value(left, here, time + 1, tuple(told)) / 2 ** len(unknown)
            values.append(total)
        return max(values)

    return value(frozenset(range(3)), None, 0, (0, 0, 0))


def test_the_expert_is_close_to_the_optimum_where_all_jobs_have_come():
    rng = np.random.default_rng(4)
    earned, best = [], []
    for _ in range(40):
        places, values = rng.integers(3, size=(3, 2)), 2 ** rng.integers(4, size=3)
        rough, due = rng.integers(5, 7, size=3), rng.integers(4, 22, size=3)
        # One lane for each of the equally likely cases; the last two jobs are of no account.
        task = make_day([((0, 0), 0, 1, 0, 5, 1)] * 5, n_lanes=8)
        for lane, signs in enumerate(product((-1, 1), repeat=3)):
            task.x[lane, :3], task.y[lane, :3], task.values[lane, :3] = *places.T, values
            task.deadlines[lane, :3], task.estimates[lane, :3], task.refined[lane, :3, 0] = due, rough, rough
            task.refined[lane, :3, 1] = rough + 4 * np.array(signs)
        task.open[:, 3:], task.served[:, 3:] = False, True
        live = np.arange(8)
        while live.size:
            live = live[~task.step(task.expert_actions(live), live).dones]
        distances = np.abs(places[:, None] - places[None]).sum(axis=2)
        jobs = Jobs(values, rough, np.zeros(3), due, np.abs(places - 1).sum(axis=1), distances)
        earned.append(task.earned.mean())
        best.append(optimum(jobs))
    assert (np.array(earned) <= np.array(best) + 1e-9).all()
    assert sum(earned) > 0.98 * sum(best)
    assert np.isclose(earned, best).mean() > 0.7, "and most often it is the optimum"


def test_the_expert_plans_when_it_pays_and_not_when_it_does_not():
    # One job that is done in time for sure if served now, and only perhaps after a plan.
    alone = [((1, 1), 0, 9, 8, 5, 1), *[((0, 0), 0, 1, 1, 6, 1)] * 4]
    assert make_day(alone).expert_actions()[0] == A
    # Two equal jobs due at 3: the one that takes 1 is in time, also after a plan; which one it is, only a plan tells.
    two = [((1, 1), 0, 3, 8, 5, -1), ((1, 1), 0, 3, 8, 5, 1), *alone[2:]]
    task = make_day(two)
    assert task.expert_actions()[0] == PLAN
    play(task, PLAN)
    assert task.expert_actions()[0] == A
    # Nothing can be done in time, and the rest of the day is still to come.
    hopeless = [((0, 0), 0, 2, 8, 6, 1)] * 3 + [((1, 1), 6, 20, 1, 5, 1)] * 2
    task = make_day(hopeless)
    assert task.expert_actions()[0] == PLAN
    play(task, PLAN)
    assert task.expert_actions()[0] == WAIT


@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_does_not_depend_on_the_other_lanes(level):
    task, alone = DeadlinePlanner(60, level), DeadlinePlanner(1, level)
    seeds = HELD_OUT_SEED + np.arange(60)
    task.reset(seeds)
    live, chosen = np.arange(60), []
    while live.size:
        actions = task.expert_actions(live)
        assert task.action_masks(live)[np.arange(len(live)), actions].all()
        if 7 in live:
            chosen.append(int(actions[live == 7][0]))
        live = live[~task.step(actions, live).dones]
    alone.reset(seeds[7:8])
    for action in chosen:
        assert alone.expert_actions()[0] == action
        alone.step(np.array([action]))
    assert alone.earned[0] == task.earned[7]


# --- Words


def test_a_transcript():
    task = make_day()
    assert task.opening_text(0) == (
        "System: 5 jobs, A to E, come in by 8; 4 are there now. You are at (1, 1) in a town of 3 by 3 corners; the way "
        "to the next corner takes 1. The clock shows 0. A job pays if it is done by the time when it is due; earn "
        "as much of the pay of all jobs as you can, 70% of it is a success. "
        '"+-4" means so much more or so much less, as likely as not. Write "serve job A" to go there and do it, '
        '"plan longer" to learn the next "+-" of every open job, which takes 1, or "wait", which takes 1.\n'
        "Dispatch: Job A at (1, 0) takes 5 +-4, pays 4, is due at 10.\n"
        "Dispatch: Job B at (0, 1) takes 6 +-4, pays 8, is due at 14.\n"
        "Dispatch: Job C at (2, 2) takes 5 +-4, pays 2, is due at 5."
    )
    said = []
    for message in ("Serve C!", "plan longer", "serve A", "serve C", "", "serve D"):
        action = np.array(NO_ACTION) if not message else task.parse_action(0, message)
        result = task.step(np.array([action]))
        said.append(task.reply_text(0, action, result))
    assert said == [
        "Clock 3: 2 on the way to (2, 2), 1 at work: job C done in time, 2 earned.",
        "Clock 4: You planned: job A takes 9, job B takes 2.",
        "Clock 16: 3 on the way to (1, 0), 9 at work: job A done too late, nothing earned.\n"
        "Dispatch: Job B, which pays 8, is past its time.\n"
        "Dispatch: Job E, which pays 2, is past its time.\n"
        "Dispatch: Job D at (0, 1) takes 6 +-4, pays 1, is due at 20.",
        "Clock 17: Job C is not open.",
        "Clock 18: You did nothing.",
        "Clock 22: 2 on the way to (0, 1), 2 at work: job D done too late, nothing earned.\n"
        "Dispatch: The day is over. You earned 2 of 17.\n"
        "Reward: 0.118",
    ]


def test_words_for_waiting_hold_ups_and_plans_in_vain():
    task = make_day([((1, 1), 0, 1, 1, 5, -1)] * 4 + [((1, 1), 5, 20, 1, 5, 1)])
    action = np.array(PLAN)
    result = task.step(action[None])
    assert task.reply_text(0, action, result).splitlines()[0] == "Clock 1: You planned: too late for any of the jobs."
    result = task.step(action[None])
    assert task.reply_text(0, action, result) == "Clock 2: There was nothing to plan."
    action = np.array(WAIT)
    result = task.step(action[None])
    assert task.reply_text(0, action, result) == "Clock 3: You waited."
    hard = DeadlinePlanner(100, "hard")
    hard.reset(np.arange(100))
    assert "takes 2 longer with probability 0.2." in hard.opening_text(0)
    result = hard.step(np.zeros(100, dtype=np.int64))
    held_up = hard.work > hard.refined[:, 0, -1]
    for lane in range(100):
        assert ("(held up for 2)" in hard.reply_text(lane, np.array(0), result)) == held_up[lane]


# --- Arguments


def test_impossible_arguments():
    with pytest.raises(ValueError, match="level must be one of 'easy', 'medium', 'hard', got 'huge'"):
        gym.make(ENV_ID, level="huge")
    with pytest.raises(ValueError, match="n_lanes must be an integer of at least 1, got 0"):
        DeadlinePlanner(0)
