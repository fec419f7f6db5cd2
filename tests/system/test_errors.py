"""Which errors are about what a user gave."""

import sys
from types import ModuleType

import numpy as np
import pytest

from seeupo_gym import make_vec
from seeupo_gym.baselines import get_algorithm
from seeupo_gym.benchmark.tables import format_table
from seeupo_gym.system.errors import DamagedFileError, damage_is_told, is_about_input, origin
from seeupo_gym.system.files import write_atomically


def caught(call, *arguments):
    with pytest.raises(Exception) as info:  # noqa: PT011
        call(*arguments)
    return info.value


def another_program(code):
    """Write a function into a module of somebody else's."""
    module = ModuleType("somebody.environment")
    sys.modules.setdefault(module.__name__, module)
    exec(code, module.__dict__)
    return module.run


def test_what_this_package_raises_for_its_readers(tmp_path):
    for error in (caught(make_vec, "seeupo_gym/ToolChain-v0", 0), caught(get_algorithm, "nope")):
        assert is_about_input(error)
        assert origin(error) == "seeupo_gym"
    (tmp_path / "file").write_text("")
    assert is_about_input(caught(write_atomically, tmp_path / "file" / "within", "text"))


def test_faults_of_programs():
    for code in ("raise ValueError('mine')", "int('x')", "import nowhere", "open('nowhere')", "{}['a']"):
        error = caught(another_program(f"def run():\n    {code}"))
        assert not is_about_input(error), error
        assert origin(error) == "somebody"
    # Not raised by this package's own statement, but within it: it has a fault.
    assert origin(caught(format_table, ["a"], [[1]])) == "seeupo_gym"
    assert not is_about_input(caught(format_table, ["a"], [[1]]))
    assert not is_about_input(caught(np.zeros, -1))


def test_damage_names_the_file(tmp_path):
    def load(error):
        with damage_is_told(tmp_path / "m.zip", "model of SeeUPO"):
            raise error

    error = caught(load, KeyError("policy_class"))
    assert type(error) is DamagedFileError
    assert isinstance(error.__cause__, KeyError)
    assert str(error).startswith(f"cannot load {tmp_path / 'm.zip'}: it is no model of SeeUPO, or damaged (KeyError: ")
    assert "\n" not in str(caught(load, RuntimeError("many\nlines " * 1000)))
    assert len(str(caught(load, RuntimeError("many\nlines " * 1000)))) < 600
    for error in (ModuleNotFoundError("gone"), PermissionError(13, "no", "m.zip"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as info:
            load(error)
        assert info.value is error
