"""GarnetTree: the map, its solution against brute force, episodes by hand, chance, observation, text, arguments."""

from itertools import product

import gymnasium as gym
import numpy as np
import pytest

from seeupo_gym.envs.counter_rng import uniform
from seeupo_gym.envs.task import NO_ACTION
from seeupo_gym.envs.tasks.garnet_tree import _MOVE, LEVELS, GarnetTree, GarnetTreeEnv, Size, garnet, subsets, town
from seeupo_gym.envs.views.text_view import TextView

GARNET = "seeupo_gym/GarnetTree-v0"
RED, BLUE = 0, 1

# The map of TINY in instance 0: where the red and the blue road lead from each state at each turn, and the coins.
TINY = {"states": 4, "actions": 2, "branching": 1, "coins": 1, "turns": 3}
ROADS_OF_TINY = [
    [[0, 2], [2, 1], [3, 0], [3, 1]],
    [[0, 2], [3, 0], [2, 3], [2, 3]],
    [[0, 0], [3, 0], [1, 0], [3, 2]],
]
COINS_OF_TINY = [2, 0, 1]
# Seeds of TINY that start in each state.
SEED_OF_START = {0: 9, 1: 8, 2: 0, 3: 1}


def exact_values(g, policies):
    """Mean coins of policies of shape (n, turns, states, actions), by carrying the distribution over states forward."""
    turns, states, actions, branching = g.successors.shape
    mass = np.full((len(policies), states), 1.0 / states)
    total = np.zeros(len(policies))
    for turn in range(turns):
        arrived = np.zeros_like(mass)
        for state, action, branch in product(range(states), range(actions), range(branching)):
            chance = g.chances[turn, state, action, branch]
            arrived[:, g.successors[turn, state, action, branch]] += (
                mass[:, state] * policies[:, turn, state, action] * chance
            )
        mass = arrived
        total += mass @ g.coins[turn]
    return total


def deterministic(tables, actions):
    """One-hot policies from tables of actions."""
    return (np.asarray(tables)[..., None] == np.arange(actions)).astype(float)


# --- The map


def test_subsets_are_uniform_over_the_sets():
    drawn = np.sort(subsets(5, 2, 40_000, seed=0, stream=7), axis=1)
    sets, counts = np.unique(drawn, axis=0, return_counts=True)
    assert sets.tolist() == [[i, j] for i in range(5) for j in range(i + 1, 5)]
    np.testing.assert_allclose(counts / 40_000, 0.1, atol=0.006)
    assert (np.sort(subsets(5, 5, 10, seed=0, stream=7), axis=1) == np.arange(5)).all()


@pytest.mark.parametrize("level", LEVELS)
def test_a_map_has_the_shape_its_level_says(level):
    size = LEVELS[level]
    g = garnet(size, 3)
    assert g.successors.shape == (size.turns, size.states, size.actions, size.branching)
    ordered = np.sort(g.successors, axis=3)
    assert (np.diff(ordered, axis=3) > 0).all()
    assert ordered.min() >= 0
    assert ordered.max() < size.states
    np.testing.assert_allclose(g.chances.sum(axis=3), 1.0)
    assert (g.chances > 0).all()
    assert (g.coins.sum(axis=1) == size.coins).all()
    # Each turn and each instance has a map of its own.
    assert len({turn.tobytes() for turn in g.successors}) == size.turns
    assert (g.successors != garnet(size, 4).successors).mean() > 0.5


def test_chances_are_the_gaps_between_uniform_numbers():
    # Of three gaps each is above x with probability (1 - x)^2.
    chances = garnet(LEVELS["hard"], 0).chances.reshape(-1, 3)
    for x in (0.1, 0.5, 0.8):
        np.testing.assert_allclose((chances > x).mean(axis=0), (1 - x) ** 2, atol=0.02)


def test_the_tiny_map_is_the_one_that_the_tests_below_were_computed_with():
    g = garnet(Size(**TINY), 0)
    assert g.successors[..., 0].tolist() == ROADS_OF_TINY
    assert g.coins.argmax(axis=1).tolist() == COINS_OF_TINY
    # By hand: from 0 blue finds a coin in 2, then red and red another in 1; 1 likewise; from 2 and 3 only one is left.
    assert g.values[0].tolist() == [2, 2, 1, 1]
    assert g.most == 2


# --- The solution


@pytest.mark.parametrize("instance", range(8))
@pytest.mark.parametrize("size", [Size(3, 2, 2, 1, 3), Size(2, 3, 2, 1, 3), Size(4, 2, 3, 2, 2)])
def test_no_deterministic_policy_beats_the_expert(size, instance):
    g = garnet(size, instance)
    shape = (size.turns, size.states)
    tables = np.array(list(product(range(size.actions), repeat=size.turns * size.states))).reshape(-1, *shape)
    values = exact_values(g, deterministic(tables, size.actions)) / g.most
    task = GarnetTree(1, **size._asdict(), instance=instance)
    assert task.optimal_value() == pytest.approx(values.max(), abs=1e-12)
    expert = exact_values(g, deterministic(g.best_actions[None], size.actions)) / g.most
    assert expert[0] == pytest.approx(values.max(), abs=1e-12)


@pytest.mark.parametrize("instance", range(5))
def test_no_journey_brings_more_than_the_most_and_one_brings_it(instance):
    size = Size(4, 2, 2, 1, 3)
    g = garnet(size, instance)
    coins = []
    for start in range(size.states):
        for journey in product(product(range(size.actions), range(size.branching)), repeat=size.turns):
            state, found = start, 0
            for turn, (action, branch) in enumerate(journey):
                state = g.successors[turn, state, action, branch]
                found += g.coins[turn, state]
            coins.append(found)
    assert g.most == max(coins)


@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_earns_the_optimal_value(level):
    n = 40_000
    task = GarnetTree(n, level)
    task.reset(np.arange(n))
    for _ in range(task.max_turns):
        rewards, dones, successes = task.step(task.expert_actions())
    assert dones.all()
    assert abs(rewards.mean() - task.optimal_value()) < 4 * rewards.std() / n**0.5
    assert 0.5 < successes.mean() < 0.75


@pytest.mark.parametrize(
    ("level", "chance", "one_turn_ahead", "optimal"),
    [("easy", 0.238, 0.489, 0.664), ("medium", 0.083, 0.451, 0.569), ("hard", 0.071, 0.334, 0.458)],
)
def test_returns_of_simple_policies_are_those_of_the_documentation(level, chance, one_turn_ahead, optimal):
    g, size = garnet(LEVELS[level], 0), LEVELS[level]
    paid = np.stack([g.coins[turn][g.successors[turn]] for turn in range(size.turns)])
    greedy = (g.chances * paid).sum(axis=3).argmax(axis=2)
    policies = deterministic([greedy, g.best_actions], size.actions)
    policies = np.concatenate([np.full_like(policies[:1], 1 / size.actions), policies])
    assert (exact_values(g, policies) / g.most).round(3).tolist() == [chance, one_turn_ahead, optimal]
    cells = f"| {level} | {chance:.3f} | {one_turn_ahead:.3f} |"
    assert cells in GarnetTreeEnv.__doc__
    assert f"| {size.turns} | {g.most} |" in GarnetTreeEnv.__doc__


def test_the_best_policy_that_is_blind_to_the_turn_is_that_of_the_documentation():
    g, size = garnet(LEVELS["easy"], 0), LEVELS["easy"]
    tables = np.array(list(product(range(size.actions), repeat=size.states)))
    policies = np.repeat(deterministic(tables, size.actions)[:, None], size.turns, axis=1)
    assert (exact_values(g, policies) / g.most).max().round(3) == 0.503
    assert "| 0.503 | 0.664 |" in GarnetTreeEnv.__doc__


@pytest.mark.parametrize("level", LEVELS)
def test_every_turn_matters(level):
    g, size = garnet(LEVELS[level], 0), LEVELS[level]
    policies = np.repeat(deterministic(g.best_actions[None], size.actions), size.turns + 1, axis=0)
    for turn in range(size.turns):
        policies[turn, turn] = 1 / size.actions
    values = exact_values(g, policies)
    assert (values[:-1] < values[-1] * 0.995).all()


# --- Episodes by hand


@pytest.mark.parametrize(
    ("start", "actions", "states", "found", "reward", "success"),
    [
        (1, [RED, RED, RED], [2, 2, 1], [1, 0, 1], 1.0, True),
        (0, [BLUE, RED, RED], [2, 2, 1], [1, 0, 1], 1.0, True),
        (0, [RED, RED, RED], [0, 0, 0], [0, 1, 0], 0.5, False),  # optimal play gets 2 from here,
        (2, [BLUE, RED, RED], [0, 0, 0], [0, 1, 0], 0.5, True),  # and 1 from here
        (3, [BLUE, BLUE, BLUE], [1, 0, 0], [0, 1, 0], 0.5, True),
        (2, [RED, BLUE, RED], [3, 3, 3], [0, 0, 0], 0.0, False),
        (1, [RED, RED, NO_ACTION], [2, 2, 1], [1, 0, 0], 0.5, False),  # carried to the coin, but not looking
        (1, [NO_ACTION, RED, RED], [2, 2, 1], [0, 0, 1], 0.5, False),
    ],
)
def test_episode(start, actions, states, found, reward, success):
    task = GarnetTree(1, **TINY)
    task.reset(np.array([8]))
    task.step(np.array([RED]))  # of the episode before, the next one knows nothing
    task.reset(np.array([SEED_OF_START[start]]))
    assert task.states.tolist() == [start]
    assert not task.found[0]
    for turn, action in enumerate(actions, start=1):
        rewards, dones, successes = task.step(np.array([action]))
        assert task.states[0] == states[turn - 1]
        assert task.found[0] == found[turn - 1]
        assert dones[0] == (turn == 3)
        assert rewards[0] == (reward if turn == 3 else 0.0)
        assert successes[0] == (success and turn == 3)


def test_success_needs_95_percent_of_what_optimal_play_collects_on_average():
    task = GarnetTree(3, "medium")
    task.reset(np.arange(3))
    assert task.garnet.values[0, [4, 12, 15]].round(2).tolist() == [3.47, 4.13, 4.23]
    for start, needed in ((4, 4), (12, 4), (15, 5)):
        task.turns[:], task.starts[:], task.collected[:] = 7, start, [3, 4, 5]
        successes = task.step(np.full(3, NO_ACTION)).successes
        assert successes.tolist() == [coins >= needed for coins in (3, 4, 5)]


def test_draws_choose_the_successor_whose_gap_they_fall_into():
    n = 5000
    task = GarnetTree(n, "hard")
    task.reset(np.arange(n))
    g, starts = task.garnet, task.states.copy()
    task.step(np.full(n, 2))
    draws = uniform(np.arange(n), _MOVE, 1)
    for lane in range(0, n, 50):
        low, high = g.cuts[0, starts[lane], 2]
        branch = 0 if draws[lane] < low else 1 if draws[lane] < high else 2
        assert task.states[lane] == g.successors[0, starts[lane], 2, branch]


# --- Chance


def test_starts_are_uniform():
    task = GarnetTree(40_000)
    task.reset(np.arange(40_000))
    np.testing.assert_allclose(np.bincount(task.states, minlength=8) / 40_000, 1 / 8, atol=0.008)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("turn", [0, 3])
def test_roads_lead_to_their_successors_as_often_as_the_map_says(level, turn):
    n = 40_000
    task = GarnetTree(n, level)
    task.reset(np.arange(n))
    task.turns[:], task.states[:] = turn, 5
    task.step(np.full(n, 1))
    expected = np.zeros(task.size.states)
    expected[task.garnet.successors[turn, 5, 1]] = task.garnet.chances[turn, 5, 1]
    np.testing.assert_allclose(np.bincount(task.states, minlength=len(expected)) / n, expected, atol=0.01)


def test_the_seed_decides_the_start_and_the_noise_seed_the_way():
    n = 500
    task = GarnetTree(n, "hard")

    def play(seeds, noise_seeds):
        task.reset(seeds, noise_seeds)
        shown = [task.states.copy()]
        for _ in range(3):
            task.step(np.zeros(n, dtype=np.int64))
            shown.append(task.states.copy())
        return np.array(shown)

    same_start = play(np.full(n, 3), np.arange(n))
    assert len(set(same_start[0])) == 1
    assert len(set(same_start[1])) == 3
    assert len(set(same_start[2])) > 3
    assert (play(np.full(n, 3), np.full(n, 8)) == play(np.full(n, 3), np.full(n, 8))[:, :1]).all()
    np.testing.assert_array_equal(play(np.full(n, 3), np.arange(n)), same_start)


# --- What the agent sees


def test_observation():
    env = gym.make(GARNET, **TINY)
    town_of = np.eye(4).tolist()
    assert env.reset(seed=8)[0].tolist() == [*town_of[1], 1, 0, 0, 0.0]
    assert env.step(RED)[0].tolist() == [*town_of[2], 0, 1, 0, 0.5]
    assert env.step(RED)[0].tolist() == [*town_of[2], 0, 0, 1, 0.5]
    assert env.step(RED)[0].tolist() == [*town_of[1], 0, 0, 0, 1.0]


@pytest.mark.parametrize(("level", "size", "n_actions"), [("easy", 14, 3), ("medium", 25, 4), ("hard", 85, 6)])
def test_levels_have_the_documented_sizes(level, size, n_actions):
    env = gym.make(GARNET, level=level)
    assert env.observation_space.shape == (size,)
    assert env.action_space.n == n_actions
    assert f"{size} ({level})" in " ".join(GarnetTreeEnv.__doc__.split())


def test_the_map_is_hidden():
    n = 200
    first, second = (GarnetTree(n, "hard", instance=instance) for instance in (0, 1))
    for task in (first, second):
        task.reset(np.arange(n))
    np.testing.assert_array_equal(first.observe(), second.observe())
    text = "\n".join(task.opening_text(3).replace(f": {task.garnet.most}.", "") for task in (first, second))
    assert len(set(text.splitlines())) == 2  # the rules and the first town, both twice
    first.step(np.zeros(n, dtype=np.int64))
    before = first.observe()
    first.garnet = second.garnet._replace(most=first.garnet.most)
    np.testing.assert_array_equal(first.observe(), before)


def test_the_map_is_the_same_in_all_episodes_and_tasks():
    task, other = GarnetTree(1, instance=5), GarnetTree(7, "easy", instance=5)
    before = task.garnet.successors.copy()
    task.reset(np.array([1]))
    task.reset(np.array([2]))
    np.testing.assert_array_equal(task.garnet.successors, before)
    np.testing.assert_array_equal(other.garnet.successors, before)
    with pytest.raises(ValueError, match="read-only"):
        task.garnet.coins[0, 0] = 1


# --- Text


def test_towns_have_names_of_their_own():
    assert len({town(state) for state in range(256)}) == 256
    assert [town(state) for state in (0, 1, 17)] == ["Amber Bridge", "Birch Mill", "Birch Harbour"]


def test_transcript():
    view = TextView(gym.make(GARNET, render_mode="ansi", **TINY))
    view.reset(seed=8)
    view.step("Action: take the red road.")
    _, _, _, _, info = view.step("I would rather sleep.")
    assert info == {"seeupo_gym/malformed": True}
    view.step("take the red road")
    assert view.render() == (
        "Guide: You travel for 3 days between 4 towns. Every day you take one of the roads red, blue. Each leads "
        "to one town, on another day to another. Every evening 1 town has a coin for you if you arrive there, on "
        "another day elsewhere. Nobody has a map, but it is the same one on every journey. "
        'Coins on the luckiest journey: 2. Write for example "take the red road".\n'
        "Guide: Day 1 begins in Birch Mill.\n"
        "Agent: Action: take the red road.\n"
        "Guide: It leads to Copper Harbour. You find a coin there. Coins so far: 1. Day 2 begins.\n"
        "Agent: I would rather sleep.\n"
        "I do not understand that. You can write: take the red road; take the blue road.\n"
        "Guide: You chose no road, were taken along the red one to Copper Harbour, and looked for no coin. "
        "Coins so far: 1. Day 3 begins.\n"
        "Agent: take the red road\n"
        "Guide: It leads to Birch Mill. You find a coin there.\n"
        "Guide: The journey is over. Coins: 2.\n"
        "Reward: 1"
    )


# --- Arguments


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"level": "extreme"}, "level must be one of 'easy', 'medium', 'hard', got 'extreme'"),
        ({"states": 1}, "states must be an integer from 2 to 256, got 1"),
        ({"states": 257}, "states must be an integer from 2 to 256, got 257"),
        ({"actions": 1}, "actions must be an integer from 2 to 12, got 1"),
        ({"actions": 13}, "actions must be an integer from 2 to 12, got 13"),
        ({"branching": 0}, "branching must be an integer from 1 to 8, got 0"),
        ({"branching": 9}, "branching must be an integer from 1 to 8, got 9"),
        ({"coins": 0}, "coins must be an integer from 1 to 7, got 0"),
        ({"coins": 8}, "coins must be an integer from 1 to 7, got 8"),
        ({"turns": 0}, "turns must be an integer from 1 to 1000, got 0"),
        ({"instance": -1}, "instance must be an integer from 0 to 9223372036854775807, got -1"),
        ({"instance": 2**63}, "instance must be an integer from 0 to 9223372036854775807, got 9223372036854775808"),
        (
            {"states": 200, "actions": 2, "branching": 1, "turns": 1, "instance": 1},
            "no road leads to a coin in instance 1 of .*states=200.*: choose another one",
        ),
    ],
)
def test_impossible_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        gym.make(GARNET, **kwargs)


def test_arguments_override_the_level():
    task = GarnetTree(1, "medium", states=5, turns=2)
    assert task.size == Size(states=5, actions=4, branching=2, coins=1, turns=2)
    assert task.max_turns == 2
    assert GarnetTree(1, "hard").size == LEVELS["hard"]
