"""What several files of a suite's tests ask for as fixtures."""

import pytest
from helpers.appworld import TASKS, Stub
from helpers.text_world_express import EASY_COIN

from seeupo_gym.envs.suites.appworld import AppWorldEnv
from seeupo_gym.envs.suites.text_world_express import TextWorldExpressEnv


@pytest.fixture
def coin():
    env = TextWorldExpressEnv("coin", EASY_COIN, turns=6, render_mode="ansi")
    yield env
    env.close()


@pytest.fixture
def stub():
    server = Stub()
    yield server
    server.stop()


@pytest.fixture
def stubbed(stub):
    """An environment of the stand-in."""
    env = AppWorldEnv(stub.url, tasks=list(TASKS), turns=4, timeout=1)
    yield env
    env.close()
