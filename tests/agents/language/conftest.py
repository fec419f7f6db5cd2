"""Tiny language models and their tokenizers."""

import gymnasium as gym
import pytest
from helpers.language import GUESS, SMALL, WORDS, Chatter, guess_env

from seeupo_gym import SeeUPO
from seeupo_gym.agents.language import CausalLMPolicy
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


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory):
    return build(tmp_path_factory.mktemp("small"), collect_texts(guess_env(), 20), hidden_size=32, n_layers=1)


@pytest.fixture
def make_model(small_folder):
    def make(algorithm=SeeUPO, env=Chatter, policy_kwargs=None, **settings):
        kwargs = {"model": small_folder, "max_context": 96, "max_new_tokens": 4, **(policy_kwargs or {})}
        settings = {"n_groups": 3, "group_size": 4, "seed": 0, "device": "cpu", **settings}
        return algorithm(CausalLMPolicy, env, policy_kwargs=kwargs, **settings)

    return make
