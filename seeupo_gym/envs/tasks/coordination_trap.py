"""CoordinationTrap: a safe reward against a larger one that needs every later turn to be right."""

from __future__ import annotations

from functools import partial

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.envs.arguments import MAX_SIZE, check_count
from seeupo_gym.envs.task import ALL_LANES, Lanes, StepResult, Task, TaskEnv, one_hot

SAFE_ARM, RISKY_ARM = 0, 1
SAFE_REWARD, RISKY_REWARD = 0.6, 1.0
OPEN, SAFE, ON_TRACK, LOST = range(4)
_STATUS_TEXT = {
    OPEN: "nothing decided yet",
    SAFE: "the safe offer is taken",
    ON_TRACK: "the risky plan is on track",
    LOST: "the plan has failed",
}


class CoordinationTrap(Task):
    """Batched dynamics; :class:`CoordinationTrapEnv` documents the task."""

    def __init__(self, n_lanes: int = 1, turns: int = 4, arms: int = 4) -> None:
        # At least two turns, so that there is something to coordinate; at least a safe arm and a risky one.
        turns = check_count("turns", turns, least=2, most=MAX_SIZE)
        arms = check_count("arms", arms, least=2, most=MAX_SIZE)
        self.max_turns = turns
        self.arms = arms
        self.action_space = spaces.Discrete(arms)
        self.observation_space = spaces.Box(0.0, 1.0, (turns + 4,), np.float32)
        super().__init__(n_lanes)
        self.status = np.zeros(n_lanes, dtype=np.int64)

    def right_arm(self, turns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the arm that keeps the risky plan on track at a turn (counted from 0)."""
        return (turns + RISKY_ARM) % self.arms

    def _start(self, lanes: Lanes) -> None:
        self.status[lanes] = OPEN

    def _advance(self, actions: NDArray[np.int64], lanes: Lanes) -> StepResult:
        turns, status = self.turns[lanes], self.status[lanes]
        right = actions == self.right_arm(turns - 1)
        first = np.where(actions == SAFE_ARM, SAFE, np.where(right, ON_TRACK, LOST))
        later = np.where((status == ON_TRACK) & ~right, LOST, status)
        status = np.where(turns == 1, first, later)
        self.status[lanes] = status
        dones = turns == self.max_turns
        successes = dones & (status == ON_TRACK)
        rewards = np.where(successes, RISKY_REWARD, np.where(dones & (status == SAFE), SAFE_REWARD, 0.0))
        return StepResult(rewards.astype(np.float32), dones, successes)

    def observe(self, lanes: Lanes = ALL_LANES) -> NDArray[np.float32]:
        return np.concatenate([one_hot(self.turns[lanes], self.max_turns), one_hot(self.status[lanes], 4)], axis=1)

    def expert_actions(self, lanes: Lanes = ALL_LANES) -> NDArray[np.int64]:
        return self.right_arm(self.turns[lanes])

    def optimal_value(self) -> float:
        return 1.0

    def opening_text(self, lane: int) -> str:
        return (
            f"Offer: arm {SAFE_ARM} pays {SAFE_REWARD} for certain. Arm {RISKY_ARM} starts a plan that pays "
            f"{RISKY_REWARD} if the next {self.max_turns - 1} choices are all right. There are {self.arms} arms."
        )

    def action_text(self, lane: int, action: NDArray[np.int64]) -> str:
        return f"pull arm {action}"

    def reply_text(self, lane: int, action: NDArray[np.int64], result: StepResult) -> str:
        text = f"Turn {self.turns[lane]}: {_STATUS_TEXT[int(self.status[lane])]}."
        return text + (f" Paid {result.rewards[0]:.1f}." if result.dones[0] else "")


class CoordinationTrapEnv(TaskEnv):
    """
    ## Description
    The smallest task in which the turns must be learned together. The safe first action pays 0.6 whatever
    follows; the risky one pays 1.0, but only if every following action is right. An agent whose later turns
    are not good yet learns to play safe. Then it never visits the states from which they could get better.

    ## Action Space
    ``Discrete(arms)``. At the first turn arm 0 is the safe one, arm 1 is the risky one, and the others lose. At a
    later turn ``t`` (counted from 0) only arm ``(t + 1) % arms`` keeps the risky plan on track.

    ## Observation Space
    ``Box(0, 1, (turns + 4,))``: the turn as a one-hot vector, then the status as a one-hot vector (nothing
    decided, safe, on track, lost). The turn is the zero vector after the last turn.

    ## Rewards
    At the last turn: 0.6 after the safe arm, 1.0 if the risky plan was on track to the end, else 0. The
    optimum is 1.0. ``info["is_success"]`` tells whether the reward is 1.

    ## Starting State
    Turn 0, nothing decided. The task is deterministic: all seeds have the same start.

    ## Episode End
    The episode terminates after ``turns`` turns.

    ## Arguments
    - ``turns`` (default 4, from 2 to 1,000): length of an episode
    - ``arms`` (default 4, from 2 to 1,000): actions at each turn
    - ``render_mode``: ``"ansi"`` for a transcript

    ## Version History
    - v0: first version
    """

    def __init__(self, turns: int = 4, arms: int = 4, render_mode: str | None = None) -> None:
        super().__init__(partial(CoordinationTrap, turns=turns, arms=arms), render_mode)
