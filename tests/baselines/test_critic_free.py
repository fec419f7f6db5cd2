"""Critic-free algorithms: named settings of SeeUPO, with the gradients that their papers say."""

from inspect import signature
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.baselines import GRPO, GSPO, REINFORCE, RLOO, REINFORCEPlusPlus, evaluate

CHAIN = "seeupo_gym/ContextChain-v0"
ONE_LOSS = {"update_order": "simultaneous", "schedule": "sweep"}
GROUP = {"advantage_estimator": "group_mean", "normalize_advantage": "group", "update_rule": "clip"}
GRADIENT = {"normalize_advantage": "none", "ratio_level": "joint", "update_rule": "reinforce"}
FIXED = {
    GRPO: {**ONE_LOSS, **GROUP, "ratio_level": "token"},
    GSPO: {**ONE_LOSS, **GROUP, "ratio_level": "sequence"},
    RLOO: {**ONE_LOSS, **GRADIENT, "advantage_estimator": "leave_one_out"},
    REINFORCE: {**ONE_LOSS, **GRADIENT, "advantage_estimator": "group_mean"},
    REINFORCEPlusPlus: {**ONE_LOSS, **GROUP, "normalize_advantage": "batch", "ratio_level": "token"},
}
OTHER = {
    "update_order": ("reverse",),
    "schedule": ("staged",),
    "advantage_estimator": ("reward_to_go",),
    "normalize_advantage": ("none", "batch"),
    "update_rule": ("trust_region",),
    "ratio_level": ("joint", "token"),
}
# A softmax of a table: one linear layer on one-hot observations, moved by the gradient itself.
TABLE = {"net_arch": [], "ortho_init": False, "optimizer_class": th.optim.SGD}
SMALL = {"n_groups": 4, "group_size": 4, "seed": 0}
every_class = pytest.mark.parametrize("cls", FIXED)


class Guess(gym.Env):
    """Guess the context that is shown. An episode has ``max_turns`` turns, or fewer: a first component of 0 ends it."""

    def __init__(self, max_turns=1, action_space=None):
        self.max_turns = max_turns
        self.observation_space = spaces.Discrete(3)
        self.action_space = spaces.Discrete(3) if action_space is None else action_space

    def _observe(self):
        self.context = int(self.np_random.integers(3))
        return self.context

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return self._observe(), {}

    def step(self, action):
        parts = np.asarray(action, dtype=float).ravel()
        self.turn += 1
        reward = -float(np.abs(parts - self.context).mean())
        return self._observe(), reward, self.turn == self.max_turns or parts[0] == 0.0, False, {}


def weights(model):
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach()


def one_step(cls, env, **settings):
    """Parameters before and after one iteration, and the model with its rollout."""
    model = cls("MlpPolicy", env, **{**SMALL, "max_grad_norm": None, "policy_kwargs": TABLE, **settings})
    before = weights(model).clone()
    model.learn(1)
    return before, weights(model), model


@every_class
def test_it_is_seeupo_with_these_settings(cls):
    def trained(make, **settings):
        env = Guess(2, spaces.MultiDiscrete([3, 2]))
        return make("MlpPolicy", env, **SMALL, batch_size=8, **settings).learn(60)

    named = trained(cls)
    assert named.policy.n_policies == 1
    assert th.equal(weights(named), weights(trained(SeeUPO, turn_policies="shared", **FIXED[cls])))
    separate = trained(cls, turn_policies="separate", **FIXED[cls])
    assert separate.policy.n_policies == 2
    assert th.equal(weights(separate), weights(trained(SeeUPO, **FIXED[cls])))


@every_class
@pytest.mark.parametrize("setting", OTHER)
def test_fixed_settings_are_refused(cls, setting):
    value = FIXED[cls][setting]
    other = next(other for other in OTHER[setting] if other != value)
    message = f"{cls.__name__} is SeeUPO with {setting}='{value}', got '{other}': .*use SeeUPO"
    with pytest.raises(ValueError, match=message):
        cls("MlpPolicy", Guess(), **{setting: other})


def test_unknown_settings_are_refused():
    with pytest.raises(TypeError, match="gae_lambda"):
        GRPO("MlpPolicy", Guess(), gae_lambda=0.9)


@every_class
def test_none_stands_for_the_setting_of_the_class(cls):
    model = cls("MlpPolicy", Guess(), turn_policies=None, ratio_level=None)
    assert (model.turn_policies, model.ratio_level) == ("shared", FIXED[cls]["ratio_level"])


@every_class
def test_it_learns(cls):
    # 0.67 to 0.82 on seeds 0 to 4; random play has 0.25.
    model = cls("MlpPolicy", make_vec(CHAIN, 128, turns=2), learning_rate=1e-2, seed=0).learn(8_000)
    assert evaluate(model, CHAIN, n_episodes=200, turns=2).mean_return > 0.6


@every_class
@pytest.mark.parametrize("turn_policies", ["shared", "separate"])
def test_a_loaded_model_predicts_and_trains_on_alike(cls, turn_policies, tmp_path):
    model = cls("MlpPolicy", Guess(2), turn_policies=turn_policies, **SMALL).learn(30)
    model.save(tmp_path / "model")
    loaded = cls.load(tmp_path / "model", env=Guess(2))
    for state in (None, (np.ones(3, dtype=int),)):  # turns 0 and 1
        starts = np.full(3, state is None)
        actions = [m.predict(np.arange(3), state, starts, deterministic=True)[0].tolist() for m in (model, loaded)]
        assert actions[0] == actions[1]
    before = weights(loaded).clone()
    assert th.equal(before, weights(model))
    for m in (model, loaded):
        m.learn(60, reset_num_timesteps=False)
    assert th.equal(weights(model), weights(loaded))
    assert not th.equal(before, weights(loaded))
    assert {name: getattr(loaded, name) for name in FIXED[cls]} == FIXED[cls]


@every_class
@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(-1.0, 3.0, (2,)), spaces.MultiBinary(2)])
def test_kinds_of_actions(cls, space):
    model = cls("MlpPolicy", Guess(2, space), **SMALL)
    before = weights(model).clone()
    model.learn(60)
    assert th.isfinite(weights(model)).all()
    assert not th.equal(before, weights(model))


def test_ratios_of_tokens_and_of_sequences_are_the_same_for_one_component():
    _, grpo, _ = one_step(GRPO, Guess(), n_epochs=8, learning_rate=0.5)
    before, gspo, _ = one_step(GSPO, Guess(), n_epochs=8, learning_rate=0.5)
    assert th.equal(grpo, gspo)
    assert not th.equal(before, gspo)


def test_ratios_of_tokens_and_of_sequences_differ_for_several_components():
    env = Guess(2, spaces.MultiDiscrete([3, 3]))
    after = {
        (cls, n_epochs): one_step(cls, env, n_epochs=n_epochs, learning_rate=0.5)[1]
        for cls in (GRPO, GSPO)
        for n_epochs in (1, 8)
    }
    # All ratios are 1 at first, and the gradients are then the same.
    th.testing.assert_close(after[GRPO, 1], after[GSPO, 1], rtol=0.0, atol=1e-6)
    assert (after[GRPO, 8] - after[GSPO, 8]).abs().max() > 1e-3


def test_leave_one_out_is_the_group_mean_times_a_factor():
    before, rloo, _ = one_step(RLOO, Guess(), learning_rate=1.0)
    same, reinforce, _ = one_step(REINFORCE, Guess(), learning_rate=1.0)
    assert th.equal(before, same)
    assert (rloo - before).abs().max() > 1e-3
    th.testing.assert_close(rloo - before, 4 / 3 * (reinforce - before), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("cls", [REINFORCE, RLOO])
@pytest.mark.parametrize("turn_policies", ["shared", "separate"])
def test_policy_gradient_step_by_hand(cls, turn_policies):
    """theta moves by learning_rate / N * sum_i sum_t A_i grad log pi(a_it | s_it), N the rows of all turns."""
    before, after, model = one_step(cls, Guess(2), learning_rate=0.7, turn_policies=turn_policies)
    batches, rewards = model.rollout_buffer.turn_batches, model.rollout_buffer.rewards
    n_rows = sum(len(batch.actions) for batch in batches)
    assert 16 < n_rows < 32, "some episodes end after a turn, and some do not"

    returns = rewards.sum(axis=0)  # shape (groups, group_size)
    advantages = np.zeros(returns.shape)
    for group, i in np.ndindex(returns.shape):
        others = np.delete(returns[group], i) if cls is RLOO else returns[group]
        advantages[group, i] = returns[group, i] - others.mean()
    n_networks = 2 if turn_policies == "separate" else 1
    n_params = 3 * 3 + 3  # weights of the actions' logits, one row an action, and biases
    expected = before.double().numpy().reshape(n_networks, n_params).copy()
    start = expected.copy()
    for turn, batch in enumerate(batches):
        network = min(turn, n_networks - 1)
        # SB3's order of parameters: the module's own order, checked below through the probabilities.
        table, bias = start[network, :9].reshape(3, 3), start[network, 9:]
        for obs, action, log_prob, episode in zip(
            batch.observations, batch.actions, batch.log_probs, batch.episodes, strict=True
        ):
            logits = table[:, int(obs)] + bias
            probs = np.exp(logits) / np.exp(logits).sum()
            assert np.log(probs[int(action)]) == pytest.approx(float(log_prob), abs=1e-5)
            grad = advantages.reshape(-1)[int(episode)] * (np.eye(3)[int(action)] - probs)
            expected[network, :9].reshape(3, 3)[:, int(obs)] += 0.7 / n_rows * grad
            expected[network, 9:] += 0.7 / n_rows * grad
    assert np.abs(expected - start).max() > 1e-2
    np.testing.assert_allclose(after.numpy(), expected.reshape(-1), atol=1e-5)


@every_class
def test_its_signature_shows_what_can_be_set(cls):
    shown = signature(cls).parameters
    assert set(shown) == set(signature(SeeUPO).parameters) - set(FIXED[cls])
    assert shown["turn_policies"].default == "shared"
    assert shown["learning_rate"].default == signature(SeeUPO).parameters["learning_rate"].default
    named = {name for name, parameter in shown.items() if parameter.kind is parameter.KEYWORD_ONLY}
    assert set(shown) - named == {"policy", "env"}
    with pytest.raises(TypeError):
        cls("MlpPolicy", Guess(), 1e-3)


def test_a_subclass_shows_its_own_arguments():
    class Mine(GRPO):
        def __init__(self, policy, env, size=4):
            super().__init__(policy, env, group_size=size)

    class Fixed(GRPO):
        fixed_settings: ClassVar = {**GRPO.fixed_settings, "gamma": 0.9}

    class Heir(Mine):
        pass

    for cls in (Mine, Heir):
        assert list(signature(cls).parameters) == ["policy", "env", "size"]
    assert "gamma" not in signature(Fixed).parameters
