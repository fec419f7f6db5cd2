"""Chat templates of several families: what is sent, thoughts, and what is rendered when."""

import gymnasium as gym
import numpy as np
import pytest
from helpers.language import CHATML, GUESS, QWEN3, SMALL, Scripted, play, tokens

from seeupo_gym.agents.language import ChatView
from seeupo_gym.agents.language.loading import load_tokenizer
from seeupo_gym.agents.language.tokens import end_of_turn
from seeupo_gym.envs.views.text_view import TextView

transformers = pytest.importorskip("transformers")
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


TEMPLATES = {
    "chatml": (
        CHATML,
        "<|im_end|>",
        "<|im_start|>user\nlook<|im_end|>\n<|im_start|>assistant\ngo north<|im_end|>\n"
        "<|im_start|>user\nlook<|im_end|>\n<|im_start|>assistant\n",
    ),
    "qwen3": (
        QWEN3,
        "<|im_end|>",
        "<|im_start|>user\nlook<|im_end|>\n<|im_start|>assistant\ngo north<|im_end|>\n"
        "<|im_start|>user\nlook<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
    "llama3": (
        LLAMA3,
        "<|eot_id|>",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nlook<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\ngo north<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nlook<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
}


MARKS = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"]


@pytest.fixture
def templated(folder):
    """A tokenizer with the marks of several families, ``<think>`` being no special token, as with Qwen3."""

    def make(template):
        tokenizer = load_tokenizer(folder, template)
        tokenizer.add_special_tokens({"bos_token": "<|begin_of_text|>", "additional_special_tokens": MARKS})
        tokenizer.add_tokens(["<think>", "</think>"])
        return tokenizer

    return make


@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_templates(name, templated):
    template, end, written = TEMPLATES[name]
    tokenizer = templated(template)
    env = Scripted(["look"] * 3)
    kwargs = {"enable_thinking": False} if name == "qwen3" else None
    view = ChatView(env, tokenizer, 64, 12, template_kwargs=kwargs)
    view.reset()
    observation = view.step(tokens(tokenizer, f"<think> thinking aloud </think> go north{end}", 12))[0]
    assert env.heard == ["go north"]
    assert np.array_equal(observation["context"], tokens(tokenizer, written, 64))
    assert tokenizer.decode([end_of_turn(tokenizer)]) == end


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<think> thinking </think> go north", "go north"),
        ("thinking </think> go north", "go north"),
        ("<think> a </think> b <think> c </think> look", "look"),
        ("<think> thinking aloud", ""),
        ("<think> a </think> b <think> c", ""),
        ("<think> a </think>", ""),
        ("go north", "go north"),
    ],
)
@pytest.mark.parametrize("special", [False, True])
def test_thoughts_are_not_sent(text, message, special, folder):
    tokenizer = load_tokenizer(folder, QWEN3)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.add_tokens(["<think>", "</think>"], special_tokens=special)
    env = Scripted(["look"] * 3)
    view = ChatView(env, tokenizer, 64, 12)
    view.reset()
    view.step(tokens(tokenizer, text, 12))
    assert env.heard == [message]


def test_a_thought_that_the_template_begins_has_to_end(templated):
    tokenizer = templated(CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif"))
    env = Scripted(["look"] * 3)
    view = ChatView(env, tokenizer, 64, 12)
    view.reset()
    view.step(tokens(tokenizer, "thinking aloud go north", 12))
    view.step(tokens(tokenizer, "thinking </think> go north", 12))
    assert env.heard == ["", "go north"]


@pytest.fixture
def rendered(monkeypatch):
    """How many messages had the conversations that the template wrote as tokens."""

    def spy(tokenizer):
        lengths, render = [], tokenizer.apply_chat_template

        def counted(messages, tokenize=True, **kwargs):
            lengths.extend([len(messages)] if tokenize else [])
            return render(messages, tokenize=tokenize, **kwargs)

        monkeypatch.setattr(tokenizer, "apply_chat_template", counted)
        return lengths

    return spy


def test_a_conversation_is_rendered_once(tokenizer, rendered):
    lengths = rendered(tokenizer)

    def contexts(*messages, **settings):
        view = ChatView(TextView(gym.make(GUESS, **SMALL)), tokenizer, 80, 4, **settings)
        return [result[0]["context"] for result in play(view, tokenizer, *messages)]

    first = contexts("guess 3", "guess 1")
    assert lengths == [1, 3, 5]
    again = contexts("guess 3", "guess 2")
    assert lengths == [1, 3, 5, 5]
    assert all(np.array_equal(a, b) for a, b in zip(first[:2], again[:2], strict=True))
    assert not np.array_equal(first[2], again[2])
    # Other settings are not to be confused with these.
    contexts("guess 3", template_kwargs={"enable_thinking": False})
    assert lengths[4:] == [1, 3]
    tokenizer.chat_template = f"<|system|>{tokenizer.chat_template}"
    assert not np.array_equal(contexts()[0], first[0])


def test_a_template_with_the_date_is_always_rendered(tokenizer, rendered):
    lengths = rendered(tokenizer)
    tokenizer.chat_template = "{{ strftime_now('%Y') }}" + tokenizer.chat_template
    for _ in range(2):
        ChatView(Scripted(["look"] * 3), tokenizer, 64, 4).reset()
    assert lengths == [1, 1]


def test_what_was_rendered_is_forgotten_when_there_is_too_much(tokenizer, rendered, monkeypatch):
    monkeypatch.setattr("seeupo_gym.agents.language.chat._MEMO_SIZE", 2)
    lengths = rendered(tokenizer)
    for text in ("look", "go", "look", "north", "look", "go"):
        ChatView(Scripted([text] * 2), tokenizer, 64, 4).reset()
    assert len(lengths) == 4  # the least recent one, "go", had to go
