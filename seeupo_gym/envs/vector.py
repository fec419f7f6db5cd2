"""Vector environments that can start an episode from a given seed at every reset, the automatic ones too.

SB3's automatic reset after ``done`` drops seeds (SB3#1790), so a group of episodes from one initial state
could only begin by resetting all environments at once. The two classes here take a queue of seeds:
:class:`TaskVecEnv` runs a native task batched over lanes, :class:`SeedQueue` wraps any Gymnasium environment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from seeupo_gym.envs.arguments import check_count, check_number
from seeupo_gym.envs.checked_env import CheckedEnv
from seeupo_gym.envs.counter_rng import hash_bits
from seeupo_gym.envs.hidden_state import find_hidden_state
from seeupo_gym.envs.processes import make_watched
from seeupo_gym.envs.task import ALL_LANES, HELD_OUT_SEED, MAX_SEED, Lanes, Task, bare_task_env

# More environments than this are a slip of the keyboard: their observations, or their processes, fill the memory.
MAX_ENVS = 100_000
MAX_PROCESSES = 1_000
# Numbers in the observations of all lanes of a task: 1 GB.
_MAX_OBSERVED = 2**28

# Stream of the seeds that an unseeded reset draws from the seed of the episode before it.
_NEXT_SEED_STREAM = 0x5EED


class SeedQueue(gym.Wrapper[Any, Any, Any, Any]):
    """
    Start queued episodes at the resets that ask for no seed of their own.

    Without a queue the wrapper changes nothing.

    :param env: any Gymnasium environment
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._queue: list[tuple[int, int]] | None = None
        self._park = False
        self._parked = False
        self._last_obs: Any = None

    def queue_episodes(
        self, seeds: Sequence[int] | None, noise_seeds: Sequence[int] | None = None, park: bool = True
    ) -> None:
        """
        Queue the seeds of the next episodes, or leave the queue mode.

        :param seeds: one seed an episode, negative ones are skipped; None: resets behave as usual again
        :param noise_seeds: seeds of the transitions alone, as many as ``seeds``; None: not reseeded
        :param park: when the queue is empty, neither reset nor step the environment until the next explicit
            reset with an episode to start; if False, unseeded episodes go on
        """
        self._parked = False
        self._park = park
        if seeds is None:
            self._queue = None
            return
        noise = [-1] * len(seeds) if noise_seeds is None else noise_seeds
        self._queue = [(int(s), int(n)) for s, n in zip(seeds, noise, strict=True) if s >= 0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, from the next queued seed if there is one and ``seed`` is None."""
        noise_seed = -1
        self._parked = False
        if seed is None and self._queue is not None:
            if self._queue:
                seed, noise_seed = self._queue.pop(0)
            elif self._park:
                self._parked = True
                if self._last_obs is not None:
                    return self._last_obs, {}
                seed = 0
        # Where there are no options, reset() need not take any.
        self._last_obs, info = self.env.reset(seed=seed, **({"options": options} if options else {}))
        if noise_seed >= 0:
            reseed_noise(self.env, noise_seed)
        return self._last_obs, info

    def find_hidden_state(self, seed: int) -> str | None:
        """
        Look for state that the seed of a reset does not fix; see :mod:`seeupo_gym.envs.hidden_state`.

        :param seed: seed of the episodes that a copy of the environment plays
        :return: what differs between them, or None
        """
        return find_hidden_state(self.env, seed)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, or do nothing in a parked one."""
        if self._parked:
            return self._last_obs, 0.0, False, False, {}
        self._last_obs, reward, terminated, truncated, info = self.env.step(action)
        return self._last_obs, reward, terminated, truncated, info


def reseed_noise(env: gym.Env[Any, Any], seed: int) -> None:
    """
    Give the transitions of a running episode randomness of their own.

    An environment that follows Gymnasium draws its transitions from ``np_random``, which is replaced; one
    that keeps them elsewhere can offer a method ``reseed_noise(seed)``.

    :param env: environment whose episode has just begun
    :param seed: non-negative seed
    """
    try:
        reseed = env.get_wrapper_attr("reseed_noise")
    except AttributeError:
        env.unwrapped.np_random = np.random.default_rng(seed)
    else:
        reseed(seed)


class TaskVecEnv(VecEnv):
    """
    All lanes of a task as one SB3 vector environment, stepped together.

    Episode statistics are reported as ``Monitor`` does (``info["episode"]``), so no wrapper is needed.

    :param task: the task; its lanes are the environments
    :param seed: lane ``i`` starts from ``seed + i``; None: from fresh entropy
    """

    def __init__(self, task: Task, seed: int | None = None) -> None:
        self.task = task
        self.max_turns = task.max_turns
        super().__init__(task.n_lanes, task.observation_space, task.action_space)
        n = task.n_lanes
        self._returns = np.zeros(n, dtype=np.float64)
        self._parked = np.zeros(n, dtype=bool)
        self._queue: NDArray[np.int64] | None = None
        self._noise_queue: NDArray[np.int64] | None = None
        self._queue_position = np.zeros(n, dtype=np.int64)
        self._park = False
        self._started = time.time()
        # Before the first seeded reset the chain of seeds starts from entropy (see _next_seeds).
        self._chain = hash_bits(np.random.default_rng().integers(MAX_SEED, size=n))
        self._needs_reset = True
        if seed is not None:
            self.seed(seed)

    def queue_episodes(
        self, seeds: NDArray[np.int64] | None, noise_seeds: NDArray[np.int64] | None = None, park: bool = True
    ) -> None:
        """
        Queue the seeds of the next episodes of every lane, or leave the queue mode.

        :param seeds: shape (lanes, episodes), negative entries at the end of a row are no episodes; None:
            resets behave as usual again
        :param noise_seeds: seeds of the transitions alone, same shape; None: they follow ``seeds``
        :param park: a lane with nothing queued does nothing until the next :meth:`reset`; if False, it goes
            on with unseeded episodes
        """
        self._needs_reset |= bool(self._parked.any())
        self._parked[:] = False
        self._queue_position[:] = 0
        self._queue, self._noise_queue, self._park = seeds, noise_seeds, park

    def reset(self) -> NDArray[np.float32]:
        """
        Start an episode in every lane: one with the seed set by ``seed()``, else a queued one, else a random one.

        :raises ValueError: for reset options, as there are none, and for seeds outside [0, 2**63)
        """
        if any(self._options):
            self._reset_options()
            raise ValueError(f"{type(self.task).__name__} has no reset options")
        seeds = self._seeds
        self._reset_seeds()
        wrong = [s for s in seeds if s is not None and not 0 <= s <= MAX_SEED]
        if wrong:
            raise ValueError(f"seeds must be in [0, 2**63), got {wrong[0]}")
        self._parked[:] = False
        self._needs_reset = False
        self._restart(np.arange(self.num_envs), np.array([-1 if s is None else s for s in seeds], dtype=np.int64))
        return self.task.observe()

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """
        Check the actions and keep them for :meth:`step_wait`; see :meth:`Task.check_actions`.

        :raises gymnasium.error.ResetNeeded: before the first reset, and after parked lanes left the queue mode
        """
        if self._needs_reset:
            raise gym.error.ResetNeeded("not every lane is in an episode: call reset() before step()")
        if len(actions) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} actions, one a lane, got {len(actions)}")
        self._actions = self.task.check_actions(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Step every lane that is not parked; a parked lane gives reward 0 and is never done."""
        lanes: Lanes = np.flatnonzero(~self._parked) if self._parked.any() else ALL_LANES
        result = self.task.step(self._actions[lanes], lanes)
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        dones = np.zeros(self.num_envs, dtype=bool)
        successes = np.zeros(self.num_envs, dtype=bool)
        rewards[lanes], dones[lanes], successes[lanes] = result
        self._returns += rewards
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        finished = np.flatnonzero(dones)
        if finished.size:
            self._report(finished, successes, infos)
            self._restart(finished, np.full(finished.size, -1))
        return self.task.observe(), rewards, dones, infos

    def _report(self, finished: NDArray[np.int64], successes: NDArray[np.bool_], infos: list[dict[str, Any]]) -> None:
        elapsed = round(time.time() - self._started, 6)
        columns = zip(
            finished.tolist(),
            self.task.observe(finished),
            self._returns[finished].tolist(),
            self.task.turns[finished].tolist(),
            successes[finished].tolist(),
            strict=True,
        )
        for lane, observation, episode_return, length, success in columns:
            infos[lane] = {
                "terminal_observation": observation,
                "TimeLimit.truncated": False,
                "is_success": success,
                "episode": {"r": episode_return, "l": length, "t": elapsed},
            }

    def _restart(self, lanes: NDArray[np.int64], seeds: NDArray[np.int64]) -> None:
        """Start the next episode of these lanes. A negative seed means the next one of the queue, or none."""
        noise_seeds = np.full(len(lanes), -1)
        if self._queue is not None:
            position = self._queue_position[lanes]
            self._queue_position[lanes] += 1
            queued = position < self._queue.shape[1]
            queued[queued] = self._queue[lanes[queued], position[queued]] >= 0
            queued &= seeds < 0
            seeds[queued] = self._queue[lanes[queued], position[queued]]
            if self._noise_queue is not None:
                noise_seeds[queued] = self._noise_queue[lanes[queued], position[queued]]
            if self._park:
                idle = lanes[seeds < 0]
                self._parked[idle] = True
                keep = seeds >= 0
                lanes, seeds, noise_seeds = lanes[keep], seeds[keep], noise_seeds[keep]
        unseeded = seeds < 0
        self._chain[lanes[~unseeded]] = seeds[~unseeded]
        seeds[unseeded] = self._next_seeds(lanes[unseeded])
        self._returns[lanes] = 0.0
        self.task.reset(seeds, np.where(noise_seeds < 0, seeds, noise_seeds), lanes)

    def _next_seeds(self, lanes: NDArray[np.int64]) -> NDArray[np.int64]:
        """
        Draw the next seeds of lanes without a given one, in the range for training, from each lane's last seed.

        The chain keeps all 64 bits: over the 31 of a seed, lanes would soon meet and then play the same episodes.
        """
        self._chain[lanes] = hash_bits(self._chain[lanes], _NEXT_SEED_STREAM)
        return (self._chain[lanes] % np.uint64(HELD_OUT_SEED)).astype(np.int64)

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the masks of all lanes at once, shape (lanes, sum of choices)."""
        return self.task.action_masks()

    def close(self) -> None:
        """Do nothing, as there is nothing to release."""

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of the task's Gymnasium environment, which all lanes share."""
        if attr_name == "render_mode":
            value: Any = None
        elif attr_name == "action_masks" and not self.task.has_action_masks:
            raise AttributeError(f"{type(self.task).__name__} has no invalid actions")
        else:
            value = getattr(self.task, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Refuse to set an attribute, as all lanes share one task."""
        raise AttributeError(f"cannot set {attr_name!r}: the lanes of {type(self).__name__} share one task")

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call the one method that makes sense for a single lane: ``action_masks``."""
        if method_name != "action_masks":
            raise AttributeError(f"{type(self).__name__} has no method {method_name!r} for a single lane")
        masks = self.action_masks()
        return [masks[i] for i in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Return True for ``Monitor`` alone, as episode statistics are reported in its form."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Return no images; ``gymnasium.make(..., render_mode="ansi")`` shows an episode as text."""
        return [None for _ in range(self.num_envs)]


def make_vec(
    env_id: str,
    n_envs: int = 1,
    seed: int | None = None,
    vec_env_cls: type[VecEnv] | None = None,
    step_timeout: float | None = None,
    **kwargs: Any,
) -> VecEnv:
    """
    Make the fastest vector environment there is for a registered id.

    :param env_id: a registered Gymnasium id
    :param n_envs: number of environments, from 1 to 100,000, or 1,000 in processes of their own
    :param seed: environment ``i`` starts from ``seed + i`` at its next reset; None: random
    :param vec_env_cls: SB3 class to use (``DummyVecEnv``, ``SubprocVecEnv``); None: a batched
        :class:`TaskVecEnv` for this package's tasks, ``DummyVecEnv`` for all others and for tasks in a wrapper, such
        as the one that ``max_episode_steps`` adds
    :param step_timeout: the most seconds that an environment in a process of its own may take for a reset or a step,
        beyond which it is an error; None: any
    :param kwargs: arguments of the environment
    :return: an SB3 vector environment that reports episode statistics and takes queues of seeds
    :raises ValueError: for an argument of another type or value
    :raises WorkerError: if an environment cannot be made in its process; later, if one dies or takes too long
    """
    n_envs, seed = _check_arguments(env_id, n_envs, seed, vec_env_cls, kwargs.get("render_mode"))
    in_processes = _has_processes(vec_env_cls)
    if step_timeout is not None:
        check_number("step_timeout", step_timeout, above=0)
        if not in_processes:
            raise ValueError("step_timeout is for environments in processes: pass vec_env_cls=SubprocVecEnv too")
    if vec_env_cls is None:
        first = gym.make(env_id, **kwargs)
        task_env = bare_task_env(first)
        if task_env is not None:
            size = int(np.prod(task_env.observation_space.shape or ()))
            check_count("n_envs", n_envs, most=max(1, _MAX_OBSERVED // size))
            return TaskVecEnv(task_env.make_task(n_envs), seed)
        first.close()
        vec_env_cls = DummyVecEnv

    def make(index: int) -> gym.Env[Any, Any]:
        return SeedQueue(Monitor(CheckedEnv(gym.make(env_id, **kwargs), index)))

    factories: list[Any] = [partial(make, index) for index in range(n_envs)]
    make_all: Any = partial(make_watched, vec_env_cls, timeout=step_timeout) if in_processes else vec_env_cls
    vec_env: VecEnv = make_all(factories)
    if seed is not None:
        vec_env.seed(seed)
    return vec_env


def _check_arguments(env_id: Any, n_envs: Any, seed: Any, vec_env_cls: Any, render_mode: Any) -> tuple[int, int | None]:
    """Check what :func:`make_vec` was given; return the number of environments and the seed as Python's integers."""
    if not isinstance(env_id, (str, EnvSpec)):
        raise ValueError(f"env_id must be the id of a registered environment (see gymnasium.register), got {env_id!r}")
    cls = vec_env_cls.func if isinstance(vec_env_cls, partial) else vec_env_cls
    if cls is not None and not (isinstance(cls, type) and issubclass(cls, VecEnv)):
        raise ValueError(
            f"vec_env_cls must be one of SB3's classes of vector environments, as SubprocVecEnv, got {vec_env_cls!r}"
        )
    if not (render_mode is None or isinstance(render_mode, str)):
        raise ValueError(f"render_mode must be None or the name of one of the environment's, got {render_mode!r}")
    n_envs = check_count("n_envs", n_envs, most=MAX_PROCESSES if _has_processes(vec_env_cls) else MAX_ENVS)
    if seed is not None:
        seed = check_count("seed", seed, least=0, most=MAX_SEED + 1 - n_envs)
    return n_envs, seed


def _has_processes(vec_env_cls: Any) -> bool:
    cls = vec_env_cls.func if isinstance(vec_env_cls, partial) else vec_env_cls
    return isinstance(cls, type) and issubclass(cls, SubprocVecEnv)
