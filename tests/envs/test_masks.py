"""Invalid-action masks: where they come from, and what is refused."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecCheckNan, VecEnvWrapper, VecNormalize

from seeupo_gym import SeedQueue, SeeUPO, make_vec
from seeupo_gym.baselines import evaluate
from seeupo_gym.benchmark.watch import watch_episode
from seeupo_gym.envs.masks import check_masks, has_masks, read_masks
from seeupo_gym.envs.views.info_action_mask import InfoActionMask

SLOTS, TRAP = "seeupo_gym/SlotDialogue-v0", "seeupo_gym/CoordinationTrap-v0"
GIVEN = "GivenMaskForTests-v0"
SMALL = dict(n_groups=2, group_size=2, seed=0, device="cpu")


class GivenMask(gym.Env):
    """Two turns; at the second one the mask is what it was given."""

    max_turns = 2
    observation_space = spaces.Box(0, 1, (1,))

    def __init__(self, mask, action_space=None):
        self.action_space = action_space or spaces.Discrete(3)
        self.mask = mask

    def _info(self):
        return {"action_mask": self.action_masks()}

    def reset(self, *, seed=None, options=None):
        self.turn = 0
        return np.zeros(1, np.float32), self._info()

    def action_masks(self):
        n = 3 if isinstance(self.action_space, spaces.Discrete) else 5
        return self.mask if self.turn == 1 else np.ones(n, dtype=bool)

    def step(self, action):
        self.turn += 1
        return np.zeros(1, np.float32), float(np.sum(action)), self.turn == 2, False, self._info()


class InfoOnly(GivenMask):
    """Without the method."""

    action_masks = property()

    def _info(self):
        return {"action_mask": GivenMask.action_masks(self)}


@pytest.fixture(autouse=True)
def _registered():
    gym.register(GIVEN, GivenMask, disable_env_checker=True)
    yield
    del gym.registry[GIVEN]


class LastOnly(VecEnvWrapper):
    """Rules out all actions but the last one."""

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        return self.venv.step_wait()

    def action_masks(self):
        masks = np.zeros((self.num_envs, self.action_space.n), dtype=bool)
        masks[:, -1] = True
        return masks


class LastOnlyByMethod(VecEnvWrapper):
    """The same, where sb3-contrib asks for it."""

    reset, step_wait = LastOnly.reset, LastOnly.step_wait

    def env_method(self, method_name, *args, indices=None, **kwargs):
        assert method_name == "action_masks"
        return [row for i, row in enumerate(LastOnly.action_masks(self)) if indices is None or i in indices]


def all_envs(env):
    return np.arange(env.num_envs), np.zeros(env.num_envs, dtype=int)


@pytest.mark.parametrize("wrapper", [LastOnly, LastOnlyByMethod])
@pytest.mark.parametrize("native", [True, False])
def test_masks_come_from_the_outermost_wrapper(wrapper, native):
    plain = make_vec(SLOTS, 4, vec_env_cls=None if native else DummyVecEnv)
    plain.seed(0)
    plain.reset()
    n = plain.action_space.n
    for env in (wrapper(plain), VecCheckNan(wrapper(plain)), wrapper(wrapper(plain))):
        assert has_masks(env)
        assert read_masks(env, env.action_space, *all_envs(env)).tolist() == [[False] * (n - 1) + [True]] * 4
        assert read_masks(env, env.action_space, np.array([1, 3]), np.zeros(2, int)).shape == (2, n)
    assert read_masks(VecCheckNan(plain), plain.action_space, *all_envs(plain)).sum() > 4


@pytest.mark.parametrize("native", [True, False])
def test_training_and_evaluation_use_the_wrapper_s_masks(native):
    env = LastOnly(make_vec(SLOTS, 4, vec_env_cls=None if native else DummyVecEnv))
    model = SeeUPO("MlpPolicy", env, **SMALL)
    _, callback = model._setup_learn(1, None)
    model.collect_rollouts(model.env, callback, model.rollout_buffer)
    for batch in model.rollout_buffer.turn_batches:
        assert (batch.actions == env.action_space.n - 1).all()


def test_a_wrapper_may_have_masks_where_the_environment_has_none():
    plain = make_vec(TRAP, 2)
    assert not has_masks(plain)
    assert not has_masks(VecNormalize(plain))
    assert has_masks(LastOnly(plain))
    assert SeeUPO("MlpPolicy", LastOnly(plain), **SMALL).masked


def test_the_outermost_wrapper_of_a_single_environment_counts():
    env = DummyVecEnv([lambda: ActionMasker(GivenMask(np.ones(3, bool)), lambda e: np.array([False, True, False]))])
    env.reset()
    assert read_masks(env, env.action_space, *all_envs(env)).tolist() == [[False, True, False]]


def test_masks_of_other_processes():
    env = SubprocVecEnv([lambda: SeedQueue(GivenMask(np.array([True, False, False])))] * 2)
    try:
        assert SeeUPO("MlpPolicy", env, **SMALL).learn(1).masked
    finally:
        env.close()


NO_MASKS = [
    np.array([0.0, -np.inf, 0.0]),
    np.array([1.0, 0.0, 1.0]),
    np.array([True, False, np.nan]),
    ["yes", "no", "yes"],
    [[True], [True, False]],
    [1, 2, 0],
    [-1, 0, 1],
    None,
    True,
    {"a": True},
    np.ones(4, bool),
    np.ones((2, 3), bool),
    np.array([True, None, False]),
]


@pytest.mark.parametrize("mask", NO_MASKS, ids=str)
def test_what_is_no_mask_is_refused_with_environment_and_turn(mask):
    def refused(where):
        return pytest.raises(
            ValueError, match=rf"^{where} must be 3 booleans \(or integers 0 and 1\) in a row, one for each ch"
        )

    env = DummyVecEnv([lambda: SeedQueue(GivenMask(np.ones(3, bool))), lambda: SeedQueue(GivenMask(mask))])
    model = SeeUPO("MlpPolicy", env, **SMALL)
    with refused(r"action_masks\(\) of environment 1 at turn 1"):
        model.learn(1)
    with refused(r"action_masks\(\) of environment 0 at turn 1"):
        evaluate(model, GIVEN, 1, mask=mask)
    with refused(r"action_masks\(\) (of environment 0 )?at turn 1"):
        list(watch_episode(model, GIVEN, mask=mask))
    env = InfoActionMask(InfoOnly(mask))
    env.reset()
    with refused(r"info\['action_mask'\] at turn 1"):
        env.step(0)


@pytest.mark.parametrize(
    "mask",
    [[1, 0, 1], (True, False, True), np.array([1, 0, 1], np.uint8), [True, 0, 1], th.tensor([True, False, True])],
    ids=repr,
)
def test_booleans_and_the_integers_0_and_1_are_taken(mask):
    env = DummyVecEnv([lambda: GivenMask(mask)])
    env.reset()
    env.envs[0].turn = 1
    masks = read_masks(env, env.action_space, *all_envs(env))
    assert (masks.dtype, masks.tolist()) == (bool, [[True, False, True]])
    info = InfoActionMask(InfoOnly(mask))
    info.reset()
    info.step(0)
    assert info.action_masks().tolist() == [True, False, True]


@pytest.mark.parametrize("action_space", [spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)], ids=str)
def test_masks_of_components_may_be_nested_and_each_needs_a_choice(action_space):
    n = 5 if isinstance(action_space, spaces.MultiDiscrete) else 4
    mask = np.ones(n, int)
    mask[0] = 0
    rows = [mask.reshape(-1, 2).tolist()] if n == 4 else [mask]
    assert check_masks(rows, action_space, str).tolist() == [[False] + [True] * (n - 1)]
    mask[:2] = 0
    with pytest.raises(ValueError, match=r"^7 allows no action"):
        check_masks([mask], action_space, lambda row: "7")


def test_a_wrapper_s_masks_have_a_row_for_each_environment():
    class TooFew(LastOnly):
        def action_masks(self):
            return super().action_masks()[:1]

    with pytest.raises(ValueError, match="TooFew must have a row for each of the 4 environments, got 1"):
        SeeUPO("MlpPolicy", TooFew(make_vec(SLOTS, 4)), **SMALL).learn(1)
