"""The low-level API's update against SeeUPO.train()."""

import copy
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers.low_level import assert_close
from stable_baselines3.common.preprocessing import preprocess_obs
from test_trajectories import parameters_of
from torch.distributions import Normal

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.agents import BackwardInductionOptimizer, MultiTurnTrajectory


class Walk(gym.Env):
    """Episodes of 1 to 3 turns; the actions are discrete and masked, or continuous."""

    max_turns = 3

    def __init__(self, continuous):
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = spaces.Box(-5.0, 5.0, (2,), np.float32) if continuous else spaces.Discrete(3)
        if not continuous:
            self.action_masks = lambda: np.arange(3) != self.turn  # another choice is missing at every turn

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return self._observe(), {}

    def step(self, action):
        self.turn += 1
        done = self.turn == self.max_turns or self.np_random.random() < 0.3
        return self._observe(), float(np.sum(action) + self.np_random.normal()), done, False, {}

    def _observe(self):
        return self.np_random.normal(size=4).astype(np.float32)


class NetworkOfTurn(th.nn.Module):
    """One turn's network of a SeeUPOPolicy, as someone might have it: logits, or a Normal."""

    def __init__(self, policy, turn):
        super().__init__()
        self.network = copy.deepcopy(policy.turns[turn])
        self.space = policy.observation_space

    def forward(self, states):
        output = self.network(preprocess_obs(states, self.space))
        return output if self.network.log_std is None else Normal(output, self.network.log_std.exp().expand_as(output))


def tool_chain_policy(policy, turn):
    """MultiDiscrete actions through log_prob(states, actions), the third kind of policy."""
    policy = copy.deepcopy(policy)
    return SimpleNamespace(
        network=policy.turns[turn],
        parameters=policy.turns[turn].parameters,
        log_prob=lambda states, actions: policy.evaluate_actions(states, actions, turn)[0],
        entropy=lambda states: policy.get_distribution(states, turn).entropy(),
    )


def to_trajectories(buffer):
    """What SeeUPO collected, episode by episode."""
    rows = [[] for _ in range(buffer.n_groups * buffer.group_size)]
    rewards = buffer.rewards.reshape(len(buffer.rewards), -1)
    for turn, batch in enumerate(buffer.turn_batches):
        for row, episode in enumerate(batch.episodes.tolist()):
            mask = None if batch.action_masks is None else batch.action_masks[row]
            step = (batch.observations[row], batch.actions[row], rewards[turn, episode], batch.log_probs[row], mask)
            rows[episode].append(step)
    trajectories = []
    for episode, steps in enumerate(rows):
        *columns, masks = ([*column] for column in zip(*steps, strict=True))
        masks = None if masks[0] is None else masks
        trajectories.append(MultiTurnTrajectory(*columns, masks, group=episode // buffer.group_size))
    return trajectories


@pytest.mark.parametrize("optimizer_class", [th.optim.SGD, th.optim.Adam])
@pytest.mark.parametrize(
    ("env", "changes", "make_policy"),
    [
        ("discrete", {}, NetworkOfTurn),
        ("continuous", dict(batch_size=7, ent_coef=0.1), NetworkOfTurn),
        ("tools", {}, tool_chain_policy),
        ("tools", dict(ratio_level="token"), tool_chain_policy),
    ],
)
def test_an_epoch_is_what_seeupo_does_with_the_same_episodes(env, changes, make_policy, optimizer_class):
    shared = dict(learning_rate=0.003, gamma=0.9, advantage_estimator="reward_to_go") | changes
    model = SeeUPO(
        "MlpPolicy",
        make_vec("seeupo_gym/ToolChain-v0", 8) if env == "tools" else Walk(continuous=env == "continuous"),
        n_groups=4,
        group_size=5,
        use_masking=env == "discrete",
        policy_kwargs=dict(net_arch=[8], ortho_init=False, optimizer_class=optimizer_class),
        seed=0,
        **shared,
    )
    model.learn(20, log_interval=None)  # then the next episodes are collected off the initial weights
    model.collect_rollouts(model.env, model._init_callback(None), model.rollout_buffer)
    trajectories = to_trajectories(model.rollout_buffer)
    assert len({len(trajectory) for trajectory in trajectories}) > 1
    assert (trajectories[0].action_masks is None) == (env != "discrete")
    n_turns = len(model.rollout_buffer.turn_batches)
    policies = [make_policy(model.policy, turn) for turn in range(model.n_turns)]
    shared.pop("ratio_level", None)
    optimizer = BackwardInductionOptimizer(policies, optimizer_class=optimizer_class, **shared)
    if optimizer_class is th.optim.Adam:
        optimizer = with_state_of(model.policy.optimizer, optimizer)
    optimizer.generator.set_state(model.streams.updates.get_state())
    if "batch_size" in changes:  # minibatches are drawn from rows in SeeUPO's order, that of the vector steps
        assert all(
            batch.episodes.tolist() == sorted(batch.episodes.tolist()) for batch in model.rollout_buffer.turn_batches
        )
    before = parameters_of(model.policy.turns)
    optimizer.train_epoch(trajectories)
    model.train()
    after = parameters_of(model.policy.turns)
    assert sum(not th.equal(a, b) for a, b in zip(before, after, strict=True)) == len(after) * n_turns // model.n_turns
    assert_close([policy.network for policy in policies], model.policy.turns, atol=1e-6)


def with_state_of(source, optimizer):
    """Continue with the moments that a model's one optimizer has gathered."""
    for group, own in zip(source.param_groups, optimizer.turns.optimizers, strict=True):
        params = own.param_groups[0]["params"]
        for param, twin in zip(group["params"], params, strict=True):
            own.state[twin] = copy.deepcopy(source.state[param])
    return optimizer
