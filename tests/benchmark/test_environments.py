"""Names of environments, and those that cannot be made."""

import pytest
from helpers import TRAP

from seeupo_gym.benchmark.environments import check_env, env_name


def test_environment_names_and_errors():
    assert env_name("my_module:space/Task-v0") == "Task-v0"
    with pytest.raises(ValueError, match="cannot make the environment 'Nope-v0'"):
        check_env("Nope-v0")
    with pytest.raises(ValueError, match="'armz': 3"):
        check_env(TRAP, {"armz": 3})
