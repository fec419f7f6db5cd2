"""Reference scores, the scale they give, exact optima, and the page about the environments."""

import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from seeupo_gym import make_vec
from seeupo_gym.envs import ENV_IDS, page, reference
from seeupo_gym.envs.reference import (
    REFERENCE_SCORES,
    ReferenceScores,
    expert_policy,
    measure,
    normalize,
    optimal_value,
    random_policy,
    reference_scores,
)
from seeupo_gym.envs.task import NO_ACTION
from seeupo_gym.envs.tasks.context_chain import ContextChain
from seeupo_gym.envs.tasks.coordination_trap import CoordinationTrap

TRAP, CHAIN, TOOL = ENV_IDS[:3]
PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


@pytest.mark.parametrize("key", REFERENCE_SCORES)
def test_committed_scores_are_reproduced_exactly(key):
    env_id, settings = key
    measured = [measure(env_id, policy, **dict(settings)) for policy in (random_policy, expert_policy)]
    assert REFERENCE_SCORES[key] == tuple(measured)
    assert measured[1] - measured[0] > 0.2


def test_printed_table_is_the_committed_one(capsys):
    reference.main()
    printed = eval("{" + capsys.readouterr().out + "}", {"ReferenceScores": ReferenceScores})
    assert printed == REFERENCE_SCORES


def test_every_default_and_level_is_in_the_table(monkeypatch):
    monkeypatch.setattr(reference, "_measure_both", None)  # would fail if called
    for env_id in ENV_IDS:
        assert reference_scores(env_id) == REFERENCE_SCORES[env_id, ()]
        for level in gym.make(env_id).get_wrapper_attr("task").levels:
            assert reference_scores(env_id, level=level, render_mode="ansi") is not None
    assert reference_scores(TOOL, level="medium", flat=False) is not None
    assert reference_scores(TOOL, level="easy") == reference_scores(TOOL)
    assert reference_scores(TOOL, level="hard") != reference_scores(TOOL)


def test_other_arguments_are_measured_once(monkeypatch):
    first = reference_scores(TRAP, turns=2, arms=3)
    # Of nine pairs of arms the three that begin safe pay 0.6 and one pays 1.
    assert first.random == pytest.approx((3 * 0.6 + 1) / 9, abs=0.03)
    assert first.expert == 1.0
    monkeypatch.setattr(reference, "make_vec", None)
    assert reference_scores(TRAP, arms=3, turns=2) is first


def test_random_play_scores_what_chance_says():
    # One arm of four is safe; the plan needs four right arms of four.
    assert measure(TRAP, random_policy, n_episodes=20_000) == pytest.approx(0.6 / 4 + 1 / 4**4, abs=0.006)
    assert measure(CHAIN, random_policy, n_episodes=20_000) == pytest.approx(1 / 4, abs=0.004)
    assert measure(CHAIN, random_policy, n_episodes=20_000, turns=2, reward="all") == pytest.approx(1 / 16, abs=0.006)


@pytest.mark.parametrize("kwargs", [{"flat": False}, {"flat": True}])
def test_random_policy_is_uniform_over_valid_actions(kwargs):
    n = 10_000
    env = make_vec(TOOL, n, seed=0, **kwargs)
    env.reset()
    # The second half finds a record, after which "submit" is valid there.
    later = np.arange(n // 2, n)
    env.task.step(env.task.expert_actions(later), later)
    actions = random_policy(env, np.random.default_rng(0))
    tools, arguments = env.task.split_actions(actions)
    without, within = tools[: n // 2], tools[n // 2 :]
    np.testing.assert_allclose(np.bincount(without, minlength=5) / len(without), [0.25] * 4 + [0], atol=0.03)
    expected = [3 / 13] * 4 + [1 / 13] if kwargs["flat"] else [0.2] * 5
    np.testing.assert_allclose(np.bincount(within) / len(within), expected, atol=0.03)
    np.testing.assert_allclose(np.bincount(arguments[tools < 4]) / (tools < 4).sum(), 1 / 3, atol=0.03)


def test_measure_uses_the_first_held_out_seeds():
    started = []

    def spy(env, rng):
        started.extend(env.task.task_seeds[env.task.turns == 0].tolist())
        return env.task.expert_actions()

    assert measure(CHAIN, spy, n_episodes=7) == 1.0
    assert sorted(started) == [2**31 + i for i in range(7)]


def test_ids_are_understood_as_gymnasium_does():
    for env_id in ("seeupo_gym:seeupo_gym/ToolChain-v0", "seeupo_gym/ToolChain", "seeupo_gym:seeupo_gym/ToolChain"):
        assert reference_scores(env_id, level="hard") == REFERENCE_SCORES[TOOL, (("level", "hard"),)]
    for env_id in ("seeupo_gym/ToolChain-v1", "ToolChain-v0", "CartPole", "nowhere:CartPole-v1"):
        assert reference_scores(env_id) is None


@pytest.mark.parametrize("n_numbers", [2, 3, 24, 500])
def test_there_is_no_scale_where_the_expert_cannot_do_better_than_chance(n_numbers):
    guess = "seeupo_gym/GuessNumber-v0"
    assert reference_scores(guess, range=n_numbers, turns=1) is None
    assert n_numbers == 2 or reference_scores(guess, range=n_numbers, turns=5) is not None


def test_environments_of_others_have_no_reference_and_no_optimum():
    assert reference_scores("CartPole-v1") is None
    assert optimal_value("CartPole-v1") is None
    assert reference_scores(CHAIN, max_episode_steps=2) is None
    assert optimal_value(CHAIN, max_episode_steps=2) is None
    with pytest.raises(ValueError, match="CartPole-v1 is not a task of this package"):
        measure("CartPole-v1", random_policy, n_episodes=1)


@pytest.mark.parametrize("function", [reference_scores, optimal_value])
def test_impossible_arguments_are_refused(function):
    with pytest.raises(ValueError, match="arms must be an integer from 2 to 1000"):
        function(TRAP, arms=1)
    with pytest.raises(TypeError, match="colors"):
        function(TRAP, colors=1)


def test_normalize():
    scores = ReferenceScores(random=0.2, expert=0.7)
    assert normalize(0.2, scores) == 0.0
    assert normalize(0.7, scores) == 1.0
    assert normalize(0.45, scores) == pytest.approx(0.5)
    assert normalize(0.1, scores) == pytest.approx(-0.2)


# --- The optima, by enumeration


@pytest.mark.parametrize(("turns", "arms"), [(2, 2), (2, 4), (3, 3), (4, 4)])
def test_coordination_trap_optimum(turns, arms):
    # The task is deterministic, so the best of all sequences of actions is the optimum.
    sequences = np.stack(np.meshgrid(*[np.arange(arms)] * turns, indexing="ij"), -1).reshape(-1, turns)
    task = CoordinationTrap(len(sequences), turns, arms)
    task.reset(np.zeros(len(sequences), dtype=np.int64))
    values = sum(task.step(sequences[:, turn]).rewards for turn in range(turns))
    assert values.max() == optimal_value(TRAP, turns=turns, arms=arms)
    assert (values == 1.0).sum() == 1
    assert np.sort(np.unique(values)) == pytest.approx([0.0, 0.6, 1.0])


@pytest.mark.parametrize("reward", ["fraction", "all"])
@pytest.mark.parametrize(("turns", "n_actions"), [(1, 2), (3, 2), (3, 3)])
def test_context_chain_optimum(turns, n_actions, reward):
    # Backward induction; states are (context, previous action, number right), the next context is uniform.
    previous = np.arange(NO_ACTION, n_actions)
    grid = np.meshgrid(np.arange(n_actions), previous, np.arange(turns + 1), np.arange(n_actions), indexing="ij")
    contexts, before, n_right, actions = (axis.ravel() for axis in grid)
    task = ContextChain(len(actions), turns, n_actions, reward)
    values = np.zeros((n_actions, n_actions + 1, turns + 1))
    for turn in reversed(range(turns)):
        task.turns[:], task.contexts[:], task.previous[:], task.n_right[:] = turn, contexts, before, n_right
        result = task.step(actions)
        # More right actions than turns can only be in states that are never reached.
        following = values.mean(axis=0)[task.previous + 1, np.minimum(task.n_right, turns)]
        action_values = np.where(result.dones, result.rewards, result.rewards + following)
        values = action_values.reshape(grid[0].shape).max(axis=-1)
    assert values[:, 0, 0].mean() == pytest.approx(optimal_value(CHAIN, turns=turns, actions=n_actions, reward=reward))


def test_tool_chain_optimum_is_not_claimed():
    assert optimal_value(TOOL) is None


# --- docs/environments.md


def test_code_blocks_of_the_page_run_as_written(capsys):
    blocks = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 4
    for code, output in blocks:
        exec(code, {})
        printed = capsys.readouterr().out
        assert printed == output or not output


def test_generated_part_of_the_page_is_up_to_date():
    assert PAGE.read_text().partition(page.MARKER)[2].strip() == page.generated_part().strip(), (
        "run: python -m seeupo_gym.envs.page docs/environments.md"
    )


def test_page_names_every_environment():
    text = PAGE.read_text()
    assert all(env_id in text for env_id in ENV_IDS)
    assert all(gym.spec(env_id) for env_id in ENV_IDS)
