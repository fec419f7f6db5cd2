"""The staged schedule: backward induction taken at its word (PSDP: Bagnell et al., 2003)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from seeupo_gym.agents.method.batches import select_rows
from seeupo_gym.agents.policies.turn_policy import TurnPolicy

SCHEDULES = ("sweep", "staged")

_UNIFORM, _SAMPLED, _GREEDY = range(3)


@dataclass(frozen=True)
class StageSettings:
    """
    What ``SeeUPO(schedule="staged", schedule_kwargs=...)`` takes.

    :param roll_in: probability that an action of a turn before the trained one is uniform over the valid ones;
        otherwise it is drawn from the policy of its turn as it is so far. 1: always uniform
    :param stage_timesteps: environment steps of a stage; None: an equal share of what ``learn`` was given, less
        ``sweep_fraction``; what a stage leaves over goes to the ones after it
    :param patience: end a stage when the mean return of its last ``patience`` iterations is no higher than that
        of the ``patience`` before; None: stages end by their budget alone
    :param sweep_fraction: share of the steps for sweeps over all turns after the last stage, in [0, 1)
    :raises ValueError: for numbers out of range
    """

    roll_in: float = 1.0
    stage_timesteps: int | None = None
    patience: int | None = None
    sweep_fraction: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.roll_in <= 1.0:
            raise ValueError(f"roll_in must be in [0, 1], got {self.roll_in}")
        if not 0.0 <= self.sweep_fraction < 1.0:
            raise ValueError(f"sweep_fraction must be in [0, 1), got {self.sweep_fraction}")
        for name, number in (("stage_timesteps", self.stage_timesteps), ("patience", self.patience)):
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")


@dataclass
class Stages:
    """
    Which turn is being trained, and until when; it is saved with the model, so that a run goes on in mid-stage.

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
    """The turn that is trained now, counted from 0; -1 when all are, and sweeps follow."""
    end: int = field(init=False)
    """``num_timesteps`` at which its stage ends."""
    returns: list[float] = field(init=False)
    """Mean return of each of its iterations."""
    trained: bool = field(init=False)
    """Whether any episode of the stage reached the turn."""

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
        """Whether all turns are trained."""
        return self.turn < 0

    def update_order(self, n_reached: int) -> list[list[int]]:
        """
        The turns to update in an iteration of this stage, as blocks.

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


def act_in_stage(
    policy: TurnPolicy,
    stages: Stages,
    obs: Any,
    turns: NDArray[np.int64],
    generator: th.Generator,
    action_masks: th.Tensor | None,
    envs: NDArray[np.int64],
) -> tuple[th.Tensor, th.Tensor]:
    """
    Choose actions for an episode of a stage: exploratory before the trained turn, sampled at it, greedy after it.

    :param policy: the turn policies
    :param stages: says which turn is trained
    :param obs: batch of observations
    :param turns: the turn of each row, counted from 0, shape (batch,)
    :param generator: source of all samples
    :param action_masks: valid choices; None: all
    :param envs: the environment that each row comes from, for messages
    :return: actions and their log-probabilities under their policies; NaN for uniform actions, which are nobody's
    """
    indices = np.minimum(turns, policy.n_turns - 1)
    kinds = np.where(indices > stages.turn, _GREEDY, _SAMPLED)
    before = np.flatnonzero(indices < stages.turn)
    if before.size > 0:
        coins = th.rand(len(before), generator=generator, device=policy.device).cpu().numpy()
        kinds[before[coins < stages.settings.roll_in]] = _UNIFORM
    parts, order = [], []
    for kind in np.unique(kinds):
        rows = np.flatnonzero(kinds == kind)
        row_tensor = th.as_tensor(rows, device=policy.device)
        part, masks = select_rows(obs, row_tensor), None if action_masks is None else action_masks[row_tensor]
        if kind == _UNIFORM:
            parts.append(policy.explore(len(rows), generator, masks))
        else:
            parts.append(policy(part, turns[rows], generator if kind == _SAMPLED else None, masks, envs[rows]))
        order.append(rows)
    inverse = th.as_tensor(np.argsort(np.concatenate(order)), device=policy.device)
    actions, log_probs = (th.cat(column)[inverse] for column in zip(*parts, strict=True))
    return actions, log_probs
