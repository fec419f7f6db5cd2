"""One job of a benchmark: its evaluations, files, masks and events."""

import json

import numpy as np
import pytest
from helpers import TOOL, TRAP
from helpers.jobs import CLASSES, SMALL, SMALL_ACTOR_CRITIC, small_job
from helpers.models import read_events

from seeupo_gym import SeeUPO
from seeupo_gym.baselines import evaluate
from seeupo_gym.benchmark import results as results_module
from seeupo_gym.benchmark.jobs import load_model, run_job
from seeupo_gym.benchmark.plots import learning_curve_figure
from seeupo_gym.benchmark.results import read_rows
from seeupo_gym.envs.reference import reference_scores
from seeupo_gym.envs.task import ALL_LANES
from seeupo_gym.envs.tasks.tool_chain import ToolChain

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_job_evaluates_at_equally_spaced_steps_and_writes_its_files(tmp_path):
    job = small_job(tmp_path)
    steps = []
    result = run_job(job, steps.append)
    # 16 lanes, so that points at 64, 128, 192 steps are met exactly; then the end.
    assert [row["timesteps"] for row in result["evaluations"]] == [0, 64, 128, 192, 256]
    assert result["timesteps"] == 256
    reference = reference_scores(TRAP)
    for row in result["evaluations"]:
        normalized = (row["score"] - reference.random) / (reference.expert - reference.random)
        assert row["normalized_score"] == pytest.approx(normalized)
        assert row["episode_length"] == 4
    saved = json.loads((job.folder / "result.json").read_text())
    assert saved["settings"] == results_module.to_plain(job.settings())
    assert saved["settings"]["algorithm_settings"]["clip_range"] == 0.2
    assert saved["settings"]["algorithm_settings"]["group_size"] == 4
    assert saved["settings"]["algorithm_settings"]["device"] == "cpu"  # as it ran, not SB3's "auto"
    assert {"python", "platform", "torch", "seeupo-gym"} <= set(saved["versions"])
    assert list(job.folder.glob("events.out.tfevents.*"))
    model, info = load_model(job.folder / "model.zip")
    assert isinstance(model, SeeUPO)
    assert info["env_id"] == TRAP
    assert evaluate(model, TRAP, 10).mean_return == pytest.approx(saved["evaluations"][-1]["score"])


@pytest.mark.parametrize("algorithm", list(CLASSES)[3:])
def test_every_algorithm_does_a_job(tmp_path, algorithm):
    settings = SMALL if issubclass(CLASSES[algorithm], SeeUPO) else SMALL_ACTOR_CRITIC
    if algorithm == "recurrent_ppo":
        settings = {**settings, "policy_kwargs": {"lstm_hidden_size": 16}}  # 256 would take seconds
    job = small_job(tmp_path, algorithm, TOOL, 200, settings, n_evals=2)
    result = run_job(job)
    assert len(result["evaluations"]) == 3
    assert result["timesteps"] >= 200
    model, _ = load_model(job.folder / "model.zip")
    assert type(model) is CLASSES[algorithm]
    assert evaluate(model, TOOL, 10).mean_return == pytest.approx(result["evaluations"][-1]["score"])


@pytest.mark.parametrize("algorithm", ["maskable_ppo", "seeupo", "ppo"])
def test_actions_are_valid_where_an_algorithm_uses_masks(tmp_path, monkeypatch, algorithm):
    valid = []
    step = ToolChain.step

    def watched(task, actions, lanes=ALL_LANES):
        masks, (tools, arguments) = task.action_masks(lanes), actions.T
        rows, n_tools = np.arange(len(masks)), task.action_space.nvec[0]
        valid.extend(masks[rows, tools] & masks[rows, n_tools + arguments])
        return step(task, actions, lanes)

    monkeypatch.setattr(ToolChain, "step", watched)
    settings = SMALL if algorithm == "seeupo" else SMALL_ACTOR_CRITIC
    run_job(small_job(tmp_path, algorithm, TOOL, 200, settings))
    assert len(valid) > 200
    assert all(valid) == (algorithm != "ppo")


def test_maskable_ppo_does_without_masks_where_there_are_none(tmp_path):
    result = run_job(small_job(tmp_path, "maskable_ppo", TRAP, 64, SMALL_ACTOR_CRITIC, n_evals=1))
    assert result["timesteps"] == 64


def test_a_job_writes_evaluations_to_tensorboard(tmp_path):
    job = small_job(tmp_path, total_timesteps=128, n_evals=2)
    result = run_job(job)
    events = read_events(job.folder)
    points = [(event.step, event.value) for event in events.Scalars("eval/score")]
    assert points == [(row["timesteps"], pytest.approx(row["score"])) for row in result["evaluations"]]
    assert [event.step for event in events.Scalars("rollout/ep_rew_mean")] == [64, 128]


@pytest.mark.parametrize("algorithm", ["seeupo", "a2c"])
def test_foreign_environments_have_no_normalized_score(tmp_path, algorithm):
    settings = {"n_groups": 2, "group_size": 2, "n_envs": 4} if algorithm == "seeupo" else {"n_envs": 2}
    job = small_job(tmp_path, algorithm, "FrozenLake-v1", 40, settings, n_evals=1, n_eval_episodes=3)
    result = run_job(job)
    assert [row["normalized_score"] for row in result["evaluations"]] == [None, None]
    results_module.merge_results(tmp_path)
    rows = read_rows(tmp_path / "results.csv")
    assert rows[0]["normalized_score"] is None
    assert learning_curve_figure(rows, "FrozenLake-v1").axes[0].get_ylabel() == "mean return"


def test_load_model_says_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match=r"there is no model .*nothing\.zip"):
        load_model(tmp_path / "nothing")
    SeeUPO("MlpPolicy", TRAP, n_groups=2, group_size=2).save(tmp_path / "lonely.zip")
    with pytest.raises(ValueError, match=r"cannot read .*lonely\.json"):
        load_model(tmp_path / "lonely.zip")
