"""Without the packages of the suites: nothing of them is imported, and making one says in a line what to install."""

import importlib.util

import gymnasium as gym
import pytest
from helpers.processes import run_python

from seeupo_gym.envs import NAMESPACE
from seeupo_gym.envs.registration import SUITE_ENTRY_POINTS

PACKAGES = {
    "AppWorld-v0": "appworld",
    "BFCLMultiTurn-v0": "bfcl_eval",
    "BFCLOracleMenu-v0": "bfcl_eval",
    "GEM-v0": "gem",
    "MiniWoB-v0": "miniwob",
    "OpenEnv-v0": "websockets",
    "TextArena-v0": "textarena",
    "TextWorldExpress-v0": "textworld_express",
}
# The words that the environments need to say anything else.
ARGUMENTS = {"OpenEnv-v0": {"url": "http://127.0.0.1:1", "action": "message", "observation": "text"}}


def test_every_suite_is_registered():
    assert set(SUITE_ENTRY_POINTS) == set(PACKAGES)
    assert all(f"{NAMESPACE}/{name}" in gym.registry for name in SUITE_ENTRY_POINTS)


@pytest.mark.process
def test_importing_the_package_imports_no_suite():
    code = f"import sys, seeupo_gym; print([p for p in {list(PACKAGES.values())} if p in sys.modules])"
    assert run_python(code) == "[]\n"


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_named_in_one_line(name):
    if importlib.util.find_spec(PACKAGES[name]):
        pytest.skip("the package is installed here")
    with pytest.raises(ImportError, match="pip install") as error:
        gym.make(f"{NAMESPACE}/{name}", **ARGUMENTS.get(name, {}))
    assert "\n" not in str(error.value)
