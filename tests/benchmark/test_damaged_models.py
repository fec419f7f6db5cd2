"""Damaged and edited model files: each loads to a model that works, or is told in one line that names it."""

import base64
import io
import json
import pickle
import warnings
import zipfile

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.vec_env import VecNormalize

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.baselines import get_algorithm
from seeupo_gym.benchmark.models import INFO_MEMBER, load_model, save_model
from seeupo_gym.cli import main
from seeupo_gym.system.errors import DamagedFileError

TRAP = "seeupo_gym/CoordinationTrap-v0"
RUN = {"settings": {"seed": 0}, "evaluations": [], "training_time": 1.0, "wall_time": 1.0}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A model in the middle of a stage, trained with normalised observations."""
    path = tmp_path_factory.mktemp("sound") / "model.zip"
    settings = dict(n_groups=2, group_size=2, seed=0, schedule="staged", policy_kwargs=dict(net_arch=[4]))
    model = SeeUPO("MlpPolicy", VecNormalize(make_vec(TRAP, 4), norm_reward=False), **settings).learn(64)
    model.stages.turn = 1
    save_model(model, path, get_algorithm("seeupo"), TRAP, {}, RUN)
    return path


@pytest.fixture(scope="module")
def sound_ppo(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "model.zip"
    spec = get_algorithm("ppo").with_settings({"n_envs": 2, "n_steps": 8, "batch_size": 8, "n_epochs": 1})
    save_model(spec.make_model(TRAP, 0).learn(16), path, spec, TRAP, {})
    return path


def evaluate(capsys, path):
    """Evaluate a model, which works, or return the one line that is said of it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        code = main(["evaluate", str(path), "--episodes", "2"])
    err = capsys.readouterr().err
    if code == 0:
        assert err == ""
        return None
    assert code == 2
    assert not caught, "what is refused is not warned of too"
    assert err.count("\n") == 1, err
    assert str(path) in err, err
    return err


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path, contents):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("damage", ["bits", "bytes", "cut", "hole"])
def test_random_damage(capsys, sound, sound_ppo, tmp_path, damage, seed):
    rng = np.random.default_rng([seed, len(damage)])
    for source in (sound, sound_ppo):
        content = np.frombuffer(source.read_bytes(), np.uint8).copy()
        places = rng.integers(0, len(content), 4)
        if rng.random() < 0.5:  # the directory at the end, of which everything depends
            places = rng.integers(len(content) - 800, len(content), 4)
        if damage == "bits":
            content[places] ^= np.uint8(1) << rng.integers(0, 8, 4).astype(np.uint8)
        elif damage == "bytes":
            content[places] = rng.integers(0, 256, 4)
        elif damage == "cut":
            content = content[: places[0]]
        else:
            content = np.delete(content, slice(places[0], places[0] + 100))
        path = tmp_path / f"{source.parent.name}.zip"
        path.write_bytes(content.tobytes())
        evaluate(capsys, path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "BadZipFile"),
        (b"not a zip file", "BadZipFile"),
        ({}, "model.json"),
        ({"note": b"nothing"}, "model.json"),
        ({INFO_MEMBER: b"[]"}, f"{INFO_MEMBER} is no JSON object"),
        ({INFO_MEMBER: b"7"}, f"{INFO_MEMBER} is no JSON object"),
        ({INFO_MEMBER: b'{"algorithm": '}, "JSONDecodeError"),
        ({INFO_MEMBER: b"\x80abc"}, "UnicodeDecodeError"),
        ({INFO_MEMBER: b"[" * 100_000}, "RecursionError"),
    ],
)
def test_what_is_no_model(capsys, tmp_path, content, message):
    path = tmp_path / "model.zip"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write(path, content)
    assert message in evaluate(capsys, path)


@pytest.mark.parametrize("name", ["data", "policy.pth", "policy.optimizer.pth"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1, 2]", b"\x80\x04K\x01.", b"no such thing"])
def test_members_that_are_not_what_they_should_be(capsys, sound, sound_ppo, tmp_path, name, content):
    for source in (sound, sound_ppo):
        contents = members(source)
        contents[name] = content
        path = write(tmp_path / "model.zip", {k: v for k, v in contents.items() if v is not None})
        assert evaluate(capsys, path) is not None


def pickled(value):
    return {":type:": "anything", ":serialized:": base64.b64encode(pickle.dumps(value)).decode()}


def normalized(**changes):
    """Return a record of VecNormalize."""
    rms = {"mean": 0.0, "var": 1.0, "count": 3.0}
    record = {"wrapper": "VecNormalize", "training": True, "norm_obs": False, "norm_reward": False, "clip_obs": 10.0}
    record |= {"clip_reward": 10.0, "gamma": 0.99, "epsilon": 1e-8, "norm_obs_keys": None, "observations": {}}
    return {"vector": [{**record, "returns": rms, **changes}], "single": []}


NAN = float("nan")
STRANGE = [NAN, -1, "many", None, [], {}, {":serialized:": "?"}, pickled({1, 2}), pickled(NAN), True, 1e300]
NEVER_SO = "num_timesteps n_envs n_turns _n_updates observation_space action_space policy_class group_size streams"
RECORDS = [
    {"vector": [], "single": [1]},
    {"vector": [{}], "single": []},
    *(normalized(**{name: NAN}) for name in ("training", "clip_obs", "gamma", "observations", "returns")),
    normalized(returns={"mean": NAN, "var": 1.0, "count": 1.0}),
    normalized(returns={"mean": 0.0, "var": -1.0, "count": 1.0}),
    normalized(returns={"mean": "a", "var": 1.0, "count": 1.0}),
    normalized(returns={"mean": 0.0, "var": 1.0}),
]
EDITED = {
    **dict.fromkeys(NEVER_SO.split(), STRANGE),
    "masked": STRANGE[:-2],
    "update_rule": STRANGE,
    "gamma": STRANGE[:-2],
    "clip_range": STRANGE[:-2],
    "policy_kwargs": [value for value in STRANGE if value != {}],
    **{name: [v for v in STRANGE if v is not None] for name in ("ep_info_buffer", "ep_success_buffer", "stages")},
    "env_wrappers": [*(value for value in STRANGE if value is not None), *RECORDS],
}


@pytest.mark.parametrize("name", EDITED)
def test_edited_entries(capsys, sound, tmp_path, name):
    contents = members(sound)
    data = json.loads(contents["data"])
    for value in EDITED[name]:
        contents["data"] = json.dumps({**data, name: value})
        assert evaluate(capsys, write(tmp_path / "model.zip", contents)) is not None, value


def test_each_entry_is_there(capsys, sound, tmp_path):
    """Or the model works without it."""
    contents = members(sound)
    data = json.loads(contents["data"])
    said = {}
    for name in [name for name in data if name != "env_wrappers"]:  # which older versions did not write
        contents["data"] = json.dumps({other: value for other, value in data.items() if other != name})
        said[name] = evaluate(capsys, write(tmp_path / "model.zip", contents))
    for name in ("observation_space", "policy_class", "n_turns", "num_timesteps", "streams"):
        assert said[name] is not None, name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("turn", "n_turns", "start", "end", "total") for value in (NAN, -2, 99.5, None)),
        ("turn", 4),
        ("returns", [NAN]),
        ("returns", 5),
        ("trained", "yes"),
        ("settings", None),
    ],
)
def test_edited_stages(capsys, sound, tmp_path, name, value):
    contents = members(sound)
    data = json.loads(contents["data"])
    stages = pickle.loads(base64.b64decode(data["stages"][":serialized:"]))
    setattr(stages, name, value)
    contents["data"] = json.dumps({**data, "stages": pickled(stages)})
    said = evaluate(capsys, write(tmp_path / "model.zip", contents))
    assert said is not None
    assert "stages" in said or name == "settings"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("algorithm", 5),
        ("entry_point", "nowhere:SeeUPO"),
        ("entry_point", "seeupo_gym:Nothing"),
        ("entry_point", "builtins:dict"),
        ("entry_point", "seeupo_gym:make_vec"),
        ("entry_point", None),
        ("env_id", 7),
        ("env_kwargs", [1]),
        ("timesteps", "many"),
        ("run", []),
        ("run", {"evaluations": []}),
        *(("run", {**RUN, "evaluations": rows}) for rows in (5, [5], [{}], [{"timesteps": NAN}])),
        *(("run", {**RUN, name: NAN}) for name in ("training_time", "wall_time")),
    ],
)
def test_edited_descriptions(capsys, sound, tmp_path, name, value):
    contents = members(sound)
    contents[INFO_MEMBER] = json.dumps({**json.loads(contents[INFO_MEMBER]), name: value})
    assert evaluate(capsys, write(tmp_path / "model.zip", contents)) is not None


def change_weights(source, target, member, change):
    contents = members(source)
    state = th.load(io.BytesIO(contents[member]), weights_only=True)
    changed = io.BytesIO()
    th.save(change(state) or state, changed)
    return write(target, {**contents, member: changed.getvalue()})


def first_moments(state):
    moments = state["state"][0]
    moments["exp_avg"] = moments["exp_avg"][:1]


@pytest.mark.parametrize("which", ["sound", "sound_ppo"])
@pytest.mark.parametrize(
    ("member", "change", "message"),
    [
        ("policy.pth", lambda state: {k: v[..., :1] for k, v in state.items()}, "size mismatch"),
        ("policy.pth", lambda state: dict(list(state.items())[1:]), "Missing key"),
        ("policy.pth", lambda state: {k: v * NAN for k, v in state.items()}, "are not finite"),
        ("policy.pth", lambda state: dict.fromkeys(state, 5), "damaged"),
        ("policy.pth", lambda state: [state], "damaged"),
        ("policy.optimizer.pth", first_moments, "exp_avg in policy.optimizer is not of the shape"),
        ("policy.optimizer.pth", lambda state: state["param_groups"][0].update(eps=NAN), "are not finite"),
        ("policy.optimizer.pth", lambda state: state["param_groups"].clear(), "damaged"),
    ],
)
def test_weights_that_do_not_fit(capsys, request, tmp_path, which, member, change, message):
    path = change_weights(request.getfixturevalue(which), tmp_path / "model.zip", member, change)
    assert message in evaluate(capsys, path)


def test_statistics_of_another_shape(capsys, sound, tmp_path):
    contents = members(sound)
    data = json.loads(contents["data"])
    data["env_wrappers"]["vector"][0]["observations"][""]["mean"] = [1.0, 2.0]
    path = write(tmp_path / "model.zip", {**contents, "data": json.dumps(data)})
    assert main(["evaluate", str(path), "--episodes", "2"]) == 2
    err = capsys.readouterr().err
    assert "the wrapper VecNormalize that the model was saved with cannot be put around this environment" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("damage", [b"", b"text", None])
def test_load_names_the_file_and_the_cause(sound, tmp_path, damage):
    path = tmp_path / "model.zip"
    path.write_bytes(sound.read_bytes()[:-3000] if damage is None else damage)
    with path.open("rb") as file:
        for source in (path, str(path), tmp_path / "model", file, io.BytesIO(path.read_bytes())):
            name = "the file" if isinstance(source, io.BytesIO) else tmp_path / "model"
            with pytest.raises(DamagedFileError, match=f"cannot load {name}") as info:
                SeeUPO.load(source)
            assert info.value.__cause__ is not None


def test_an_environment_that_has_changed_is_no_damage(sound):
    with pytest.raises(ValueError, match="does not fit the environment as it is now: Observation spaces do not match"):
        load_model(sound, env=make_vec("seeupo_gym/ToolChain-v0", 4))


class FaultyEnv(gym.Env):
    """An environment with a fault of its own."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)
    max_turns = 2

    def __init__(self, where="step", option=1):
        self.where = where
        self.option = int(option)
        if where == "init":
            raise ValueError("a fault of its own")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        raise ValueError("a fault of its own")


@pytest.fixture
def faulty():
    gym.register("Faulty-v0", FaultyEnv)
    gym.register("FaultyAtOnce-v0", FaultyEnv, kwargs={"where": "init"})
    yield
    del gym.registry["Faulty-v0"], gym.registry["FaultyAtOnce-v0"]


@pytest.mark.parametrize("env_id", ["Faulty-v0", "FaultyAtOnce-v0"])
@pytest.mark.parametrize("algorithm", ["seeupo", "a2c"])
def test_a_fault_of_an_environment_keeps_its_traceback(faulty, tmp_path, env_id, algorithm):
    train = ["train", algorithm, env_id, "--steps", "8", "--no-progress", "--out", str(tmp_path)]
    with pytest.raises(ValueError, match="a fault of its own") as info:
        main(train)
    assert info.traceback[-1].name in ("step", "__init__")


def test_arguments_that_an_environment_refuses_are_one_line(faulty, capsys, tmp_path):
    train = ["train", "a2c", "Faulty-v0", "--steps", "8", "--no-progress", "--out", str(tmp_path)]
    for argument in ("option=abc", "where=init", "nope=1"):
        assert main([*train, "--env-arg", argument]) == 2
        err = capsys.readouterr().err
        assert err.startswith("seeupo-gym: error: cannot make the environment 'Faulty-v0' with")
        assert err.count("\n") == 1


def test_debug_shows_the_traceback_of_every_error(capsys, tmp_path):
    path = tmp_path / "model.zip"
    path.write_bytes(b"text")
    assert main(["evaluate", str(path), "--debug"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):")
    assert "BadZipFile" in err
    assert err.splitlines()[-1].startswith(f"seeupo-gym: error: cannot load {path}")
