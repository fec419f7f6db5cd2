"""ContextChain: at each turn a context and the previous action decide which action is right."""

from __future__ import annotations

from functools import partial

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.envs.arguments import MAX_SIZE, check_choice, check_count
from seeupo_gym.envs.counter_rng import integers
from seeupo_gym.envs.task import ALL_LANES, NO_ACTION, Lanes, StepResult, Task, TaskEnv, one_hot

REWARDS = ("fraction", "all")


class ContextChain(Task):
    """Batched dynamics; :class:`ContextChainEnv` documents the task."""

    def __init__(self, n_lanes: int = 1, turns: int = 6, actions: int = 4, reward: str = "fraction") -> None:
        turns = check_count("turns", turns, most=MAX_SIZE)
        actions = check_count("actions", actions, least=2, most=MAX_SIZE)
        check_choice("reward", reward, REWARDS)
        self.max_turns = turns
        self.n_actions = actions
        self.reward = reward
        self.action_space = spaces.Discrete(actions)
        self.observation_space = spaces.Box(0.0, 1.0, (turns + 2 * actions,), np.float32)
        super().__init__(n_lanes)
        self.contexts = np.zeros(n_lanes, dtype=np.int64)
        self.previous = np.full(n_lanes, NO_ACTION)
        self.n_right = np.zeros(n_lanes, dtype=np.int64)

    def _start(self, lanes: Lanes) -> None:
        self.previous[lanes] = NO_ACTION
        self.n_right[lanes] = 0
        self.contexts[lanes] = integers(self.n_actions, self.task_seeds[lanes], 0)

    def right_actions(self, lanes: Lanes = ALL_LANES) -> NDArray[np.int64]:
        """Compute the right action: the context plus the previous action (0 at the first turn), modulo ``actions``."""
        right: NDArray[np.int64] = (self.contexts[lanes] + np.maximum(self.previous[lanes], 0)) % self.n_actions
        return right

    def _advance(self, actions: NDArray[np.int64], lanes: Lanes) -> StepResult:
        self.n_right[lanes] += actions == self.right_actions(lanes)
        self.previous[lanes] = actions
        turns, n_right = self.turns[lanes], self.n_right[lanes]
        self.contexts[lanes] = integers(self.n_actions, self.noise_seeds[lanes], turns)
        dones = turns == self.max_turns
        successes = dones & (n_right == self.max_turns)
        score = successes if self.reward == "all" else n_right / self.max_turns
        return StepResult(np.where(dones, score, 0.0).astype(np.float32), dones, successes)

    def observe(self, lanes: Lanes = ALL_LANES) -> NDArray[np.float32]:
        parts = [
            one_hot(self.turns[lanes], self.max_turns),
            one_hot(self.contexts[lanes], self.n_actions),
            one_hot(self.previous[lanes], self.n_actions),
        ]
        return np.concatenate(parts, axis=1)

    def expert_actions(self, lanes: Lanes = ALL_LANES) -> NDArray[np.int64]:
        return self.right_actions(lanes)

    def optimal_value(self) -> float:
        return 1.0

    def opening_text(self, lane: int) -> str:
        return (
            f"Context {self.contexts[lane]}, no action yet: {self.max_turns} turns to go. "
            f"Play a number from 0 to {self.n_actions - 1}."
        )

    def action_text(self, lane: int, action: NDArray[np.int64]) -> str:
        return f"play {action}"

    def reply_text(self, lane: int, action: NDArray[np.int64], result: StepResult) -> str:
        text = f"Turn {self.turns[lane]}: {self.n_right[lane]} right so far."
        if result.dones[0]:
            return f"{text} Paid {result.rewards[0]:.2f}."
        return f"{text} Context {self.contexts[lane]}."


class ContextChainEnv(TaskEnv):
    """
    ## Description
    A chain of contextual decisions under one team reward. Each action helps to decide which action is right at the
    next turn, and only the sum is paid, at the end. This is the plainest test of credit assignment over turns.

    ## Action Space
    ``Discrete(actions)``. The right action is ``(context + previous action) % actions``; at the first turn the previous
    action counts as 0.

    ## Observation Space
    ``Box(0, 1, (turns + 2 * actions,))``: turn, context and previous action as one-hot vectors. The previous action is
    the zero vector at the first turn; the turn is the zero vector after the last turn.

    ## Rewards
    At the last turn, the fraction of right actions (``reward="fraction"``), or 1 if all were right and else 0
    (``reward="all"``). The optimum is 1.0 for both. ``info["is_success"]`` tells whether all were right.

    ## Starting State
    The first context is uniform, drawn from the seed. The later ones are uniform and independent of the actions.

    ## Episode End
    The episode terminates after ``turns`` turns.

    ## Arguments
    - ``turns`` (default 6, from 1 to 1,000): length of an episode
    - ``actions`` (default 4, from 2 to 1,000): number of actions, and of contexts
    - ``reward`` (default ``"fraction"``): ``"fraction"`` or ``"all"``
    - ``render_mode``: ``"ansi"`` for a transcript

    ## Version History
    - v0: first version
    """

    def __init__(
        self, turns: int = 6, actions: int = 4, reward: str = "fraction", render_mode: str | None = None
    ) -> None:
        super().__init__(partial(ContextChain, turns=turns, actions=actions, reward=reward), render_mode)
