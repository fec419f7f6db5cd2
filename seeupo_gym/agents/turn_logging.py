"""What SeeUPO shows in TensorBoard: scalars per turn, a layout that compares turns, hyperparameters."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import HParam, Logger, TensorBoardOutputFormat

from seeupo_gym.agents.sequential import TurnStats

MAX_LOGGED_TURNS = 20
TURN_SCALARS = ("policy_loss", "clip_fraction", "approx_kl", "entropy", "factor_mean", "advantage_abs_mean")
# Shown in TensorBoard's HParams tab.
_HPARAMS = (
    "learning_rate",
    "n_groups",
    "group_size",
    "n_epochs",
    "batch_size",
    "gamma",
    "clip_range",
    "clip_range_high",
    "factor_clip",
    "normalize_advantage",
    "ent_coef",
    "kl_coef",
    "target_kl",
    "max_grad_norm",
    "n_turns",
    "turn_policies",
    "update_order",
    "independent_noise",
    "seed",
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
    rows = [asdict(turn_stats) for turn_stats in stats.values()]
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    logger.record("train/loss", mean["policy_loss"])
    for name in ("clip_fraction", "approx_kl", "entropy", "factor_mean", "advantage_abs_mean"):
        logger.record(f"train/{name}", mean[name])
    logger.record("train/factor_min", min(row["factor_min"] for row in rows))
    logger.record("train/factor_max", max(row["factor_max"] for row in rows))
    for turn in logged_turns(n_turns):
        if turn in stats:
            for name in TURN_SCALARS:
                logger.record(f"train/turn_{turn:02d}/{name}", getattr(stats[turn], name))


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
    values = {name: getattr(model, name) for name in _HPARAMS}
    plain = {k: v if isinstance(v, (int, float, str, bool)) else str(v) for k, v in values.items()}
    hparams = {"algorithm": type(model).__name__, "policy": model.policy_class.__name__, **plain}
    metrics: dict[str, float] = {"rollout/ep_rew_mean": 0.0, "rollout/success_rate": 0.0, "train/loss": 0.0}
    logger.record("hparams", HParam(hparams, metrics), exclude=_FORMATS_WITHOUT_HPARAMS)
