"""Language models saved, loaded and exported."""

import io
import zipfile

import numpy as np
import pytest
import torch as th

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

from helpers import assert_close  # noqa: E402
from helpers.language import LORA, Chatter, same, weights  # noqa: E402
from helpers.rollouts import collect  # noqa: E402

from seeupo_gym import SeeUPO  # noqa: E402
from seeupo_gym.agents.language import make_chat_vec  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("lora", "turn_policies"),
    [(None, "shared"), (LORA, "shared"), (LORA, "separate")],
    ids=["full", "lora", "separate"],
)
@pytest.mark.parametrize("as_file", [True, False])
def test_a_loaded_model_goes_on_as_if_it_had_not_stopped(
    make_model, small_folder, tmp_path, lora, turn_policies, as_file
):
    settings = {"policy_kwargs": {"lora": lora}, "turn_policies": turn_policies, "learning_rate": 1e-2}
    whole = make_model(**settings).learn(30)
    saved = make_model(**settings).learn(15)
    path = tmp_path / "model" if as_file else io.BytesIO()
    saved.save(path)
    with zipfile.ZipFile(tmp_path / "model.zip" if as_file else path) as archive:
        assert "policy.safetensors" in archive.namelist()
        assert "policy.pth" not in archive.namelist()
    loaded = SeeUPO.load(path, env=make_chat_vec(Chatter, small_folder, 12, 96, 4), device="cpu")
    assert same(weights(saved), weights(loaded))
    loaded.learn(15, reset_num_timesteps=False)
    assert loaded.num_timesteps == whole.num_timesteps
    assert same(weights(whole), weights(loaded))


def test_what_is_not_an_environment_yet_can_be_loaded_with(make_model, tmp_path):
    model = make_model().learn(15)
    model.save(tmp_path / "model")
    for env in (Chatter, Chatter()):
        loaded = SeeUPO.load(tmp_path / "model", env=env, device="cpu").learn(15)
        loaded.set_env(Chatter if loaded.n_envs > 1 else Chatter())
        loaded.learn(15, reset_num_timesteps=False)


def test_parameters_of_a_file_are_those_of_the_model(make_model, tmp_path):
    trained, other = make_model(learning_rate=1e-2).learn(15), make_model()
    trained.save(tmp_path / "model")
    assert not same(weights(trained), weights(other))
    other.set_parameters(tmp_path / "model", device="cpu")
    assert same(weights(trained), weights(other))


def test_a_loaded_model_predicts_the_same_without_an_environment(make_model, tmp_path):
    model = make_model(learning_rate=1e-2).learn(15)
    obs = model.env.reset()
    model.save(tmp_path / "model.zip")
    loaded = SeeUPO.load(tmp_path / "model.zip", device="cpu")
    for deterministic in (True, False):
        actions, state = model.predict(obs, deterministic=deterministic)
        again, _ = loaded.predict(obs, deterministic=deterministic)
        np.testing.assert_array_equal(actions, again)
    assert (state[0] == 1).all()


@pytest.mark.parametrize("turn_policies", ["shared", "separate"])
def test_export_writes_a_plain_model(make_model, tmp_path, turn_policies):
    model = make_model(policy_kwargs={"lora": LORA}, turn_policies=turn_policies, learning_rate=1e-2).learn(30)
    batch = collect(model).turn_batches[1]
    before = weights(model)
    model.policy.export(tmp_path, turn=1)
    assert same(before, weights(model))
    plain = make_model(policy_kwargs={"model": tmp_path})
    assert not any("lora" in name for name, _ in plain.policy.named_parameters())
    with th.no_grad():
        expected, _ = model.policy.evaluate_actions(batch.observations, batch.actions, 1)
        exported, _ = plain.policy.evaluate_actions(batch.observations, batch.actions, 1)
    assert_close(exported, expected)
