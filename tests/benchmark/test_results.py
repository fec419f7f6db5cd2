"""The files of results, and which of them can be compared."""

import re
from dataclasses import replace
from functools import partial

import pytest
from helpers import CHAIN
from helpers.jobs import SMALL, small_job

from seeupo_gym.benchmark import results as results_module
from seeupo_gym.benchmark.results import SettingsDifferError


class Linear:
    def __init__(self, start):
        self.start = start

    def __call__(self, progress):
        return self.start * progress


def test_settings_compare_equal_after_reading_back(tmp_path):
    def written(value):
        results_module.write_json(tmp_path / "settings.json", {"value": value})
        return results_module.read_json(tmp_path / "settings.json")

    assert written(partial(pow, 2)) == written(partial(pow, 2)) != written(partial(pow, 3))
    assert written(Linear(0.1)) == written(Linear(0.1)) != written(Linear(0.2))
    assert "0x" not in str(written([partial(written, 1), Linear(partial(written))]))


def test_what_is_no_result_is_named(tmp_path):
    path = tmp_path / "Env-v0/ppo/seed_0/result.json"
    results_module.write_json(path, {})
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))} lacks the entry 'settings'"):
        results_module.read_results(tmp_path)


def test_settings_must_agree_where_runs_are_compared(tmp_path):
    job = small_job(tmp_path)
    result = {"settings": job.settings(), "evaluations": []}
    results_module.write_json(job.folder / "result.json", result)
    check = lambda changed: results_module.check_same_settings(tmp_path, [changed.settings()])  # noqa: E731
    check(job)
    check(replace(job, seed=5))
    check(small_job(tmp_path, env_id=CHAIN, total_timesteps=9))
    check(small_job(tmp_path, "a2c", settings={}))
    with pytest.raises(SettingsDifferError, match=r"total_timesteps was 256, now 300.*--out.*--overwrite"):
        check(replace(job, seed=5, total_timesteps=300))
    with pytest.raises(SettingsDifferError, match="n_eval_episodes was 10, now 11"):
        check(small_job(tmp_path, "a2c", settings={}, n_eval_episodes=11))
    with pytest.raises(SettingsDifferError, match=r"env_kwargs\.turns was 'not set', now 3"):
        check(replace(job, env_kwargs={"turns": 3}))
    with pytest.raises(SettingsDifferError, match=r"algorithm_settings\.learning_rate was"):
        check(small_job(tmp_path, settings={**SMALL, "learning_rate": 0.5}))
