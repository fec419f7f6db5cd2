"""Models that are saved and loaded go on as if they had not stopped."""

import numpy as np
import pytest
import torch as th
from helpers import CHAIN, TRAP
from helpers.models import weights
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
)

from seeupo_gym import SeeUPO, make_vec

# SB3's make_vec_env asks every environment for "rgb_array" first, and Gymnasium warns where there is none.
pytestmark = pytest.mark.filterwarnings("ignore:.*render_mode='rgb_array'")
SMALL = dict(n_groups=2, group_size=4, n_epochs=1, seed=0)


@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])
def test_save_and_load(tmp_path, vec_env_cls):
    env = make_vec(CHAIN, 2, vec_env_cls=vec_env_cls)
    schedule = dict(learning_rate=lambda p: 1e-3 * p, clip_range=lambda p: 0.1 + 0.1 * p)
    kwargs = dict(net_arch=[16], activation_fn=th.nn.ReLU)
    model = SeeUPO("MlpPolicy", env, **SMALL, **schedule, policy_kwargs=kwargs).learn(100)
    model.save(tmp_path / "model")
    loaded = SeeUPO.load(tmp_path / "model", env=env)
    assert th.equal(weights(model), weights(loaded))
    assert loaded.num_timesteps == model.num_timesteps
    assert loaded.n_turns == 6
    state, restored = (m.policy.optimizer.state_dict() for m in (model, loaded))
    assert state["state"][0]["step"] == restored["state"][0]["step"] > 0
    obs, starts = np.zeros((3, 14), dtype=np.float32), np.ones(3, dtype=bool)
    np.testing.assert_array_equal(
        model.predict(obs, None, starts, deterministic=True)[0],
        loaded.predict(obs, None, starts, deterministic=True)[0],
    )
    without_env = SeeUPO.load(tmp_path / "model")
    without_env.predict(obs, None, starts)
    with pytest.raises(ValueError, match="no environment to learn in"):
        without_env.learn(50)
    without_env.set_env(env)
    without_env.learn(50)
    env.close()


def test_a_model_is_loaded_with_an_id(tmp_path):
    SeeUPO("MlpPolicy", make_vec(CHAIN, 2), **SMALL).save(tmp_path / "model")
    loaded = SeeUPO.load(tmp_path / "model", env=CHAIN)
    assert loaded.n_envs == loaded.env.num_envs == SMALL["n_groups"] * SMALL["group_size"]
    loaded.learn(50)


def test_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path):
    """SB3's load reseeds and replays the first actions (SB3#1643); here every stream is saved."""
    straight = SeeUPO("MlpPolicy", make_vec(CHAIN, 8), batch_size=3, update_order="random", **SMALL)
    straight.learn(96).learn(96, reset_num_timesteps=False)
    stopped = SeeUPO("MlpPolicy", make_vec(CHAIN, 8), batch_size=3, update_order="random", **SMALL).learn(96)
    stopped.save(tmp_path / "model")
    resumed = SeeUPO.load(tmp_path / "model", env=make_vec(CHAIN, 8))
    resumed.learn(96, reset_num_timesteps=False)
    assert th.equal(weights(straight), weights(resumed))


def sampled(model):
    """Actions of 50 stochastic predictions."""
    obs, starts = np.zeros((50, 14), dtype=np.float32), np.ones(50, dtype=bool)
    return model.predict(obs, None, starts)[0].tolist()


def test_samples_of_predict_go_on_after_load_and_restart_with_the_seed(tmp_path):
    model = SeeUPO("MlpPolicy", CHAIN, **SMALL)
    first = sampled(model)
    model.save(tmp_path / "model")
    second = sampled(model)
    assert sampled(SeeUPO.load(tmp_path / "model")) == second != first
    model.set_random_seed(0)
    assert sampled(model) == first


def test_load_with_a_seed_begins_anew(tmp_path):
    model = SeeUPO("MlpPolicy", CHAIN, **SMALL).learn(1)
    model.save(tmp_path / "model")
    loaded = [SeeUPO.load(tmp_path / "model", env=make_vec(CHAIN, 8), seed=seed) for seed in (1, 1, 2)]
    assert [m.streams.root for m in loaded] == [m.seed for m in loaded] == [1, 1, 2]
    for m in loaded:
        m.learn(1, reset_num_timesteps=False)
    assert th.equal(weights(loaded[0]), weights(loaded[1]))
    assert not th.equal(weights(loaded[0]), weights(loaded[2]))


def test_set_up_for_a_device_restarts_no_stream_that_is_on_it(tmp_path):
    model = SeeUPO("MlpPolicy", CHAIN, **SMALL).learn(1)
    states = [g.get_state() for g in (model.streams.actions, model.streams.updates, model.streams.predictions)]
    model.device = th.device("cpu", 0)
    model._setup_model()
    assert model.streams.n_groups == 2
    after = [g.get_state() for g in (model.streams.actions, model.streams.updates, model.streams.predictions)]
    assert all(th.equal(a, b) for a, b in zip(states, after, strict=True))
    del model.streams.predictions  # as in a model saved by an older version
    model.save(tmp_path / "model")
    sampled(SeeUPO.load(tmp_path / "model"))


def test_get_and_set_parameters():
    first = SeeUPO("MlpPolicy", TRAP, **SMALL).learn(64)
    second = SeeUPO("MlpPolicy", TRAP, **(SMALL | dict(seed=1)))
    parameters = first.get_parameters()
    assert set(parameters) == {"policy", "policy.optimizer"}
    second.set_parameters(parameters)
    assert th.equal(weights(first), weights(second))
    with pytest.raises(ValueError, match="invalid object name"):
        second.set_parameters({"critic": {}})
