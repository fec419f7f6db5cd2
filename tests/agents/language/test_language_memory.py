"""What saves memory with language models changes no result: micro-batches, checkpointing, rows at once, bfloat16."""

import numpy as np
import pytest
import torch as th

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

from helpers import assert_close  # noqa: E402
from helpers.language import LORA, weights  # noqa: E402
from helpers.rollouts import collect  # noqa: E402

from seeupo_gym.agents.method.batches import select_rows  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("extra", [{}, {"batch_size": 5, "n_epochs": 2}, {"reference_kl_coef": 0.1, "ent_coef": 0.02}])
def test_micro_batches_give_the_same_update(make_model, extra):
    results = []
    for micro_batch_size in (None, 2):
        # Not Adam: its first steps are as large for gradients that are nothing but rounding errors, and for any scale.
        plain = {"policy_kwargs": {"optimizer_class": th.optim.SGD}, "learning_rate": 0.1, "max_grad_norm": None}
        model = make_model(micro_batch_size=micro_batch_size, **plain, **extra)
        before = weights(model)
        model.learn(1)
        results.append({name: param - before[name] for name, param in weights(model).items()})
    assert max(change.abs().max() for change in results[0].values()) > 1e-2
    for name, change in results[0].items():
        assert_close(change, results[1][name])


def test_gradient_checkpointing_gives_the_same_gradients(make_model):
    gradients = []
    for checkpointing in (False, True):
        model = make_model(policy_kwargs={"gradient_checkpointing": checkpointing})
        batch = collect(model).turn_batches[0]
        model.policy.set_training_mode(True)
        log_probs, _ = model.policy.evaluate_actions(batch.observations, batch.actions, 0)
        log_probs.sum().backward()
        gradients.append([param.grad for param in model.policy.parameters()])
    for a, b in zip(*gradients, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("lora", [None, LORA])
def test_gradient_checkpointing_leaves_what_has_no_gradients_alone(make_model, lora):
    """Prompts of one length or of several, whose common beginning is read into a cache."""
    model = make_model(policy_kwargs={"gradient_checkpointing": True, "lora": lora})
    batches = collect(model).turn_batches
    modes = []
    model.policy.network.register_forward_pre_hook(lambda network, _: modes.append(network.training))
    model.policy.set_training_mode(True)
    with th.no_grad():
        for turn, batch in enumerate(batches):
            again, _ = model.policy.evaluate_actions(batch.observations, batch.actions, turn)
            reference = model.policy.reference_log_probs(batch.observations, batch.actions, turn)
            assert_close(again, batch.log_probs)
            assert_close(reference, batch.log_probs)
    assert not any(modes)
    model.policy.evaluate_actions(batches[0].observations, batches[0].actions, 0)
    assert modes[-1]


def test_activations_are_computed_again_with_the_adapter_of_their_own_turn(make_model):
    """Turns with an adapter each, and one backward pass through all of them."""
    gradients = []
    for checkpointing in (False, True):
        model = make_model(
            policy_kwargs={"lora": LORA, "gradient_checkpointing": checkpointing}, turn_policies="separate"
        )
        generator = th.Generator().manual_seed(1)
        with th.no_grad():  # LoRA starts these at 0, where all adapters are alike
            for name, param in model.policy.named_parameters():
                if "lora_B" in name:
                    param.copy_(0.3 * th.randn(param.shape, generator=generator))
        batches = collect(model).turn_batches
        model.policy.set_training_mode(True)
        rows = [(batch.observations, batch.actions, turn) for turn, batch in enumerate(batches)]
        outputs = [model.policy.evaluate_actions(*row)[0].sum() for row in rows]
        th.autograd.backward(outputs)
        gradients.append({k: p.grad for k, p in model.policy.named_parameters() if p.grad is not None})
    assert {name.split(".")[-2] for name in gradients[0]} == {"turn_00", "turn_01"}
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert_close(gradient, gradients[1][name])


def test_rows_at_once_is_a_matter_of_memory_only(make_model):
    models = [make_model(policy_kwargs={"rows_at_once": rows}) for rows in (3, 64)]
    batches = [collect(model).turn_batches[0] for model in models]
    assert len(batches[0].actions) == 12
    with th.no_grad():
        for batch in batches:
            split, whole = (m.policy.evaluate_actions(batch.observations, batch.actions, 0, None, True) for m in models)
            assert_close(split[0], whole[0])
            assert_close(split[1], whole[1])


def test_bfloat16_is_close_to_float32(make_model):
    model = make_model()
    batch = collect(model).turn_batches[0]
    narrow = make_model(policy_kwargs={"dtype": "bfloat16", "lora": LORA})
    assert {p.dtype for n, p in narrow.policy.named_parameters() if "lora" not in n} == {th.bfloat16}
    mixed = make_model(policy_kwargs={"dtype": "bfloat16"})
    assert {p.dtype for p in mixed.policy.parameters()} == {th.float32}
    with th.no_grad():
        exact, _ = model.policy.evaluate_actions(batch.observations, batch.actions, 0)
        for policy in (narrow.policy, mixed.policy):
            log_probs, _ = policy.evaluate_actions(batch.observations, batch.actions, 0)
            th.testing.assert_close(log_probs, exact, atol=0.05, rtol=0)
            assert not th.equal(log_probs, exact)
            rows = select_rows(batch.observations, th.arange(2))
            assert policy(rows, np.zeros(2, dtype=int), th.Generator().manual_seed(0))[1].dtype == th.float32
