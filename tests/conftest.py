"""What tests of several folders ask for as fixtures; plain functions are in ``helpers``."""

import pytest

from seeupo_gym.agents.method.threads import one_torch_thread
from seeupo_gym.baselines.registry import register_algorithm, unregister_algorithm


@pytest.fixture(scope="module")
def one_thread():
    """As in the benchmark's workers: several threads for small networks wait for each other on a busy machine."""
    with one_torch_thread():
        yield


@pytest.fixture
def registered():
    """Register algorithms for one test."""
    names = []

    def register(name, entry_point, **kwargs):
        names.append(name)
        return register_algorithm(name, entry_point, **kwargs)

    yield register
    for name in names:
        unregister_algorithm(name)
