"""SeeUPO beside SB3's callbacks, wrappers and helpers, unchanged."""

import inspect
import re

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import CHAIN, TRAP
from helpers.models import weights
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CheckpointCallback,
    EvalCallback,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import HParam
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    is_vecenv_wrapped,
)

from seeupo_gym import SeeUPO, make_vec

# SB3's make_vec_env asks every environment for "rgb_array" first, and Gymnasium warns where there is none.
pytestmark = pytest.mark.filterwarnings("ignore:.*render_mode='rgb_array'")
SMALL = dict(n_groups=2, group_size=4, n_epochs=1, seed=0)


def test_constructor_keywords_are_documented_attributes():
    parameters = set(inspect.signature(SeeUPO.__init__).parameters) - {"self"}
    documented = set(re.findall(r":param (\w+):", SeeUPO.__doc__))
    assert documented == parameters
    model = SeeUPO("MlpPolicy", TRAP, **SMALL)
    # The arguments of an environment are in the environment.
    for name in parameters - {"policy", "stats_window_size", "env_kwargs", "_init_setup_model"}:
        assert hasattr(model, name), name
    shared = {"learning_rate", "n_epochs", "gamma", "ent_coef", "max_grad_norm", "target_kl", "tensorboard_log"}
    shared |= {"policy_kwargs", "stats_window_size", "verbose", "seed", "device", "_init_setup_model"}
    assert shared <= parameters & set(inspect.signature(PPO.__init__).parameters), "named as in SB3"
    assert not parameters & {"vf_coef", "gae_lambda", "n_steps"}, "no option of a critic"
    learn = list(inspect.signature(SeeUPO.learn).parameters)
    assert learn == list(inspect.signature(BaseAlgorithm.learn).parameters)


@pytest.mark.parametrize(
    "make_env",
    [
        lambda: TRAP,
        lambda: gym.make(TRAP),
        lambda: Monitor(gym.make(TRAP)),
        lambda: make_vec_env(TRAP, 3),
        # A worker process knows the ids of a package only once it has imported it: "module:id".
        lambda: make_vec_env(f"seeupo_gym:{TRAP}", 2, vec_env_cls=SubprocVecEnv),
        lambda: make_vec(TRAP, 5),
        lambda: "FrozenLake-v1",
    ],
)
def test_kinds_of_environments(make_env):
    model = SeeUPO("MlpPolicy", make_env(), **SMALL).learn(20)
    assert model.num_timesteps >= 20
    assert 0 <= model.ep_info_buffer[0]["r"] <= 1
    model.env.close()


def test_learn_takes_whole_iterations_and_continues():
    model = SeeUPO("MlpPolicy", TRAP, **SMALL)
    assert model.learn(33).num_timesteps == 64, "an iteration is 8 episodes of 4 turns"
    assert model.learn(32, reset_num_timesteps=False).num_timesteps == 96
    assert model.learn(1).num_timesteps == 32


def test_set_env_wants_as_many_environments():
    model = SeeUPO("MlpPolicy", make_vec(TRAP, 2), **SMALL).learn(10)
    model.set_env(make_vec(TRAP, 2, vec_env_cls=DummyVecEnv))
    assert model._last_obs is None
    model.learn(10)
    with pytest.raises(AssertionError, match="number of environments"):
        model.set_env(make_vec(TRAP, 3))


def test_schedules_follow_the_progress():
    seen = []

    def schedule(progress):
        seen.append(progress)
        return 1e-3

    model = SeeUPO("MlpPolicy", TRAP, **SMALL, clip_range=schedule, clip_range_high=0.3, factor_clip=lambda p: 0.1 * p)
    model.learn(128)
    np.testing.assert_allclose(list(dict.fromkeys(seen)), [1.0, 0.75, 0.5, 0.25, 0.0])
    model = SeeUPO("MlpPolicy", TRAP, **SMALL, learning_rate=lambda p: 1e-3 * p).learn(64)
    assert model.policy.optimizer.param_groups[-1]["lr"] == pytest.approx(0.0)


def test_schedules_end_at_zero_where_training_overshoots():
    """An iteration is 32 steps. A negative progress would be a negative learning rate: a step to worse actions."""
    linear = dict.fromkeys(("learning_rate", "clip_range", "factor_clip", "ent_coef"), lambda p: 0.1 * p)
    model = SeeUPO("MlpPolicy", TRAP, **SMALL, **linear)
    before = weights(model).clone()
    model.learn(10)
    settings = model.current_settings()
    assert (settings.clip_range, settings.clip_high, settings.factor_clip, settings.ent_coef) == (0.0,) * 4
    assert [group["lr"] for group in model.policy.optimizer.param_groups] == [0.0] * 4
    assert th.equal(before, weights(model))


def test_evaluate_policy_plays_each_turn_with_its_own_policy():
    for env in (Monitor(gym.make(TRAP)), make_vec(TRAP, 3), make_vec_env(TRAP, 2)):
        model = SeeUPO("MlpPolicy", TRAP, **SMALL)
        for turn, network in enumerate(model.policy.turns):
            network.action_net.bias.data = 50.0 * th.eye(4)[(turn + 1) % 4]  # the expert
        assert evaluate_policy(model, env, n_eval_episodes=7) == (1.0, 0.0)
        assert evaluate_policy(model.policy, env, n_eval_episodes=7) == (1.0, 0.0)


def test_callbacks(tmp_path):
    eval_callback = EvalCallback(
        make_vec(TRAP, 2),
        callback_on_new_best=StopTrainingOnRewardThreshold(2.0),
        eval_freq=4,
        n_eval_episodes=3,
        best_model_save_path=str(tmp_path / "best"),
        log_path=str(tmp_path / "eval"),
        verbose=0,
    )
    checkpoint = CheckpointCallback(save_freq=4, save_path=str(tmp_path / "checkpoints"))
    model = SeeUPO("MlpPolicy", make_vec(TRAP, 8), **SMALL)
    model.learn(96, callback=[eval_callback, checkpoint])
    evaluations = np.load(tmp_path / "eval" / "evaluations.npz")
    assert evaluations["timesteps"].tolist() == [32, 64, 96]
    assert evaluations["ep_lengths"].tolist() == [[4] * 3] * 3
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["rl_model_32_steps.zip", "rl_model_64_steps.zip", "rl_model_96_steps.zip"]
    SeeUPO.load(tmp_path / "best" / "best_model")


def test_stopping_callbacks():
    always = EvalCallback(make_vec(TRAP, 2), callback_on_new_best=StopTrainingOnRewardThreshold(-1.0), eval_freq=2)
    model = SeeUPO("MlpPolicy", make_vec(TRAP, 8), **SMALL).learn(1000, callback=always)
    assert model.num_timesteps == 16, "stopped in the middle of the first rollout"
    model = SeeUPO("MlpPolicy", make_vec(TRAP, 8), **SMALL)
    model.learn(1000, callback=StopTrainingOnMaxEpisodes(max_episodes=3))
    assert model.num_timesteps == 3 * 8 * 4, "3 episodes in each of 8 environments"


class Recorder(BaseCallback):
    def __init__(self):
        super().__init__()
        self.events, self.steps = [], []

    def _on_training_start(self):
        assert self.locals["total_timesteps"] == 64
        self.events.append("start")

    def _on_rollout_start(self):
        self.events.append("rollout")

    def _on_step(self):
        self.steps.append(self.num_timesteps)
        for name in ("new_obs", "dones", "infos", "rewards", "actions"):
            assert len(self.locals[name]) == self.training_env.num_envs, name
        return True

    def _on_rollout_end(self):
        self.events.append("rollout end")

    def _on_training_end(self):
        self.events.append("end")


def test_callback_protocol():
    recorder = Recorder()
    SeeUPO("MlpPolicy", make_vec(TRAP, 4), **SMALL).learn(64, callback=recorder)
    assert recorder.events == ["start", *(["rollout", "rollout end"] * 2), "end"]
    assert recorder.steps == list(range(4, 65, 4))


def test_functional_callback_stops():
    model = SeeUPO("MlpPolicy", make_vec(TRAP, 4), **SMALL)
    model.learn(640, callback=lambda local, _: local["dones"].sum() == 0)
    assert model.num_timesteps == 16


def test_progress_bar_counts_the_steps_taken(monkeypatch):
    bars = []

    class Bar:
        def __init__(self, total):
            self.total, self.n = total, 0
            bars.append(self)

        def update(self, n):
            self.n += n

        def refresh(self):
            pass

        close = refresh

    monkeypatch.setattr("stable_baselines3.common.callbacks.tqdm", Bar)
    model = SeeUPO("MlpPolicy", make_vec("seeupo_gym/ToolChain-v0", 16), n_groups=2, group_size=4, seed=0)
    model.learn(100, progress_bar=True)
    assert bars[0].total == 100
    n_vector_steps = 6 * model._n_updates / model.n_epochs
    assert bars[0].n == model.num_timesteps < 16 * n_vector_steps, "parked lanes are not counted"
    model.learn(50, reset_num_timesteps=False, progress_bar=True)
    assert bars[1].n == model.num_timesteps - bars[0].n


class Counter(BaseCallback):
    n_inits = 0

    def _init_callback(self):
        self.n_inits += 1

    def _on_step(self):
        return True


def test_real_progress_bar():
    model, calls, counter = SeeUPO("MlpPolicy", TRAP, **SMALL), [], Counter()
    model.learn(32, callback=counter, progress_bar=True)
    assert (counter.n_inits, counter.n_calls) == (1, 4)
    for callback in (None, [counter], lambda *_: calls.append(0) is None):
        model.learn(32, callback=callback, progress_bar=True)
    assert (counter.n_inits, counter.n_calls, len(calls)) == (2, 8, 4)


def test_monitor_statistics_of_wrappers():
    for env in (VecMonitor(DummyVecEnv([lambda: gym.make(TRAP)] * 2)), make_vec(TRAP, 2)):
        model = SeeUPO("MlpPolicy", env, **SMALL).learn(32)
        assert [info["l"] for info in model.ep_info_buffer] == [4] * 8
        assert len(model.ep_success_buffer) == 8


def test_vec_normalize(tmp_path):
    for base in (make_vec(CHAIN, 4), make_vec(CHAIN, 3, vec_env_cls=DummyVecEnv), make_vec_env(CHAIN, 3)):
        env = VecNormalize(base, norm_reward=False)
        model = SeeUPO("MlpPolicy", env, **SMALL).learn(96)
        assert model.get_vec_normalize_env() is env
        assert env.obs_rms.count > 90
        assert model.rollout_buffer.turn_batches[0].observations.min() < 0, "the policy sees normalised observations"
    evaluation = EvalCallback(VecNormalize(make_vec(CHAIN, 2), norm_reward=False, training=False), eval_freq=6)
    model.learn(48, callback=evaluation)
    np.testing.assert_array_equal(evaluation.eval_env.obs_rms.mean, env.obs_rms.mean)


def test_vec_normalize_statistics_see_no_parked_lane():
    """Frozen statistics aside, each count is one observation of a reset or a step the environment took."""
    env = VecNormalize(make_vec("FrozenLake-v1", 2), norm_obs=False, norm_reward=False)
    SeeUPO("MlpPolicy", env, **SMALL).learn(10)
    env = VecNormalize(make_vec("CartPole-v1", 3), norm_reward=False)
    model = SeeUPO("MlpPolicy", env, max_turns=5, **SMALL).learn(10)
    # 3 observations for the rollout's reset, then one for each step.
    assert env.obs_rms.count == pytest.approx(3 + model.num_timesteps, abs=0.01)


def test_vec_frame_stack():
    env = VecFrameStack(make_vec(CHAIN, 4), n_stack=3)
    model = SeeUPO("MlpPolicy", env, **SMALL).learn(48)
    first = model.rollout_buffer.turn_batches[0].observations
    assert first.shape == (8, 42)
    assert (first[:, :28] == 0).all(), "an episode begins with an empty stack"
    assert (model.rollout_buffer.turn_batches[2].observations[:, 14:28].sum(1) > 0).all()


class ImageEnv(gym.Env):
    max_turns = 2

    def __init__(self):
        self.observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.action_space = spaces.Discrete(2)

    def _obs(self):
        return np.full((36, 36, 1), self.shade, dtype=np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.shade, self.turn = int(self.np_random.integers(2)) * 255, 0
        return self._obs(), {}

    def step(self, action):
        self.turn += 1
        return self._obs(), float(action == (self.shade > 0)), self.turn == 2, False, {}


def test_images_are_transposed():
    model = SeeUPO("CnnPolicy", ImageEnv(), **SMALL, turn_policies="shared").learn(32)
    assert is_vecenv_wrapped(model.env, VecTransposeImage)
    assert model.rollout_buffer.turn_batches[0].observations.shape == (8, 1, 36, 36)
    evaluate_policy(model, model.env, n_eval_episodes=2)
    stacked = VecFrameStack(DummyVecEnv([ImageEnv] * 2), n_stack=2)
    SeeUPO("CnnPolicy", stacked, **SMALL, turn_policies="shared").learn(16)


def test_dict_observations_need_the_policy_for_them():
    class DictEnv(ImageEnv):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Dict({"image": self.observation_space, "n": spaces.Discrete(3)})

        def _obs(self):
            return {"image": super()._obs(), "n": self.turn}

        def reset(self, *, seed=None, options=None):
            self.turn = 0
            return super().reset(seed=seed)

    with pytest.raises(ValueError, match="MultiInputPolicy"):
        SeeUPO("MlpPolicy", DictEnv(), **SMALL)
    model = SeeUPO("MultiInputPolicy", DictEnv(), **SMALL, turn_policies="shared").learn(32)
    evaluate_policy(model, model.env, n_eval_episodes=2)


class HParamCallback(BaseCallback):
    """As in SB3's documentation."""

    def _on_training_start(self):
        hparams = {"lr": self.model.learning_rate, "gamma": self.model.gamma}
        self.logger.record("hparams", HParam(hparams, {"train/loss": 0.0}), exclude=("stdout", "log", "json", "csv"))

    def _on_step(self):
        return True


def test_user_s_hparam_callback(tmp_path):
    SeeUPO("MlpPolicy", TRAP, **SMALL, tensorboard_log=str(tmp_path)).learn(32, callback=HParamCallback())


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (dict(group_size=1), "group_size must be an integer of at least 2.*always 0 in a group of one"),
        (dict(n_groups=0), "n_groups must be an integer of at least 1, got 0"),
        (dict(n_epochs=0), "n_epochs must be an integer of at least 1"),
        (dict(batch_size=0), "batch_size must be an integer of at least 1"),
        (dict(max_turns=0), "max_turns must be an integer of at least 1"),
        (dict(gamma=0.0), "gamma must be a finite number of at most 1 and above 0"),
        (dict(normalize_advantage="global"), "normalize_advantage must be one of"),
        (dict(turn_policies="both"), "turn_policies must be one of"),
        (dict(update_order="sideways"), "update_order must be one of"),
        (dict(seed=-1), "seed must be an integer of at least 0"),
        (dict(clip_range=-0.2), "clip_range must be a finite number of at least 0, got -0.2"),
        (dict(clip_range_high=-0.2), "clip_range_high must be a finite number of at least 0"),
        (dict(factor_clip=-0.1), "factor_clip must be a finite number of at least 0"),
        (dict(kl_coef=-1.0), "kl_coef must be a finite number of at least 0"),
        (dict(reference_kl_coef=float("nan")), "reference_kl_coef must be a finite number of at least 0, got nan"),
    ],
)
def test_settings_out_of_range(kwargs, message):
    with pytest.raises(ValueError, match=message):
        SeeUPO("MlpPolicy", TRAP, **kwargs)


def test_a_network_for_each_of_very_many_turns_gets_a_warning():
    small = SMALL | dict(policy_kwargs=dict(net_arch=[]))
    with pytest.warns(UserWarning, match='101 turns get 101 networks.*turn_policies="shared"'):
        SeeUPO("MlpPolicy", "CartPole-v1", **small, max_turns=101)
    SeeUPO("MlpPolicy", "CartPole-v1", **small, turn_policies="shared")  # no warning, as with the 100 of FrozenLake


def test_options_run():
    """Every documented choice trains; what each does is tested with the formulas."""
    choices = [dict(turn_policies="shared"), dict(update_order="forward"), dict(update_order="random")]
    choices += [dict(normalize_advantage="group"), dict(normalize_advantage="none"), dict(gamma=0.9)]
    choices += [dict(batch_size=3), dict(ent_coef=0.01), dict(kl_coef=0.1), dict(target_kl=0.01)]
    choices += [dict(max_grad_norm=None), dict(independent_noise=True), dict(clip_range_high=0.3)]
    choices += [dict(policy_kwargs=dict(optimizer_class=th.optim.RMSprop, net_arch=[8]))]
    outcomes = [weights(SeeUPO("MlpPolicy", CHAIN, **(SMALL | dict(n_epochs=4)), **c).learn(96)) for c in choices]
    for i, a in enumerate(outcomes):
        for b in outcomes[:i]:
            assert a.shape != b.shape or not th.equal(a, b), f"{choices[i]} has no effect"
