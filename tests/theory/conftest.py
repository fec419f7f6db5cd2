"""Random decision processes for the tests of the laboratory."""

import numpy as np
import pytest

from seeupo_gym.theory.checks import random_batch


@pytest.fixture
def generator():
    return np.random.default_rng(7)


@pytest.fixture
def batch(generator):
    return random_batch(generator, 6, (3, 2, 2))
