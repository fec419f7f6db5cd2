"""Evaluation while a model learns, for users' own scripts; a benchmark has its own in ``jobs.py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback, EventCallback
from stable_baselines3.common.vec_env import VecEnv

from seeupo_gym.benchmark.evaluation import evaluate
from seeupo_gym.envs.arguments import check_count


class EvalCallback(EventCallback):
    """
    Evaluates the model now and then by :func:`~seeupo_gym.baselines.evaluate`, always on the same held-out seeds.

    Use it in place of SB3's ``EvalCallback`` and sb3-contrib's ``MaskableEvalCallback``, which do not give a model both
    the masks and the turns that it was trained with. The names of arguments and scalars are SB3's. ``eval_freq`` counts
    environment steps, not calls, so that the number of environments does not matter.

    :param eval_env: a registered id, an environment or a vector environment; not that of training
    :param callback_on_new_best: called when the mean return is higher than ever
    :param callback_after_eval: called after every evaluation
    :param n_eval_episodes: episodes of an evaluation
    :param eval_freq: environment steps between two evaluations
    :param best_model_save_path: folder for ``best_model.zip``; None: it is not saved
    :param deterministic: whether to take the most likely actions
    :param env_kwargs: arguments of the environment, for an id
    :raises ValueError: for numbers below 1; when training begins, if ``eval_env`` is the environment of training
    """

    def __init__(
        self,
        eval_env: str | gym.Env[Any, Any] | VecEnv,
        callback_on_new_best: BaseCallback | None = None,
        callback_after_eval: BaseCallback | None = None,
        n_eval_episodes: int = 100,
        eval_freq: int = 10_000,
        best_model_save_path: str | None = None,
        deterministic: bool = True,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(callback_after_eval)
        self.callback_on_new_best = callback_on_new_best
        if callback_on_new_best is not None:
            callback_on_new_best.parent = self
        self.eval_env = eval_env
        self.n_eval_episodes = check_count("n_eval_episodes", n_eval_episodes)
        self.eval_freq = check_count("eval_freq", eval_freq)
        self.best_model_save_path = best_model_save_path
        self.deterministic = deterministic
        self.env_kwargs = dict(env_kwargs or {})
        self.best_mean_reward = self.last_mean_reward = -np.inf
        self._n_passed = 0

    def _init_callback(self) -> None:
        bare = self.eval_env.unwrapped if isinstance(self.eval_env, (gym.Env, VecEnv)) else self.eval_env
        own = self.training_env.unwrapped
        if bare is own or any(bare is getattr(env, "unwrapped", None) for env in getattr(own, "envs", ())):
            raise ValueError(
                "eval_env is the environment of training, whose rollouts an evaluation would break off: pass another "
                "one, or an id"
            )
        if self.callback_on_new_best is not None:
            self.callback_on_new_best.init_callback(self.model)

    def _on_training_start(self) -> None:
        self._n_passed = self.num_timesteps // self.eval_freq

    def _on_step(self) -> bool:
        if self._n_passed == self.num_timesteps // self.eval_freq:
            return True
        self._n_passed = self.num_timesteps // self.eval_freq
        result = evaluate(
            self.model, self.eval_env, self.n_eval_episodes, deterministic=self.deterministic, **self.env_kwargs
        )
        self.last_mean_reward = result.mean_return
        values = {"eval/mean_reward": result.mean_return, "eval/mean_ep_length": result.mean_length}
        if result.success_rate is not None:
            values["eval/success_rate"] = result.success_rate
        # Not through logger.dump(), which would write the algorithm's half-collected values too.
        for output in self.logger.output_formats:
            output.write(values, dict.fromkeys(values, ()), self.num_timesteps)
        go_on = True
        if result.mean_return > self.best_mean_reward:
            self.best_mean_reward = result.mean_return
            if self.best_model_save_path is not None:
                folder = Path(self.best_model_save_path)
                folder.mkdir(parents=True, exist_ok=True)
                self.model.save(folder / "best_model")
            if self.callback_on_new_best is not None:
                go_on = self.callback_on_new_best.on_step()
        return self._on_event() and go_on

    def update_child_locals(self, locals_: dict[str, Any]) -> None:
        """
        Hand the local variables of training on.

        :param locals_: those of the collection
        """
        if self.callback is not None:
            self.callback.update_locals(locals_)
