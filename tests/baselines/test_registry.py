"""The registry of algorithms: settings, policies, errors."""

import gymnasium as gym
import numpy as np
import pytest
from helpers import TRAP
from helpers.jobs import CLASSES
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C

from seeupo_gym import SeeUPO
from seeupo_gym.baselines import GRPO, algorithm_names, get_algorithm, register_algorithm
from seeupo_gym.baselines.registry import policy_for

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_registered_algorithms():
    assert algorithm_names() == list(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_every_registered_algorithm_is_made_with_its_settings(name):
    spec = get_algorithm(name)
    model = spec.make_model(TRAP, seed=3)
    assert type(model) is CLASSES[name]
    assert model.n_envs == spec.n_envs
    assert model.seed == 3
    for setting, value in spec.settings.items():
        assert getattr(model, setting) == value


def test_a_registered_algorithm_can_be_looked_up_once(registered):
    registered("mine", "stable_baselines3:A2C", n_envs=2)
    assert get_algorithm("mine").make_model(TRAP, 0).n_envs == 2
    with pytest.raises(ValueError, match="registered already"):
        register_algorithm("mine", "stable_baselines3:PPO")
    with pytest.raises(ValueError, match=r"unknown algorithm 'nope'; there are: seeupo, ppo, a2c, .*, mine"):
        get_algorithm("nope")
    with pytest.raises(ValueError, match="letters, digits"):
        register_algorithm("../up", "stable_baselines3:PPO")
    with pytest.raises(ValueError, match="cannot import 'stable_baselines3:XYZ'"):
        registered("broken", "stable_baselines3:XYZ").load_class()


def test_settings_are_checked_and_completed_with_the_defaults():
    spec = get_algorithm("ppo").with_settings({"n_epochs": 3, "n_envs": 2})
    assert spec.n_envs == 2
    assert spec.all_settings()["n_epochs"] == 3
    assert spec.all_settings()["gae_lambda"] == 0.95
    with pytest.raises(ValueError, match=r"ppo has no setting 'n_epoch'; it has: .*n_epochs"):
        spec.with_settings({"n_epoch": 3})
    with pytest.raises(ValueError, match="no setting 'seed'"):
        spec.with_settings({"seed": 3})
    with pytest.raises(ValueError, match="n_envs must be"):
        spec.with_settings({"n_envs": 0})


def test_settings_of_base_classes_are_known_where_a_class_hands_them_on(registered):
    spec = registered("handing_on", "helpers.jobs:HandingOnA2C")
    assert spec.all_settings()["n_steps"] == 7  # its own default, not A2C's 5
    assert spec.all_settings()["gae_lambda"] == 1.0
    assert not {"args", "kwargs", "env"} & set(spec.all_settings())
    assert spec.with_settings({"gae_lambda": 0.9}).make_model(TRAP, 0).gae_lambda == 0.9
    with pytest.raises(ValueError, match="no setting 'kwargs'"):
        spec.with_settings({"kwargs": {}})


def test_fixed_settings_are_recorded_and_cannot_be_changed():
    spec = get_algorithm("grpo").with_settings({"n_epochs": 2, "turn_policies": "separate"})
    settings = spec.all_settings()
    assert (settings["n_epochs"], settings["clip_range"], settings["ratio_level"]) == (2, 0.2, "token")
    assert settings["turn_policies"] == "separate"
    assert get_algorithm("grpo").all_settings()["turn_policies"] == "shared"
    with pytest.raises(ValueError, match=r"grpo has no setting 'ratio_level'; it has: (?!.*ratio_level)"):
        spec.with_settings({"ratio_level": "sequence"})


def test_the_policy_follows_from_the_observation_space():
    spaces = [
        gym.spaces.Box(0, 255, (36, 36, 3), np.uint8),
        gym.spaces.Dict(a=gym.spaces.Discrete(2)),
        gym.spaces.Discrete(2),
    ]
    for cls in (A2C, SeeUPO, GRPO, MaskablePPO):
        assert [policy_for(space, cls) for space in spaces] == ["CnnPolicy", "MultiInputPolicy", "MlpPolicy"]
    aliases = ["CnnLstmPolicy", "MultiInputLstmPolicy", "MlpLstmPolicy"]
    assert [policy_for(space, RecurrentPPO) for space in spaces] == aliases
