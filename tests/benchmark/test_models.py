"""What a saved model says about itself."""

from helpers import CHAIN

from seeupo_gym import make_vec
from seeupo_gym.baselines import get_algorithm
from seeupo_gym.benchmark.models import load_model, read_info, save_model


def test_the_steps_are_those_of_the_state_that_is_saved(tmp_path):
    """What is saved while episodes are collected is the model as it was before."""
    spec = get_algorithm("seeupo").with_settings({"n_envs": 4, "n_groups": 2, "group_size": 4})
    model = spec.make_model(CHAIN, 0)
    model.learn(1000, callback=lambda *_: model.num_timesteps < 72)  # broken off in the middle of an iteration
    save_model(model, tmp_path / "model.zip", spec, CHAIN, {})
    loaded, info = load_model(tmp_path / "model.zip", env=make_vec(CHAIN, 4))
    assert info == read_info(tmp_path / "model.zip")
    assert info["timesteps"] == loaded.num_timesteps == 48 < model.num_timesteps == 72
