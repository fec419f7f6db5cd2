"""What several files of a suite's tests ask for as fixtures."""

import pytest
from helpers.appworld import Stub
from helpers.text_world_express import EASY_COIN

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
