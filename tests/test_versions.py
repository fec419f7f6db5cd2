"""The versions that setup.cfg allows are those that are tested."""

import configparser

from helpers.docs import ROOT


def test_the_oldest_versions_are_the_lower_bounds():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lower_bounds = [line.split(",")[0] for line in setup["options"]["install_requires"].split()]
    lines = (ROOT / "tests/versions/oldest.txt").read_text().splitlines()

    def numbers(version):
        return version.removesuffix(".0").removesuffix(".0")

    oldest = {name: numbers(version) for name, version in (line.split("==") for line in lines if line[0] != "#")}
    assert oldest == {name: numbers(version) for name, version in (bound.split(">=") for bound in lower_bounds)}
