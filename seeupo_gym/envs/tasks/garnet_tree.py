"""GarnetTree: random finite-horizon MDPs whose transitions and rewards change from turn to turn."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.envs.arguments import MAX_SIZE, check_count
from seeupo_gym.envs.counter_rng import integers, uniform
from seeupo_gym.envs.task import ALL_LANES, MAX_SEED, NO_ACTION, Lanes, StepResult, Task, TaskEnv, choose_level, one_hot

# An episode is a success with this share of the mean return of optimal play from the same start.
SUCCESS_SHARE = 0.95

# Random streams: the first three make the map, then come one for the start of an episode and one for transitions.
_SUCCESSORS, _CHANCES, _COINS, _START, _MOVE = range(5)

ROADS = ("red", "blue", "green", "yellow", "white", "black", "brown", "grey", "orange", "pink", "purple", "silver")
_FIRST = "Amber Birch Copper Dusty Elder Foggy Golden Hollow Ivory Juniper Kestrel Linden Mossy Northern Ochre Pine"
_SECOND = "Bridge Mill Harbour Market Tower Ford Chapel Quarry Garden Gate Well Inn Orchard Meadow Lock Hill"
MAX_STATES = 16 * 16
# A map has so many entries at most: 100 MB, drawn in seconds.
MAX_ENTRIES = 2**22


class Size(NamedTuple):
    """
    The size of a map.

    :param states: number of towns
    :param actions: number of roads out of each town
    :param branching: number of towns that a road can lead to
    :param coins: number of towns with a coin at each turn
    :param turns: length of an episode
    """

    states: int
    actions: int
    branching: int
    coins: int
    turns: int


LEVELS = {
    "easy": Size(states=8, actions=3, branching=2, coins=1, turns=5),
    "medium": Size(states=16, actions=4, branching=2, coins=1, turns=8),
    "hard": Size(states=64, actions=6, branching=3, coins=4, turns=20),
}


class Garnet(NamedTuple):
    """
    A map, and its optimal play. All arrays are read-only.

    :param successors: towns that each road can lead to, shape (turns, states, actions, branching)
    :param chances: their probabilities, same shape
    :param cuts: points where [0, 1) is cut to draw one of them, shape (turns, states, actions, branching - 1)
    :param coins: 1 for towns that pay at the end of a turn, else 0, shape (turns, states)
    :param values: expected number of coins still to come under optimal play, shape (turns + 1, states)
    :param best_actions: actions of optimal play, shape (turns, states)
    :param most: the greatest number of coins that any journey can bring
    """

    successors: NDArray[np.int64]
    chances: NDArray[np.float64]
    cuts: NDArray[np.float64]
    coins: NDArray[np.int64]
    values: NDArray[np.float64]
    best_actions: NDArray[np.int64]
    most: int


def subsets(n: int, size: int, n_subsets: int, seed: int, stream: int) -> NDArray[np.int64]:
    """
    Draw sets of different numbers below ``n``, each set with the same probability (Floyd's algorithm).

    :param n: exclusive upper bound
    :param size: size of a set, at most ``n``
    :param n_subsets: number of sets
    :param seed: see :func:`~seeupo_gym.envs.counter_rng.hash_bits`
    :param stream: random stream of the draws
    :return: shape (n_subsets, size)
    """
    chosen = np.full((n_subsets, size), -1)
    for i in range(size):
        last = n - size + i
        drawn = integers(last + 1, seed, stream, np.arange(n_subsets), i)
        chosen[:, i] = np.where((chosen == drawn[:, None]).any(axis=1), last, drawn)
    return chosen


@cache
def garnet(size: Size, instance: int) -> Garnet:
    """
    Draw a map and solve it by backward induction.

    :param size: see :class:`Size`
    :param instance: the seed of the map
    :return: the map
    """
    states, actions, branching, coins, turns = size
    shape = (turns, states, actions)
    n_rows = turns * states * actions
    successors = subsets(states, branching, n_rows, instance, _SUCCESSORS).reshape(*shape, branching)
    draws = uniform(instance, _CHANCES, np.arange(n_rows)[:, None], np.arange(branching - 1))
    cuts = np.sort(draws, axis=1).reshape(*shape, branching - 1)
    chances = np.diff(cuts, axis=3, prepend=0.0, append=1.0)
    pays = np.zeros((turns, states), dtype=np.int64)
    np.put_along_axis(pays, subsets(states, coins, turns, instance, _COINS), 1, axis=1)
    values, most = np.zeros((turns + 1, states)), np.zeros(states, dtype=np.int64)
    best_actions = np.zeros((turns, states), dtype=np.int64)
    for turn in reversed(range(turns)):
        arrival, q = pays[turn] + values[turn + 1], np.zeros((states, actions))
        for branch in range(branching):  # in this order on every platform, so that rounding changes no decision
            q += chances[turn, :, :, branch] * arrival[successors[turn, :, :, branch]]
        values[turn], best_actions[turn] = q.max(axis=1), q.argmax(axis=1)
        most = (pays[turn] + most)[successors[turn]].max(axis=(1, 2))
    for array in (successors, chances, cuts, pays, values, best_actions):
        array.flags.writeable = False
    return Garnet(successors, chances, cuts, pays, values, best_actions, int(most.max()))


def town(state: int) -> str:
    """Return the name of a town."""
    return f"{_FIRST.split()[state % 16]} {_SECOND.split()[(state + state // 16) % 16]}"


class GarnetTree(Task):
    """Batched dynamics; :class:`GarnetTreeEnv` documents the task."""

    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)

    def __init__(
        self,
        n_lanes: int = 1,
        level: str = "easy",
        states: int | None = None,
        actions: int | None = None,
        branching: int | None = None,
        coins: int | None = None,
        turns: int | None = None,
        instance: int = 0,
    ) -> None:
        given = {"states": states, "actions": actions, "branching": branching, "coins": coins, "turns": turns}
        size = choose_level(level, LEVELS)._replace(**{name: v for name, v in given.items() if v is not None})
        n_states = check_count("states", size.states, least=2, most=MAX_STATES)
        self.size = Size(
            n_states,
            check_count("actions", size.actions, least=2, most=len(ROADS)),
            check_count("branching", size.branching, most=n_states),
            check_count("coins", size.coins, most=n_states - 1),
            check_count("turns", size.turns, most=MAX_SIZE),
        )
        n_entries = math.prod(self.size._replace(coins=1))
        if n_entries > MAX_ENTRIES:
            raise ValueError(
                f"turns * states * actions * branching must be at most {MAX_ENTRIES}, got {n_entries} ({self.size})"
            )
        instance = check_count("instance", instance, least=0, most=MAX_SEED)
        self.garnet = garnet(self.size, instance)
        if self.garnet.most == 0:
            raise ValueError(f"no road leads to a coin in instance {instance} of {self.size}: choose another one")
        self.max_turns = self.size.turns
        self.action_space = spaces.Discrete(self.size.actions)
        self.observation_space = spaces.Box(0.0, 1.0, (self.size.states + self.max_turns + 1,), np.float32)
        # One row for each turn, state and action. The cuts are split into columns.
        self._successors = self.garnet.successors.reshape(-1, self.size.branching)
        self._cuts = [cuts.ravel() for cuts in np.moveaxis(self.garnet.cuts, 3, 0)]
        super().__init__(n_lanes)
        self.starts = np.zeros(n_lanes, dtype=np.int64)
        self.states = np.zeros(n_lanes, dtype=np.int64)
        self.collected = np.zeros(n_lanes, dtype=np.int64)
        self.found = np.zeros(n_lanes, dtype=bool)

    def _start(self, lanes: Lanes) -> None:
        starts = integers(self.size.states, self.task_seeds[lanes], _START)
        self.starts[lanes] = starts
        self.states[lanes] = starts
        self.collected[lanes] = 0
        self.found[lanes] = False

    def _advance(self, actions: NDArray[np.int64], lanes: Lanes) -> StepResult:
        turns = self.turns[lanes]
        acted = actions != NO_ACTION
        # Without a choice the traveller takes the first road and finds nothing, which is never better than choosing it.
        rows = ((turns - 1) * self.size.states + self.states[lanes]) * self.size.actions + np.where(acted, actions, 0)
        draws = uniform(self.noise_seeds[lanes], _MOVE, turns)
        branches = np.zeros(len(rows), dtype=np.int64)
        for cuts in self._cuts:
            branches += draws >= cuts[rows]
        states = self._successors[rows, branches]
        found = acted & (self.garnet.coins[turns - 1, states] == 1)
        collected = self.collected[lanes] + found
        self.states[lanes] = states
        self.found[lanes] = found
        self.collected[lanes] = collected
        dones = turns == self.max_turns
        successes = dones & (collected >= SUCCESS_SHARE * self.garnet.values[0, self.starts[lanes]])
        rewards = np.where(dones, collected / self.garnet.most, 0.0)
        return StepResult(rewards.astype(np.float32), dones, successes)

    def observe(self, lanes: Lanes = ALL_LANES) -> NDArray[np.float32]:
        parts = [
            one_hot(self.states[lanes], self.size.states),
            one_hot(self.turns[lanes], self.max_turns),
            (self.collected[lanes] / self.garnet.most).astype(np.float32)[:, None],
        ]
        return np.concatenate(parts, axis=1)

    def expert_actions(self, lanes: Lanes = ALL_LANES) -> NDArray[np.int64]:
        # After the last turn there is nothing to choose, so any action will do.
        return self.garnet.best_actions[np.minimum(self.turns[lanes], self.max_turns - 1), self.states[lanes]]

    def optimal_value(self) -> float:
        return float(self.garnet.values[0].sum()) / self.size.states / self.garnet.most

    def opening_text(self, lane: int) -> str:
        size = self.size
        paying = "1 town has" if size.coins == 1 else f"{size.coins} towns have"
        leads = "one town" if size.branching == 1 else f"one of {size.branching} towns by chance"
        other = "another" if size.branching == 1 else "others"
        return (
            f"Guide: You travel for {size.turns} days between {size.states} towns. Every day you take one of the roads "
            f"{', '.join(ROADS[: size.actions])}. Each leads to {leads}, on another day to {other}. Every evening "
            f"{paying} a coin for you if you arrive there, on another day elsewhere. Nobody has a map, but it is the "
            f"same one on every journey. Coins on the luckiest journey: {self.garnet.most}. Write for example "
            f'"{self.action_text(lane, np.array(0))}".\n'
            f"Guide: Day 1 begins in {town(int(self.states[lane]))}."
        )

    def action_text(self, lane: int, action: NDArray[np.int64]) -> str:
        return f"take the {ROADS[int(action)]} road"

    def reply_text(self, lane: int, action: NDArray[np.int64], result: StepResult) -> str:
        where, collected = town(int(self.states[lane])), self.collected[lane]
        if action == NO_ACTION:
            text = f"Guide: You chose no road, were taken along the {ROADS[0]} one to {where}, and looked for no coin."
        else:
            text = f"Guide: It leads to {where}. You find {'a coin' if self.found[lane] else 'nothing'} there."
        if not result.dones[0]:
            return f"{text} Coins so far: {collected}. Day {self.turns[lane] + 1} begins."
        return f"{text}\nGuide: The journey is over. Coins: {collected}.\nReward: {result.rewards[0]:.3g}"


class GarnetTreeEnv(TaskEnv):
    """
    ## Description
    A random Markov decision process of the Garnet kind (Archibald, McKinnon and Thomas 1995), with a finite number of
    turns. It has no structure beyond its size, so it is the control for tasks that have structure. Its optimum is known
    exactly.

    The traveller is in a town (the state) and takes a road (the action). A road leads to one of ``branching`` towns,
    drawn with the road's own probabilities. At each turn some towns hold a coin for a traveller who arrives. Roads,
    probabilities and coins differ from turn to turn, so the best road from a town depends on the turn. They are fixed
    by ``instance`` and are the same in all episodes. The agent does not see the map, but can learn it from its
    observations and from one reward at the end.

    | level | states | actions | branching | towns with a coin | turns | most coins (instance 0) |
    | --- | --- | --- | --- | --- | --- | --- |
    | easy | 8 | 3 | 2 | 1 | 5 | 3 |
    | medium | 16 | 4 | 2 | 1 | 8 | 7 |
    | hard | 64 | 6 | 3 | 4 | 20 | 18 |

    The towns that a road leads to are uniform over all sets of ``branching`` different towns. Their probabilities are
    the gaps that ``branching - 1`` independent uniform numbers leave in [0, 1]. The towns with a coin are uniform over
    all sets of that size.

    ## Action Space
    ``Discrete(actions)``: the road. All are valid at all times. When the task is played in words, a message that names
    no road takes the first one without picking up a coin, which is never better than to choose that road.

    ## Observation Space
    ``Box(0, 1, (states + turns + 1,))``. In this order: the town (one-hot), the turn (one-hot, zeros after the last),
    and the number of coins collected so far, divided by the greatest number that any journey can bring. The map is
    hidden: where roads lead, their probabilities, and where the coins are. The size is 14 (easy), 25 (medium), 85
    (hard).

    ## Rewards
    At the last turn: the number of coins collected, divided by the greatest number that any journey can bring (from any
    start, with the best luck). ``info["is_success"]`` tells whether it is at least 95% of the mean of optimal play from
    the same start. With bad luck optimal play itself misses that.

    The table has the exact mean returns of instance 0, computed from the map. "One turn ahead" always takes the road
    with the best chance of a coin at this very turn. "Blind to the turn" is the best policy that does not depend on
    the turn; it is known at level easy only, where all such policies can be tried.

    | level | random | one turn ahead | blind to the turn | optimal |
    | --- | --- | --- | --- | --- |
    | easy | 0.238 | 0.489 | 0.503 | 0.664 |
    | medium | 0.083 | 0.451 | | 0.569 |
    | hard | 0.071 | 0.334 | | 0.458 |

    ## Expert
    It plays the optimal policy of the map, found by backward induction. It sees the whole map, which an agent has to
    learn, but no random outcomes in advance. ``optimal_value()`` is its exact mean return over uniform starts.

    ## Starting State
    The town is uniform, drawn from the seed. Transitions depend on the seed of the transitions and the turn.

    ## Episode End
    The episode terminates after the last turn.

    ## Arguments
    - ``level`` (default ``"easy"``): ``"easy"``, ``"medium"`` or ``"hard"``
    - ``states`` (default None, from 2 to 256): number of towns; None, here and below: that of the level
    - ``actions`` (default None, from 2 to 12): number of roads out of each town
    - ``branching`` (default None, from 1 to ``states``): number of towns that a road can lead to; 1 is deterministic
    - ``coins`` (default None, from 1 to ``states - 1``): number of towns with a coin at each turn
    - ``turns`` (default None, from 1 to 1,000): length of an episode
    - ``instance`` (default 0, in [0, 2**63)): the seed of the map
    - ``render_mode``: ``"ansi"`` for a transcript

    ## Version History
    - v0: first version
    """

    def __init__(
        self,
        level: str = "easy",
        states: int | None = None,
        actions: int | None = None,
        branching: int | None = None,
        coins: int | None = None,
        turns: int | None = None,
        instance: int = 0,
        render_mode: str | None = None,
    ) -> None:
        make_task = partial(
            GarnetTree,
            level=level,
            states=states,
            actions=actions,
            branching=branching,
            coins=coins,
            turns=turns,
            instance=instance,
        )
        super().__init__(make_task, render_mode)
