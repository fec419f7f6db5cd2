"""A multi-turn task: its dynamics, written once for many lanes at a time, and its Gymnasium environment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker
from numpy.typing import NDArray

from seeupo_gym.envs.arguments import check_choice, check_count
from seeupo_gym.envs.messages import find_action

# The lanes that a call is about: an index array, or ``slice(None)`` for all of them, which makes no copy.
Lanes = NDArray[np.int64] | slice

ALL_LANES = slice(None)

LevelT = TypeVar("LevelT")

# The value of every component of an action that was not taken: the turn passes, and nothing else happens.
NO_ACTION = -1

# Training draws its seeds below this bound; seeds from here on are held out for evaluation (see Task.reset).
HELD_OUT_SEED = 2**31
MAX_SEED = 2**63 - 1


class StepResult(NamedTuple):
    """Results of one step of some lanes, one entry a lane."""

    rewards: NDArray[np.float32]
    dones: NDArray[np.bool_]
    successes: NDArray[np.bool_]


def one_hot(indices: NDArray[np.int64], n: int) -> NDArray[np.float32]:
    """
    Encode indices as unit vectors; an index outside [0, n) becomes the zero vector ("none").

    :param indices: shape (lanes,)
    :param n: length of each vector
    :return: shape (lanes, n)
    """
    vectors: NDArray[np.bool_] = indices[:, None] == np.arange(n)
    return vectors.astype(np.float32)


def choose_level(level: str, levels: Mapping[str, LevelT]) -> LevelT:
    """
    Look up a level of difficulty.

    :param level: its name
    :param levels: name -> settings
    :return: the settings of the level
    :raises ValueError: for an unknown name; lists the names there are
    """
    check_choice("level", level, levels)
    return levels[level]


class Task(ABC):
    """
    Dynamics of one multi-turn task, batched: the state of lane ``i`` is row ``i`` of every state array.

    A subclass

    - sets ``observation_space``, ``action_space`` and ``max_turns`` before it calls this constructor;
    - names its ``levels`` if it has an argument ``level``; the first one is the default;
    - draws all its random numbers from :mod:`seeupo_gym.envs.counter_rng`: with ``task_seeds`` for the start of an
      episode, with ``noise_seeds`` for its transitions;
    - never loops over lanes.

    :param n_lanes: number of lanes, at least 1
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Discrete | spaces.MultiDiscrete
    max_turns: int
    has_action_masks: ClassVar[bool] = False
    levels: ClassVar[tuple[str, ...]] = ()

    def __init__(self, n_lanes: int = 1) -> None:
        self.n_lanes = n_lanes = check_count("n_lanes", n_lanes)
        self.turns = np.zeros(n_lanes, dtype=np.int64)
        self.task_seeds = np.zeros(n_lanes, dtype=np.uint64)
        self.noise_seeds = np.zeros(n_lanes, dtype=np.uint64)
        # Set by tasks with masks: True if the last action was one that the mask rules out, and so was refused.
        self.refused = np.zeros(n_lanes, dtype=bool)
        n_choices = self.action_space.n if isinstance(self.action_space, spaces.Discrete) else self.action_space.nvec
        self._n_choices = np.asarray(n_choices)

    def reset(
        self, seeds: NDArray[np.int64], noise_seeds: NDArray[np.int64] | None = None, lanes: Lanes = ALL_LANES
    ) -> None:
        """
        Start an episode in each of the given lanes. A seed fixes the whole task.

        :param seeds: one seed a lane, in [0, 2**63). Episodes without a given seed draw one from
            [0, ``HELD_OUT_SEED``), so that training never meets a held-out seed by chance.
        :param noise_seeds: seeds of the transitions alone; None: ``seeds``
        :param lanes: the lanes to reset
        """
        self.turns[lanes] = 0
        self.task_seeds[lanes] = seeds
        self.noise_seeds[lanes] = seeds if noise_seeds is None else noise_seeds
        self._start(lanes)

    def step(self, actions: NDArray[np.int64], lanes: Lanes = ALL_LANES) -> StepResult:
        """
        Take one turn in each of the given lanes, all of which must be in the middle of an episode.

        :param actions: one checked action a lane (see :meth:`check_actions`)
        :param lanes: the lanes to step
        :return: rewards, ends of episodes and successes, in the order of ``lanes``
        """
        self.turns[lanes] += 1
        return self._advance(actions, lanes)

    def check_actions(self, actions: Any) -> NDArray[np.int64]:
        """
        Check that a batch of actions is in the action space.

        :param actions: shape (lanes,) for Discrete, (lanes, components) for MultiDiscrete
        :return: the actions as ``int64``
        :raises ValueError: if the type, the shape or a value is wrong; names the lane
        """
        array = np.asarray(actions)
        if array.dtype.kind not in "iu":
            raise ValueError(f"actions must be integers for {self.action_space}, got {array.dtype} ({actions!r})")
        if array.shape[1:] != self._n_choices.shape:
            raise ValueError(f"an action must have shape {self._n_choices.shape}, got {array.shape[1:]}")
        wrong = (array < 0) | (array >= self._n_choices)
        if wrong.any():
            lane = int(np.argwhere(wrong)[0][0])
            raise ValueError(f"action {array[lane]} of lane {lane} is outside {self.action_space}")
        return array.astype(np.int64, copy=False)

    @abstractmethod
    def _start(self, lanes: Lanes) -> None:
        """Draw the initial state of the given lanes, whose turns and seeds are set already."""

    @abstractmethod
    def _advance(self, actions: NDArray[np.int64], lanes: Lanes) -> StepResult:
        """Apply actions, some of which may be ``NO_ACTION``; ``turns`` already counts this turn."""

    @abstractmethod
    def observe(self, lanes: Lanes = ALL_LANES) -> NDArray[np.float32]:
        """
        Return the observations, which are valid after the end of an episode too.

        :param lanes: the lanes to observe
        :return: shape (lanes, *observation shape), a fresh array
        """

    def action_masks(self, lanes: Lanes = ALL_LANES) -> NDArray[np.bool_]:
        """
        Return the choices that the environment accepts now, in sb3-contrib's layout.

        :param lanes: the lanes to return them for
        :return: shape (lanes, sum of choices)
        :raises AttributeError: if the task has no invalid actions
        """
        raise AttributeError(f"{type(self).__name__} has no invalid actions")

    @abstractmethod
    def expert_actions(self, lanes: Lanes = ALL_LANES) -> NDArray[np.int64]:
        """
        Choose the reference expert's actions. The task's docstring says what the expert sees beside the observation.

        :param lanes: the lanes to act in
        :return: shape (lanes,) for Discrete, (lanes, components) for MultiDiscrete
        """

    def optimal_value(self) -> float | None:
        """Return the exact expected return of an optimal policy over all seeds, or None where it is not known."""
        return None

    @abstractmethod
    def opening_text(self, lane: int) -> str:
        """
        Write the text that a person would read at the start of an episode.

        :param lane: the lane of the episode
        :return: printable ASCII
        """

    @abstractmethod
    def action_text(self, lane: int, action: NDArray[np.int64]) -> str:
        """
        Write the message that takes an action, in the state that the lane is in.

        :param lane: the lane
        :param action: shape () or (components,)
        :return: printable ASCII
        """

    @abstractmethod
    def reply_text(self, lane: int, action: NDArray[np.int64], result: StepResult) -> str:
        """
        Write all that the agent reads after the turn that it has just taken, also after ``NO_ACTION``.

        :param lane: the lane
        :param action: the action of the turn, shape () or (components,)
        :param result: the result of the step, of this lane alone
        :return: printable ASCII
        """

    def short_texts(self, lane: int) -> dict[str, int | NDArray[np.int64]]:
        """
        List more texts for actions, which count only if a message says nothing else.

        A text of :meth:`action_text` that is listed here, too, also counts only if it stands alone.

        :param lane: the lane whose episode it is
        :return: text -> action
        """
        return {}

    def parse_action(self, lane: int, message: str) -> NDArray[np.int64]:
        """
        Find the action that a message means; :meth:`action_text` gives messages that mean their actions.

        :param lane: the lane whose episode the message belongs to
        :param message: what the agent wrote
        :return: the action, shape () or (components,)
        :raises MessageError: if it means no action; the text is the reply to it
        """
        actions = self.all_actions()
        texts: dict[str, NDArray[np.int64]] = {}
        for action in actions:
            # Actions that differ only in a part that plays no role have the same text: the first stands for them.
            texts.setdefault(self.action_text(lane, action), np.asarray(action))
        return find_action(message, texts, self.short_texts(lane), lambda: self._valid_texts(lane, actions))

    def all_actions(self) -> NDArray[np.int64]:
        """
        List all elements of the action space.

        :return: shape (actions,) for Discrete, (actions, components) for MultiDiscrete
        """
        if isinstance(self.action_space, spaces.Discrete):
            return np.arange(int(self.action_space.n))
        sizes = self.action_space.nvec.astype(np.int64)
        return np.stack(np.unravel_index(np.arange(int(np.prod(sizes))), tuple(sizes)), axis=1)

    def _valid_texts(self, lane: int, actions: NDArray[np.int64]) -> list[str]:
        """Return the texts of the actions that are accepted now."""
        if self.has_action_masks:
            mask = self.action_masks(np.array([lane]))[0]
            if isinstance(self.action_space, spaces.Discrete):
                actions = actions[mask]
            else:
                offsets = np.concatenate([[0], np.cumsum(self.action_space.nvec)[:-1]])
                actions = actions[mask[actions + offsets].all(axis=1)]
        return list(dict.fromkeys(self.action_text(lane, action) for action in actions))


class TaskEnv(gym.Env[Any, Any]):
    """
    One lane of a :class:`Task` as a Gymnasium environment.

    The seed given to ``reset`` is the task's seed; later resets without a seed draw theirs from ``np_random``.

    :param make_task: function that makes the task with a given number of lanes
    :param render_mode: ``"ansi"`` makes :meth:`render` return the transcript of the episode so far
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (Gymnasium declares it mutable)

    def __init__(self, make_task: Callable[[int], Task], render_mode: str | None = None) -> None:
        if not (render_mode is None or (isinstance(render_mode, str) and render_mode in self.metadata["render_modes"])):
            # It must be a TypeError: after one, SB3's make_vec_env tries again without the mode "rgb_array".
            raise TypeError(f"render_mode must be None or one of {self.metadata['render_modes']}, got {render_mode!r}")
        self.make_task = make_task
        self.task = make_task(1)
        self.observation_space = self.task.observation_space
        self.action_space = self.task.action_space
        self.max_turns = self.task.max_turns
        self.render_mode = render_mode
        self._transcript: list[str] = []
        self._running = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """
        Start an episode.

        :param seed: fixes the task and its transitions
        :param options: must be empty
        :raises ValueError: for a seed over 2**63 - 1, and for any option, as there are none
        """
        super().reset(seed=seed)
        if options:
            raise ValueError(f"{type(self).__name__} has no reset options, got {sorted(options)}")
        if seed is None:
            seed = int(self.np_random.integers(HELD_OUT_SEED))
        if seed > MAX_SEED:
            raise ValueError(f"seed must be at most 2**63 - 1, got {seed}")
        self.task.reset(np.array([seed]))
        self._running = True
        if self.render_mode == "ansi":
            self._transcript = [self.task.opening_text(0)]
        return self.task.observe()[0], {}

    def reseed_noise(self, seed: int) -> None:
        """
        Draw the rest of this episode's transitions from another seed.

        :param seed: in [0, 2**63)
        """
        self.task.noise_seeds[0] = seed

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """
        Take one turn.

        :param action: an element of ``action_space``
        :raises ValueError: if the action is not in the action space
        :raises gymnasium.error.ResetNeeded: before the first reset and after the end of an episode
        """
        if not self._running:
            raise gym.error.ResetNeeded("the episode is over (or never began): call reset() before step()")
        checked = self.task.check_actions(np.asarray(action)[None])[0]
        return self.take(checked, self.task.action_text(0, checked) if self.render_mode == "ansi" else "")

    def take(
        self, action: NDArray[np.int64], message: str, complaint: str = ""
    ) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """
        Take one turn with an action that was checked before, or with ``NO_ACTION``.

        :param action: shape () or (components,)
        :param message: what the agent wrote, for the transcript
        :param complaint: text about a message that means no action; it comes before the task's reply
        :raises gymnasium.error.ResetNeeded: before the first reset and after the end of an episode
        """
        if not self._running:
            raise gym.error.ResetNeeded("the episode is over (or never began): call reset() before step()")
        result = self.task.step(action[None])
        self._last, self._complaint = (action, result), f"{complaint}\n" if complaint else ""
        done = bool(result.dones[0])
        self._running = not done
        if self.render_mode == "ansi":
            self._transcript.append(f"Agent: {message}\n{self.last_reply}")
        info = {"is_success": bool(result.successes[0])} if done else {}
        return self.task.observe()[0], float(result.rewards[0]), done, False, info

    @property
    def last_reply(self) -> str:
        """The text that the agent reads after the last turn."""
        return self._complaint + self.task.reply_text(0, *self._last)

    def render(self) -> str | None:
        """Return the transcript so far (``render_mode="ansi"``), else None."""
        return "\n".join(self._transcript) if self.render_mode == "ansi" else None


class MaskedTaskEnv(TaskEnv):
    """A :class:`TaskEnv` with invalid actions. Its method ``action_masks`` is where sb3-contrib looks for them."""

    def action_masks(self) -> NDArray[np.bool_]:
        """Return a mask of the choices that are valid now, shape (sum of choices,)."""
        mask: NDArray[np.bool_] = self.task.action_masks()[0]
        return mask


def bare_task_env(env: gym.Env[Any, Any]) -> TaskEnv | None:
    """
    Unwrap an environment that is one of this package's tasks and nothing else.

    :param env: any environment
    :return: the task's environment, without the checks that ``gymnasium.make`` wraps it in; None if it is something
        else, or if another wrapper is around it, such as the ``TimeLimit`` of ``max_episode_steps``
    """
    while isinstance(env, (PassiveEnvChecker, OrderEnforcing)):
        env = env.env
    return env if isinstance(env, TaskEnv) else None
