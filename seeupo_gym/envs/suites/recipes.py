"""Recipes: environments of others, with the wrappers that a policy without a language model needs."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from seeupo_gym.envs.packages import require
from seeupo_gym.envs.suites.gem import GEMEnv
from seeupo_gym.envs.suites.text_world_express import TextWorldExpressEnv
from seeupo_gym.envs.views.candidate_view import CandidateView


class MiniGridView(gym.Wrapper[Any, Any, Any, Any]):
    """
    Wrapper that adds what MiniGrid's environments lack: vector observations, ``max_turns`` and ``info["is_success"]``.

    It also keeps resets silent: BabyAI prints to stdout whenever it rejects a level that it has drawn.

    :param env: an environment of MiniGrid whose observation is one array; it pays for success only
    :raises ValueError: if it has no fixed turn limit
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.max_turns: int = env.get_wrapper_attr("max_steps")
        if self.max_turns < 1:
            raise ValueError(
                f"{env} draws its turn limit with each mission: set max_steps, for example 64 for one room"
            )
        self.observation_space = spaces.flatten_space(env.observation_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode of the environment."""
        with contextlib.redirect_stdout(io.StringIO()):
            obs, info = self.env.reset(seed=seed, options=options)
        return obs.ravel(), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            info = {**info, "is_success": bool(float(reward) > 0)}
        return obs.ravel(), reward, terminated, truncated, info


def minigrid(name: str = "MiniGrid-Empty-5x5-v0", mission: bool = False, **kwargs: Any) -> gym.Env[Any, Any]:
    """
    Make an environment of MiniGrid or BabyAI whose observation is a flat vector.

    :param name: its id, for example ``"MiniGrid-DoorKey-5x5-v0"``
    :param mission: whether to add the mission's text, one-hot (``FlatObsWrapper``: 2,835 numbers). The view alone (147
        numbers) is enough where the mission is always the same
    :param kwargs: the environment's own arguments; ``max_steps`` is the turn limit, which BabyAI's need
    :return: the environment
    :raises ImportError: if the package is missing
    :raises ValueError: if the environment has no fixed turn limit
    """
    wrappers = require("minigrid.wrappers", "MiniGrid and BabyAI need a package: pip install minigrid==3.2.0")
    env = gym.make(name, **kwargs)
    env = wrappers.FlatObsWrapper(env) if mission else wrappers.ImgObsWrapper(env)
    return MiniGridView(env)


class FixedCommands(gym.Wrapper[str, str, str, str]):
    """
    Wrapper that gives a text environment the same admissible commands at every turn.

    ``info["played"]`` is the episode so far: each command, and the text that was read after it.

    :param env: the text environment
    :param commands: the commands
    """

    def __init__(self, env: gym.Env[str, str], commands: Sequence[str]) -> None:
        super().__init__(env)
        self._commands = list(commands)
        self._played: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode of the environment."""
        text, info = self.env.reset(seed=seed, options=options)
        self._played = []
        return text, self._extend(info)

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Send a command."""
        text, reward, terminated, truncated, info = self.env.step(action)
        self._played.append(f"{action} {text}")
        return text, reward, terminated, truncated, self._extend(info)

    def _extend(self, info: dict[str, Any]) -> dict[str, Any]:
        return {**info, "admissible_commands": list(self._commands), "played": "\n".join(self._played)}


def gem_guess_the_number(turns: int | None = None, n_features: int = 128, **kwargs: Any) -> gym.Env[Any, Any]:
    """
    Make GEM's GuessTheNumber (``easy``) as a choice among the ten numbers. All guesses and replies are observed.

    :param turns: turn limit; None: GEM's, 4
    :param n_features: features of each text
    :param kwargs: other arguments of :class:`~seeupo_gym.envs.suites.gem.GEMEnv`
    :return: the environment
    :raises ImportError: if gem-llm or scikit-learn is missing
    """
    env = FixedCommands(GEMEnv("GuessTheNumber", turns=turns, **kwargs), [rf"\boxed{{{i}}}" for i in range(1, 11)])
    return CandidateView(env, n_candidates=10, n_features=n_features, state_keys=("played",))


def text_world_express_coin(n_games: int = 50, n_features: int = 128, **kwargs: Any) -> gym.Env[Any, Any]:
    """
    Make TextWorldExpress's coin game (4 locations, no distractors, no doors, 12 turns) as a choice among its commands.

    :param n_games: number of the fold's games that are played, also with held-out seeds
    :param n_features: features of each text
    :param kwargs: other arguments of :class:`~seeupo_gym.envs.suites.text_world_express.TextWorldExpressEnv`
    :return: the environment
    :raises ImportError: if textworld-express, Java or scikit-learn is missing
    """
    params = {"numLocations": 4, "numDistractorItems": 0, "includeDoors": 0}
    env = TextWorldExpressEnv("coin", params, turns=12, n_games=n_games, **kwargs)
    return CandidateView(env, n_candidates=16, n_features=n_features, state_keys=("look", "inventory"))
