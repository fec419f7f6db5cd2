"""What tests of several folders ask for as fixtures; plain functions are in ``helpers``."""

import pytest

from seeupo_gym.agents.method.threads import one_torch_thread


@pytest.fixture(scope="module")
def one_thread():
    """As in the benchmark's workers: several threads for small networks wait for each other on a busy machine."""
    with one_torch_thread():
        yield
