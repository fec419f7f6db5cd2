"""Blocksworld: rearrange stacks of blocks, one block at a time, until they stand as wanted."""

from __future__ import annotations

from functools import partial
from math import comb
from typing import ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.envs.arguments import check_count, check_flag
from seeupo_gym.envs.counter_rng import integers, uniform
from seeupo_gym.envs.task import ALL_LANES, NO_ACTION, Lanes, MaskedTaskEnv, StepResult, Task, choose_level
from seeupo_gym.envs.tasks.blocksworld_tables import MAX_BLOCKS, tables

MIN_BLOCKS = 3
MIN_DISTANCE = 2
TURNS_PER_MOVE = 3
EXCESS_COST = 0.2
NAMES = "ABCDEFG"

# Random streams: the first three are for the start of an episode, the last one for its transitions.
_GOAL, _DISTANCE, _START, _SLIP = range(4)


class Level(NamedTuple):
    """A level of difficulty: the number of blocks, the probability that a move fails, and the default of ``spread``."""

    blocks: int
    slip: float
    spread: bool


# With 7 blocks and uniform starts, random play would reach the goal in fewer than one episode of a thousand.
LEVELS = {"easy": Level(4, 0.0, False), "medium": Level(5, 0.0, False), "hard": Level(7, 0.1, True)}


class Blocksworld(Task):
    """Batched dynamics, by tables of all configurations; :class:`BlocksworldEnv` documents the task."""

    has_action_masks: ClassVar[bool] = True
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)

    def __init__(
        self, n_lanes: int = 1, level: str = "easy", blocks: int | None = None, spread: bool | None = None
    ) -> None:
        size = choose_level(level, LEVELS)
        blocks = size.blocks if blocks is None else blocks
        self.n_blocks = check_count("blocks", blocks, least=MIN_BLOCKS, most=MAX_BLOCKS)
        self.slip = size.slip
        self.spread = size.spread if spread is None else check_flag("spread", spread)
        self.tables = tables(self.n_blocks)
        self.max_turns = TURNS_PER_MOVE * int(self.tables.longest.max())
        self._n_moves = self.n_blocks**2
        self.action_space = spaces.Discrete(self._n_moves)
        self.observation_space = spaces.Box(0.0, 1.0, (2 * self._n_moves + 1,), np.float32)
        super().__init__(n_lanes)
        self.current = np.zeros(n_lanes, dtype=np.int64)
        self.goals = np.zeros(n_lanes, dtype=np.int64)
        self.fewest = np.zeros(n_lanes, dtype=np.int64)

    def _start(self, lanes: Lanes) -> None:
        known, seeds = self.tables, self.task_seeds[lanes]
        goals = integers(len(known.below), seeds, _GOAL)
        shapes = known.shape[goals]
        nearest, farthest = np.full(len(goals), MIN_DISTANCE), known.longest[shapes]
        if self.spread:
            nearest = farthest = nearest + integers(farthest - nearest + 1, seeds, _DISTANCE)
        first, end = known.farther[shapes, farthest], known.farther[shapes, nearest - 1]
        # The start is drawn around the goal's standard configuration; then the blocks get their names back.
        start = known.by_distance[shapes, first + integers(end - first, seeds, _START)]
        self.goals[lanes] = goals
        self.current[lanes] = known.renamed(known.below[start], known.blocks[goals])
        self.fewest[lanes] = known.distances[shapes, start]

    def _advance(self, actions: NDArray[np.int64], lanes: Lanes) -> StepResult:
        turns, current, fewest = self.turns[lanes], self.current[lanes], self.fewest[lanes]
        after = np.where(actions == NO_ACTION, current, self.tables.after[current, actions])
        self.refused[lanes] = after == current
        if self.slip:
            slips = uniform(self.noise_seeds[lanes], _SLIP, turns) < self.slip
            after = np.where(slips, current, after)
        self.current[lanes] = after
        successes = after == self.goals[lanes]
        dones = successes | (turns == self.max_turns)
        rewards = np.where(successes, 1.0 - EXCESS_COST * (turns - fewest) / (self.max_turns - fewest), 0.0)
        return StepResult(rewards.astype(np.float32), dones, successes)

    def observe(self, lanes: Lanes = ALL_LANES) -> NDArray[np.float32]:
        turns = self.turns[lanes]
        observations = np.empty((len(turns), 2 * self._n_moves + 1), dtype=np.float32)
        observations[:, : self._n_moves] = self.tables.on[self.current[lanes]]
        observations[:, self._n_moves : -1] = self.tables.on[self.goals[lanes]]
        observations[:, -1] = turns / self.max_turns
        return observations

    def action_masks(self, lanes: Lanes = ALL_LANES) -> NDArray[np.bool_]:
        current = self.current[lanes]
        masks: NDArray[np.bool_] = self.tables.after[current] != current[:, None]
        return masks

    def expert_actions(self, lanes: Lanes = ALL_LANES) -> NDArray[np.int64]:
        return self.tables.best_moves(self.current[lanes], self.goals[lanes])

    def optimal_value(self) -> float:
        # A move fails whatever the agent does, so the expert is optimal: this is the mean value of its plans.
        loss, n_configurations = 0.0, len(self.tables.below)
        for shape, n_goals in enumerate(np.bincount(self.tables.shape)):
            counts = np.bincount(self.tables.distances[shape])[MIN_DISTANCE:]
            weights = np.ones_like(counts) if self.spread else counts
            shares = n_goals / n_configurations * weights / weights.sum()
            loss += sum(share * (1 - self._plan_value(n)) for n, share in enumerate(shares.tolist(), MIN_DISTANCE))
        return 1.0 - loss

    def _plan_value(self, n_moves: int) -> float:
        """Compute the expected return of a plan whose moves are repeated until they work: a negative binomial time."""
        spare = self.max_turns - n_moves
        return sum(
            comb(n_moves - 1 + failures, failures)
            * ((1 - self.slip) ** n_moves * self.slip**failures)
            * (1 - EXCESS_COST * failures / spare)
            for failures in range(spare + 1)
        )

    def _stacks(self, configuration: int) -> str:
        """Describe the stacks from left to right, each from its top down."""
        below = self.tables.below[configuration].tolist()
        above = {lower: block for block, lower in enumerate(below) if lower != block}
        stacks = []
        for bottom in (block for block, lower in enumerate(below) if lower == block):
            stack = [bottom]
            while stack[0] in above:
                stack.insert(0, above[stack[0]])
            stacks.append(" on ".join(NAMES[block] for block in stack))
        return " | ".join(stacks)

    def opening_text(self, lane: int) -> str:
        slips = f" One move in {round(1 / self.slip)} fails: the block slips and stays." if self.slip else ""
        return (
            "System: Blocks stand on a table, alone or in stacks, which are written from the top down. Each turn you "
            "can move one block that has nothing on it, onto another block that has nothing on it or to the table: "
            f"write 'move A onto B' or 'move A to the table'.{slips} Reach the goal in at most {self.max_turns} turns, "
            "the fewer the better.\n"
            f"Goal: {self._stacks(self.goals[lane])}\n"
            f"Table: {self._stacks(self.current[lane])}"
        )

    def action_text(self, lane: int, action: NDArray[np.int64]) -> str:
        block, onto = divmod(int(action), self.n_blocks)
        return f"move {NAMES[block]} " + ("to the table" if onto == block else f"onto {NAMES[onto]}")

    def reply_text(self, lane: int, action: NDArray[np.int64], result: StepResult) -> str:
        text = f"{self._complaint(lane, int(action))}Table: {self._stacks(self.current[lane])}"
        if not result.dones[0]:
            return text
        turns, fewest = self.turns[lane], self.fewest[lane]
        verdict = f"That is the goal, after {turns} turns (fewest moves: {fewest})."
        if not result.successes[0]:
            verdict = f"The {turns} turns are over, and that is not the goal."
        return f"{text}\nSystem: {verdict}\nReward: {result.rewards[0]:.3g}"

    def _complaint(self, lane: int, action: int) -> str:
        """Say why a block was not moved; empty if it was moved."""
        if action == NO_ACTION:
            return "System: No block was moved.\n"
        block, onto = divmod(action, self.n_blocks)
        below = self.tables.below[self.current[lane]].tolist()
        if not self.refused[lane]:
            return "" if below[block] == onto else f"System: {NAMES[block]} slips and stays where it was.\n"
        for name in (block, onto):
            load = [NAMES[upper] for upper, lower in enumerate(below) if lower == name != upper]
            if load:
                return f"System: error: {load[0]} is on {NAMES[name]}\n"
        return f"System: error: {NAMES[block]} is on the table already\n"


class BlocksworldEnv(MaskedTaskEnv):
    """
    ## Description
    Blocks stand on a table, alone or in stacks. The agent moves one block a turn until all stand as the goal says.
    Everything is visible and every move can be taken back, but plans are long: blocks that are in the way have to be
    put somewhere, and their new place decides how many moves are left. Finding shortest plans for many blocks is
    NP-hard.

    | level | blocks | configurations | longest shortest plan | turns | moves that fail |
    | --- | --- | --- | --- | --- | --- |
    | easy | 4 | 73 | 6 | 18 | none |
    | medium | 5 | 501 | 8 | 24 | none |
    | hard | 7 | 37,633 | 12 | 36 | 10% |

    ``n`` blocks have shortest plans of at most ``2 * (n - 1)`` moves, and three times as many turns.

    ## Action Space
    ``Discrete(n * n)`` for ``n`` blocks: action ``block * n + onto`` moves a block onto another one, and to the table
    if ``onto == block``.

    ``action_masks()`` tells which moves can be made. The block must have nothing on it. It can be moved onto another
    block that has nothing on it, or to the table if it is not there already. Any other action costs the turn, and the
    reply says why. A move that fails leaves the block where it was, and costs the turn, too.

    ## Observation Space
    ``Box(0, 1, (2 * n * n + 1,))``. In this order: for each block the one that it stands on now (one-hot over the
    blocks, itself for the table), the same for the goal, and the turn divided by the last turn. Nothing is hidden. The
    length is 33 (easy), 51 (medium), 99 (hard).

    ## Rewards
    When the goal is reached, ``1 - 0.2 * (turns taken - fewest moves) / (turns of the level - fewest moves)``, where
    the fewest moves are those of a shortest plan from the start. So the reward is 1 for a shortest plan without
    failures, and 0.8 at the last turn. It is 0 if the goal is not reached. ``info["is_success"]`` tells whether it was.

    ## Starting State
    Drawn from the seed. The goal is uniform over all configurations. The start is uniform over the configurations that
    are at least 2 moves away from the goal, most of which are far away. With ``spread=True``, as at level hard, the
    distance is drawn first, uniformly from 2 to the longest for this goal, and then the start uniformly among the
    configurations at this distance; so there are as many short tasks as long ones. Whether a move fails depends on the
    seed and the turn alone.

    ## Episode End
    The episode terminates when the goal is reached and after the last turn.

    ## Expert
    It sees what the agent sees, and takes the first move of a shortest plan, which it finds in tables of all
    configurations. This is optimal at every level, because failures do not depend on the action.

    ## Arguments
    - ``level`` (default ``"easy"``): ``"easy"``, ``"medium"`` or ``"hard"``
    - ``blocks`` (default None: that of the level): 3 to 7 blocks; the number of turns follows from it
    - ``spread`` (default None: True at hard, else False): whether to draw the distance of the start from the goal
      uniformly
    - ``render_mode``: ``"ansi"`` for a transcript

    ## Version History
    - v0: first version
    """

    def __init__(
        self,
        level: str = "easy",
        blocks: int | None = None,
        spread: bool | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(partial(Blocksworld, level=level, blocks=blocks, spread=spread), render_mode)
