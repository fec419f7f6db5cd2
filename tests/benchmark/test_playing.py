"""Evaluation and watching play as training did: the wrappers of the environment, their statistics, and masks."""

import json
import zipfile

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from helpers.processes import IN_PROCESSES
from sb3_contrib import MaskablePPO
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecEnvWrapper,
    VecFrameStack,
    VecNormalize,
)

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.baselines import evaluate
from seeupo_gym.benchmark.watch import watch_episode
from seeupo_gym.envs.task import HELD_OUT_SEED

pytestmark = pytest.mark.usefixtures("one_thread")

POLE, IMAGES, SLOTS = "ShortPoleForTests-v0", "ImagesForTests-v0", "seeupo_gym/SlotDialogue-v0"
SMALL = dict(n_groups=2, group_size=4, seed=0, device="cpu")
SHARED = dict(SMALL, turn_policies="shared", learning_rate=1e-2)
SMALL_PPO = dict(n_steps=16, batch_size=32, n_epochs=1, device="cpu", seed=0)


@pytest.fixture(autouse=True, scope="module")
def short_pole():
    gym.register(POLE, "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=60)
    yield
    del gym.registry[POLE]


def normalized(n_envs=4, **kwargs):
    return VecNormalize(make_vec(POLE, n_envs, seed=0), norm_reward=False, **kwargs)


def trained_on(env, steps=400):
    return SeeUPO("MlpPolicy", env, **SHARED).learn(steps)


def played_by_hand(model, see, n_episodes=3, env_id=POLE):
    """Returns of episodes whose observations go through a function; it gets all those of the episode so far."""
    returns = []
    for i in range(n_episodes):
        env, seen, state, over, total = gym.make(env_id), [], None, False, 0.0
        obs, _ = env.reset(seed=HELD_OUT_SEED + i)
        while not over:
            seen.append(obs)
            starts = np.array([len(seen) == 1])
            action, state = model.predict(see(seen), state, starts, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(int(action))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def stacked(n_stack):
    def see(seen):
        return np.concatenate([np.zeros(4 * n_stack, np.float32), *seen])[-4 * n_stack :]

    return see


@pytest.fixture(scope="module")
def pole():
    """A model that was trained on normalised observations, how it plays, and how it would without them."""
    model = trained_on(normalized())
    expected = played_by_hand(model, lambda seen: model.env.normalize_obs(seen[-1]))
    assert expected != played_by_hand(model, lambda seen: seen[-1]), "else the test would show nothing"
    return model, expected


def saved_and_loaded(model, path, **kwargs):
    model.save(path)
    return type(model).load(path, device="cpu", **kwargs)


# --- statistics and stacks


def test_evaluation_normalises_as_training_did(pole, tmp_path):
    model, expected = pole
    before = model.env.obs_rms.mean.copy(), model.env.obs_rms.count
    assert evaluate(model, POLE, 3).returns.tolist() == expected
    loaded = saved_and_loaded(model, tmp_path / "model")
    assert evaluate(loaded, POLE, 3).returns.tolist() == expected, "the file holds the statistics"
    again = saved_and_loaded(loaded, tmp_path / "again", env=POLE)
    assert evaluate(again, POLE, 3).returns.tolist() == expected, "whatever environment it is to go on in"
    np.testing.assert_array_equal(model.env.obs_rms.mean, before[0])
    assert (model.env.obs_rms.count, model.env.training) == (before[1], True)


@pytest.mark.parametrize("algorithm", ["seeupo", "ppo"])
def test_watching_normalises_as_training_did(pole, algorithm):
    model, expected = pole
    if algorithm == "ppo":
        model = PPO("MlpPolicy", normalized(), **SMALL_PPO).learn(64)
        expected = evaluate(model, POLE, 3).returns.tolist()
        assert expected == played_by_hand(model, lambda seen: model.env.normalize_obs(seen[-1]))
    for seed in range(3):
        last = list(watch_episode(model, POLE, HELD_OUT_SEED + seed))[-1]
        assert last.startswith(f"Return {expected[seed]:.3g} after {expected[seed]:.0f} turns")


def test_statistics_are_those_of_the_training_that_came_last(pole, tmp_path):
    model = trained_on(normalized())
    model.learn(500)
    expected = played_by_hand(model, lambda seen, env=model.env: env.normalize_obs(seen[-1]))
    bare = make_vec(POLE, 4)
    model.set_env(bare)
    for one in (model, saved_and_loaded(model, tmp_path / "model")):
        assert evaluate(one, POLE, 3).returns.tolist() == expected
    with pytest.warns(UserWarning, match="this one is wrapped with nothing"):
        model.learn(100)  # without them
    expected = played_by_hand(model, lambda seen: seen[-1])
    for one in (model, saved_and_loaded(model, tmp_path / "model")):
        assert evaluate(one, POLE, 3).returns.tolist() == expected


@pytest.mark.parametrize("n_stack", [2, 4])
def test_evaluation_stacks_frames_as_training_did(n_stack, tmp_path):
    model = SeeUPO("MlpPolicy", VecFrameStack(make_vec(POLE, 4), n_stack), **SHARED).learn(500)
    expected = played_by_hand(model, stacked(n_stack))
    for one in (model, saved_and_loaded(model, tmp_path / "model")):
        assert evaluate(one, POLE, 3).returns.tolist() == expected
        assert evaluate(one, gym.make(POLE), 3).returns.tolist() == expected
        assert evaluate(one, VecFrameStack(make_vec(POLE, 3), n_stack), 3).returns.tolist() == expected
    assert list(watch_episode(model, POLE))[-1].startswith(f"Return {expected[0]:.3g} ")
    with pytest.raises(ValueError, match=r"trained with the observation space .*, and this environment has .*wrapped"):
        evaluate(model, VecFrameStack(make_vec(POLE, 3), n_stack + 1), 3)


def test_what_is_missing_is_put_around_what_is_there():
    env = VecCheckNan(VecNormalize(VecFrameStack(make_vec(POLE, 4), 3), norm_reward=False))
    model = SeeUPO("MlpPolicy", env, **SHARED).learn(800)
    see = stacked(3)
    expected = played_by_hand(model, lambda seen: env.normalize_obs(see(seen)))
    assert evaluate(model, POLE, 3).returns.tolist() == expected
    assert evaluate(model, make_vec(POLE, 2), 3).returns.tolist() == expected
    assert evaluate(model, VecFrameStack(make_vec(POLE, 2), 3), 3).returns.tolist() == expected
    with pytest.raises(ValueError, match=r"wrapped with VecNormalize, .* trained with VecFrameStack, VecNormalize"):
        evaluate(model, normalized(), 3)


def test_dict_observations_are_normalised_by_their_keys(tmp_path):
    class DictPole(gym.ObservationWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.observation_space = spaces.Dict({"pole": env.observation_space, "n": spaces.Discrete(2)})

        def observation(self, obs):
            return {"pole": obs, "n": 1}

    def make():
        return DictPole(gym.make(POLE))

    env = VecNormalize(DummyVecEnv([make] * 4), norm_reward=False, norm_obs_keys=["pole"])
    model = SeeUPO("MultiInputPolicy", env, **SHARED).learn(500)
    expected = evaluate(model, env, 3).returns.tolist()
    loaded = saved_and_loaded(model, tmp_path / "model")
    assert evaluate(loaded, DummyVecEnv([make] * 2), 3).returns.tolist() == expected


def test_a_vector_environment_s_own_statistics_are_used_and_left_alone(pole):
    model, expected = pole
    own = normalized(3)
    own.norm_reward = True
    own.obs_rms.mean, own.obs_rms.var, own.obs_rms.count = np.full(4, 0.3), np.full(4, 4.0), 100.0
    by_hand = played_by_hand(model, lambda seen: own.normalize_obs(seen[-1]))
    assert evaluate(model, own, 3).returns.tolist() == by_hand != expected
    assert (own.training, own.norm_reward, own.obs_rms.count) == (True, True, 100.0)
    with pytest.raises(ValueError, match="VecNormalize has seen no observation yet: pass the environment without it"):
        evaluate(model, normalized(), 3)


# --- what cannot be known


class Shifted(VecEnvWrapper):
    """A wrapper of one's own."""

    def reset(self):
        return self.venv.reset() + 1

    def step_wait(self):
        obs, *rest = self.venv.step_wait()
        return obs + 1, *rest


def test_a_wrapper_of_one_s_own_must_be_passed(tmp_path):
    model = trained_on(Shifted(make_vec(POLE, 4)), 300)
    expected = played_by_hand(model, lambda seen: seen[-1] + 1)
    for one in (model, saved_and_loaded(model, tmp_path / "model")):
        for env in (POLE, gym.make(POLE), make_vec(POLE, 2)):
            with pytest.raises(ValueError, match=r"Shifted cannot be made anew: pass a vector environment that"):
                evaluate(one, env, 3)
        with pytest.raises(ValueError, match="Shifted cannot be made anew"):
            list(watch_episode(one, POLE))
        assert evaluate(one, Shifted(make_vec(POLE, 2)), 3).returns.tolist() == expected


def test_a_model_without_its_statistics_is_refused(pole, tmp_path):
    model, expected = pole
    model.save(tmp_path / "old", exclude=["env_wrappers"])
    ppo = PPO("MlpPolicy", normalized(), **SMALL_PPO).learn(64)
    results = evaluate(ppo, POLE, 3).returns.tolist()
    ppo.save(tmp_path / "ppo")
    for one, statistics, by_hand in (
        (SeeUPO.load(tmp_path / "old"), model.env, expected),
        (PPO.load(tmp_path / "ppo", device="cpu"), ppo.env, results),
        (PPO.load(tmp_path / "ppo", env=make_vec(POLE, 4), device="cpu"), ppo.env, results),
    ):
        for env in (POLE, make_vec(POLE, 2)):
            with pytest.raises(ValueError, match=r"trained with VecNormalize.*VecNormalize.load\(path"):
                evaluate(one, env, 3)
        statistics.save(tmp_path / "statistics")
        env = VecNormalize.load(tmp_path / "statistics", make_vec(POLE, 2))
        assert evaluate(one, env, 3).returns.tolist() == by_hand


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_models_of_others_that_had_no_statistics_are_played(algorithm, tmp_path):
    if algorithm == "ppo":
        model = PPO("MlpPolicy", make_vec(POLE, 4), **SMALL_PPO).learn(64)
    else:
        model = DQN("MlpPolicy", gym.make(POLE), device="cpu", seed=0, learning_starts=10).learn(50)
    expected = played_by_hand(model, lambda seen: seen[-1])
    for one in (model, saved_and_loaded(model, tmp_path / "model")):
        assert evaluate(one, POLE, 3).returns.tolist() == expected


class Doubled(gym.ObservationWrapper):
    def observation(self, obs):
        return 2 * obs


def test_gymnasium_s_wrappers_that_change_observations_must_be_passed(tmp_path):
    model = trained_on(Doubled(gym.make(POLE)), 300)
    expected = played_by_hand(model, lambda seen: 2 * seen[-1])
    for one in (model, saved_and_loaded(model, tmp_path / "model")):
        for play in (lambda: evaluate(one, POLE, 3), lambda: list(watch_episode(one, POLE))):  # noqa: B023
            with pytest.raises(ValueError, match=r"trained in an environment wrapped with .*:Doubled, .*pass the env"):
                play()
        assert evaluate(one, Doubled(gym.make(POLE)), 3).returns.tolist() == expected


def test_other_spaces_are_refused():
    model = trained_on(make_vec(POLE, 4), 100)
    with pytest.raises(ValueError, match=r"the observation space Box of shape \(4,\), and .* Discrete\(16\)"):
        evaluate(model, "FrozenLake-v1", 3)


# --- what may be given


@pytest.mark.parametrize("vec_env_cls", [None, DummyVecEnv, IN_PROCESSES])
def test_ids_environments_and_vector_environments_give_the_same(pole, vec_env_cls):
    model, expected = pole
    makers = [lambda: gym.make("CartPole-v1", max_episode_steps=60)] * 2  # other processes do not know the short id
    given = gym.make(POLE) if vec_env_cls is None else vec_env_cls(makers)
    for _ in range(2):  # it stays open
        assert evaluate(model, given, 3).returns.tolist() == expected
    assert list(watch_episode(model, given, HELD_OUT_SEED + 1))[-1].startswith(f"Return {expected[1]:.3g} ")
    given.close()


def test_what_may_not_be_given(pole):
    model, _ = pole
    with pytest.raises(ValueError, match=r"arguments of the environment \(turns\) are for an id"):
        evaluate(model, gym.make(POLE), 5, turns=3)
    with pytest.raises(ValueError, match=r"must be an environment, a vector environment of SB3 or .* got 5"):
        evaluate(model, 5)


def test_a_transcript_of_another_s_vector_environment_ends_with_its_episode():
    model = SeeUPO("MlpPolicy", "FrozenLake-v1", **SHARED, max_turns=5)
    own = list(watch_episode(model, "FrozenLake-v1"))
    env = DummyVecEnv([lambda: gym.make("FrozenLake-v1", render_mode="ansi")])
    other = list(watch_episode(model, env))
    assert other == [*own[:-2], own[-1]], "what follows the last turn is the next episode"


class Images(gym.Env):
    max_turns = 1

    def __init__(self):
        self.observation_space, self.action_space = spaces.Box(0, 255, (36, 36, 1), np.uint8), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.shade = int(self.np_random.integers(2))
        return np.full((36, 36, 1), 255 * self.shade, dtype=np.uint8), {}

    def step(self, action):
        return np.zeros((36, 36, 1), dtype=np.uint8), float(action == self.shade), True, False, {}


def test_images_are_transposed_as_in_training(tmp_path):
    gym.register(IMAGES, Images, disable_env_checker=True)
    try:
        model = SeeUPO("CnnPolicy", IMAGES, **SMALL).learn(64)
        stack = SeeUPO("CnnPolicy", VecFrameStack(DummyVecEnv([Images] * 2), 2), **SMALL).learn(64)
        ppo = PPO("CnnPolicy", make_vec(IMAGES, 4), **SMALL_PPO).learn(64)
        for one in (model, stack, ppo):
            expected = evaluate(one, IMAGES, 20).returns.tolist()
            loaded = saved_and_loaded(one, tmp_path / "model")
            for env in (IMAGES, DummyVecEnv([Images] * 2)):
                assert evaluate(loaded, env, 20).returns.tolist() == expected
    finally:
        del gym.registry[IMAGES]


# --- masks


@pytest.mark.parametrize("algorithm", [SeeUPO, MaskablePPO])
def test_a_model_that_was_trained_with_masks_is_not_played_without(algorithm):
    settings = SMALL if algorithm is SeeUPO else SMALL_PPO
    model = algorithm("MlpPolicy", make_vec(SLOTS, 4), **settings).learn(64)

    class Unmasked(gym.ObservationWrapper):
        def __init__(self):
            super().__init__(gym.make(SLOTS))

        def observation(self, obs):
            return obs

        def get_wrapper_attr(self, name):
            if name == "action_masks":
                raise AttributeError(name)
            return super().get_wrapper_attr(name)

    for play in (evaluate, lambda *arguments: list(watch_episode(*arguments))):
        play(model, SLOTS)
        with pytest.raises(ValueError, match=r"trained with action_masks\(\), and this environment has none"):
            play(model, Unmasked())


# --- the file


def test_the_record_in_a_saved_model_is_plain_data(pole, tmp_path):
    pole[0].save(tmp_path / "model")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        record = json.loads(archive.read("data"))["env_wrappers"]
    assert [wrapper["wrapper"] for wrapper in record["vector"]] == ["VecNormalize"]
    assert record["vector"][0]["observations"][""]["count"] == pole[0].env.obs_rms.count
