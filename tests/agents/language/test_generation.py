"""Sampling of messages and their log-probabilities against plain forward passes, one row and one token at a time."""

import inspect
from itertools import product

import numpy as np
import pytest
import torch as th

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

from helpers import assert_close  # noqa: E402
from helpers.generators import global_states  # noqa: E402

from seeupo_gym.agents.language.generation import (  # noqa: E402
    Decoding,
    NoTokenError,
    choice_mask,
    left_padded,
    message_log_probs,
    sample_messages,
    shared_prefix,
)

VOCAB, STOP, WIDTH, NEW = 11, 1, 9, 4


SIZES = {
    "vocab_size": VOCAB + 2,  # more rows than the tokenizer has tokens, as real models have
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "initializer_range": 0.7,
}


@pytest.fixture(scope="module")
def network():
    config = transformers.LlamaConfig(**SIZES)
    with th.random.fork_rng():
        th.manual_seed(3)
        return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture
def read(network, monkeypatch):
    """Shapes of what the network has read."""
    shapes, forward = [], network.forward

    def spy(*args, **kwargs):
        shapes.append(tuple(kwargs["input_ids"].shape))
        return forward(*args, **kwargs)

    spy.__signature__ = inspect.signature(forward)
    monkeypatch.setattr(network, "forward", spy)
    return shapes


def make_contexts(n=8, seed=0):
    """Contexts of different lengths, some of them equal."""
    rng = np.random.default_rng(seed)
    contexts = np.full((n, WIDTH), -1)
    for i in range(n):
        length = rng.integers(1, WIDTH + 1)
        contexts[i, :length] = rng.integers(2, VOCAB, size=length)
    contexts[3], contexts[5] = contexts[0], contexts[1]
    return th.as_tensor(contexts)


def plain_log_probs(network, context, message, temperature=1.0):
    """No padding, no batch, no cache."""
    ids = [*context[context >= 0].tolist()]
    result = []
    for token in message[message >= 0].tolist():
        logits = network(input_ids=th.tensor([ids])).logits[0, -1, :VOCAB].double() / temperature
        result.append(logits.log_softmax(0)[token].item())
        ids.append(token)
    return result


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_log_probabilities_are_those_of_plain_forward_passes(network, temperature):
    contexts, decoding = make_contexts(), Decoding(VOCAB, [STOP], temperature)
    messages = sample_messages(network, contexts, NEW, decoding, th.Generator().manual_seed(0))
    lengths = (messages.tokens >= 0).sum(dim=1)
    assert len(set(lengths.tolist())) > 2  # some rows ended early, and were dropped
    again, entropy = message_log_probs(network, contexts, messages.tokens, decoding, with_entropy=True)
    for i in range(len(contexts)):
        tokens = messages.tokens[i, : lengths[i]].tolist()
        assert STOP not in tokens[:-1]
        assert tokens[-1] == STOP or lengths[i] == NEW
        assert (messages.tokens[i, lengths[i] :] == -1).all()
        assert (messages.log_probs[i, lengths[i] :] == 0.0).all()
        plain = plain_log_probs(network, contexts[i], messages.tokens[i], temperature)
        np.testing.assert_allclose(messages.log_probs[i, : lengths[i]], plain, rtol=0, atol=1e-4)
        np.testing.assert_allclose(again[i, : lengths[i]], plain, rtol=0, atol=1e-4)
    assert_close(again, messages.log_probs)
    assert entropy.shape == (8,)


GPT2_SIZES = {"vocab_size": VOCAB + 2, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
FAMILIES = {
    "Qwen2": SIZES,
    "Qwen3": {**SIZES, "head_dim": 8},
    # Attention over the last four tokens only, in all layers and in every other one.
    "Mistral": {**SIZES, "sliding_window": 4},
    "Gemma3Text": {**SIZES, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "GPTNeo": {
        **SIZES,
        "num_layers": 2,
        "num_heads": 2,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 4,
    },
    "Mixtral": {**SIZES, "num_local_experts": 2, "num_experts_per_tok": 1},
    # Learned positions, and none but distances.
    "GPT2": {**GPT2_SIZES, "initializer_range": 0.7},
    "Bloom": {"vocab_size": VOCAB + 2, "hidden_size": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.7},
    "Mpt": {"vocab_size": VOCAB + 2, "d_model": 16, "n_layers": 2, "n_heads": 2, "initializer_range": 0.7},
}


# Nothing, and a prompt of the system that contexts of different lengths begin with.
@pytest.mark.parametrize("beginning", [[], [4, 5, 6, 7, 8, 9]], ids=["alone", "shared"])
@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_of_models(family, beginning):
    config = getattr(transformers, f"{family}Config")(**FAMILIES[family], bos_token_id=None, eos_token_id=None)
    with th.random.fork_rng():
        th.manual_seed(3)
        network = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    contexts = th.cat([th.tensor(beginning, dtype=th.long).expand(8, -1), make_contexts()], dim=1)
    messages = sample_messages(network, contexts, NEW, Decoding(VOCAB, [STOP]), th.Generator().manual_seed(0))
    again, _ = message_log_probs(network, contexts, messages.tokens, Decoding(VOCAB, [STOP]))
    for i in range(len(contexts)):
        plain = plain_log_probs(network, contexts[i], messages.tokens[i])
        np.testing.assert_allclose(messages.log_probs[i, : len(plain)], plain, rtol=0, atol=1e-4)
        np.testing.assert_allclose(again[i, : len(plain)], plain, rtol=0, atol=1e-4)


def test_entropy_by_hand(network):
    context, message = th.tensor([[4, 5, -1]]), th.tensor([[6, STOP, -1]])
    _, entropy = message_log_probs(network, context, message, Decoding(VOCAB, [STOP]), with_entropy=True)
    of_tokens = []
    for ids in ([4, 5], [4, 5, 6]):
        p = network(input_ids=th.tensor([ids])).logits[0, -1, :VOCAB].double().softmax(0)
        of_tokens.append(-(p * p.log()).sum().item())
    assert entropy.item() == pytest.approx(np.mean(of_tokens), abs=1e-4)


def test_the_entropy_of_a_message_is_the_mean_of_its_own_tokens(network):
    contexts, messages = th.tensor([[4, 5, -1], [4, 5, 7]]), th.tensor([[STOP, -1, -1], [6, 6, STOP]])
    decoding = Decoding(VOCAB, [STOP])
    _, together = message_log_probs(network, contexts, messages, decoding, with_entropy=True)
    for i in range(2):
        _, alone = message_log_probs(network, contexts[i : i + 1], messages[i : i + 1], decoding, with_entropy=True)
        assert together[i].item() == pytest.approx(alone.item(), abs=1e-4)


def test_each_of_several_stop_tokens_ends_a_message(network):
    stops = [STOP, 4, 7]
    contexts = make_contexts(64)
    tokens = sample_messages(network, contexts, 8, Decoding(VOCAB, stops), th.Generator().manual_seed(0)).tokens
    lengths = (tokens >= 0).sum(dim=1)
    last = tokens.gather(1, (lengths - 1).unsqueeze(1)).squeeze(1)
    assert set(stops) <= set(last.tolist())
    for row, length in zip(tokens, lengths, strict=True):
        assert not set(stops) & set(row[: length - 1].tolist())
        assert length == 8 or int(row[length - 1]) in stops


def test_samples_follow_the_distribution(network):
    """Frequencies of the first token against its probabilities, 3.3 standard deviations of 20,000 draws."""
    n = 20_000
    context = th.tensor([[4, 5, 6]])
    p = network(input_ids=context).logits[0, -1, :VOCAB].double().softmax(0).numpy()
    drawn = sample_messages(network, context.expand(n, -1), 1, Decoding(VOCAB, [STOP]), th.Generator().manual_seed(1))
    frequencies = np.bincount(drawn.tokens[:, 0], minlength=VOCAB) / n
    assert (np.abs(frequencies - p) < 3.3 * np.sqrt(p * (1 - p) / n) + 1e-9).all()


def test_the_most_likely_tokens_are_those_of_transformers_generate(network):
    contexts = make_contexts()
    messages = sample_messages(network, contexts, NEW, Decoding(VOCAB, [STOP]), None)
    ids, mask = left_padded(contexts)
    forbidden = transformers.generation.SuppressTokensLogitsProcessor([VOCAB, VOCAB + 1])
    expected = network.generate(
        input_ids=ids,
        attention_mask=mask.long(),
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=STOP,
        pad_token_id=0,
        logits_processor=transformers.LogitsProcessorList([forbidden]),
    )[:, ids.shape[1] :]
    for i in range(len(contexts)):
        tokens = messages.tokens[i][messages.tokens[i] >= 0]
        assert tokens.tolist() == expected[i, : len(tokens)].tolist()


def test_equal_contexts_are_read_once(network, read):
    contexts = th.tensor([[4, 5, 6], [7, 8, -1]]).repeat_interleave(4, dim=0)
    sample_messages(network, contexts, 2, Decoding(VOCAB, [STOP]), th.Generator().manual_seed(0))
    assert read[0] == (2, 3)  # two prompts, not eight
    assert read[1][1] == 1
    assert read[1][0] <= 8


def test_the_prefix_that_contexts_share_by_hand():
    assert shared_prefix(th.tensor([[4, 5, 6, -1], [4, 5, 7, 8]])) == 2
    assert shared_prefix(th.tensor([[4, 5, -1, -1], [4, 5, 7, 8]])) == 1  # a token is left to go on from
    assert shared_prefix(th.tensor([[4, 5, -1], [4, 5, -1]])) == 1
    assert shared_prefix(th.tensor([[4, 5], [5, 5]])) == 0


def test_a_shared_prefix_is_read_once_and_changes_neither_log_probabilities_nor_gradients(network, read):
    beginning = th.tensor([[4, 5, 6, 7, 8]]).expand(6, -1)
    contexts = th.cat([beginning, make_contexts(6, seed=1)], dim=1)
    decoding = Decoding(VOCAB, [STOP])
    messages = sample_messages(network, contexts, NEW, decoding, th.Generator().manual_seed(0)).tokens
    parameters = [p.requires_grad_(True) for p in network.parameters()]
    read.clear()
    try:
        together, _ = message_log_probs(network, contexts, messages, decoding)
        assert read[0] == (1, 5)
        shared = th.autograd.grad(together.sum(), parameters)
        alone = [message_log_probs(network, contexts[i : i + 1], messages[i : i + 1], decoding)[0] for i in range(6)]
        assert_close(together, th.cat(alone))
        for a, b in zip(shared, th.autograd.grad(th.cat(alone).sum(), parameters), strict=True):
            th.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
    finally:
        network.requires_grad_(False)


def test_padding_and_neighbours_change_nothing(network):
    contexts, decoding = make_contexts(), Decoding(VOCAB, [STOP])
    messages = sample_messages(network, contexts, NEW, decoding, th.Generator().manual_seed(0)).tokens
    together, _ = message_log_probs(network, contexts, messages, decoding)
    wide = th.cat([contexts, th.full((8, 5), -1)], dim=1)
    wide_messages = th.cat([messages, th.full((8, 3), -1)], dim=1)
    padded, _ = message_log_probs(network, wide, wide_messages, decoding)
    assert_close(padded[:, :NEW], together)
    assert (padded[:, NEW:] == 0.0).all()
    for i in range(8):
        alone, _ = message_log_probs(network, contexts[i : i + 1], messages[i : i + 1], decoding)
        assert_close(alone[0], together[i])


def test_left_padding_by_hand():
    ids, mask = left_padded(th.tensor([[5, 6, -1, -1], [7, 8, 9, -1]]))
    assert ids.tolist() == [[0, 5, 6], [7, 8, 9]]
    assert mask.tolist() == [[False, True, True], [True] * 3]


CHOICES = [[[4, 5, STOP, -1], [4, 6, STOP, -1], [7, STOP, -1, -1], [-1] * 4], [[8, STOP, -1, -1], *[[-1] * 4] * 3]]


def test_choice_mask_by_hand():
    choices = th.tensor(CHOICES)
    first = choice_mask(choices, th.zeros((2, 0), dtype=th.long), VOCAB)
    assert [row.nonzero().flatten().tolist() for row in first] == [[4, 7], [8]]
    second = choice_mask(choices, th.tensor([[4], [8]]), VOCAB)
    assert [row.nonzero().flatten().tolist() for row in second] == [[5, 6], [STOP]]


def test_choices_are_all_that_is_written_and_their_probabilities_add_up_to_one(network):
    n = 200
    choices = th.tensor(CHOICES).repeat_interleave(n, dim=0)
    contexts = th.tensor([[4, 5, 6, 7], [7, 8, -1, -1]]).repeat_interleave(n, dim=0)
    decoding = Decoding(VOCAB, [STOP])
    messages = sample_messages(network, contexts, NEW, decoding, th.Generator().manual_seed(0), choices)
    written = {tuple(row) for row in messages.tokens[:n].tolist()}
    assert written == {tuple(row) for row in CHOICES[0][:3]}
    assert {tuple(row) for row in messages.tokens[n:].tolist()} == {tuple(CHOICES[1][0])}
    again, _ = message_log_probs(network, contexts, messages.tokens, decoding, choices)
    assert_close(again, messages.log_probs)
    every = th.tensor(CHOICES[0][:3])
    log_probs, entropy = message_log_probs(network, contexts[:3], every, decoding, choices[:3], with_entropy=True)
    assert log_probs.sum(dim=1).exp().sum().item() == pytest.approx(1.0, abs=1e-4)
    assert entropy.isfinite().all()


def even_only(contexts, prefix):
    mask = th.arange(VOCAB) % 2 == 0
    mask[STOP] = prefix.shape[1] > 0
    return mask.expand(len(contexts), -1)


def test_a_grammar_is_obeyed_and_normalised(network):
    contexts, decoding = make_contexts(), Decoding(VOCAB, [STOP], 1.0, even_only)
    messages = sample_messages(network, contexts, NEW, decoding, th.Generator().manual_seed(0))
    written = messages.tokens[messages.tokens >= 0]
    assert ((written % 2 == 0) | (written == STOP)).all()
    assert (messages.tokens[:, 0] != STOP).all()
    again, _ = message_log_probs(network, contexts, messages.tokens, decoding)
    assert_close(again, messages.log_probs)
    firsts = th.tensor([[token, STOP] for token in range(0, VOCAB, 2)])
    log_probs, _ = message_log_probs(network, contexts[:1].expand(len(firsts), -1), firsts, decoding)
    assert log_probs[:, 0].exp().sum().item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("kind", [th.int32, th.int64])
def test_a_grammar_is_asked_about_open_messages_only(network, kind):
    asked = []

    def grammar(contexts, prefix):
        assert contexts.dtype == prefix.dtype == th.int64
        assert len(contexts) == len(prefix) > 0
        assert (prefix >= 0).all()
        assert not (prefix == STOP).any()
        asked.append(len(prefix))
        return even_only(contexts, prefix)

    contexts, decoding = make_contexts().to(kind), Decoding(VOCAB, [STOP], 1.0, grammar)
    messages = sample_messages(network, contexts, NEW, decoding, th.Generator().manual_seed(0))
    assert len(set(asked)) > 2
    again, _ = message_log_probs(network, contexts, messages.tokens.to(kind), decoding)
    assert_close(again, messages.log_probs)


def test_a_grammar_and_choices_have_both_to_allow_a_message(network):
    n = 60
    choices = th.tensor([[[2, 3, STOP], [2, 4, STOP], [6, STOP, -1], [5, STOP, -1]]]).expand(n, -1, -1)
    contexts, decoding = make_contexts(n), Decoding(VOCAB, [STOP], 1.0, even_only)
    messages = sample_messages(network, contexts, 3, decoding, th.Generator().manual_seed(0), choices)
    assert {tuple(row) for row in messages.tokens.tolist()} == {(2, 4, STOP), (6, STOP, -1)}
    again, _ = message_log_probs(network, contexts, messages.tokens, decoding, choices)
    assert_close(again, messages.log_probs)


def test_all_messages_of_a_length_add_up_to_one(network):
    context = th.tensor([[4, 5]])
    every = th.tensor(list(product(range(VOCAB), repeat=2)))
    every = every[every[:, 0] != STOP]
    alone = th.tensor([[STOP, -1]])
    messages = th.cat([every, alone])
    log_probs, _ = message_log_probs(network, context.expand(len(messages), -1), messages, Decoding(VOCAB, [STOP]))
    assert log_probs.sum(dim=1).exp().sum().item() == pytest.approx(1.0, abs=1e-4)


def test_a_grammar_that_allows_nothing_is_an_error(network):
    def nothing(contexts, prefix):
        return th.zeros((len(contexts), VOCAB), dtype=th.bool)

    with pytest.raises(NoTokenError, match="allows no token after 0 tokens"):
        sample_messages(network, make_contexts(), NEW, Decoding(VOCAB, [STOP], 1.0, nothing), None)


def test_same_generator_same_messages_and_the_global_one_is_left_alone(network):
    before = global_states()
    drawn = [
        sample_messages(network, make_contexts(), NEW, Decoding(VOCAB, [STOP]), th.Generator().manual_seed(seed)).tokens
        for seed in (0, 0, 1)
    ]
    assert th.equal(drawn[0], drawn[1])
    assert not th.equal(drawn[0], drawn[2])
    assert global_states() == before
