"""Evaluation: held-out seeds, masks, memory, and training that goes on as if there had been none."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from helpers import CHAIN, TOOL, TRAP
from helpers.jobs import SMALL
from sb3_contrib import RecurrentPPO

from seeupo_gym.baselines import evaluate, get_algorithm
from seeupo_gym.envs.task import HELD_OUT_SEED
from seeupo_gym.envs.vector import make_vec

pytestmark = pytest.mark.usefixtures("one_thread")


def scripted(act, **attributes):
    """A model that is a function of the observations, the state and the episode starts."""
    policy = SimpleNamespace(training=True)
    policy.set_training_mode = lambda mode: setattr(policy, "training", mode)
    return SimpleNamespace(policy=policy, device=th.device("cpu"), predict=act, **attributes)


def test_evaluation_plays_the_held_out_seeds():
    def act(obs, state, episode_start, deterministic):
        state = np.where(episode_start, 0, 0 if state is None else state)
        return (obs.argmax(axis=1) + state) % 4, state + 1

    expected = []
    env = gym.make(CHAIN)
    for i in range(25):
        obs, _ = env.reset(seed=HELD_OUT_SEED + i)
        total, done, turn = 0.0, False, 0
        while not done:
            obs, reward, done, _, info = env.step((int(obs.argmax()) + turn) % 4)
            total, turn = total + reward, turn + 1
        expected.append((total, turn, info["is_success"]))
    result = evaluate(scripted(act), CHAIN, n_episodes=25)
    assert len({total for total, _, _ in expected}) > 1  # else the order of the episodes would not be tested
    np.testing.assert_allclose(result.returns, [e[0] for e in expected], rtol=1e-6)
    assert result.lengths.tolist() == [e[1] for e in expected]
    assert result.successes.tolist() == [e[2] for e in expected]
    assert result.mean_return == pytest.approx(np.mean([e[0] for e in expected]))


def test_evaluation_of_a_foreign_environment_has_no_success():
    def act(obs, state, episode_start, deterministic):
        turns = np.where(episode_start, 0, 0 if state is None else state)  # more episodes than lanes: it must restart
        return turns % 3 // 2, turns + 1

    expected = []
    env = gym.make("CartPole-v1", max_episode_steps=30)
    for i in range(20):
        env.reset(seed=HELD_OUT_SEED + i)
        length, done = 0, False
        while not done:
            _, _, terminated, truncated, _ = env.step(length % 3 // 2)
            length, done = length + 1, terminated or truncated
        expected.append(length)
    result = evaluate(scripted(act), "CartPole-v1", n_episodes=20, max_episode_steps=30)
    assert len(set(expected)) > 3
    assert result.lengths.tolist() == expected
    assert result.returns.tolist() == expected  # a reward of 1 at every turn
    assert result.successes is None
    assert result.success_rate is None


@pytest.mark.parametrize("masked", [True, False])
def test_masks_go_to_models_that_were_trained_with_them(masked):
    seen = []

    def act(obs, state, episode_start, deterministic, **kwargs):
        seen.append(kwargs)
        return np.zeros((len(obs), 2), dtype=int), None

    evaluate(scripted(act, masked=masked), TOOL, n_episodes=3)
    assert [set(kwargs) for kwargs in seen] == [{"action_masks"} if masked else set()] * len(seen)
    if masked:
        assert seen[0]["action_masks"].shape == (3, 8)
        assert not seen[0]["action_masks"][:, 4].any()  # nothing to submit yet


def test_evaluation_hands_the_memory_of_a_recurrent_policy_on():
    # As it is made, before it is trained to look at its observations alone.
    model = RecurrentPPO("MlpLstmPolicy", make_vec(CHAIN, 4), policy_kwargs={"lstm_hidden_size": 16}, seed=0)

    def play(keep_memory):
        returns = []
        for i in range(20):
            env, state, done = gym.make(CHAIN), None, False
            obs, _ = env.reset(seed=HELD_OUT_SEED + i)
            while not done:
                action, state = model.predict(obs, state if keep_memory else None, deterministic=True)
                obs, reward, done, _, _ = env.step(int(action))
            returns.append(reward)  # paid at the end
        return returns

    result = evaluate(model, CHAIN, n_episodes=20)
    np.testing.assert_allclose(result.returns, play(keep_memory=True), rtol=1e-6)
    assert play(keep_memory=False) != play(keep_memory=True)


@pytest.mark.parametrize("algorithm", ["seeupo", "ppo"])
def test_evaluation_leaves_training_as_it_was(algorithm):
    def trained(evaluated):
        settings = SMALL if algorithm == "seeupo" else {"n_steps": 16, "batch_size": 16, "n_envs": 4}
        model = get_algorithm(algorithm).with_settings(settings).make_model(TRAP, seed=1)
        for _ in range(2):
            model.learn(64, reset_num_timesteps=False)
            if evaluated:
                model.policy.set_training_mode(True)
                mode = model.policy.training  # SeeUPO's networks stay in evaluation mode
                evaluate(model, TRAP, 5, deterministic=False)
                assert model.policy.training == mode == (algorithm != "seeupo")
        return model

    plain, evaluated = trained(False), trained(True)
    assert plain.num_timesteps == evaluated.num_timesteps
    for a, b in zip(plain.policy.parameters(), evaluated.policy.parameters(), strict=True):
        assert th.equal(a, b)


def test_evaluation_needs_an_episode():
    with pytest.raises(ValueError, match="n_episodes must be at least 1"):
        evaluate(scripted(None), TRAP, n_episodes=0)
