"""Episodes that were collected elsewhere: one trajectory each, and how they become batches and advantages of turns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.type_aliases import PyTorchObs

from seeupo_gym.agents.method.advantages import estimate_advantages
from seeupo_gym.agents.method.batches import TurnBatch
from seeupo_gym.agents.method.settings import MethodSettings


class TrajectoryTurn(NamedTuple):
    """One turn of a trajectory."""

    state: PyTorchObs
    action: th.Tensor
    reward: float
    log_prob: th.Tensor
    """Shape (), or (tokens,) for one ratio per token."""
    action_mask: th.Tensor | None


class MultiTurnTrajectory:
    """
    One episode of T turns. Everything is copied, to the CPU.

    Arguments may be tensors, arrays or sequences with one entry per turn. Where states, actions or masks differ in
    shape between turns, pass a sequence of one array per turn.

    :param states: what the policy saw, first dimension T; for Dict observations a dict of those or a sequence of dicts
    :param actions: what it did, shape (T, ...): integers for discrete actions, floats for continuous ones
    :param rewards: what each turn paid, shape (T,)
    :param log_probs: log-probabilities of the actions under the policy that chose them, recorded at collection, shape
        (T,), or (T, tokens) for one importance ratio per token. Densities may make them positive
    :param action_masks: valid choices, shape (T, actions); None: all
    :param group: any hashable id; trajectories with the same one, from the same initial state, are each other's
        baseline. All those without one form one group
    :raises ValueError: for lengths that disagree, no turn at all, missing log-probabilities, and NaN or infinity; says
        what, at which turn, and what to do
    """

    def __init__(
        self,
        states: Any,
        actions: Any,
        rewards: Any,
        log_probs: Any,
        action_masks: Any = None,
        group: Hashable = None,
    ) -> None:
        if log_probs is None:
            raise ValueError(
                "log_probs is None: the importance ratio compares the policy with the one that chose the actions, so "
                "record log pi(a | s) at collection; for logged data, evaluate the policy that wrote the log"
            )
        self.states: list[PyTorchObs] = _states(states)
        self.actions = _per_turn("actions", actions)
        reward_list = _per_turn("rewards", rewards)
        log_prob_list = _per_turn("log_probs", log_probs)
        self.action_masks = (
            None if action_masks is None else [m.bool() for m in _per_turn("action_masks", action_masks)]
        )
        lengths = {"states": len(self.states), "actions": len(self.actions), "rewards": len(reward_list)}
        lengths["log_probs"] = len(log_prob_list)
        if self.action_masks is not None:
            lengths["action_masks"] = len(self.action_masks)
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{length} in {name}" for name, length in lengths.items())
            raise ValueError(f"a trajectory has one entry per turn, got {found}: record all of them at every turn")
        if not reward_list:
            raise ValueError(
                "a trajectory has at least one turn, got none: leave out episodes in which nothing was done"
            )
        for turn, reward in enumerate(reward_list):
            if reward.ndim > 0:
                raise ValueError(f"rewards must have shape (turns,), got shape {tuple(reward.shape)} at turn {turn}")
        for turn, log_prob in enumerate(log_prob_list):
            if log_prob.ndim > 1 or log_prob.shape != log_prob_list[0].shape:
                raise ValueError(
                    f"log_probs must have shape (turns,) or (turns, tokens), got shape {tuple(log_prob.shape)} at turn "
                    f"{turn} (turn 0: {tuple(log_prob_list[0].shape)}); sum them to have one number per turn"
                )
        self.rewards = th.stack(reward_list).double()
        self.log_probs = th.stack(log_prob_list).double()
        self.group: Hashable = group.item() if isinstance(group, th.Tensor) else group  # tensors hash by identity
        hash(self.group)

    def __len__(self) -> int:
        return len(self.rewards)

    def returns(self, gamma: float = 1.0) -> th.Tensor:
        """
        Discounted returns-to-go, ``R_t = r_t + gamma * R_{t+1}``; the first one is the return of the episode.

        :param gamma: discount factor
        :return: shape (T,), float64
        """
        returns = self.rewards.clone()
        for turn in range(len(self) - 2, -1, -1):
            returns[turn] += gamma * returns[turn + 1]
        return returns

    def get_turn(self, t: int) -> TrajectoryTurn:
        """
        Get all that was recorded at one turn.

        :param t: the turn, counted from 0
        :return: state, action, reward, log-probability, and mask or None
        :raises IndexError: if the episode has no such turn
        """
        if not 0 <= t < len(self):
            raise IndexError(f"there is no turn {t}: the trajectory has {len(self)}, counted from 0 to {len(self) - 1}")
        mask = None if self.action_masks is None else self.action_masks[t]
        return TrajectoryTurn(self.states[t], self.actions[t], float(self.rewards[t]), self.log_probs[t], mask)


def _states(states: Any) -> list[PyTorchObs]:
    if isinstance(states, Sequence) and len(states) > 0 and isinstance(states[0], Mapping):
        if any(state.keys() != states[0].keys() for state in states):
            raise ValueError("states are dicts with different entries: record the same ones at every turn")
        states = {key: [state[key] for state in states] for key in states[0]}
    if not isinstance(states, Mapping):
        return list(_per_turn("states", states))
    columns = {key: _per_turn(f"states[{key!r}]", values) for key, values in states.items()}
    lengths = {key: len(column) for key, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"every entry of states has one row per turn, got these numbers of rows: {lengths}")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _per_turn(name: str, values: Any) -> list[th.Tensor]:
    """One tensor per turn, of an array with the turns first, or of a sequence with something for each turn."""
    if isinstance(values, (th.Tensor, np.ndarray)) and values.ndim > 0:
        rows = list(_copy(name, values).unbind(0))
    elif isinstance(values, Sequence):
        rows = [_copy(f"{name} of turn {turn}", value) for turn, value in enumerate(values)]
    else:
        raise ValueError(f"{name} must have one entry per turn, got {values!r}")
    if rows and not bool(th.cat([row.reshape(-1) for row in rows]).isfinite().all()):
        turn = next(turn for turn, row in enumerate(rows) if not bool(row.isfinite().all()))
        raise ValueError(
            f"{name} of turn {turn} holds NaN or infinity: drop the episode, or correct the code that computed it"
        )
    return rows


def _copy(name: str, values: Any) -> th.Tensor:
    """Copy to the CPU, without a gradient: the caller may go on with what it passed."""
    if isinstance(values, th.Tensor):
        return values.detach().to("cpu", copy=True)
    try:
        return th.from_numpy(np.array(values))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers, all of one shape: {error}") from error


def trajectory_advantages(trajectories: Sequence[MultiTurnTrajectory], settings: MethodSettings) -> NDArray[np.float64]:
    """
    Estimate advantages; groups may differ in size.

    See :func:`~seeupo_gym.agents.method.advantages.estimate_advantages`.

    :param trajectories: at least one
    :param settings: the discount factor, the estimator, the normalisation and the clip
    :return: shape (turns, trajectories), for as many turns as the longest has; where a trajectory is over, its entry
        has no meaning
    :raises ValueError: if no group has a second member
    """
    groups: dict[Hashable, list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        groups.setdefault(trajectory.group, []).append(index)
    largest = max(len(members) for members in groups.values())
    if largest < 2:
        raise ValueError(
            f"each of the {len(groups)} groups has one trajectory: an advantage is a return less the mean of its "
            "group, which is always 0 in a group of one. Collect several episodes from each initial state, with the "
            "same group; group=None compares all with each other"
        )
    # The layout of SeeUPO's buffer, with room for the largest group: what is not reached counts nowhere.
    table = (max(map(len, trajectories)), len(groups), largest)
    rewards, reached = np.zeros(table), np.zeros(table, dtype=bool)
    row, column = np.zeros((2, len(trajectories)), dtype=np.int64)
    for group, members in enumerate(groups.values()):
        for member, index in enumerate(members):
            row[index], column[index] = group, member
            length = len(trajectories[index])
            rewards[:length, group, member] = trajectories[index].rewards.numpy()
            reached[:length, group, member] = True
    advantages, _ = estimate_advantages(
        rewards,
        reached,
        settings.gamma,
        settings.advantage_estimator,
        settings.normalize_advantage,
        settings.advantage_clip,
    )
    return np.broadcast_to(advantages[:, row, column], (table[0], len(trajectories)))


def make_turn_batch(
    trajectories: Sequence[MultiTurnTrajectory], turn: int, device: th.device, dtype: th.dtype, log_dtype: th.dtype
) -> TurnBatch:
    """
    Make the rows of one turn, in the order of the trajectories that reach it.

    An episode's index is its place in the list.

    :param trajectories: of which at least one reaches the turn
    :param turn: counted from 0
    :param device: where the tensors go
    :param dtype: type of states and actions that are floats; integers stay as they are
    :param log_dtype: type of the log-probabilities
    :return: the batch
    :raises ValueError: if the trajectories recorded different things, or things of different shapes
    """
    episodes = [index for index, trajectory in enumerate(trajectories) if len(trajectory) > turn]
    rows = [_columns(trajectories[index].get_turn(turn)) for index in episodes]
    for episode, row in zip(episodes, rows, strict=True):
        first, own = ({name: tuple(value.shape) for name, value in r.items()} for r in (rows[0], row))
        if first != own:
            raise ValueError(
                f"the rows of a turn make one batch, but at turn {turn} trajectory {episodes[0]} has the shapes "
                f"{first} and trajectory {episode} has {own}: record the same in all of them, padded to one shape"
            )
    batch = {}
    for name in rows[0]:
        column = th.stack([row[name] for row in rows])
        kind = log_dtype if name == "log_probs" else dtype
        batch[name] = column.to(device, kind if column.is_floating_point() else column.dtype)
    prefix = "states/"
    entries = {name[len(prefix) :]: column for name, column in batch.items() if name.startswith(prefix)}
    return TurnBatch(
        entries or batch["states"],
        batch["actions"],
        batch["log_probs"],
        th.as_tensor(episodes, device=device),
        batch.get("action_masks"),
    )


def _columns(row: TrajectoryTurn) -> dict[str, th.Tensor]:
    if isinstance(row.state, dict):
        columns = {f"states/{key}": value for key, value in row.state.items()}
    else:
        columns = {"states": row.state}
    columns |= {"actions": row.action, "log_probs": row.log_prob}
    return columns if row.action_mask is None else columns | {"action_masks": row.action_mask}
