"""A model that was saved at any step of its training ends bit for bit where the uninterrupted one ends."""

import io

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import CHAIN, TOOL, TRAP
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.logger import CSVOutputFormat, Logger
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecFrameStack,
    VecNormalize,
    unwrap_vec_normalize,
)

from seeupo_gym import SeeUPO, make_vec

TOTAL = 150


class Walk(gym.Env):
    """A walk on the line with noisy steps of its own generator, paid for its end."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Box(-1.0, 1.0, (1,))
    max_turns = 3

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.turn = self.np_random.normal(3.0, 2.0), 0
        return self.see(), {}

    def step(self, action):
        self.place += float(action[0]) + self.np_random.normal()
        self.turn += 1
        done = self.turn == 3 or self.place > 6
        return self.see(), -abs(self.place), bool(done), False, {}

    def see(self):
        return np.array([self.place], dtype=np.float32)


class SaveAt(BaseCallback):
    """Save the model at some calls, each in a file in memory."""

    def __init__(self, *calls):
        super().__init__()
        self.calls, self.files = calls, []

    def _on_step(self):
        if self.n_calls in self.calls:
            self.files.append(io.BytesIO())
            self.model.save(self.files[-1])
        return True


def normalised(make):
    return lambda: VecNormalize(make(), norm_reward=False)


def walks():
    return DummyVecEnv([Walk] * 3)


def dummy(env_id, vec_env_cls=DummyVecEnv):
    return lambda: make_vec(env_id, 4, vec_env_cls=vec_env_cls)


def native(env_id):
    return lambda: make_vec(env_id, 4)


SETUPS = {
    "native": (native(TRAP), {}),
    "masks": (native(TOOL), {}),
    "dummy": (dummy(CHAIN), {}),
    "subproc": (dummy(CHAIN, SubprocVecEnv), {}),
    "rounds": (lambda: DummyVecEnv([lambda: gym.make("FrozenLake-v1", max_episode_steps=3)] * 4), {}),
    "box": (walks, {}),
    "normalised": (normalised(walks), {}),
    "normalised parts": (normalised(dummy(CHAIN)), {}),
    "normalised stack": (lambda: VecFrameStack(VecNormalize(walks(), norm_reward=False), 2), {}),
    "staged": (native(TRAP), {"schedule": "staged"}),
    "trust region": (native(CHAIN), {"update_rule": "trust_region", "target_kl": 0.01}),
    "schedules": (native(CHAIN), {"learning_rate": lambda left: 1e-2 * left, "ent_coef": lambda left: 0.1 * left}),
    "sweeps": (native(CHAIN), {"n_sweeps": 2, "turn_policies": "shared", "batch_size": 5}),
    "noise": (dummy(CHAIN), {"independent_noise": True, "update_order": "random"}),
}


@pytest.mark.parametrize(
    "setup", [pytest.param(name, marks=pytest.mark.process if name == "subproc" else ()) for name in SETUPS]
)
def test_a_model_saved_at_any_step_goes_on_as_if_nothing_had_happened(setup):
    make, settings = SETUPS[setup]

    def new_model(env):
        return SeeUPO("MlpPolicy", env, n_groups=4, group_size=4, n_epochs=2, seed=3, **settings)

    env = make()
    saving = SaveAt(1, 2, 8, 27)
    model = new_model(env).learn(TOTAL, callback=saving)
    env.close()
    env = make()
    plain = new_model(env).learn(TOTAL)
    env.close()
    assert_same(model, plain)  # saving changes nothing
    steps = []
    for file in saving.files:
        env = make()
        resumed = SeeUPO.load(file, env=env)
        steps.append(resumed.num_timesteps)
        resumed.learn(TOTAL - resumed.num_timesteps, reset_num_timesteps=False)
        assert_same(resumed, plain)
        env.close()
    assert steps[0] == 0
    assert steps[-1] > 0


def assert_same(model, expected):
    assert model.num_timesteps == expected.num_timesteps
    assert model.n_iterations == expected.n_iterations
    for actual, wanted in zip(model.policy.parameters(), expected.policy.parameters(), strict=True):
        assert th.equal(actual, wanted)
    assert [info["r"] for info in model.ep_info_buffer] == [info["r"] for info in expected.ep_info_buffer]
    assert th.equal(model.streams.actions.get_state(), expected.streams.actions.get_state())
    if (normalize := unwrap_vec_normalize(model.get_env())) is not None:
        theirs = unwrap_vec_normalize(expected.get_env())
        assert normalize.obs_rms.count == theirs.obs_rms.count
        assert np.array_equal(normalize.obs_rms.mean, theirs.obs_rms.mean)
        assert np.array_equal(normalize.obs_rms.var, theirs.obs_rms.var)
    assert (model.stages is None) == (expected.stages is None)
    if model.stages is not None:
        assert vars(model.stages) == vars(expected.stages)


def test_a_checkpoint_of_sb3_holds_the_start_of_its_iteration(tmp_path):
    model = SeeUPO("MlpPolicy", make_vec(CHAIN, 4), n_groups=4, group_size=4, seed=0)
    model.learn(100, callback=CheckpointCallback(7, tmp_path, name_prefix="at"))
    for file in tmp_path.glob("at_*.zip"):
        reached = int(file.name.split("_")[1])
        saved = SeeUPO.load(file, env=make_vec(CHAIN, 4))
        assert 0 <= saved.num_timesteps <= reached
        saved.learn(model.num_timesteps - saved.num_timesteps, reset_num_timesteps=False)
        assert_same(saved, model)


@pytest.mark.parametrize("make", [lambda: make_vec(CHAIN, 4), normalised(lambda: make_vec(CHAIN, 4))])
def test_an_interrupted_collection_is_begun_again(make, tmp_path):
    class Interrupt(BaseCallback):
        def _on_step(self):
            if self.num_timesteps >= 60:
                raise KeyboardInterrupt
            return True

    model = SeeUPO("MlpPolicy", make(), n_groups=4, group_size=4, seed=0)
    with pytest.raises(KeyboardInterrupt):
        model.learn(100, callback=Interrupt())
    model.save(tmp_path / "model")
    resumed = SeeUPO.load(tmp_path / "model", env=make())
    assert resumed.num_timesteps < model.num_timesteps == 60
    plain = SeeUPO("MlpPolicy", make(), n_groups=4, group_size=4, seed=0).learn(100)
    left = 100 - resumed.num_timesteps
    for one in (resumed, model):
        assert_same(one.learn(left, reset_num_timesteps=False), plain)


def test_another_environment_after_an_interrupt_is_begun_in_anew():
    """It is checked as the first one was, and keeps its own statistics."""

    class Unfixed(Walk):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=None)

    model = SeeUPO("MlpPolicy", VecNormalize(walks(), norm_reward=False), n_groups=4, group_size=4, seed=0)
    model.learn(100, callback=lambda *_: model.n_iterations == 0)  # broken off in the second iteration
    broken_off = model.num_timesteps
    other = VecNormalize(DummyVecEnv([Unfixed] * 3), norm_reward=False)
    model.set_env(other)
    begun = model.num_timesteps
    assert begun < broken_off
    with pytest.warns(UserWarning, match="does not reproduce its initial observation"):
        model.learn(1, reset_num_timesteps=False)
    played = model.num_timesteps - begun
    assert other.obs_rms.count < 2 * played


def test_the_log_of_a_resumed_training_goes_on_with_the_same_iterations(tmp_path):
    def logged(model, name, **kwargs):
        model.set_logger(Logger(None, [CSVOutputFormat(str(tmp_path / name))]))
        model.learn(log_interval=2, **kwargs)
        model.logger.close()
        table = np.genfromtxt(tmp_path / name, delimiter=",", names=True)
        return [tuple(row) for row in np.atleast_1d(table[["timeiterations", "timetotal_timesteps"]]).tolist()]

    def new_model():
        return SeeUPO("MlpPolicy", make_vec(TRAP, 4), n_groups=2, group_size=4, seed=0)

    whole = logged(new_model(), "whole.csv", total_timesteps=150)
    saving = SaveAt(11)
    first = logged(new_model(), "first.csv", total_timesteps=40, callback=saving)
    resumed = SeeUPO.load(saving.files[0], env=make_vec(TRAP, 4))
    done = resumed.num_timesteps
    rest = logged(resumed, "rest.csv", total_timesteps=150 - done, reset_num_timesteps=False)
    assert [row for row in first if row[1] <= done] + rest == whole


def test_counting_anew_begins_with_the_first_iteration():
    model = SeeUPO("MlpPolicy", make_vec(TRAP, 4), n_groups=2, group_size=4, seed=0).learn(100)
    assert model.n_iterations > 1
    model.learn(1)
    assert model.n_iterations == 1
    saving = SaveAt(1)
    model.learn(1, callback=saving)
    assert SeeUPO.load(saving.files[0]).num_timesteps == 0


def test_a_loaded_model_gives_its_statistics_to_its_environment(tmp_path):
    env = VecNormalize(walks(), norm_reward=False)
    SeeUPO("MlpPolicy", env, n_groups=2, group_size=3, seed=0).learn(20).save(tmp_path / "model")
    fresh = VecNormalize(walks(), norm_reward=False)
    SeeUPO.load(tmp_path / "model", env=fresh)
    assert np.array_equal(fresh.obs_rms.mean, env.obs_rms.mean)
    assert fresh.obs_rms.count == env.obs_rms.count
    assert fresh.ret_rms.count == env.ret_rms.count
    assert fresh.training
    other = SeeUPO.load(tmp_path / "model", env=walks())
    with pytest.warns(UserWarning, match="trained in an environment wrapped with VecNormalize .*wrapped with nothing"):
        other.learn(1)
