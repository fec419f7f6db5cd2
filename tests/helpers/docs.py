"""The pages of the project."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def code_blocks(page, language):
    """
    Read the code of a page.

    :param page: its path, from the project's folder
    :param language: which blocks, by what stands behind their backquotes
    """
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
