"""The policies of an agent, one for each turn, behind the interface of SB3's policies."""

from __future__ import annotations

import zipfile
from abc import abstractmethod
from typing import Any, ClassVar, Protocol, cast

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, PyTorchObs
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from seeupo_gym.agents.method.batches import select_rows
from seeupo_gym.agents.method.policy import TrainablePolicies
from seeupo_gym.agents.policies.turns import observed_turns
from seeupo_gym.envs.arguments import check_count, check_env_kwargs
from seeupo_gym.envs.checked_env import check_is_env
from seeupo_gym.envs.masks import check_masks
from seeupo_gym.envs.task import bare_task_env
from seeupo_gym.envs.vector import make_vec


class WeightsFile(Protocol):
    """Weights in the archive of a saved model, in a format of their own."""

    def write(self, archive: zipfile.ZipFile) -> None:
        """
        Add the weights to an archive.

        :param archive: open for writing
        """

    def read(self, archive: zipfile.ZipFile) -> None:
        """
        Take the weights from an archive.

        :param archive: open for reading
        :raises ValueError: if they are those of another model
        """


class TurnPolicy(BasePolicy, TrainablePolicies):
    """
    The part of turn policies that does not depend on what computes them.

    Turn ``t`` (counted from 0) is played by policy ``min(t, n_policies - 1)``: a turn beyond the last policy uses the
    last one. With ``n_policies=1`` all turns share one policy. Subclasses make ``self.optimizer``, with one parameter
    group per policy.

    :param observation_space: observation space
    :param action_space: action space
    :param n_policies: number of policies
    :param arguments: arguments of SB3's ``BasePolicy``
    :raises ValueError: if ``n_policies`` is less than 1
    """

    default_settings: ClassVar[dict[str, str]] = {"turn_policies": "separate", "ratio_level": "joint"}
    """Values of the settings that :class:`~seeupo_gym.agents.SeeUPO` is given as None."""

    first_derivatives_only: ClassVar[bool] = False
    """True refuses the rule "trust_region", which takes second derivatives of log-probabilities."""

    weights: WeightsFile | None = None
    """Writes and reads the weights, where they are not saved as SB3 saves those of its policies."""

    needs_masks: bool = False
    """True for a policy that was trained with invalid-action masks, without which it would do what it never did."""

    optimizer: th.optim.Optimizer

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], n_policies: int, **arguments: Any
    ) -> None:
        super().__init__(observation_space, action_space, **arguments)
        self.n_policies = check_count("n_policies", n_policies)
        # For predict(deterministic=False) only; that of an algorithm's policy is one of its random streams.
        self.generator = th.Generator()
        self.generator.seed()

    @classmethod
    def make_vec(
        cls, env: str, n_envs: int, policy_kwargs: dict[str, Any], env_kwargs: dict[str, Any] | None = None
    ) -> VecEnv:
        """
        Make a vector environment that this policy can act in; see :func:`seeupo_gym.make_vec`.

        :param env: a registered id
        :param n_envs: number of environments
        :param policy_kwargs: the policy's arguments
        :param env_kwargs: arguments of the environment
        """
        return make_vec(env, n_envs, **(env_kwargs or {}))

    @classmethod
    def make_env(
        cls, env: Any, n_episodes: int, policy_kwargs: dict[str, Any], env_kwargs: dict[str, Any] | None = None
    ) -> GymEnv:
        """
        Make the environment that :class:`~seeupo_gym.agents.SeeUPO` trains in of what it was given.

        :param env: an environment, which is returned as it is, or a registered id
        :param n_episodes: how many episodes an iteration has
        :param policy_kwargs: the policy's arguments
        :param env_kwargs: arguments of the environment, for an id
        :return: the environment; for an id of this package's tasks a native one with a lane for each episode
        :raises ValueError: for what is no environment, and for arguments of one that is made already
        """
        env_kwargs = check_env_kwargs(env_kwargs, env, makes_env=isinstance(env, str))
        if not isinstance(env, str):
            check_is_env(env)
            return cast(GymEnv, env)
        made: gym.Env[Any, Any] = gym.make(env, **env_kwargs)
        return made if bare_task_env(made) is None else cls.make_vec(env, n_episodes, policy_kwargs, env_kwargs)

    def policy_index(self, turn: int) -> int:
        """
        Return the number of the policy that plays a turn.

        :param turn: counted from 0
        :return: the policy's number, the last one for turns beyond it
        """
        return min(turn, self.n_policies - 1)

    def turn_parameters(self, turn: int) -> list[nn.Parameter]:
        params: list[nn.Parameter] = self.optimizer.param_groups[self.policy_index(turn)]["params"]
        return params

    def step_optimizer(self, *turns: int) -> None:
        groups = self.optimizer.param_groups
        self.optimizer.param_groups = [groups[index] for index in sorted({self.policy_index(t) for t in turns})]
        try:
            self.optimizer.step()
        finally:
            self.optimizer.param_groups = groups

    @abstractmethod
    def _act(
        self,
        obs: PyTorchObs,
        turns: NDArray[np.int64],
        envs: NDArray[np.int64],
        generator: th.Generator | None,
        action_masks: th.Tensor | None,
    ) -> tuple[th.Tensor, th.Tensor]:
        """Choose actions for rows of one policy, which may be at several turns; ``envs`` are for messages."""

    def explore(
        self, n_rows: int, generator: th.Generator, action_masks: th.Tensor | None = None
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        Choose actions uniformly over the valid ones, whatever the observations are.

        :param n_rows: number of actions
        :param generator: source of the samples
        :param action_masks: valid choices, shape (batch, sum of choices); None: all
        :return: actions, shape (batch, *action shape), and NaN for their log-probabilities: no policy chose them
        :raises NotImplementedError: if uniform actions make no sense
        """
        raise NotImplementedError(
            f'schedule="staged" needs uniform exploration, which {type(self).__name__} has not: use schedule="sweep"'
        )

    def token_mask(self, actions: th.Tensor) -> th.Tensor | None:
        """
        Tell which tokens actions have.

        :param actions: shape (batch, *action shape)
        :return: shape (batch, tokens); None: all actions have the same number
        """
        return None

    def callbacks(self) -> list[BaseCallback]:
        """Return callbacks that training is to have beside those of the user."""
        return []

    def forward(
        self,
        obs: PyTorchObs,
        turns: NDArray[np.int64],
        generator: th.Generator | None = None,
        action_masks: th.Tensor | None = None,
        envs: NDArray[np.int64] | None = None,
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        Choose actions for rows that may be at different turns.

        :param obs: batch of observations
        :param turns: the turn of each row, counted from 0, shape (batch,)
        :param generator: source of the samples; None: the most likely actions
        :param action_masks: valid choices, shape (batch, sum of choices); None: all
        :param envs: the environment that each row comes from, for messages; None: the row's own number
        :return: actions, shape (batch, *action shape), and their log-probabilities, shape (batch,), or (batch,
            components) with ``per_component``
        :raises NonFiniteError: if a network gives NaN or infinity, with the turn and the environment
        """
        envs = np.arange(len(turns)) if envs is None else envs
        indices = np.minimum(turns, self.n_policies - 1)
        present = np.unique(indices)
        if present.size == 1:
            return self._act(obs, turns, envs, generator, action_masks)
        parts, order = [], []
        for index in present:
            rows = np.flatnonzero(indices == index)
            row_tensor = th.as_tensor(rows, device=self.device)
            masks = None if action_masks is None else action_masks[row_tensor]
            parts.append(self._act(select_rows(obs, row_tensor), turns[rows], envs[rows], generator, masks))
            order.append(rows)
        inverse = th.as_tensor(np.argsort(np.concatenate(order)), device=self.device)
        actions, log_probs = (th.cat(column)[inverse] for column in zip(*parts, strict=True))
        return actions, log_probs

    @property
    def _action_shape(self) -> tuple[int, ...]:
        assert self.action_space.shape is not None
        return self.action_space.shape

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        turns = np.zeros(len(next(iter(observation.values())) if isinstance(observation, dict) else observation), int)
        actions, _ = self.forward(observation, turns, None if deterministic else self.generator)
        return actions

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
        action_masks: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[Any], tuple[NDArray[Any], ...] | None]:
        """
        Get actions for observations, each from the policy of its turn.

        The turn is, in this order: the entry "turn" of a Dict observation; the counter in ``state``, which
        this method returns and ``episode_start`` resets, as with recurrent policies; else 0 for rows that begin an
        episode. Without any of these it is an error, unless one policy plays all turns.

        :param observation: one observation or a batch
        :param state: turn counters returned by the call before, one array of shape (batch,)
        :param episode_start: which rows begin an episode, shape (batch,)
        :param deterministic: whether to take the most likely actions
        :param action_masks: valid choices, shape (batch, sum of choices) or (sum of choices,); needed by a policy
            that was trained with masks
        :return: the actions, and the state for the next call
        :raises ValueError: if the turn is not known, or masks are missing or none
        """
        self.set_training_mode(False)
        given: Any = observation
        if isinstance(given, tuple):
            raise ValueError(
                "predict() got a tuple: pass the observation alone (you are probably mixing Gym API, where reset() "
                "returns (obs, info), with SB3's VecEnv)"
            )
        obs, vectorized = self.obs_to_tensor(observation)
        n_rows = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        turns = observed_turns(observation, self.observation_space)
        if turns is None:
            turns = self._counted_turns(state, episode_start, n_rows)
        masks = self._checked_masks(action_masks, n_rows)
        with th.no_grad():
            actions_tensor, _ = self.forward(obs, turns, None if deterministic else self.generator, masks)
        actions: NDArray[Any] = actions_tensor.cpu().numpy()
        if isinstance(self.action_space, spaces.Box):
            actions = np.clip(actions, self.action_space.low, self.action_space.high)
        if not vectorized:
            actions = actions.squeeze(axis=0)
        return actions, (turns + 1,)

    def _counted_turns(
        self, state: tuple[NDArray[Any], ...] | None, episode_start: NDArray[np.bool_] | None, n_rows: int
    ) -> NDArray[np.int64]:
        if state is not None:
            turns = np.asarray(state[0], dtype=np.int64).reshape(n_rows)
            return turns if episode_start is None else np.where(episode_start, 0, turns)
        if self.n_policies > 1 and (episode_start is None or not np.all(episode_start)):
            raise ValueError(
                "predict() does not know the turn, and each turn has a policy of its own: pass the state that it "
                "returned the last time, or episode_start=np.ones(n_envs, dtype=bool) at the first step of an episode. "
                "sb3-contrib's evaluate_policy and MaskableEvalCallback do not do so: use "
                "seeupo_gym.baselines.evaluate and seeupo_gym.baselines.EvalCallback"
            )
        return np.zeros(n_rows, dtype=np.int64)

    def _checked_masks(self, action_masks: Any, n_rows: int) -> th.Tensor | None:
        if action_masks is None:
            if self.needs_masks:
                raise ValueError(
                    "predict() got no masks, and the policy was trained with them: pass action_masks=..., all True to "
                    "allow every action. SB3's evaluate_policy and EvalCallback do not do so: use "
                    "seeupo_gym.baselines.evaluate and seeupo_gym.baselines.EvalCallback"
                )
            return None
        rows = [action_masks] if n_rows == 1 else action_masks
        if len(rows) != n_rows:
            raise ValueError(f"action_masks must have a row for each of the {n_rows} observations, got {len(rows)}")
        masks = check_masks(rows, self.action_space, lambda row: f"action_masks of observation {row}")
        return th.as_tensor(masks, device=self.device)
