"""Tokenizers and models of language-model policies are loaded, or refused."""

import json
import shutil
import socket

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from helpers.generators import global_states
from helpers.language import CHATML, GUESS, SMALL, WORDS

from seeupo_gym.agents.language import ChatView
from seeupo_gym.agents.language.checks import check_context
from seeupo_gym.agents.language.loading import context_limit, find_source, load_model, load_tokenizer
from seeupo_gym.agents.language.tiny import build, collect_texts
from seeupo_gym.agents.language.tokens import end_of_turn, stop_token_ids
from seeupo_gym.envs import ENTRY_POINTS, NAMESPACE
from seeupo_gym.envs.views.text_view import TextView

transformers = pytest.importorskip("transformers")


@pytest.fixture
def chatml(folder):
    tokenizer = load_tokenizer(folder, CHATML)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return tokenizer


def test_a_tiny_model_is_small_and_knows_its_words(tmp_path):
    texts = collect_texts(TextView(gym.make(GUESS, **SMALL)), n_episodes=30)
    folder = build(tmp_path, texts)
    tokenizer, model = load_tokenizer(folder), load_model(folder)
    assert len(tokenizer) == model.config.vocab_size == 40
    assert sum(weight.numel() for weight in model.parameters()) < 150_000
    assert all(tokenizer.unk_token_id not in tokenizer(text)["input_ids"] for text in texts)
    assert {f"guess {i}" for i in range(8)} <= set(texts)
    # The last reply is nobody's prompt.
    assert not any("Reward" in text for text in texts)
    assert collect_texts(TextView(gym.make(GUESS, **SMALL)), n_episodes=30) == texts
    view = ChatView(TextView(gym.make(GUESS, **SMALL)), tokenizer, 64, 4)
    assert (view.reset(seed=0)[0]["context"] >= 0).sum() == 36


def test_the_seed_decides_on_the_weights(tmp_path):
    weights = [
        load_model(build(tmp_path / str(i), WORDS, seed=seed)).lm_head.weight for i, seed in enumerate([1, 1, 2])
    ]
    assert th.equal(weights[0], weights[1])
    assert not th.equal(weights[0], weights[2])
    with pytest.raises(ValueError, match="hidden_size must be a multiple of 2 \\* n_heads = 8, got 60"):
        build(tmp_path, WORDS, hidden_size=60)


def test_punctuation_can_have_tokens(tmp_path):
    tokenizer = load_tokenizer(build(tmp_path, ["Cost: 3.50!"], punctuation=True))
    assert tokenizer.decode(tokenizer("COST: 3.50!")["input_ids"]) == "cost : 3 . 50 !"


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_messages_of_every_task_survive_the_tiny_tokenizer(name, tmp_path):
    env = TextView(gym.make(f"{NAMESPACE}/{name}"))
    tokenizer = load_tokenizer(build(tmp_path, collect_texts(env, n_episodes=10), hidden_size=8, n_layers=1))
    env.reset(seed=0)
    done = False
    while not done:
        message = env.expert_message()
        again = tokenizer.decode(tokenizer(message)["input_ids"])
        assert np.array_equal(env.task.parse_action(0, again), env.task.parse_action(0, message))
        _, _, done, _, info = env.step(again)
        assert not info["seeupo_gym/malformed"]


def test_nothing_touches_the_global_random_state(tmp_path):
    env = TextView(gym.make(GUESS, **SMALL))
    before = global_states()
    folder = build(tmp_path, collect_texts(env, n_episodes=3))
    load_model(folder)
    view = ChatView(env, load_tokenizer(folder), 80, 4)
    view.reset(seed=1)
    view.step(np.full(4, -1))
    assert global_states() == before


def test_a_local_model_asks_nobody(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(socket.socket, "connect", lambda *args: asked.append(args))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: asked.append(args))
    load_tokenizer(folder)
    load_model(str(folder))
    assert not asked


def test_dropout_is_off(folder, tmp_path):
    llama = shutil.copytree(folder, tmp_path / "llama")
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    gpt2 = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    transformers.GPT2LMHeadModel(gpt2).save_pretrained(tmp_path / "gpt2")
    ids = th.arange(20)[None]
    for path in (llama, tmp_path / "gpt2"):
        model = load_model(path).train()
        assert th.equal(model(ids).logits, model(ids).logits)
    assert context_limit(load_model(llama).config) == 512
    assert context_limit(gpt2) == 32


def test_positions_that_depend_on_the_longest_row_of_a_batch_are_refused():
    factors = {"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0]}
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, "factor": 8.0, **factors}
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "pad_token_id": 0, "original_max_position_embeddings": 16}
    config = transformers.Phi3Config(**sizes, max_position_embeddings=128, rope_parameters=rope)
    check_context("phi3", config, 12, 4)
    with pytest.raises(ValueError, match=r"exceed the 16 tokens that phi3 .*longrope.*set max_context to at most 12"):
        check_context("phi3", config, 13, 4)
    dynamic = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
    config = transformers.LlamaConfig(max_position_embeddings=16, rope_parameters=dynamic)
    check_context("llama", config, 12, 4)
    with pytest.raises(ValueError, match="exceed the 16 tokens that llama can read: set max_context to at most 12"):
        check_context("llama", config, 13, 4)


def test_a_recurrent_model_is_refused(tmp_path):
    mamba = transformers.MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, state_size=4)
    transformers.MambaForCausalLM(mamba).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"\(MambaForCausalLM\) has a recurrent state: use one with attention alone"):
        load_model(tmp_path)


def test_the_type_of_the_weights(folder):
    assert load_model(folder, "bfloat16").dtype == th.bfloat16
    with pytest.raises(ValueError, match="dtype must be one of 'float32', 'bfloat16', 'float16', got 'int8'"):
        load_model(folder, "int8")


def test_damaged_weights_are_refused(folder, tmp_path):
    model = load_model(folder)
    with th.no_grad():
        model.model.norm.weight[0] = float("nan")
    model.save_pretrained(tmp_path / "nan")
    with pytest.raises(ValueError, match=r"norm\.weight .* not all finite"):
        load_model(tmp_path / "nan")
    state = {name: value for name, value in load_model(folder).state_dict().items() if "norm" not in name}
    load_model(folder).save_pretrained(tmp_path / "part", state_dict=state)
    with pytest.raises(ValueError, match=r"lacks 5 of its weights, as model\.layers\.0\.input_layernorm\.weight"):
        load_model(tmp_path / "part")
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(OSError, match=r"cannot load the model of .*broken"):
        load_model(broken)


def test_what_is_no_model_is_refused(folder, tmp_path, monkeypatch):
    for wrong in (tmp_path / "none", str(tmp_path / "none"), "./none", "a/b/c"):
        with pytest.raises(FileNotFoundError, match="no such folder or file"):
            load_model(wrong)
    with pytest.raises(ValueError, match=r"neither config\.json nor a \.gguf file"):
        load_tokenizer(tmp_path)
    (tmp_path / "a.gguf").touch()
    assert find_source(tmp_path) == find_source(tmp_path / "a.gguf") == (str(tmp_path), "a.gguf", True)
    with pytest.raises(OSError, match=r"cannot load the model of .*a\.gguf"):
        load_model(tmp_path)
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ValueError, match=r"has 2 \.gguf files: give one of them, as .*a\.gguf"):
        load_model(tmp_path)
    with pytest.raises(ValueError, match=r"no \.gguf file: give its folder"):
        load_model(folder / "config.json")
    with pytest.raises(ValueError, match=r"model must be a hub name, a folder or a \.gguf file, got None"):
        load_model(None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for load in (load_tokenizer, load_model):
        with pytest.raises(OSError, match=r"'owner/none': there is no such folder.*HF_HUB_OFFLINE=1") as error:
            load("owner/none")
        assert "\n" not in str(error.value)


def test_a_tokenizer_without_template_or_end_is_refused(folder, tmp_path):
    bare = shutil.copytree(folder, tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match=r"no chat template .*chat_template=\.\.\."):
        load_tokenizer(bare)
    assert load_tokenizer(bare, CHATML).chat_template == CHATML
    tokenizer = load_tokenizer(folder)
    assert tokenizer.pad_token is None
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "endless")
    with pytest.raises(ValueError, match=r"no end-of-sequence token.*eos_token in its tokenizer_config\.json"):
        load_tokenizer(tmp_path / "endless")


def test_stop_tokens(tokenizer, chatml, folder):
    end = tokenizer.eos_token_id
    assert stop_token_ids(tokenizer) == [end]
    im_end = chatml.convert_tokens_to_ids("<|im_end|>")
    model = load_model(folder)
    model.generation_config.eos_token_id = [7, im_end]
    assert stop_token_ids(chatml, model.config, model.generation_config) == [im_end, end, 7]
    # A template without an end of its own.
    chatml.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert end_of_turn(chatml) == end
    # One whose end has the letters of a message in it.
    chatml.add_special_tokens({"additional_special_tokens": ["<|endoftoken|>"]})
    chatml.chat_template = CHATML.replace("<|im_end|>", "<|endoftoken|>")
    assert chatml.decode([end_of_turn(chatml)]) == "<|endoftoken|>"
