"""Tiny language models and their tokenizers."""

import gymnasium as gym
import pytest
from helpers.language import GUESS, SMALL, WORDS

from seeupo_gym.agents.language.loading import load_tokenizer
from seeupo_gym.agents.language.tiny import build, collect_texts
from seeupo_gym.envs.views.text_view import TextView


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    texts = collect_texts(TextView(gym.make(GUESS, **SMALL)), n_episodes=30)
    return build(tmp_path_factory.mktemp("tiny") / "model", [*texts, *WORDS])


@pytest.fixture
def tokenizer(folder):
    return load_tokenizer(folder)
