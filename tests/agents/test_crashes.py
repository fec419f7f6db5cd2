"""Episodes whose environment crashed are no members of their groups, and no part of any statistics."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from helpers.rollouts import collect
from stable_baselines3.common.vec_env import DummyVecEnv

from seeupo_gym import SeedQueue, SeeUPO
from seeupo_gym.baselines import evaluate


class FragileEnv(gym.Env):
    """Two turns, the reward is the action at the first; crashes at the turn ``crash_turn`` of the listed episodes."""

    max_turns = 2
    starts_programs = True  # it crashes by the number of its episodes, whatever their seeds are

    def __init__(self, crashing=(), crash_turn=0):
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.crashing, self.crash_turn = crashing, crash_turn
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.turn = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        crash = self.turn == self.crash_turn and self.episode in self.crashing
        reward = float(action) if self.turn == 0 and not crash else 0.0
        self.turn += 1
        info = {"seeupo_gym/crashed": True} if crash else {}
        return np.full(1, self.turn / 2, np.float32), reward, not crash and self.turn == 2, crash, info


# Episode 0 is the one that SB3 starts when learning begins; collection starts anew with episode 1.
def collected(env, **kwargs):
    model = SeeUPO("MlpPolicy", env, seed=0, device="cpu", **kwargs)
    collect(model)
    return model


@pytest.mark.parametrize("crash_turn", [0, 1])
def test_a_crashed_member_is_left_out_and_the_others_are_their_own_baseline(crash_turn):
    # A single environment plays the episodes in order, so its second episode is member 1 of group 0.
    whole = collected(FragileEnv(), n_groups=2, group_size=4)
    model = collected(FragileEnv((2,), crash_turn), n_groups=2, group_size=4)
    buffer = model.rollout_buffer
    assert buffer.reached[:, 0].tolist() == [[True, False, True, True]] * 2
    assert buffer.reached[:, 1].all()
    for batch in buffer.turn_batches:
        assert sorted(batch.episodes.tolist()) == [0, 2, 3, 4, 5, 6, 7]
    # Its steps were taken all the same.
    assert model.num_timesteps == whole.num_timesteps - (crash_turn == 0)
    assert len(model.ep_info_buffer) == 7
    model.train()
    returns = np.delete(buffer.rewards.sum(axis=0).ravel(), 1)
    stds = [returns[:3].std(), returns[3:].std()]
    assert model.logger.name_to_value["rollout/group_reward_std"] == pytest.approx(np.mean(stds))


@pytest.mark.parametrize("n_envs", [1, 3])
def test_the_update_is_that_of_the_rollout_without_the_crashed_members(n_envs):
    env = DummyVecEnv([lambda: SeedQueue(FragileEnv((1,)))] * n_envs)
    model = collected(env, n_groups=3, group_size=4, normalize_advantage="none")
    buffer = model.rollout_buffer
    assert 1 <= (~buffer.reached[0]).sum() <= n_envs
    seen = {}

    def evaluate_actions(obs, actions, turn, action_masks=None, with_entropy=False):
        seen[turn] = len(actions)
        return type(model.policy).evaluate_actions(model.policy, obs, actions, turn, action_masks, with_entropy)

    model.policy.evaluate_actions = evaluate_actions
    model.train()
    assert seen == {0: buffer.reached[0].sum(), 1: buffer.reached[1].sum()}


def test_an_iteration_without_any_whole_episode_is_an_error():
    with pytest.raises(RuntimeError, match="all 4 episodes of this iteration crashed"):
        collected(FragileEnv(range(1, 5)), n_groups=2, group_size=2)


def test_a_group_with_one_member_left_teaches_nothing():
    model = collected(FragileEnv((1, 2, 3)), n_groups=1, group_size=4)
    before = [param.clone() for param in model.policy.parameters()]
    model.train()
    assert all((a == b).all() for a, b in zip(before, model.policy.parameters(), strict=True))


def test_evaluation_leaves_crashed_episodes_out():
    model = SeeUPO("MlpPolicy", FragileEnv(), n_groups=1, group_size=2, seed=0, device="cpu")
    gym.register("FragileForTests-v0", entry_point=FragileEnv)
    try:
        with pytest.warns(UserWarning, match="4 of 12 episodes crashed"):
            # Four of the eight lanes play a second episode, which crashes.
            result = evaluate(model, "FragileForTests-v0", n_episodes=12, crashing=(1,), crash_turn=1)
    finally:
        del gym.registry["FragileForTests-v0"]
    assert len(result.returns) == len(result.lengths) == 8
