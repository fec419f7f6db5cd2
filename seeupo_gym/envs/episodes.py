"""Run a list of seeded episodes through the lanes of a vector environment."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any
from weakref import WeakSet

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from seeupo_gym.envs.checked_env import check_answers, lane_name
from seeupo_gym.envs.processes import WorkerError, watch_workers
from seeupo_gym.envs.replaced_methods import ReplacedMethods
from seeupo_gym.envs.sole_use import SoleUse
from seeupo_gym.envs.task import ALL_LANES, Lanes
from seeupo_gym.envs.vector import TaskVecEnv

NO_EPISODE = -1

# Environments with worker processes whose last call was interrupted.
_INTERRUPTED: WeakSet[VecEnv] = WeakSet()


class EpisodeLanes:
    """
    Bookkeeping of a list of seeded episodes: the episode and the turn that each lane of a vector environment is at.

    Episode ``e`` is played in lane ``e % n_envs``. Where the environment takes a queue of seeds
    (:mod:`seeupo_gym.envs.vector`), a lane goes from one episode straight to its next, and is parked when
    it has none left. Any other vector environment is run in rounds: all lanes are reset with explicit
    seeds, and the ones that finish early take steps that nobody uses until the last one has finished.

    Use it as a context manager, so that the environment leaves the queue mode also when something fails. Inside, nobody
    else may reset or step the environment (see :class:`~seeupo_gym.envs.sole_use.SoleUse`)::

        with EpisodeLanes(env, seeds) as lanes:
            obs = lanes.reset()
            while lanes.running:
                next_obs, rewards, dones, infos = env.step(act(obs, lanes.turns))
                ...  # lanes.episodes says whose step this was
                obs = lanes.advance(next_obs, dones)

    :param env: the vector environment, wrapped or not
    :param seeds: seed of every episode, shape (episodes,), in [0, 2**63)
    :param noise_seeds: seeds of the transitions alone, same shape; None: they follow ``seeds``
    :param max_turns: the most turns that an episode has, as the environment says; None: not known
    """

    def __init__(
        self,
        env: VecEnv,
        seeds: NDArray[np.int64],
        noise_seeds: NDArray[np.int64] | None = None,
        max_turns: int | None = None,
    ) -> None:
        if len(seeds) == 0:
            raise ValueError("seeds must hold at least one episode")
        if min(seeds) < 0:  # in a queue they stand for "no episode"
            raise ValueError(f"seeds must be in [0, 2**63), got {min(seeds)}")
        drop_late_answers(env)
        self.env = env
        self.max_turns = max_turns
        n_envs, n_episodes = env.num_envs, len(seeds)
        self._seeds, self._noise_seeds = seeds, noise_seeds
        self._n_rounds = -(-n_episodes // n_envs)
        schedule = np.full(self._n_rounds * n_envs, NO_EPISODE)
        schedule[:n_episodes] = np.arange(n_episodes)
        self._schedule = schedule.reshape(self._n_rounds, n_envs).T
        self._round = np.zeros(n_envs, dtype=np.int64)
        self._native = env.unwrapped if isinstance(env.unwrapped, TaskVecEnv) else None
        self._queued = self._native is not None or env.has_attr("queue_episodes")
        self._methods = ReplacedMethods()
        # A parked lane repeats its last observation, which would bias the running statistics of VecNormalize.
        normalize = unwrap_vec_normalize(env)
        self._park = self._queued and (normalize is None or not normalize.training)
        self.episodes = self._schedule[:, 0].copy()
        self.turns = np.zeros(n_envs, dtype=np.int64)

    def __enter__(self) -> EpisodeLanes:
        watch_workers(self.env)
        self._sole_use = SoleUse(self.env, self._methods)
        check_answers(self.env, self._methods)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._methods.restore()
        if exc is not None and not isinstance(exc, Exception) and hasattr(self.env.unwrapped, "remotes"):
            # An interrupt in the middle of a call: answers of the workers are on their way, or the workers are gone, by
            # the same Ctrl-C. To wait for them here could hide it, or hold it up for ever.
            _INTERRUPTED.add(self.env.unwrapped)
        elif self._queued:
            # When something has failed already, that is what counts; a worker that died cannot be told anything.
            with suppress(*((EOFError, OSError, WorkerError) if exc is not None else ())):
                self._queue_episodes(None, None)

    @property
    def active(self) -> NDArray[np.bool_]:
        """Mask of the lanes that are in the middle of an episode of the list, shape (n_envs,)."""
        active: NDArray[np.bool_] = self.episodes != NO_EPISODE
        return active

    @property
    def acting(self) -> Lanes:
        """The lanes that need an action: all of them, unless some are parked."""
        active = self.active
        return ALL_LANES if not self._park or active.all() else np.flatnonzero(active)

    @property
    def parks(self) -> bool:
        """Return True if a lane with nothing left to play stands still, and keeps what it shows."""
        return self._park

    @property
    def running(self) -> bool:
        """True as long as an episode of the list is not finished."""
        return bool(self.active.any())

    @property
    def n_steps(self) -> int:
        """Number of environment steps that the next call of ``env.step`` takes, used or not."""
        return int(self.active.sum()) if self._park else self.env.num_envs

    def reset(self) -> Any:
        """Start the first episode of every lane and return the observations, which are the caller's to keep."""
        if self._queued:
            noise_seeds = None if self._noise_seeds is None else self._per_lane(self._noise_seeds)
            self._queue_episodes(self._per_lane(self._seeds), noise_seeds)
            # A seed set earlier by VecEnv.seed() and not used yet would take the place of the first episode.
            self.env.unwrapped._reset_seeds()
            return self._kept(self._sole_use.reset())
        return self._start_round()

    def advance(self, obs: Any, dones: NDArray[np.bool_]) -> Any:
        """
        Account for one step of the environment.

        :param obs: the observations the step returned
        :param dones: the ends of episodes it returned, shape (n_envs,)
        :return: the observations to act on next, which are the caller's to keep
        :raises RuntimeError: if an episode has not ended after ``max_turns`` turns
        """
        self._sole_use.step_is_over()
        self.turns += 1
        if self.max_turns is not None:
            self._check_lengths(dones, self.max_turns)
        finished = np.flatnonzero(dones & self.active)
        self.turns[dones] = 0
        obs = self._kept(obs)
        if finished.size == 0:
            return obs
        self._round[finished] += 1
        if not self._queued:
            self.episodes[finished] = NO_EPISODE
            if not self.running and self._round.max() < self._n_rounds:
                return self._start_round()
            return obs
        following = np.minimum(self._round[finished], self._n_rounds - 1)
        over = self._round[finished] >= self._n_rounds
        self.episodes[finished] = np.where(over, NO_EPISODE, self._schedule[finished, following])
        return obs

    def _kept(self, obs: Any) -> Any:
        """Copy observations that the environment may write into again."""
        if isinstance(self.env, TaskVecEnv):
            return obs
        return {key: value.copy() for key, value in obs.items()} if isinstance(obs, dict) else obs.copy()

    def _check_lengths(self, dones: NDArray[np.bool_], most: int) -> None:
        endless = np.flatnonzero(self.active & ~dones & (self.turns >= most))
        if endless.size:
            lane = int(endless[0])
            raise RuntimeError(
                f"the episode of {lane_name(self.env, lane)} has not ended after {self.turns[lane]} turns, which the "
                "environment declares to be the most (max_turns, or max_episode_steps): correct this, or wrap the "
                "environment with gymnasium.wrappers.TimeLimit"
            )

    def _per_lane(self, seeds: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(self._schedule == NO_EPISODE, -1, seeds[self._schedule])

    def _queue_episodes(self, seeds: NDArray[np.int64] | None, noise_seeds: NDArray[np.int64] | None) -> None:
        if self._native is not None:
            self._native.queue_episodes(seeds, noise_seeds, self._park)
            return
        for lane in range(self.env.num_envs):
            row = None if seeds is None else seeds[lane].tolist()
            noise_row = None if noise_seeds is None else noise_seeds[lane].tolist()
            self.env.env_method("queue_episodes", row, noise_row, self._park, indices=lane)

    def _start_round(self) -> Any:
        self._round[:] = self._round.max()
        self.episodes = self._schedule[:, self._round[0]].copy()
        self.turns[:] = 0
        # An idle lane repeats the first one's episode. VecEnv.seed() can only give consecutive seeds.
        episodes = np.where(self.active, self.episodes, self.episodes[0])
        self.env.unwrapped._seeds = self._seeds[episodes].tolist()
        obs = self._kept(self._sole_use.reset())
        if self._noise_seeds is not None:
            for lane, seed in enumerate(self._noise_seeds[episodes].tolist()):
                if self.env.has_attr("reseed_noise"):
                    self.env.env_method("reseed_noise", seed, indices=lane)
                else:
                    self.env.set_attr("np_random", np.random.default_rng(seed), indices=lane)
        return obs


def drop_late_answers(env: VecEnv) -> None:
    """
    Drop the answers that workers owe to a call that was interrupted, which the next call would take for its own.

    :param env: any vector environment, wrapped or not
    """
    base: Any = env.unwrapped
    if base not in _INTERRUPTED:
        return
    for remote in base.remotes:
        remote.send(("get_spaces", None))
    for remote in base.remotes:
        answer = None
        while not (isinstance(answer, tuple) and isinstance(answer[0], spaces.Space)):
            answer = remote.recv()
    base.waiting = False
    _INTERRUPTED.discard(base)
