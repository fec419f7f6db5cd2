"""The evaluation functions and callbacks of SB3 and sb3-contrib agree with those of this package, or raise."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_maskable
from stable_baselines3.common.callbacks import ConvertCallback, StopTrainingOnMaxEpisodes, StopTrainingOnRewardThreshold
from stable_baselines3.common.callbacks import EvalCallback as SB3EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.baselines import EvalCallback, evaluate
from seeupo_gym.envs.task import HELD_OUT_SEED

SLOTS, TRAP, CHAIN = "seeupo_gym/SlotDialogue-v0", "seeupo_gym/CoordinationTrap-v0", "seeupo_gym/ContextChain-v0"
SMALL = dict(n_groups=2, group_size=4, seed=0, device="cpu")


def held_out(env_id, n_episodes):
    """Make one environment for each held-out episode, so that SB3's functions play the same ones."""
    return make_vec(env_id, n_episodes, seed=HELD_OUT_SEED)


@pytest.mark.parametrize("use_masking", [True, False])
@pytest.mark.parametrize("turn_policies", ["separate", "shared"])
@pytest.mark.parametrize("function", [evaluate_policy, evaluate_maskable])
def test_both_evaluation_functions_agree_with_ours_or_raise(function, turn_policies, use_masking):
    settings = dict(SMALL, learning_rate=1e-2, turn_policies=turn_policies, use_masking=use_masking)
    model = SeeUPO("MlpPolicy", SLOTS, **settings).learn(300)
    expected = evaluate(model, SLOTS, 20).returns
    arguments = {} if use_masking or function is evaluate_policy else {"use_masking": False}
    without_masks = use_masking and function is evaluate_policy
    # With its masks switched off sb3-contrib's function hands the state on, as SB3's does.
    without_turns = use_masking and function is evaluate_maskable and turn_policies == "separate"
    if without_masks or without_turns:
        message = "got no masks" if without_masks else "does not know the turn"
        with pytest.raises(ValueError, match=rf"{message}.*seeupo_gym\.baselines\.evaluate"):
            function(model, held_out(SLOTS, 20), 20)
    else:
        returns, _ = function(model, held_out(SLOTS, 20), 20, return_episode_rewards=True, **arguments)
        assert np.mean(returns) == pytest.approx(expected.mean())


def test_masks_that_a_model_does_not_take_are_refused():
    model = SeeUPO("MlpPolicy", SLOTS, **SMALL, use_masking=False)
    with pytest.raises(ValueError, match="made without use_masking=True"):
        evaluate_maskable(model, held_out(SLOTS, 2), 2)


def test_our_evaluation_of_maskable_ppo_is_sb3_contrib_s():
    model = MaskablePPO("MlpPolicy", make_vec(SLOTS, 4), n_steps=16, batch_size=32, seed=0, device="cpu").learn(64)
    returns, _ = evaluate_maskable(model, held_out(SLOTS, 20), 20, return_episode_rewards=True)
    assert evaluate(model, SLOTS, 20).mean_return == pytest.approx(np.mean(returns))


@pytest.mark.parametrize("callback", [SB3EvalCallback, MaskableEvalCallback])
def test_both_callbacks_raise_where_they_lack_something(callback):
    model = SeeUPO("MlpPolicy", make_vec(SLOTS, 4), **SMALL)
    with pytest.raises(ValueError, match=r"predict\(\) .*seeupo_gym\.baselines\.EvalCallback"):
        model.learn(100, callback=callback(make_vec(SLOTS, 4), eval_freq=2, n_eval_episodes=4))


def test_our_callback_sees_what_sb3_s_sees_where_that_one_can():
    model = SeeUPO("MlpPolicy", VecNormalize(make_vec(TRAP, 8), norm_reward=False), **SMALL, learning_rate=1e-2)
    theirs = SB3EvalCallback(VecNormalize(make_vec(TRAP, 1), norm_reward=False, training=False), eval_freq=4, verbose=0)
    ours = EvalCallback(TRAP, eval_freq=32, n_eval_episodes=5)
    scores = []

    def compare(locals_, globals_):
        scores.append((ours.last_mean_reward, theirs.last_mean_reward))
        return True

    model.learn(320, callback=[ours, theirs, ConvertCallback(compare)])
    seen = scores[3::4]
    assert len(seen) == 10
    assert len({score for score, _ in seen}) > 1
    for our, their in seen:
        assert our == pytest.approx(their)


def test_scalars_the_best_model_and_other_callbacks(tmp_path):
    counted = StopTrainingOnMaxEpisodes(10**9)
    callback = EvalCallback(
        SLOTS,
        callback_on_new_best=StopTrainingOnRewardThreshold(10.0),
        callback_after_eval=counted,
        n_eval_episodes=5,
        eval_freq=50,
        best_model_save_path=str(tmp_path / "best"),
    )
    model = SeeUPO("MlpPolicy", make_vec(SLOTS, 4), **SMALL)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(200, callback=callback)
    model.logger.close()
    rows = np.genfromtxt(tmp_path / "progress.csv", delimiter=",", names=True)
    scores = rows["evalmean_reward"][~np.isnan(rows["evalmean_reward"])]
    assert 3 <= len(scores) <= 5
    assert counted.n_calls == len(scores)
    assert callback.best_mean_reward == pytest.approx(scores.max(), abs=1e-5)
    assert {"evalmean_ep_length", "evalsuccess_rate"} <= set(rows.dtype.names)
    best = SeeUPO.load(tmp_path / "best" / "best_model", device="cpu")
    assert evaluate(best, SLOTS, 5).mean_return == pytest.approx(callback.best_mean_reward)
    assert callback.last_mean_reward == pytest.approx(scores[-1], abs=1e-5)


def test_a_new_best_can_end_training():
    callback = EvalCallback(TRAP, StopTrainingOnRewardThreshold(-1.0), n_eval_episodes=1, eval_freq=16)
    assert SeeUPO("MlpPolicy", make_vec(TRAP, 8), **SMALL).learn(1000, callback=callback).num_timesteps == 16


def test_evaluation_does_not_change_what_is_learned():
    weights = []
    for callback in (None, EvalCallback(CHAIN, n_eval_episodes=3, eval_freq=10, deterministic=False)):
        model = SeeUPO("MlpPolicy", make_vec(CHAIN, 8), **SMALL).learn(100, callback=callback)
        weights.append(th.nn.utils.parameters_to_vector(model.policy.parameters()))
    assert th.equal(*weights)


@pytest.mark.parametrize("native", [True, False])
def test_the_environment_of_training_is_refused(native):
    env = make_vec(TRAP, 4) if native else DummyVecEnv([lambda: gym.make(TRAP)])
    given = [env, VecNormalize(env, norm_reward=False)] if native else [env, env.envs[0], env.envs[0].unwrapped]
    model = SeeUPO("MlpPolicy", env, **SMALL)
    for eval_env in given:
        with pytest.raises(ValueError, match="eval_env is the environment of training"):
            model.learn(10, callback=EvalCallback(eval_env))


@pytest.mark.parametrize("name", ["n_eval_episodes", "eval_freq"])
def test_numbers_are_checked(name):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got 0"):
        EvalCallback(TRAP, **{name: 0})
