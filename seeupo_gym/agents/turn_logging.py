"""Output to TensorBoard: scalars per turn, a layout that compares turns, hyperparameters."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import HParam, Logger, TensorBoardOutputFormat
from stable_baselines3.common.utils import safe_mean
from tensorboard.compat.proto.event_pb2 import Event, SessionLog

from seeupo_gym.agents.method.settings import TrainingSettings
from seeupo_gym.agents.method.staged import Stages
from seeupo_gym.agents.method.statistics import TurnStats

MAX_LOGGED_TURNS = 20
TURN_SCALARS = ("policy_loss", "clip_fraction", "approx_kl", "entropy", "factor_mean", "advantage_abs_mean")
_MEANS = (
    "clip_fraction",
    "token_clip_fraction",
    "sequence_clip_fraction",
    "approx_kl",
    "reference_kl",
    "entropy",
    "factor_mean",
    "advantage_abs_mean",
)
_FORMATS_WITHOUT_HPARAMS = ("stdout", "log", "json", "csv")


def logged_turns(n_turns: int) -> list[int]:
    """
    Choose the turns that get scalars of their own.

    :param n_turns: number of turns
    :return: all turns, or ``MAX_LOGGED_TURNS`` evenly spaced ones with the first and the last among them
    """
    spaced = np.linspace(0, n_turns - 1, min(n_turns, MAX_LOGGED_TURNS))
    return [round(turn) for turn in spaced.tolist()]


def record_turn_stats(logger: Logger, stats: dict[int, TurnStats], n_turns: int) -> None:
    """
    Record the statistics of one update: means over all turns under ``train/``, and single turns under
    ``train/turn_03/`` (counted from 0).

    :param logger: SB3's logger
    :param stats: statistics by turn
    :param n_turns: the horizon; what is logged depends on it alone, and so is the same at every iteration
    """
    if not stats:  # a stage whose turn no episode reached
        return
    rows = [asdict(turn_stats) for turn_stats in stats.values()]
    known = [name for name, number in rows[0].items() if number is not None]
    mean = {name: float(np.mean([row[name] for row in rows])) for name in known}
    logger.record("train/loss", mean["policy_loss"])
    for name in _MEANS:
        if name in mean:
            logger.record(f"train/{name}", mean[name])
    logger.record("train/factor_min", min(row["factor_min"] for row in rows))
    logger.record("train/factor_max", max(row["factor_max"] for row in rows))
    for turn in logged_turns(n_turns):
        if turn in stats:
            for name in TURN_SCALARS:
                logger.record(f"train/turn_{turn:02d}/{name}", getattr(stats[turn], name))


def record_stage(logger: Logger, stages: Stages, reached: NDArray[np.bool_]) -> None:
    """
    Record where the staged schedule is: ``train/stage_turn`` (-1 in the sweeps after the last stage) and, in a
    stage, the share of the episodes that reached its turn.

    :param logger: SB3's logger
    :param stages: the schedule
    :param reached: which episodes reached which turn, shape (turns, groups, group_size)
    """
    logger.record("train/stage_turn", stages.turn)
    if not stages.finished:
        there = float(reached[stages.turn].mean()) if stages.turn < len(reached) else 0.0
        logger.record("train/stage_reached_fraction", there)


def record_progress(logger: Logger, model: BaseAlgorithm, iteration: int) -> None:
    """
    Record the means over the last episodes and the time taken, under SB3's names.

    :param logger: SB3's logger
    :param model: the algorithm
    :param iteration: number of iterations since counting began
    """
    assert model.ep_info_buffer is not None
    assert model.ep_success_buffer is not None
    elapsed = max((time.time_ns() - model.start_time) / 1e9, sys.float_info.epsilon)
    if iteration > 0:
        logger.record("time/iterations", iteration, exclude="tensorboard")
    if len(model.ep_info_buffer) > 0:
        logger.record("rollout/ep_rew_mean", safe_mean([info["r"] for info in model.ep_info_buffer]))
        logger.record("rollout/ep_len_mean", safe_mean([info["l"] for info in model.ep_info_buffer]))
    if len(model.ep_success_buffer) > 0:
        logger.record("rollout/success_rate", safe_mean(model.ep_success_buffer))
    logger.record("time/fps", int((model.num_timesteps - model._num_timesteps_at_start) / elapsed))
    logger.record("time/time_elapsed", int(elapsed), exclude="tensorboard")
    logger.record("time/total_timesteps", model.num_timesteps, exclude="tensorboard")


def write_layout(logger: Logger) -> None:
    """
    Give TensorBoard's "custom scalars" tab one chart per quantity, with a line for each turn.

    :param logger: SB3's logger; does nothing without a TensorBoard output
    """
    charts = {name: ["Multiline", [rf"train/turn_\d+/{name}"]] for name in TURN_SCALARS}
    for output in logger.output_formats:
        if isinstance(output, TensorBoardOutputFormat):
            output.writer.add_custom_scalars({"SeeUPO, turn by turn": charts})


def record_hparams(logger: Logger, model: BaseAlgorithm) -> None:
    """
    Fill the HParams tab.

    :param logger: SB3's logger; does nothing without a TensorBoard output
    :param model: SeeUPO; settings that are not numbers, strings or booleans are shown as text
    """
    if not any(isinstance(output, TensorBoardOutputFormat) for output in logger.output_formats):
        return
    values = {name: getattr(model, name) for name in (*TrainingSettings.names(), "n_turns", "seed")}
    plain = {k: v if isinstance(v, (int, float, str, bool)) else str(v) for k, v in values.items()}
    hparams = {"algorithm": type(model).__name__, "policy": model.policy_class.__name__, **plain}
    metrics: dict[str, float] = {"rollout/ep_rew_mean": 0.0, "rollout/success_rate": 0.0, "train/loss": 0.0}
    logger.record("hparams", HParam(hparams, metrics), exclude=_FORMATS_WITHOUT_HPARAMS)


def purge_events(logger: Logger, step: int) -> None:
    """
    Have TensorBoard forget what an earlier run logged after a step, from which this one goes on.

    :param logger: SB3's logger; does nothing without a TensorBoard output
    :param step: number of environment steps
    """
    for output in logger.output_formats:
        if isinstance(output, TensorBoardOutputFormat):
            writer: Any = output.writer.file_writer
            writer.add_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))
