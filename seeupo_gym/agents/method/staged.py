"""The staged schedule: backward induction taken at its word (PSDP: Bagnell et al., 2003)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import numpy as np

from seeupo_gym.agents.method.settings import StageSettings


@dataclass
class Stages:
    """
    The turn that is being trained, and until when; saved with the model, so that a run goes on in mid-stage.

    :param settings: the schedule's settings
    :param n_turns: number of turn policies
    :param start: ``num_timesteps`` at the start
    :param total: ``num_timesteps`` at which training will end
    """

    settings: StageSettings
    n_turns: int
    start: int
    total: int
    turn: int = field(init=False)
    """Turn that is trained now, counted from 0; -1 when all are, and sweeps follow."""
    end: int = field(init=False)
    """``num_timesteps`` at which its stage ends."""
    returns: list[float] = field(init=False)
    """Mean return of each of its iterations."""
    trained: bool = field(init=False)
    """True once an episode of the stage has reached the turn."""

    def __post_init__(self) -> None:
        self._begin(self.n_turns - 1, self.start)

    def _begin(self, turn: int, num_timesteps: int) -> None:
        self.turn, self.returns, self.trained = turn, [], False
        budget = self.settings.stage_timesteps
        if budget is None:
            sweeps = round(self.settings.sweep_fraction * (self.total - self.start))
            budget = (self.total - sweeps - num_timesteps) // max(turn + 1, 1)
        self.end = num_timesteps + budget

    @property
    def finished(self) -> bool:
        """Return True when all turns are trained."""
        return self.turn < 0

    def update_order(self, n_reached: int) -> list[list[int]]:
        """
        Return the turns to update in an iteration of this stage, as blocks.

        :param n_reached: number of turns that any episode reached
        :return: the trained turn; with the last policy also the turns beyond, which it plays too; empty if no
            episode got that far
        """
        last = n_reached if self.turn == self.n_turns - 1 else min(self.turn + 1, n_reached)
        return [[turn] for turn in range(last - 1, self.turn - 1, -1)]

    def advance(self, num_timesteps: int, mean_return: float, trained: bool) -> None:
        """
        Account for one iteration, and go on to the turn before when the stage is over.

        :param num_timesteps: environment steps taken so far
        :param mean_return: mean return of its episodes
        :param trained: whether any of them reached the turn
        """
        self.returns.append(mean_return)
        self.trained |= trained
        if num_timesteps < self.end and not self._at_plateau():
            return
        if not self.trained:
            warnings.warn(
                f"no episode reached turn {self.turn} during its stage, so its policy is as it was before: give stages "
                "more steps, or more episodes that get there (schedule_kwargs: stage_timesteps, roll_in)",
                stacklevel=2,
            )
        self._begin(self.turn - 1, num_timesteps)

    def _at_plateau(self) -> bool:
        n = self.settings.patience
        if n is None or len(self.returns) < 2 * n:
            return False
        return float(np.mean(self.returns[-n:])) <= float(np.mean(self.returns[-2 * n : -n]))

    def note(self) -> str | None:
        """
        Tell what a policy in the middle of its stages is.

        :return: one sentence for a reader of its results; None when all turns are trained
        """
        if self.finished:
            return None
        text = f"staged training is at turn {self.turn} of 0 to {self.n_turns - 1}"
        if self.turn == 0:
            return f"{text}, the last stage"
        before = "turn 0 is" if self.turn == 1 else f"turns 0 to {self.turn - 1} are"
        return f"{text}: {before} not trained yet and played by the policy as it is so far"
