"""Checks of what the training environment returns during a rollout, with messages that say what to do."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from seeupo_gym.agents.method.errors import NonFiniteError
from seeupo_gym.agents.policies.turns import observed_turns
from seeupo_gym.envs.episodes import EpisodeLanes

# An episode of an environment without a known horizon is taken to be endless beyond this many times max_turns.
_ENDLESS = 100


class RolloutChecks:
    """
    Checks of what an environment returns during a rollout.

    :param env: the training environment
    :param group_size: episodes per group
    :param max_turns: number of turn policies where the environment does not say how long an episode is; None: it does
    :param starts_checked: whether the starts of its episodes were compared before
    """

    def __init__(self, env: VecEnv, group_size: int, max_turns: int | None, starts_checked: bool) -> None:
        self._space = env.observation_space
        self._normalize = unwrap_vec_normalize(env)
        self._max_turns = max_turns
        self._starts = None if starts_checked else StartCheck(group_size)

    def see_observations(self, obs: Any, envs: NDArray[np.int64], lanes: EpisodeLanes, step: int) -> None:
        """
        Check the observations that are to be acted on.

        :param obs: observations of all environments
        :param envs: the environments that act
        :param lanes: the episode and the turn of each environment
        :param step: number of environment steps taken so far
        :raises NonFiniteError: for NaN and infinite numbers
        :raises RuntimeError: for an episode that does not end
        :raises ValueError: for an entry "turn" that is another number than that of the turn
        """
        check_finite("observation", obs, envs, lanes.turns, step)
        check_turns(obs, self._space, lanes.turns, lanes.active, self._max_turns)
        if self._starts is not None:
            starting = np.flatnonzero(lanes.active & (lanes.turns == 0))
            raw_obs = obs if self._normalize is None else self._normalize.get_original_obs()
            self._starts.see(raw_obs, starting, lanes.episodes[starting])


def check_finite(what: str, given: Any, lanes: NDArray[np.int64], turns: NDArray[np.int64], step: int) -> None:
    """
    Refuse NaN and infinite numbers.

    :param what: "observation" or "reward"
    :param given: those of all environments; observations may be a dictionary
    :param lanes: the environments whose episodes are used
    :param turns: the turn of each environment: the one that was rewarded, or that the observation is for
    :param step: number of environment steps taken so far
    :raises NonFiniteError: names the environment, the turn and the step
    """
    named = {f"{what} {key!r}": values for key, values in given.items()} if isinstance(given, dict) else {what: given}
    for name, values in named.items():
        if values.dtype.kind != "f" or np.isfinite(values).all():
            continue
        wrong = ~np.isfinite(values[lanes]).reshape(len(lanes), -1).all(axis=1)
        if wrong.any():
            lane = int(lanes[np.argmax(wrong)])
            raise NonFiniteError(
                f"environment {lane} returned a non-finite {name} at turn {int(turns[lane])} (step {step}): "
                "training stopped before it could reach the policy; check the environment's arithmetic"
            )


def check_turns(
    obs: Any,
    observation_space: spaces.Space[Any],
    turns: NDArray[np.int64],
    used: NDArray[np.bool_],
    max_turns: int | None,
) -> None:
    """
    Refuse episodes that do not end, and observations whose entry "turn" is another number than that of the turn.

    :param obs: observations of all environments
    :param observation_space: of one environment
    :param turns: the turn of each environment, counted from 0
    :param used: the environments whose episodes are used
    :param max_turns: number of turn policies where the environment does not say how long an episode is; None: it does
    :raises RuntimeError: if an episode is much longer than ``max_turns``
    :raises ValueError: for another turn; both name the environment
    """
    longest = int(np.argmax(np.where(used, turns, -1)))
    if max_turns is not None and turns[longest] >= _ENDLESS * max_turns:
        raise RuntimeError(
            f"the episode of environment {longest} has not ended after {turns[longest]} turns, {_ENDLESS} times "
            "max_turns: wrap the environment with gymnasium.wrappers.TimeLimit"
        )
    observed = observed_turns(obs, observation_space)
    if observed is not None and np.any(observed[used] != turns[used]):
        lane = int(np.flatnonzero(used & (observed != turns))[0])
        raise ValueError(
            f'the entry "turn" of the observation of environment {lane} is {observed[lane]} at turn {turns[lane]}: '
            "it must count the steps of the episode from 0 (and stay out of VecNormalize), or have another name"
        )


class StartCheck:
    """
    Warns when ``reset(seed)`` does not reproduce the initial observation.

    :param group_size: episodes per group; episode ``e`` belongs to group ``e // group_size``
    """

    def __init__(self, group_size: int) -> None:
        self._group_size = group_size
        self._first: dict[int, list[NDArray[Any]]] = {}
        self._warned = False

    def see(self, obs: Any, lanes: NDArray[np.int64], episodes: NDArray[np.int64]) -> None:
        """
        Compare initial observations with the first ones seen of the same groups.

        :param obs: observations of all environments, as the environments gave them
        :param lanes: the environments that begin an episode
        :param episodes: which ones they begin
        """
        arrays = list(obs.values()) if isinstance(obs, dict) else [obs]
        for lane, group in zip(lanes.tolist(), (episodes // self._group_size).tolist(), strict=True):
            start = [array[lane] for array in arrays]
            first = self._first.setdefault(group, start)
            if not self._warned and any(not np.array_equal(a, b) for a, b in zip(first, start, strict=True)):
                self._warned = True
                warnings.warn(
                    "the environment's reset(seed=...) does not reproduce its initial observation: the members of a "
                    "group start from different states, so the group mean is no baseline for them and advantages "
                    "are noisy (in Gymnasium, draw all randomness from self.np_random after super().reset(seed=seed))",
                    stacklevel=2,
                )
