"""The rollout of one iteration: rows of turns, keyed by episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.type_aliases import PyTorchObs

from seeupo_gym.agents.method.batches import TurnBatch
from seeupo_gym.envs.task import Lanes


class GroupRolloutBuffer:
    """
    Collects the turns of a fixed number of episodes, in any order, and serves them turn by turn.

    Only turns that were taken are stored, so there is neither padding nor a mask for it: an episode that
    ended before turn t has no row in the pool of turn t.

    :param n_groups: number of groups (B)
    :param group_size: episodes per group (G); episode ``e`` belongs to group ``e // group_size``
    :param device: where the tensors go
    :param token_mask: tells which tokens each of a batch of actions has; None: all actions have the same number
    """

    def __init__(
        self,
        n_groups: int,
        group_size: int,
        device: th.device | str = "cpu",
        token_mask: Callable[[th.Tensor], th.Tensor | None] | None = None,
    ) -> None:
        self.device = device
        self._token_mask = token_mask
        self.reset(n_groups, group_size)

    def reset(self, n_groups: int | None = None, group_size: int | None = None) -> None:
        """
        Forget everything.

        :param n_groups: number of groups from now on; None: as before
        :param group_size: episodes per group from now on; None: as before
        """
        if n_groups is not None:
            self.n_groups = n_groups
        if group_size is not None:
            self.group_size = group_size
        self._chunks: dict[str, list[Any]] = {}
        self._dropped: list[int] = []
        self.turn_batches: list[TurnBatch] = []
        # Of every turn and episode, shape (turns, n_groups, group_size): the reward, and whether there was one.
        self.rewards: NDArray[np.float64] = np.zeros((0, self.n_groups, self.group_size))
        self.reached: NDArray[np.bool_] = np.zeros(self.rewards.shape, dtype=bool)

    def add(
        self,
        episodes: NDArray[np.int64],
        turns: NDArray[np.int64],
        observations: NDArray[Any] | dict[str, NDArray[Any]],
        actions: th.Tensor,
        log_probs: th.Tensor,
        rewards: NDArray[Any],
        action_masks: NDArray[np.bool_] | None,
    ) -> None:
        """
        Add one turn of some episodes; all arrays have one row for each.

        :param episodes: index of the episode, in [0, n_groups * group_size)
        :param turns: turn of the episode, counted from 0
        :param observations: what the policy saw
        :param actions: what it did, before any clipping to the action space
        :param log_probs: log-probability of the actions, one each or one per token
        :param rewards: what the environment gave
        :param action_masks: valid choices, or None
        """
        columns = {"episodes": episodes, "turns": turns, "actions": actions, "log_probs": log_probs}
        columns["rewards"] = rewards
        if isinstance(observations, dict):
            columns.update({f"obs/{key}": value for key, value in observations.items()})
        else:
            columns["obs"] = observations
        if action_masks is not None:
            columns["action_masks"] = action_masks
        for name, rows in columns.items():
            self._chunks.setdefault(name, []).append(rows)

    def drop(self, episodes: Sequence[int]) -> None:
        """
        Leave episodes out, with all turns that were or will be added: those whose environment crashed.

        They are then no members of their groups, neither for the baseline nor for the update.

        :param episodes: indices of episodes
        """
        self._dropped.extend(episodes)

    def finish(self) -> None:
        """
        Sort the rows by turn, and lay the rewards out by turn and episode.

        :raises RuntimeError: if all episodes were dropped
        """
        if self._dropped:
            self._filter(~np.isin(np.concatenate(self._chunks["episodes"]), self._dropped))
        episodes = np.concatenate(self._chunks["episodes"])
        turns = np.concatenate(self._chunks["turns"])
        table = (int(turns.max()) + 1, self.n_groups, self.group_size)
        self.rewards, self.reached = np.zeros(table), np.zeros(table, dtype=bool)
        self.rewards.reshape(len(self.rewards), -1)[turns, episodes] = np.concatenate(self._chunks["rewards"])
        self.reached.reshape(len(self.reached), -1)[turns, episodes] = True
        order = None if np.all(turns[1:] >= turns[:-1]) else th.as_tensor(np.argsort(turns, kind="stable"))
        columns = {
            name: self._column(chunks, order)
            for name, chunks in self._chunks.items()
            if name not in ("turns", "rewards")
        }
        bounds = np.concatenate([[0], np.cumsum(np.bincount(turns))])
        self.turn_batches = [self._turn_batch(columns, slice(start, end)) for start, end in pairwise(bounds.tolist())]
        self._chunks = {}

    def _filter(self, kept: NDArray[np.bool_]) -> None:
        if not kept.any():
            raise RuntimeError(
                f"all {len(set(self._dropped))} episodes of this iteration crashed: nothing can be learned from it; "
                "see the environment's warnings for the cause"
            )
        for name, chunks in self._chunks.items():
            whole = th.cat(chunks) if isinstance(chunks[0], th.Tensor) else np.concatenate(chunks)
            self._chunks[name] = [
                whole[th.as_tensor(kept, device=whole.device) if isinstance(whole, th.Tensor) else kept]
            ]

    def _column(self, chunks: list[Any], order: th.Tensor | None) -> th.Tensor:
        column = th.cat(chunks) if isinstance(chunks[0], th.Tensor) else th.as_tensor(np.concatenate(chunks))
        return (column if order is None else column[order.to(column.device)]).to(self.device)

    def _turn_batch(self, columns: dict[str, th.Tensor], rows: slice) -> TurnBatch:
        observations: PyTorchObs
        if "obs" in columns:
            observations = columns["obs"][rows]
        else:
            prefix = "obs/"
            observations = {k[len(prefix) :]: v[rows] for k, v in columns.items() if k.startswith(prefix)}
        masks = columns.get("action_masks")
        return TurnBatch(
            observations,
            columns["actions"][rows],
            columns["log_probs"][rows],
            columns["episodes"][rows],
            None if masks is None else masks[rows],
            None if self._token_mask is None else self._token_mask(columns["actions"][rows]),
        )


def select_lanes(obs: Any, lanes: Lanes) -> Any:
    """
    Take the observations of some environments.

    :param obs: observations of all environments
    :param lanes: which ones to take
    :return: one row for each; a view of ``obs`` where ``lanes`` is a slice
    """
    return {key: value[lanes] for key, value in obs.items()} if isinstance(obs, dict) else obs[lanes]


def positions(used: NDArray[np.bool_], acting: Lanes) -> Lanes:
    """
    Find the used lanes among the acting ones.

    :param used: which lanes are used, shape (n_envs,)
    :param acting: the lanes that act
    :return: rows of the acting lanes; a slice, and so no copy, if they are all of them
    """
    among_acting = used[acting]
    return slice(None) if among_acting.all() else np.flatnonzero(among_acting)


def env_actions(space: spaces.Space[Any], sampled: th.Tensor, acting: Lanes, n_envs: int) -> NDArray[Any]:
    """
    Make actions for all environments: the sampled ones clipped to a Box, zeros for parked lanes.

    :param space: the action space
    :param sampled: what the policy sampled, a row for each acting lane
    :param acting: the lanes that act
    :param n_envs: number of lanes
    :return: shape (n_envs, *action shape)
    """
    actions: NDArray[Any] = sampled.cpu().numpy()
    if isinstance(space, spaces.Box):
        actions = np.clip(actions, space.low, space.high)
    if isinstance(acting, slice):
        return actions
    full = np.zeros((n_envs, *actions.shape[1:]), dtype=actions.dtype)
    full[acting] = actions
    return full
