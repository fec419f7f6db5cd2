"""The settings of the method: each has its type, its default and its range here, and nowhere else."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from seeupo_gym.envs.arguments import check_choice, check_count, check_flag, check_number

SelfSettings = TypeVar("SelfSettings", bound="Settings")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
Check = Callable[[str, Any], Any]

AdvantageEstimator = Literal["group_mean", "leave_one_out", "reward_to_go"]
Normalization = Literal["batch", "group", "none"]
RatioLevel = Literal["joint", "sequence", "token"]
UpdateOrder = Literal["reverse", "forward", "random", "simultaneous"]
Sharing = Literal["separate", "shared"]
ScheduleName = Literal["sweep", "staged"]


def whole(least: int = 1) -> Check:
    """Make a check for whole numbers."""
    return lambda name, given: check_count(name, given, least)


def real(**limits: float) -> Check:
    """Make a check for finite numbers within limits; see :func:`~seeupo_gym.envs.arguments.check_number`."""
    return lambda name, given: check_number(name, given, **limits)


def one_of(choices: Any) -> Check:
    """Make a check for the words of a ``Literal``."""
    return lambda name, given: check_choice(name, given, get_args(choices))


def _order(name: str, given: Any) -> None:
    """Refuse what is neither the name of an order nor a permutation of the turns from 0."""
    if isinstance(given, str):
        one_of(UpdateOrder)(name, given)
    elif not isinstance(given, (Sequence, np.ndarray)) or sorted(given) != list(range(len(given))) or len(given) == 0:
        raise ValueError(
            f"{name} must be one of {get_args(UpdateOrder)}, or hold each of the turns once, counted from 0, "
            f"got {given!r}"
        )


def _normalization(name: str, given: Any) -> None:
    """Refuse what is neither the name of a normalisation nor SB3's bool."""
    if not isinstance(given, bool):
        one_of(Normalization)(name, given)


def _group_size(name: str, given: Any) -> None:
    """Refuse groups of one."""
    try:
        whole(least=2)(name, given)
    except ValueError as error:
        raise ValueError(
            f"{error}: an episode's advantage is its return less the mean of its group, which is always 0 in a group "
            "of one"
        ) from None


def setting(default: Any, check: Check, scheduled: bool = False, optional: bool = False) -> Any:
    """
    Make the field of a setting.

    :param default: its value where none is given
    :param check: refuses values that make no sense
    :param scheduled: whether it may be a function of the remaining progress, as SB3's schedules are
    :param optional: whether it may be None, as it may where that is the default
    """
    return field(
        default=default,
        metadata={"check": check, "scheduled": scheduled, "optional": optional or default is None},
    )


@dataclass(frozen=True)
class Settings:
    """Settings that check themselves when they are made."""

    def __post_init__(self) -> None:
        for f in fields(self):
            if getattr(self, f.name) is not None or not f.metadata["optional"]:
                f.metadata["check"](f.name, getattr(self, f.name))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all settings."""
        return tuple(f.name for f in fields(cls))

    @classmethod
    def at(cls: type[SelfSettings], progress_remaining: float, given: Mapping[str, Any]) -> SelfSettings:
        """
        Make the settings that hold at one moment of training.

        :param progress_remaining: from 1 (the beginning) to 0 (the end)
        :param given: by name; some may be functions of the remaining progress
        :return: the settings, with numbers in place of functions
        :raises ValueError: for a setting out of range, by its name
        """
        scheduled = {
            f.name: given[f.name] for f in fields(cls) if f.metadata["scheduled"] and callable(given.get(f.name))
        }
        now = {name: schedule(progress_remaining) for name, schedule in scheduled.items()}
        try:
            return cls(**{**given, **now})
        except ValueError as error:
            named = next((name for name in now if str(error).startswith(f"{name} ")), None)
            if named is None:
                raise
            raise ValueError(f"{error}, from its schedule at a remaining progress of {progress_remaining:g}") from None


def show_settings(of: type[Settings]) -> Callable[[FunctionT], FunctionT]:
    """
    Show the settings that a function takes as ``**settings`` one by one in its signature, for ``help`` and editors.

    :param of: the settings
    """

    def show(function: FunctionT) -> FunctionT:
        own = inspect.signature(function)
        kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        shown = [inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default) for f in fields(of)]
        function.__signature__ = own.replace(parameters=[*kept, *shown])  # type: ignore[attr-defined]
        return function

    return show


@dataclass(frozen=True)
class MethodSettings(Settings):
    """
    The settings of an update, at one moment of training.

    :class:`~seeupo_gym.agents.SeeUPO` says what each means; the defaults are the same. In
    :class:`~seeupo_gym.agents.BackwardInductionOptimizer` too.

    :raises ValueError: for a setting out of range, or settings that exclude each other; names them
    """

    learning_rate: float = setting(3e-3, real(least=0.0), scheduled=True)
    n_sweeps: int = setting(1, whole())
    n_epochs: int = setting(4, whole())
    batch_size: int | None = setting(None, whole())
    micro_batch_size: int | None = setting(None, whole())
    gamma: float = setting(1.0, real(above=0.0, most=1.0))
    clip_range: float = setting(0.2, real(least=0.0), scheduled=True)
    clip_range_high: float | None = setting(None, real(least=0.0), scheduled=True)
    factor_clip: float = setting(0.2, real(least=0.0), scheduled=True)
    advantage_estimator: AdvantageEstimator = setting("group_mean", one_of(AdvantageEstimator))
    normalize_advantage: Normalization = setting("batch", _normalization)
    advantage_clip: float | None = setting(None, real(above=0.0))
    ratio_level: RatioLevel = setting("joint", one_of(RatioLevel))
    update_rule: Any = setting("clip", lambda name, given: None)  # checked by rules.get_rule, which knows the rules
    ent_coef: float = setting(0.0, real(least=0.0), scheduled=True)
    kl_coef: float = setting(0.0, real(least=0.0), scheduled=True)
    reference_kl_coef: float = setting(0.0, real(least=0.0), scheduled=True)
    target_kl: float | None = setting(None, real(above=0.0))
    max_grad_norm: float | None = setting(0.5, real(above=0.0), optional=True)
    update_order: UpdateOrder | Sequence[int] = setting("reverse", _order)

    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = self.normalize_advantage
        if isinstance(given, bool):
            object.__setattr__(self, "normalize_advantage", "batch" if given else "none")

    @property
    def clip_high(self) -> float:
        """The upper clip range: ``clip_range``, if there is none of its own."""
        return self.clip_range if self.clip_range_high is None else self.clip_range_high


@dataclass(frozen=True)
class StageSettings(Settings):
    """
    The entries of ``SeeUPO(schedule="staged", schedule_kwargs=...)``.

    :param roll_in: probability that an action of a turn before the trained one is uniform over the valid ones;
        otherwise it is drawn from the policy of its turn as it is so far. 1: always uniform
    :param stage_timesteps: environment steps of a stage; None: an equal share of what ``learn`` was given, less
        ``sweep_fraction``; what a stage leaves over goes to the ones after it
    :param patience: end a stage when the mean return of its last ``patience`` iterations is no higher than that
        of the ``patience`` before; None: stages end by their budget alone
    :param sweep_fraction: share of the steps for sweeps over all turns after the last stage, less than 1
    :raises ValueError: for numbers out of range
    """

    roll_in: float = setting(1.0, real(least=0.0, most=1.0))
    stage_timesteps: int | None = setting(None, whole())
    patience: int | None = setting(None, whole())
    sweep_fraction: float = setting(0.0, real(least=0.0, below=1.0))


def _stages(name: str, given: Any) -> None:
    """Refuse what makes no :class:`StageSettings`."""
    unknown = sorted(set(given) - set(StageSettings.names())) if isinstance(given, dict) else [given]
    if unknown:
        raise ValueError(f"{name} has no entry {unknown[0]!r}; it has: {', '.join(sorted(StageSettings.names()))}")
    StageSettings(**given)


@dataclass(frozen=True)
class TrainingSettings(MethodSettings):
    """
    The settings of :class:`~seeupo_gym.agents.SeeUPO`, which says what each means, at one moment of training.

    :raises ValueError: for a setting out of range, or settings that exclude each other; names them
    """

    n_groups: int = setting(16, whole())
    group_size: int = setting(8, _group_size)
    max_turns: int | None = setting(None, whole())
    turn_policies: Sharing = setting("separate", one_of(Sharing))
    schedule: ScheduleName = setting("sweep", one_of(ScheduleName))
    schedule_kwargs: dict[str, Any] | None = setting(None, _stages)
    independent_noise: bool = setting(False, check_flag)
    use_masking: bool = setting(True, check_flag)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule == "staged" and self.turn_policies != "separate":
            raise ValueError(
                'schedule="staged" needs turn_policies="separate": a finished turn cannot be frozen in a network that '
                "the other turns share"
            )
        if self.schedule_kwargs and self.schedule != "staged":
            raise ValueError(f'schedule_kwargs are for schedule="staged", but schedule is {self.schedule!r}')
