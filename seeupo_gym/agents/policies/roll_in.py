"""Actions in a stage of the staged schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from seeupo_gym.agents.method.batches import select_rows
from seeupo_gym.agents.method.staged import Stages
from seeupo_gym.agents.policies.turn_policy import TurnPolicy

_UNIFORM, _SAMPLED, _GREEDY = range(3)


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
    indices = np.minimum(turns, policy.n_policies - 1)
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
