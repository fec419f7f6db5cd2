"""An environment in which episodes run is reset and stepped by nobody else; who tries gets an error at once."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnvWrapper, VecFrameStack, VecNormalize

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.envs.episodes import EpisodeLanes

CHAIN = "seeupo_gym/ContextChain-v0"
REFUSED = "an environment of its own"


class Walk(gym.Env):
    """Three turns; what is seen is their number, and what the seed has drawn."""

    max_turns = 3

    def __init__(self):
        self.observation_space = spaces.Box(-10, 10, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn, self.start = 0, self.np_random.normal()
        return self._obs(), {}

    def _obs(self):
        return np.array([self.turn, self.start], dtype=np.float32)

    def step(self, action):
        self.turn += 1
        return self._obs(), float(action), self.turn == 3, False, {}


def walks(n=3):
    return DummyVecEnv([Walk] * n)


class Frames(VecEnvWrapper):
    """Each step is two steps of the environment."""

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        _, first, *_ = self.venv.step_wait()
        self.venv.step_async(self.actions)
        obs, rewards, dones, infos = self.venv.step_wait()
        return obs, first + rewards, dones, infos

    def step_async(self, actions):
        self.actions = actions
        self.venv.step_async(actions)


def model_in(env, **kwargs):
    return SeeUPO("MlpPolicy", env, n_groups=2, group_size=3, seed=0, device="cpu", **kwargs)


class Calling(BaseCallback):
    """Calls a function at the third step."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def _on_step(self):
        if self.n_calls == 3:
            self.function(self)
        return True


# What is trained in -> what a careless callback would use.
SHARED = {
    "native": lambda: make_vec(CHAIN, 3),
    "queued": lambda: make_vec(CHAIN, 3, vec_env_cls=DummyVecEnv),
    "rounds": walks,
    "one": lambda: walks(1),
    "normalised": lambda: VecNormalize(walks(), norm_reward=False),
    "stacked": lambda: VecFrameStack(make_vec(CHAIN, 3), 2),
}


@pytest.mark.filterwarnings("ignore:Evaluation environment is not wrapped")
@pytest.mark.parametrize("kind", SHARED)
def test_evaluation_in_the_training_environment(kind):
    env = SHARED[kind]()
    model = model_in(env)
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    with pytest.raises(RuntimeError, match=f"to be reset by other code .*{REFUSED}"):
        model.learn(200, callback=EvalCallback(env, eval_freq=2, n_eval_episodes=2))
    assert all(th.equal(before[name], value) for name, value in model.policy.state_dict().items())
    assert all("reset" not in vars(one) for one in (env, env.unwrapped, *getattr(env.unwrapped, "envs", ())))
    # Afterwards everybody may use it again.
    evaluate_policy(model, env, n_eval_episodes=2, warn=False)
    model.learn(20)


@pytest.mark.parametrize("kind", SHARED)
def test_what_is_inside_of_the_training_environment(kind):
    env = SHARED[kind]()
    model = model_in(env)
    uses = [lambda _: env.unwrapped.reset()]
    if isinstance(env.unwrapped, DummyVecEnv):
        uses += [lambda _: env.unwrapped.envs[0].reset(), lambda _: env.unwrapped.envs[-1].unwrapped.reset(seed=3)]
    for use in uses:
        with pytest.raises(RuntimeError, match=f"to be reset by other code .*{REFUSED}"):
            model.learn(200, callback=Calling(use))


def test_processes():
    env = make_vec(CHAIN, 2, vec_env_cls=SubprocVecEnv)
    try:
        with pytest.raises(RuntimeError, match=REFUSED):
            model_in(env).learn(200, callback=Calling(lambda callback: callback.training_env.reset()))
        env.reset()
    finally:
        env.close()


@pytest.mark.filterwarnings("ignore:Evaluation environment is not wrapped")
@pytest.mark.parametrize("env_id", [None, "CartPole-v1"])
def test_a_single_environment_is_the_same_one_in_another_vector_environment(env_id):
    env = Walk() if env_id is None else gym.make(env_id)
    with pytest.raises(RuntimeError, match=REFUSED):
        model_in(env, turn_policies="shared").learn(200, callback=EvalCallback(env, eval_freq=2, n_eval_episodes=2))


@pytest.mark.parametrize("kind", SHARED)
def test_a_step_by_others(kind):
    env = SHARED[kind]()

    def step(callback):
        callback.training_env.step(np.zeros(env.num_envs, dtype=int))

    with pytest.raises(RuntimeError, match=f"to be stepped by other code .*{REFUSED}"):
        model_in(env).learn(200, callback=Calling(step))


@pytest.mark.parametrize("kind", SHARED)
def test_other_episodes_in_the_same_environment(kind):
    env = SHARED[kind]()

    def play(_):
        with EpisodeLanes(env, np.arange(3)) as lanes:
            lanes.reset()

    with pytest.raises(RuntimeError, match=f"to be used by other code .*{REFUSED}"):
        model_in(env).learn(200, callback=Calling(play))


@pytest.mark.parametrize("kind", ["native", "queued", "rounds"])
def test_other_environments_and_copies_change_nothing(kind):
    def weights(function):
        model = model_in(SHARED[kind]()).learn(60, callback=Calling(function))
        return th.cat([p.detach().flatten() for p in model.policy.parameters()])

    def evaluate_elsewhere(callback):
        evaluate_policy(callback.model, SHARED[kind](), n_eval_episodes=2, warn=False)

    def evaluate_in_a_copy(callback):
        env = copy.deepcopy(callback.training_env)
        if kind == "native":
            env.queue_episodes(None)
        elif kind == "queued":
            env.env_method("queue_episodes", None)
        evaluate_policy(callback.model, env, n_eval_episodes=2, warn=False)

    def evaluate_in_a_stored_copy(callback):
        env = callback.training_env
        stored = pickle.loads(pickle.dumps(env if kind == "native" else env.envs[0].unwrapped))
        if kind == "native":
            stored.queue_episodes(None)
        evaluate_policy(callback.model, stored, n_eval_episodes=2, warn=False)

    expected = weights(lambda _: None)
    for function in (evaluate_elsewhere, evaluate_in_a_copy, evaluate_in_a_stored_copy):
        assert th.equal(weights(function), expected)


def test_a_wrapper_may_step_more_than_once():
    class Two(Walk):
        max_turns = 2

        def step(self, action):
            obs, reward, _, _, info = super().step(action)
            return obs, reward, self.turn == 4, False, info

    model = model_in(Frames(DummyVecEnv([Two] * 3))).learn(1)
    assert len(model.rollout_buffer.turn_batches) == 2
    assert (model.rollout_buffer.rewards[:2].sum(axis=0) <= 4).all()


def test_between_two_rollouts_everybody_may_use_it():
    class Between(BaseCallback):
        def _on_step(self):
            return True

        def _on_rollout_end(self):
            self.training_env.reset()
            self.training_env.step(np.zeros(self.training_env.num_envs, dtype=int))

    for kind in ("native", "queued", "rounds"):
        model_in(SHARED[kind]()).learn(60, callback=Between())
