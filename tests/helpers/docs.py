"""The pages of the project."""

import re
import shlex
import sys
from pathlib import Path

from helpers.processes import run

ROOT = Path(__file__).parents[2]


def code_blocks(page, language):
    """
    Read the code of a page.

    :param page: its path, from the project's folder
    :param language: which blocks, by what stands behind their backquotes
    """
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


# Those that are for a checkout, or go on for ever; the Makefile and .ci/run execute what is like them.
_ELSEWHERE = (
    "python3 -m venv ",
    ".venv/bin/python -m pip ",
    "python -m pip ",
    "source ",
    "tensorboard ",
    "python docs/",
)


def run_page(page, folder):
    """
    Execute the Python and the commands of a page, one after another, and compare with the output that it shows.

    :param page: its path, from the project's folder
    :param folder: where to run
    """
    text = (ROOT / page).read_text()
    before = output = ""
    for number, (language, code) in enumerate(re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)):
        if language == "python":
            script = folder / f"block_{number}.py"
            # A block goes on from those before it, unless these start processes, which import the script anew.
            before = code if "__main__" in code else before + code
            script.write_text(before)
            output = run(sys.executable, script, cwd=folder)
        elif language == "bash":
            for line in code.splitlines():
                if not line.startswith(_ELSEWHERE):
                    program, *arguments = shlex.split(line)
                    assert program == "seeupo-gym"
                    output = run(Path(sys.executable).parent / program, *arguments, cwd=folder)
        else:
            assert language == "text"
            assert code in output
