"""The tutorial on language models runs as written."""

import pytest
from helpers.docs import run_page

pytest.importorskip("transformers")


@pytest.mark.docs
def test_examples_run_one_after_another(tmp_path):
    run_page("docs/tutorials/language_laptop.md", tmp_path)
