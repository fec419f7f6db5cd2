"""Blocksworld: its tables against stacks moved by hand, episodes computed by hand, and what is drawn how often."""

from functools import cache

import gymnasium as gym
import numpy as np
import pytest
from helpers.tasks import play, with_noise_of_their_own

from seeupo_gym.envs.task import NO_ACTION
from seeupo_gym.envs.tasks.blocksworld import LEVELS, Blocksworld
from seeupo_gym.envs.tasks.blocksworld_tables import tables

ENV_ID = "seeupo_gym/Blocksworld-v0"
A, B, C, D = range(4)


# --- A second Blocksworld to compare with: a configuration is a set of stacks, each a tuple from the bottom up.


def as_stacks(below):
    """The stacks of a configuration that is written as what each block stands on, itself for the table."""
    above = {lower: block for block, lower in enumerate(below) if lower != block}
    stacks = []
    for bottom in (block for block, lower in enumerate(below) if lower == block):
        stack = [bottom]
        while stack[-1] in above:
            stack.append(above[stack[-1]])
        stacks.append(tuple(stack))
    return frozenset(stacks)


def moves_from(stacks):
    """What each possible move, a block and what it is put on (itself for the table), makes of the stacks."""
    results = {}
    for stack in stacks:
        block, rest = stack[-1], stacks - {stack} | ({stack[:-1]} - {()})
        if len(stack) > 1:
            results[block, block] = rest | {(block,)}
        for other in stacks - {stack}:
            results[block, other[-1]] = rest - {other} | {(*other, block)}
    return results


@cache
def second_world(n):
    """All configurations of the tables as stacks, and for each the numbers of those that are one move away."""
    stacks = [as_stacks(below) for below in tables(n).below.tolist()]
    number = {s: i for i, s in enumerate(stacks)}
    return stacks, [[number[s] for s in moves_from(stack).values()] for stack in stacks]


def moves_to_reach(neighbours, goal):
    """Moves from every configuration to the goal, by search."""
    distance = [-1] * len(neighbours)
    distance[goal] = 0
    frontier = [goal]
    for configuration in frontier:
        for neighbour in neighbours[configuration]:
            if distance[neighbour] < 0:
                distance[neighbour] = distance[configuration] + 1
                frontier.append(neighbour)
    return np.array(distance)


def number(n, *stacks):
    """Number of a configuration, from its stacks."""
    return second_world(n)[0].index(frozenset(stacks))


def make_task(start, goal, fewest, n_blocks=3, **kwargs):
    """An environment at a chosen start, whose shortest plan has so many moves."""
    env = gym.make(ENV_ID, blocks=n_blocks, **kwargs).unwrapped
    env.reset(seed=0)
    env.task.current[:], env.task.goals[:], env.task.fewest[:] = (
        number(n_blocks, *start),
        number(n_blocks, *goal),
        fewest,
    )
    return env


def sussman(**kwargs):
    """C stands on A, and A on B on C is wanted: no subgoal can be finished first."""
    return make_task([(A, C), (B,)], [(C, B, A)], 3, **kwargs)


# --- The tables


@pytest.mark.parametrize(("n", "count"), [(3, 13), (4, 73), (5, 501), (6, 4051), (7, 37633)])
def test_every_configuration_is_there_once(n, count):
    below = tables(n).below
    assert below.shape == (count, n)
    stacks = [as_stacks(row) for row in below.tolist()]
    assert len(set(stacks)) == count
    assert {sum(map(len, configuration)) for configuration in stacks} == {n}, "no block floats or carries two"
    assert tables(n).distances.max() == 2 * (n - 1)


@pytest.mark.parametrize("n", [3, 4, 5])
def test_moves_lead_where_they_should(n):
    stacks, _ = second_world(n)
    for i, configuration in enumerate(stacks):
        possible = moves_from(configuration)
        for move, after in enumerate(tables(n).after[i]):
            assert stacks[after] == possible.get(divmod(move, n), configuration)


@pytest.mark.parametrize(
    ("n", "goals"), [(3, range(13)), (4, range(73)), (5, range(501)), (6, range(0, 4051, 400)), (7, [20_000])]
)
def test_the_expert_takes_shortest_plans_from_everywhere(n, goals):
    known, (_, neighbours) = tables(n), second_world(n)
    everywhere = np.arange(len(known.below))
    for goal in goals:
        distance = moves_to_reach(neighbours, goal)
        assert distance.min() == 0
        goal_again = np.full(len(everywhere), goal)
        standard = known.renamed(known.below, known.labels[goal_again])
        np.testing.assert_array_equal(known.distances[known.shape[goal], standard], distance)
        after = known.after[everywhere, known.best_moves(everywhere, goal_again)]
        assert (distance[after] == distance - 1)[everywhere != goal].all()
        assert after[goal] != goal, "a move that can be made, at the goal too"


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_needs_the_fewest_moves_and_what_slips(level, spread):
    n = 1000
    task = Blocksworld(n, level, spread=spread)
    task.reset(np.arange(n))
    live, returns, slips = np.arange(n), np.zeros(n), np.zeros(n, dtype=int)
    while live.size:
        before = task.current[live]
        rewards, dones, successes = task.step(task.expert_actions(live), live)
        slips[live] += task.current[live] == before
        returns[live] = rewards
        assert (successes == dones).all()
        live = live[~dones]
    np.testing.assert_array_equal(task.turns, task.fewest + slips)
    assert slips.any() == (level == "hard")
    np.testing.assert_allclose(returns, 1 - 0.2 * slips / (task.max_turns - task.fewest), atol=1e-6)


# --- Episodes by hand


def test_levels_are_as_documented():
    for level, (blocks, turns, size) in {"easy": (4, 18, 33), "medium": (5, 24, 51), "hard": (7, 36, 99)}.items():
        task = Blocksworld(1, level)
        assert (task.n_blocks, task.max_turns, task.action_space.n) == (blocks, turns, blocks**2)
        assert task.observation_space.shape == (size,)
    assert Blocksworld(1, "hard", blocks=3).max_turns == 12


EPISODES = {
    # moves, and the reward at the end: 0.2 / 9 less for each turn more than 3
    "shortest": ([(C, C), (B, C), (A, B)], 1.0),
    "one error": ([(A, B), (C, C), (B, C), (A, B)], 1 - 0.2 / 9),
    "a detour": ([(C, B), (C, C), (B, A), (B, C), (A, B)], 1 - 0.4 / 9),
    "at the last turn": ([(C, C), (C, A)] * 4 + [(A, A)] + [(C, C), (B, C), (A, B)], 0.8),
    "one turn too late": ([(C, C), (C, A)] * 5 + [(C, C), (B, C)], 0.0),
    "only errors": ([(A, A)] * 12, 0.0),
}


@pytest.mark.parametrize("name", EPISODES)
def test_episode(name):
    moves, final_reward = EPISODES[name]
    env = sussman()
    for i, (block, onto) in enumerate(moves, start=1):
        _, reward, done, _, info = env.step(3 * block + onto)
        assert done == (i == len(moves))
        assert reward == pytest.approx(final_reward if done else 0.0)
    assert info == {"is_success": final_reward > 0}


def test_observation():
    env = sussman()
    goal = [0, 1, 0, 0, 0, 1, 0, 0, 1]  # A on B, B on C, C on the table
    assert env.task.observe()[0].tolist() == [1, 0, 0, 0, 1, 0, 1, 0, 0, *goal, 0]
    observation, *_ = env.step(3 * C + B)
    assert observation.tolist() == [1, 0, 0, 0, 1, 0, 0, 1, 0, *goal, np.float32(1 / 12)]
    observation, *_ = env.step(3 * B + B)  # C is on it
    assert observation.tolist() == [1, 0, 0, 0, 1, 0, 0, 1, 0, *goal, np.float32(2 / 12)]


def test_masks_tell_what_is_refused_and_a_refused_move_only_costs_the_turn():
    task = Blocksworld(73 * 17)
    task.reset(np.zeros(73 * 17, dtype=int))
    task.current[:] = np.repeat(np.arange(73), 17)
    task.goals[:] = 0
    before, actions = task.current.copy(), np.tile(np.arange(NO_ACTION, 16), 73)
    possible = [
        action >= 0 and divmod(action, 4) in moves_from(second_world(4)[0][configuration])
        for configuration, action in zip(before.tolist(), actions.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(task.action_masks().reshape(73, 17, 16)[:, 0], np.reshape(possible, (73, 17))[:, 1:])
    task.step(actions)
    np.testing.assert_array_equal(task.refused, ~np.array(possible))
    np.testing.assert_array_equal(task.current == before, task.refused)
    assert (task.turns == 1).all()


def test_transcript_reads_like_one():
    env = sussman(render_mode="ansi")
    opening = env.task.opening_text(0)
    for block, onto in [(B, A), (A, A), (B, B), (C, B), (C, C), (B, C), (A, B)]:
        env.step(3 * block + onto)
    # The transcript's own opening is of the start that was drawn, before another one took its place.
    assert opening + env.render()[env.render().index("\nAgent: ") :] == (
        "System: Blocks stand on a table, alone or in stacks, which are written from the top down. Each turn you can "
        "move one block that has nothing on it, onto another block that has nothing on it or to the table: write "
        "'move A onto B' or 'move A to the table'. Reach the goal in at most 12 turns, the fewer the better.\n"
        "Goal: A on B on C\n"
        "Table: C on A | B\n"
        "Agent: move B onto A\n"
        "System: error: C is on A\n"
        "Table: C on A | B\n"
        "Agent: move A to the table\n"
        "System: error: C is on A\n"
        "Table: C on A | B\n"
        "Agent: move B to the table\n"
        "System: error: B is on the table already\n"
        "Table: C on A | B\n"
        "Agent: move C onto B\n"
        "Table: A | C on B\n"
        "Agent: move C to the table\n"
        "Table: A | B | C\n"
        "Agent: move B onto C\n"
        "Table: A | B on C\n"
        "Agent: move A onto B\n"
        "Table: A on B on C\n"
        "System: That is the goal, after 7 turns (fewest moves: 3).\n"
        "Reward: 0.911"
    )


def test_replies_to_slips_silence_and_the_last_turn():
    env = sussman(level="hard")
    assert "One move in 10 fails: the block slips and stays." in env.task.opening_text(0)
    env.task.slip = 1.0
    for turn in range(1, 13):
        env.take(np.array(3 * C + C if turn % 2 else NO_ACTION), "")
        what = "C slips and stays where it was" if turn % 2 else "No block was moved"
        last = "\nSystem: The 12 turns are over, and that is not the goal.\nReward: 0" if turn == 12 else ""
        assert env.last_reply == f"System: {what}.\nTable: C on A | B{last}"


# --- What is drawn


def test_goals_are_uniform_and_starts_uniform_among_those_two_moves_away():
    n = 73 * 500
    task = Blocksworld(n)
    task.reset(np.arange(n))
    # Of 500 expected, a standard deviation is 22.
    np.testing.assert_allclose(np.bincount(task.goals, minlength=73), 500, atol=90)
    _, neighbours = second_world(4)
    for goal in (0, 30, 72):
        starts = task.current[task.goals == goal]
        far = np.flatnonzero(moves_to_reach(neighbours, goal) >= 2)
        assert set(starts) == set(far)
    goals_apart = np.array([moves_to_reach(neighbours, goal) for goal in range(73)])
    np.testing.assert_array_equal(task.fewest, goals_apart[task.goals, task.current])
    expected = sum(np.bincount(row[row >= 2], minlength=7) / (row >= 2).sum() for row in goals_apart) / 73
    np.testing.assert_allclose(np.bincount(task.fewest) / n, expected, atol=0.01)


def test_every_start_is_as_likely_as_another_for_the_same_goal():
    n, all_on_table = 200_000, number(4, (A,), (B,), (C,), (D,))
    task = Blocksworld(n)
    task.reset(np.arange(n))
    counts = np.bincount(task.current[task.goals == all_on_table], minlength=73)
    # Two or three moves away are 60: 24 towers, 24 with three blocks in a stack, 12 with two stacks of two.
    assert (counts > 0).sum() == 60
    mean = counts.sum() / 60
    assert mean > 40
    chi_squared = ((counts[counts > 0] - mean) ** 2 / mean).sum()
    assert 30 < chi_squared < 100  # 59 degrees of freedom


def test_with_spread_every_distance_is_as_likely_as_another():
    n = 40_000
    task = Blocksworld(n, "medium", spread=True)
    task.reset(np.arange(n))
    tower, flat = number(5, (0, 1, 2, 3, 4)), number(5, (0,), (1,), (2,), (3,), (4,))
    np.testing.assert_allclose(np.bincount(task.goals, minlength=501), n / 501, atol=50)
    towers = tables(5).shape[task.goals] == tables(5).shape[tower]
    np.testing.assert_allclose(np.bincount(task.fewest[towers])[2:] / towers.sum(), 1 / 7, atol=0.02)
    flats = task.goals == flat
    assert set(task.fewest[flats]) == {2, 3, 4}
    standard = tables(5).renamed(tables(5).below[task.current], tables(5).labels[task.goals])
    np.testing.assert_array_equal(tables(5).distances[tables(5).shape[task.goals], standard], task.fewest)


@pytest.mark.parametrize("level", LEVELS)
def test_blocks_slip_as_often_as_said(level):
    n = 20_000
    task = Blocksworld(n, level)
    task.reset(np.arange(n))
    for _ in range(2):
        before = task.current.copy()
        live = np.flatnonzero(task.current != task.goals)
        task.step(task.expert_actions(live), live)
        slipped = (task.current == before)[live]
        assert slipped.mean() == pytest.approx(LEVELS[level].slip, abs=0.01)
        assert not task.refused[live].any(), "a move that fails is not a wrong one"


def test_slips_follow_the_noise_seeds_and_everything_else_the_task_seeds():
    def slips(task):
        before = task.current.copy()
        task.step(task.expert_actions())
        return task.current == before

    own = with_noise_of_their_own(Blocksworld(1000, "hard"), slips)
    assert own.mean() == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("spread", [False, True])
def test_optimal_value_is_what_the_expert_gets(spread):
    assert Blocksworld(1, "easy", spread=spread).optimal_value() == 1.0
    n = 10_000
    task = Blocksworld(n, "hard", spread=spread)
    task.reset(np.arange(n))
    # The returns have a standard deviation of 0.006.
    assert play(task)[0].mean() == pytest.approx(task.optimal_value(), abs=3e-4)


def test_optimal_value_agrees_with_a_count_of_moves_turn_by_turn():
    """Three blocks and slips of 10%: over all goals and starts, how many moves are made after so many turns."""
    _, neighbours = second_world(3)
    value = 0.0
    for goal in range(13):
        distances = moves_to_reach(neighbours, goal)
        values = []
        for fewest in distances[distances >= 2].tolist():
            chances, worth = np.zeros(fewest + 1), 0.0
            chances[0] = 1.0
            for turn in range(1, 13):
                advanced = chances[:-1] * 0.9
                chances[:-1] *= 0.1
                chances[1:] += advanced
                worth += chances[-1] * (1 - 0.2 * (turn - fewest) / (12 - fewest))
                chances[-1] = 0.0
            values.append(worth)
        value += np.mean(values) / 13
    assert Blocksworld(1, "hard", blocks=3, spread=False).optimal_value() == pytest.approx(value)
    assert value < 1


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"level": "extreme"}, "level must be one of 'easy', 'medium', 'hard', got 'extreme'"),
        ({"blocks": 2}, "blocks must be an integer from 3 to 7, got 2"),
        ({"blocks": 8}, "blocks must be an integer from 3 to 7, got 8"),
        ({"blocks": 0}, "blocks must be an integer from 3 to 7, got 0"),
    ],
)
def test_impossible_arguments_say_what_is_possible(kwargs, message):
    with pytest.raises(ValueError, match=message):
        gym.make(ENV_ID, **kwargs)
