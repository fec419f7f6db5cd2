"""Model files: those of strangers run nothing, and nonsense in them is refused."""

import base64
import io
import json
import pickle
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch as th
from helpers.models import weights

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.agents.method.threads import one_torch_thread
from seeupo_gym.agents.unpickling import UntrustedError
from seeupo_gym.baselines.registry import algorithm_names, get_algorithm
from seeupo_gym.benchmark.models import load_model, read_info, save_model
from seeupo_gym.cli import main

TRAP, TOOLS = "seeupo_gym/CoordinationTrap-v0", "seeupo_gym/ToolChain-v0"
SMALL = dict(n_groups=2, group_size=2, seed=0, policy_kwargs=dict(net_arch=[4]))


def rewrite(source, target, **members):
    """Copy a model with other contents of some members; a dict is for entries of "data"."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = members.get(name.replace(".", "_"), old.read(name))
            if isinstance(content, dict):
                content = json.dumps({**json.loads(old.read(name)), **content})
            new.writestr(name, content)
    return target


def pickled(content):
    return {":type:": "anything", ":serialized:": base64.b64encode(content).decode()}


class Malicious:
    """Writes a file when it is read from a pickle."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.fixture
def model(tmp_path):
    model = SeeUPO("MlpPolicy", make_vec(TOOLS, 4), **SMALL).learn(20)
    model.save(tmp_path / "model")
    return model


@pytest.mark.parametrize("entry", ["policy_kwargs", "learning_rate", "action_space", "something_new"])
def test_a_malicious_entry_runs_only_where_it_is_trusted(model, tmp_path, entry):
    mark = tmp_path / "it ran"
    path = rewrite(tmp_path / "model.zip", tmp_path / "bad.zip", data={entry: pickled(pickle.dumps(Malicious(mark)))})
    changes = {"policy_kwargs": {"net_arch": [4]}} if entry == "policy_kwargs" else {}
    with pytest.raises(UntrustedError, match=rf"the entry '{entry}' of the file holds pathlib\.\S*Path\.touch"):
        SeeUPO.load(path, trusted=False, **changes)
    assert not mark.exists()
    if entry != "policy_kwargs":
        SeeUPO.load(path, trusted=False, custom_objects={entry: getattr(model, entry, None)})
    assert not mark.exists()
    with suppress(Exception):
        SeeUPO.load(path)
    assert mark.exists(), "or else this file proves nothing"


@pytest.mark.parametrize(
    "gadget",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cos\nsystem\n(S'true'\ntR.",
        b"cnumpy.testing\nassert_equal\n.",
        b"ctorch.serialization\nload\n.",
        b"\x80\x04\x8c\x05torch\x8c\x12serialization.load\x93.",  # a dotted name
        b"cseeupo_gym.agents.seeupo\nSeeUPO\n.",
        b"cseeupo_gym\nmake_vec\n.",
        b"ccopyreg\n_reconstructor\n.",
        b"cbuiltins\ngetattr\n.",
        cloudpickle.dumps(lambda progress: 0.1),
    ],
)
def test_names_of_code_are_refused(model, tmp_path, gadget):
    path = rewrite(tmp_path / "model.zip", tmp_path / "bad.zip", data={"learning_rate": pickled(gadget)})
    with pytest.raises(UntrustedError, match="the entry 'learning_rate' of the file holds"):
        SeeUPO.load(path, trusted=False)


def test_the_storage_of_a_tensor_runs_nothing(model, tmp_path):
    mark, content = tmp_path / "it ran", io.BytesIO()
    th.save(Malicious(mark), content)
    inner = pickle.dumps(content.getvalue())[2:-1]  # the bytes alone
    gadget = b"\x80\x04\x8c\x0dtorch.storage\x8c\x10_load_from_bytes\x93" + inner + b"\x85R."
    path = rewrite(tmp_path / "model.zip", tmp_path / "bad.zip", data={"streams": pickled(gadget)})
    with pytest.raises(ValueError, match=r"UnpicklingError: [Ww]eights"):
        SeeUPO.load(path, trusted=False)
    assert not mark.exists()
    with suppress(Exception):
        SeeUPO.load(path)
    assert mark.exists(), "or else this file proves nothing"


@pytest.mark.parametrize("entry", ["env", "device", "policy", "predict", "learn", "logger"])
def test_entries_that_no_model_has_are_refused(model, tmp_path, entry):
    path = rewrite(tmp_path / "model.zip", tmp_path / "bad.zip", data={entry: "evil_module:Env-v0"})
    with pytest.raises(UntrustedError, match=f"the file has an entry '{entry}', which no SeeUPO saves"):
        SeeUPO.load(path, trusted=False)


def test_a_file_that_is_not_trusted_says_not_where_to_log(model, tmp_path):
    path = rewrite(tmp_path / "model.zip", tmp_path / "bad.zip", data={"tensorboard_log": "/somewhere/else"})
    assert SeeUPO.load(path, trusted=False).tensorboard_log is None
    assert SeeUPO.load(path, trusted=False, tensorboard_log="here").tensorboard_log == "here"


@pytest.mark.parametrize("as_file", [True, False])
def test_what_this_package_saves_needs_no_trust(tmp_path, as_file):
    kwargs = dict(net_arch=[4], activation_fn=th.nn.ReLU, optimizer_class=th.optim.SGD)
    settings = dict(n_groups=2, group_size=2, seed=0, schedule="staged", batch_size=3, policy_kwargs=kwargs)
    straight = SeeUPO("MlpPolicy", make_vec(TOOLS, 4), **settings).learn(60)
    target = tmp_path / "model" if as_file else io.BytesIO()
    straight.save(target)
    resumed = SeeUPO.load(target, env=make_vec(TOOLS, 4), trusted=False)
    for model in (straight, resumed):
        model.learn(60, reset_num_timesteps=False)
    assert th.equal(weights(straight), weights(resumed))
    assert straight.stages == resumed.stages


@pytest.mark.parametrize("algorithm", algorithm_names())
def test_models_of_all_algorithms_need_no_trust(tmp_path, algorithm):
    spec = get_algorithm(algorithm)
    if issubclass(spec.load_class(), SeeUPO):
        small = {"n_groups": 2, "group_size": 2, "n_envs": 4}
    else:
        small = {"n_envs": 2, "n_steps": 8} | ({} if algorithm == "a2c" else {"batch_size": 8})
    if algorithm == "recurrent_ppo":
        small["policy_kwargs"] = {"lstm_hidden_size": 4}
    spec = spec.with_settings(small)
    model = spec.make_model(TOOLS, 0)
    with one_torch_thread():
        model.learn(16)
    save_model(model, tmp_path / "model.zip", spec, TOOLS, {})
    loaded, _ = load_model(tmp_path / "model.zip", trusted=False)
    assert type(loaded) is type(model)
    assert th.equal(weights(model), weights(loaded))


@pytest.mark.parametrize("command", ["evaluate", "watch"])
def test_the_command_line_executes_nothing_of_strangers(tmp_path, capsys, command):
    spec = get_algorithm("ppo").with_settings({"n_envs": 2, "n_steps": 8, "batch_size": 8})
    model, path, mark = spec.make_model(TRAP, 0), tmp_path / "model.zip", tmp_path / "it ran"
    save_model(model, path, spec, TRAP, {})
    call = [command, str(path), "--untrusted", *(["--episodes", "2"] if command == "evaluate" else [])]
    assert main(call) == 0
    capsys.readouterr()
    info = read_info(path)
    harmful = {
        "which is more than data": {"data": {"clip_range": pickled(pickle.dumps(Malicious(mark)))}},
        "is none that is registered": {"seeupo_gym_json": json.dumps({**info, "entry_point": "evil:PPO"})},
        "names a module": {"seeupo_gym_json": json.dumps({**info, "env_id": "evil:Env-v0"})},
        "arguments for an environment": {
            "seeupo_gym_json": json.dumps({**info, "env_id": "CartPole-v1", "env_kwargs": {"render_mode": "human"}})
        },
    }
    for message, members in harmful.items():
        rewrite(path, tmp_path / "bad.zip", **members)
        call[1] = str(tmp_path / "bad.zip")
        assert main(call) == 2
        err = capsys.readouterr().err
        assert message in err, err
        assert err.count("\n") == 1, err
    assert not mark.exists()
    assert "evil" not in sys.modules


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("member", ["policy", "policy_optimizer"])
def test_weights_that_are_not_finite_are_refused(model, tmp_path, trusted, member):
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        name = member.replace("_", ".") + ".pth"
        state = th.load(io.BytesIO(archive.read(name)), weights_only=True)
    tensors = state if member == "policy" else state["state"][0]
    key = next(key for key, value in tensors.items() if key != "step" and value.numel() > 1)
    tensors[key].view(-1)[0] = np.nan
    content = io.BytesIO()
    th.save(state, content)
    path = rewrite(tmp_path / "model.zip", tmp_path / "nan.zip", **{f"{member}_pth": content.getvalue()})
    with pytest.raises(ValueError, match=rf"the saved weights {name[:-4]}\..*{key} are not finite"):
        SeeUPO.load(path, trusted=trusted)


def test_weights_that_are_not_finite_are_refused_for_all_algorithms(tmp_path):
    spec = get_algorithm("a2c").with_settings({"n_envs": 2})
    model = spec.make_model(TRAP, 0)
    with th.no_grad():
        next(model.policy.parameters())[0] = np.inf
    save_model(model, tmp_path / "model.zip", spec, TRAP, {})
    with pytest.raises(ValueError, match="are not finite"):
        load_model(tmp_path / "model.zip")


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize(
    ("entry", "value"),
    [("clip_range", -1.0), ("group_size", 1), ("update_rule", "cilp"), ("gamma", float("nan")), ("n_epochs", "many")],
)
def test_settings_out_of_range_are_refused(model, tmp_path, trusted, entry, value):
    path = rewrite(tmp_path / "model.zip", tmp_path / "bad.zip", data={entry: value})
    with pytest.raises(ValueError, match=entry):
        SeeUPO.load(path, trusted=trusted)


def test_a_class_that_is_not_here_is_named(model, tmp_path):
    gadget = b"cgone.module\nThing\n."
    path = rewrite(tmp_path / "model.zip", tmp_path / "new.zip", data={"learning_rate": pickled(gadget)})
    with pytest.raises(ImportError, match=r"the entry 'learning_rate' of the file needs the module gone, which is not"):
        SeeUPO.load(path)
    assert SeeUPO.load(path, learning_rate=0.1).learning_rate == 0.1


def test_what_is_no_model_is_what_sb3_says(tmp_path):
    (tmp_path / "text.zip").write_text("text")
    with pytest.raises(ValueError, match="wasn't a zip-file"):
        SeeUPO.load(tmp_path / "text")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("note", "nothing")
    for trusted in (True, False):
        with pytest.raises(ValueError, match="No data found"):
            SeeUPO.load(tmp_path / "other", trusted=trusted)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        SeeUPO.load(tmp_path / "nowhere")
