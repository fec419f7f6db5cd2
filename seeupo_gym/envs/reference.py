"""
Reference scores: the mean returns of random and of expert play, which put all tasks on one scale.

``python -m seeupo_gym.envs.reference`` measures them anew and prints :data:`REFERENCE_SCORES`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import find_highest_version, get_env_id, load_env_creator, parse_env_id
from numpy.typing import NDArray

from seeupo_gym.envs import ENTRY_POINTS, ENV_IDS, NAMESPACE
from seeupo_gym.envs.episodes import EpisodeLanes
from seeupo_gym.envs.task import HELD_OUT_SEED, bare_task_env
from seeupo_gym.envs.vector import TaskVecEnv, make_vec

# A policy of the native vector environment. It returns an action for every lane, and draws from the generator.
Policy = Callable[[TaskVecEnv, np.random.Generator], NDArray[np.int64]]

# Arguments that differ from the environment's defaults, sorted by name.
Settings = tuple[tuple[str, Any], ...]

N_EPISODES = 1000
# The number of lanes decides which random numbers an episode gets, so another number would give other scores.
_N_LANES = 250
_POLICY_SEED = 0
# Rewards are float32: further digits would only show its rounding.
_DECIMALS = 6


class ReferenceScores(NamedTuple):
    """Mean return of random and of expert play."""

    random: float
    expert: float


# Printed by: python -m seeupo_gym.envs.reference
REFERENCE_SCORES: dict[tuple[str, Settings], ReferenceScores] = {
    ("seeupo_gym/CoordinationTrap-v0", ()): ReferenceScores(0.1548, 1.0),
    ("seeupo_gym/ContextChain-v0", ()): ReferenceScores(0.25, 1.0),
    ("seeupo_gym/ToolChain-v0", ()): ReferenceScores(0.11675, 1.0),
    ("seeupo_gym/ToolChain-v0", (("level", "medium"),)): ReferenceScores(0.045, 1.0),
    ("seeupo_gym/ToolChain-v0", (("level", "hard"),)): ReferenceScores(0.03775, 1.0),
    ("seeupo_gym/GarnetTree-v0", ()): ReferenceScores(0.239333, 0.674333),
    ("seeupo_gym/GarnetTree-v0", (("level", "medium"),)): ReferenceScores(0.082143, 0.565857),
    ("seeupo_gym/GarnetTree-v0", (("level", "hard"),)): ReferenceScores(0.072, 0.4565),
    ("seeupo_gym/SlotDialogue-v0", ()): ReferenceScores(0.08566, 0.9306),
    ("seeupo_gym/SlotDialogue-v0", (("level", "medium"),)): ReferenceScores(-0.2008, 0.8433),
    ("seeupo_gym/SlotDialogue-v0", (("level", "hard"),)): ReferenceScores(-0.35754, 0.70312),
    ("seeupo_gym/WebNav-v0", ()): ReferenceScores(0.011, 1.0),
    ("seeupo_gym/WebNav-v0", (("level", "medium"),)): ReferenceScores(0.01375, 1.0),
    ("seeupo_gym/WebNav-v0", (("level", "hard"),)): ReferenceScores(0.042786, 1.0),
    ("seeupo_gym/GuessNumber-v0", ()): ReferenceScores(0.19084, 0.9428),
    ("seeupo_gym/GuessNumber-v0", (("level", "medium"),)): ReferenceScores(0.10702, 0.94552),
    ("seeupo_gym/GuessNumber-v0", (("level", "hard"),)): ReferenceScores(0.151067, 0.76702),
    ("seeupo_gym/Mastermind-v0", ()): ReferenceScores(0.242083, 0.960833),
    ("seeupo_gym/Mastermind-v0", (("level", "medium"),)): ReferenceScores(0.176475, 0.962729),
    ("seeupo_gym/Mastermind-v0", (("level", "hard"),)): ReferenceScores(0.14425, 0.956437),
    ("seeupo_gym/TwentyQuestions-v0", ()): ReferenceScores(0.13356, 0.94678),
    ("seeupo_gym/TwentyQuestions-v0", (("level", "medium"),)): ReferenceScores(0.05774, 0.8046),
    ("seeupo_gym/TwentyQuestions-v0", (("level", "hard"),)): ReferenceScores(0.03858, 0.70524),
    ("seeupo_gym/DeadlinePlanner-v0", ()): ReferenceScores(0.432398, 0.743474),
    ("seeupo_gym/DeadlinePlanner-v0", (("level", "medium"),)): ReferenceScores(0.423965, 0.721654),
    ("seeupo_gym/DeadlinePlanner-v0", (("level", "hard"),)): ReferenceScores(0.366221, 0.664173),
    ("seeupo_gym/Blocksworld-v0", ()): ReferenceScores(0.130845, 1.0),
    ("seeupo_gym/Blocksworld-v0", (("level", "medium"),)): ReferenceScores(0.020958, 1.0),
    ("seeupo_gym/Blocksworld-v0", (("level", "hard"),)): ReferenceScores(0.008637, 0.995474),
}


def random_policy(env: TaskVecEnv, rng: np.random.Generator) -> NDArray[np.int64]:
    """
    Choose uniformly among the valid actions, independently for each component of the action.

    :param env: the vector environment, in the middle of its episodes
    :param rng: source of randomness
    :return: one action a lane
    """
    space = env.task.action_space
    n_choices = [int(space.n)] if isinstance(space, spaces.Discrete) else [int(n) for n in space.nvec]
    lottery = rng.random((env.num_envs, sum(n_choices)))
    if env.task.has_action_masks:
        lottery[~env.action_masks()] = -1.0
    parts = np.split(lottery, np.cumsum(n_choices)[:-1], axis=1)
    actions = np.stack([part.argmax(axis=1) for part in parts], axis=1)
    return actions[:, 0] if isinstance(space, spaces.Discrete) else actions


def expert_policy(env: TaskVecEnv, rng: np.random.Generator) -> NDArray[np.int64]:
    """
    Choose the actions of the task's expert.

    :param env: the vector environment, in the middle of its episodes
    :param rng: not used, as experts are deterministic
    :return: one action a lane
    """
    return env.task.expert_actions()


def measure(env_id: str, policy: Policy, n_episodes: int = N_EPISODES, **kwargs: Any) -> float:
    """
    Measure the mean return of a policy over the first held-out seeds.

    :param env_id: id of one of this package's tasks
    :param policy: for example :func:`random_policy`
    :param n_episodes: number of episodes, at least 1
    :param kwargs: arguments of the environment
    :return: the mean return, to six decimals
    """
    return _mean(_returns(env_id, policy, n_episodes, **kwargs))


def _mean(returns: NDArray[np.float64]) -> float:
    return round(float(returns.mean()), _DECIMALS)


def _returns(env_id: str, policy: Policy, n_episodes: int = N_EPISODES, **kwargs: Any) -> NDArray[np.float64]:
    """Play the first held-out seeds; see :func:`measure`."""
    env = make_vec(env_id, min(_N_LANES, n_episodes), **kwargs)
    if not isinstance(env, TaskVecEnv):
        raise ValueError(f"{env_id} is not a task of this package, or is in a wrapper, so its policies cannot play it")
    rng = np.random.default_rng(_POLICY_SEED)
    returns = np.zeros(n_episodes, dtype=np.float64)
    with EpisodeLanes(env, HELD_OUT_SEED + np.arange(n_episodes)) as lanes:
        obs = lanes.reset()
        while lanes.running:
            obs, rewards, dones, _ = env.step(policy(env, rng))
            active = lanes.active
            returns[lanes.episodes[active]] += rewards[active]
            lanes.advance(obs, dones)
    return returns


def reference_scores(env_id: str, **kwargs: Any) -> ReferenceScores | None:
    """
    Look up the reference scores of a task. Scores for arguments that the table lacks are measured, and kept.

    :param env_id: a registered id in any form that ``gymnasium.make`` takes: ``name``, ``name-v0``, ``module:name``
    :param kwargs: arguments of the environment
    :return: the scores. None if the environment is not one of this package's (it has no expert), or is in a wrapper
        such as that of ``max_episode_steps``, or if the expert is not significantly better than random play (there is
        no scale)
    """
    namespace, name, version = parse_env_id(env_id.rpartition(":")[2])
    env_id = get_env_id(namespace, name, find_highest_version(namespace, name) if version is None else version)
    if env_id not in ENV_IDS:
        return None
    settings = _settings(env_id, kwargs)
    if (env_id, settings) in REFERENCE_SCORES:
        return REFERENCE_SCORES[env_id, settings]
    if bare_task_env(gym.make(env_id, **kwargs)) is None:
        return None
    scores, differ = _measure_both(env_id, settings)
    return scores if differ else None


def normalize(score: float, reference: ReferenceScores) -> float:
    """
    Convert a score to the scale on which random play is 0 and the expert is 1.

    :param score: a mean return
    :param reference: the reference scores of the same environment
    :return: the normalized score: below 0 if worse than random play, above 1 if better than the expert
    """
    return (score - reference.random) / (reference.expert - reference.random)


def optimal_value(env_id: str, **kwargs: Any) -> float | None:
    """
    Return the exact expected return of an optimal policy.

    :param env_id: a registered id
    :param kwargs: arguments of the environment
    :return: the expected return; None where it is not known exactly, and for any environment in a wrapper
    """
    base = bare_task_env(gym.make(env_id, **kwargs))
    return None if base is None else base.task.optimal_value()


def _settings(env_id: str, kwargs: dict[str, Any]) -> Settings:
    entry_point = ENTRY_POINTS[env_id.removeprefix(f"{NAMESPACE}/")]
    parameters = signature(load_env_creator(entry_point)).parameters
    changed = {k: v for k, v in kwargs.items() if k not in parameters or v != parameters[k].default}
    changed.pop("render_mode", None)  # it shows an episode, and does not change it
    return tuple(sorted(changed.items()))


@cache
def _measure_both(env_id: str, settings: Settings) -> tuple[ReferenceScores, bool]:
    """Measure both scores, and whether the difference is more than three standard errors."""
    random, expert = (_returns(env_id, policy, **dict(settings)) for policy in (random_policy, expert_policy))
    gain = expert - random
    differ = bool(gain.mean() > 3.0 * gain.std() / np.sqrt(len(gain)))
    return ReferenceScores(_mean(random), _mean(expert)), differ


def main() -> None:
    """Measure and print the table."""
    entries: list[tuple[str, Settings]] = []
    for env_id in ENV_IDS:
        levels = gym.make(env_id).get_wrapper_attr("task").levels
        entries += [(env_id, ()), *((env_id, (("level", level),)) for level in levels[1:])]
    for env_id, settings in entries:
        scores, _ = _measure_both(env_id, settings)
        settings_code = "(" + "".join(f'("{name}", "{value}"),' for name, value in settings) + ")"
        print(f'    ("{env_id}", {settings_code}): ReferenceScores({scores.random}, {scores.expert}),')  # noqa: T201


if __name__ == "__main__":
    main()
