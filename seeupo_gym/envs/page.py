"""
The generated part of docs/environments.md: the scores, and for every task its docstring and an episode of the expert.

``python -m seeupo_gym.envs.page docs/environments.md`` writes it anew, below a marker.
"""

from __future__ import annotations

import argparse
from inspect import cleandoc
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from seeupo_gym.envs import ENV_IDS
from seeupo_gym.envs.reference import REFERENCE_SCORES, optimal_value
from seeupo_gym.envs.task import HELD_OUT_SEED, TaskEnv

MARKER = "<!-- Everything below is written by: python -m seeupo_gym.envs.page docs/environments.md -->"


def generated_part() -> str:
    """
    Write the documentation of all tasks.

    :return: Markdown, without the marker
    """
    parts = [_table()]
    for env_id in ENV_IDS:
        env = _make(env_id)
        text = cleandoc(type(env).__doc__ or "").replace("::\n", ":\n").replace("\n## ", "\n### ")
        title = env_id.split("/")[1]
        parts.append(f"## {title}\n\n#{text}\n\n### An expert's episode\n\n```text\n{expert_episode(env_id)}\n```\n")
    return "\n".join(parts)


def expert_episode(env_id: str) -> str:
    """
    Let the expert play the first held-out seed at the default level.

    :param env_id: one of this package's ids
    :return: the transcript
    """
    env = _make(env_id)
    env.reset(seed=HELD_OUT_SEED)
    terminated = False
    while not terminated:
        _, _, terminated, _, _ = env.step(env.task.expert_actions()[0])
    return str(env.render())


def _make(env_id: str, **kwargs: Any) -> TaskEnv:
    env = gym.make(env_id, render_mode="ansi", **kwargs).unwrapped
    assert isinstance(env, TaskEnv)
    return env


def _table() -> str:
    lines = [
        "## All tasks, levels and reference scores\n",
        "| id | level | observations | actions | masks | turns | random | expert | optimum |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for env_id in ENV_IDS:
        for i, level in enumerate(_make(env_id).task.levels or ("",)):
            kwargs: dict[str, Any] = {"level": level} if level else {}
            task = _make(env_id, **kwargs).task
            scores = REFERENCE_SCORES[env_id, tuple(kwargs.items()) if i else ()]
            optimum = optimal_value(env_id, **kwargs)
            actions = task.action_space
            cells = [
                f"`{env_id}`",
                level,
                str((task.observation_space.shape or ("",))[0]),
                str(actions.n) if isinstance(actions, spaces.Discrete) else " x ".join(map(str, actions.nvec)),
                "yes" if task.has_action_masks else "",
                str(task.max_turns),
                f"{scores.random:g}",
                f"{scores.expert:g}",
                "" if optimum is None else f"{optimum:.4g}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the generated part of a page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    page: Path = parser.parse_args().page
    head, marker, _ = page.read_text().partition(MARKER)
    if not marker:
        raise SystemExit(f"{page} has no line {MARKER!r}, below which the generated part goes")
    page.write_text(f"{head}{MARKER}\n\n{generated_part()}")


if __name__ == "__main__":
    main()
