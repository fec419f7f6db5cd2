"""The commands and examples of the README and the docs run as written (environments.md: see test_reference.py)."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from helpers.docs import ROOT, code_blocks
from helpers.processes import run, run_python

from seeupo_gym.cli import main

BIN = Path(sys.executable).parent


@pytest.mark.docs
def test_readme_example(tmp_path):
    (code,) = code_blocks("README.md", "python")
    assert len([line for line in code.splitlines() if line]) <= 10
    output = run_python(code, cwd=tmp_path)
    mean = float(re.search(r"mean return ([\d.]+)", output)[1])
    assert mean > 0.9, output
    assert list((tmp_path / "runs").rglob("events.out.tfevents.*"))


@pytest.mark.docs
def test_readme_command_line(tmp_path):
    lines = "".join(code_blocks("README.md", "bash")).splitlines()
    commands = [line for line in lines if line.startswith("seeupo-")]
    assert {shlex.split(command)[1] for command in commands} == {"envs", "train", "evaluate", "watch", "benchmark"}
    outputs = {}
    for command in commands:
        program, *arguments = shlex.split(command)
        outputs[arguments[0]] = run(BIN / program, *arguments, cwd=tmp_path)
    assert "seeupo_gym/ToolChain-v0" in outputs["envs"]
    assert "User:" in outputs["watch"]
    assert f"tensorboard --logdir {Path('runs/compare')}" in outputs["benchmark"]


@pytest.mark.docs
def test_training_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first_blocks = [code_blocks(f"docs/{page}.md", "bash")[0] for page in ("command_line", "trust")]
    lines = "".join(first_blocks).splitlines()
    commands = [shlex.split(line.replace("--steps 20000", "--steps 2000")) for line in lines]
    outputs = []
    for program, *arguments in commands:
        assert program == "seeupo-gym"
        assert main(arguments) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1], "it is over"


@pytest.mark.docs
def test_trust(tmp_path):
    run(sys.executable, "-c", "\n".join(code_blocks("docs/trust.md", "python")), cwd=tmp_path)


def test_commands_without_make_are_those_of_make():
    """.ci/run executes the Makefile's lines, so equal ones are executed too."""
    (block,) = [block for block in code_blocks("README.md", "bash") if "venv" in block]
    makefile = (ROOT / "Makefile").read_text()
    for variable, value in (("$(PYTHON)", "python3"), ("$(BIN)", ".venv/bin"), ("$(VENV)", ".venv")):
        makefile = makefile.replace(variable, value)
    makefile = makefile.replace("$(DEMO_OUT)", "runs").replace(" --quiet", "")
    for line in block.splitlines():
        assert line in makefile, line


def test_make_targets_that_the_docs_name_exist():
    makefile = (ROOT / "Makefile").read_text()
    pages = "".join(block for page in ("README.md", "CONTRIBUTING.md") for block in code_blocks(page, "bash"))
    for words in re.findall(r"^make ([a-z0-9 -]+)", pages, flags=re.MULTILINE):
        for target in words.split():
            assert f"\n{target}:" in makefile, target


PAGES = ("docs/architecture.md", "docs/algorithm.md", "docs/evaluation.md")
EXAMPLES = [(page, i) for page in PAGES for i in range(len(code_blocks(page, "python")))]


@pytest.mark.parametrize(("page", "number"), EXAMPLES)
@pytest.mark.docs
def test_examples_of_the_docs(page, number, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(code_blocks(page, "python")[number])
    run(sys.executable, script, cwd=tmp_path)


def test_the_map_names_every_module():
    page = (ROOT / "docs" / "architecture.md").read_text()
    for path in (ROOT / "seeupo_gym" / "agents").glob("[a-z]*.py"):
        assert path.name in page, path.name


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
        if not target.startswith("http") and target != "messages.md":  # which docs/hooks.py makes
            assert ((ROOT / page).parent / target).exists(), target


# With so little work that they end soon; those that are not here take long, or need Java, or language models.
LITTLE = {
    "benchmarks/throughput.py": ["--repeats", "1", "--scale", "0.01"],
    "benchmarks/envs.py": ["--seconds", "0.01"],
    "benchmarks/staged.py": ["--seeds", "1", "--scale", "0"],
}
BENCHMARKS = [line for block in code_blocks("docs/benchmarks.md", "bash") for line in block.splitlines() if line]


@pytest.mark.parametrize("command", BENCHMARKS)
@pytest.mark.docs
def test_benchmark_commands_are_valid(command, tmp_path):
    program, *arguments = shlex.split(command)  # of an option that is given twice, the second counts
    if program == "python":
        run(sys.executable, *arguments, *LITTLE.get(arguments[0], ["--help"]), cwd=ROOT)
        return
    assert program == "seeupo-gym"
    if "--preset" in arguments:
        arguments += ["--envs", "FrozenLake-v1", "--algos", "ppo"]
    little = ["--seeds", "0", "--steps", "100", "--evals", "1", "--episodes", "2", "--out", str(tmp_path)]
    run(BIN / program, *arguments, *little, cwd=tmp_path)
    assert (tmp_path / "results.csv").is_file()
