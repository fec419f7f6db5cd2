"""The settings: one definition for all that takes them, checked when they are made and when they are used."""

import inspect
from dataclasses import fields

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.agents import BackwardInductionOptimizer
from seeupo_gym.agents.method.rules import UPDATE_RULES, get_rule
from seeupo_gym.agents.method.sequential import Clip, UpdateRule
from seeupo_gym.agents.method.settings import MethodSettings, TrainingSettings

CHAIN = "seeupo_gym/ContextChain-v0"
TOOLS = "seeupo_gym/ToolChain-v0"


def small_model(**settings):
    return SeeUPO("MlpPolicy", CHAIN, **(dict(n_groups=2, group_size=4, seed=0) | settings))


def weights(model):
    return th.cat([param.detach().flatten() for param in model.policy.parameters()])


def test_both_entry_points_have_the_settings_with_the_same_defaults():
    seeupo = inspect.signature(SeeUPO).parameters
    # Those that the policy class completes.
    completed = {"ratio_level": None, "turn_policies": None}
    for field in fields(TrainingSettings):
        assert seeupo[field.name].default == completed.get(field.name, field.default), field.name
    low_level = inspect.signature(BackwardInductionOptimizer).parameters
    for field in fields(MethodSettings):
        assert low_level[field.name].default == field.default, field.name
    assert "settings" not in low_level


def test_every_setting_is_documented():
    for name in TrainingSettings.names():
        assert f":param {name}:" in SeeUPO.__doc__, name


@pytest.mark.parametrize("name", TrainingSettings.names())
@pytest.mark.parametrize(
    "value", ["nonsense", np.nan, -1, object(), [], True, 2.5, float("inf"), lambda progress: -1.0]
)
def test_values_that_make_no_sense_are_refused_by_the_name_of_their_setting(name, value):
    flags, numbers = ("independent_noise", "use_masking", "normalize_advantage"), (int, float)
    field = next(f for f in fields(TrainingSettings) if f.name == name)
    fits = (value is True and name in flags) or (value == 2.5 and "float" in field.type and name != "gamma")
    if fits and isinstance(value, (bool, *numbers)):
        return
    with pytest.raises(ValueError, match=f"{name} (must|has no entry)"):
        small_model(**{name: value})


@pytest.mark.parametrize(("given", "meant"), [(True, "batch"), (False, "none")])
def test_normalisation_as_sb3_says_it(given, meant):
    """It trains as the word does, and stays what was given: SB3 users read it back."""
    as_in_sb3, in_words = small_model(normalize_advantage=given), small_model(normalize_advantage=meant)
    assert as_in_sb3.normalize_advantage is given
    assert (
        as_in_sb3.current_settings().normalize_advantage
        == MethodSettings(normalize_advantage=given).normalize_advantage
    )
    assert as_in_sb3.current_settings() == in_words.current_settings()
    assert th.equal(weights(as_in_sb3.learn(50)), weights(in_words.learn(50)))
    other = small_model(normalize_advantage="none" if given else "batch").learn(50)
    assert not th.equal(weights(as_in_sb3), weights(other))


def test_schedules_are_checked_when_they_are_called():
    model = small_model(clip_range=lambda progress: progress - 0.5)
    with pytest.raises(
        ValueError, match=r"clip_range must be .*got -0.5, from its schedule at a remaining progress of 0"
    ):
        model.learn(1)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (dict(update_rule="cilp"), "update_rule must be one of .*'cilp'"),
        (dict(update_order="revers"), "update_order must be one of .*'revers'"),
        (dict(update_order=[0, 1]), "each of the turns 0 to 5 once"),
        (dict(clip_range=-0.2), "clip_range must be .*got -0.2"),
        (dict(group_size=1), "group_size must be an integer of at least 2"),
        (dict(advantage_estimator="gae"), "advantage_estimator must be one of"),
        (dict(update_rule="kl_penalty"), "needs kl_coef > 0"),
        (dict(max_turns=3), "max_turns cannot change"),
    ],
)
@pytest.mark.parametrize("how", ["attribute", "load"])
def test_what_is_set_later_is_checked_at_the_next_use(tmp_path, change, match, how):
    model = small_model().learn(1)
    before = weights(model)
    model.save(tmp_path / "model")

    def changed():
        if how == "load":
            return SeeUPO.load(tmp_path / "model", env=CHAIN, **change)
        vars(model).update(change)
        return model

    with pytest.raises(ValueError, match=match):
        changed().learn(1, reset_num_timesteps=False)
    assert th.equal(before, weights(model))


@pytest.mark.parametrize("change", [dict(turn_policies="shared"), dict(use_masking=False), dict(ratio_level="token")])
def test_what_the_networks_are_made_for_cannot_change(change):
    model = SeeUPO("MlpPolicy", TOOLS, n_groups=2, group_size=2, seed=0)
    vars(model).update(change)
    with pytest.raises(ValueError, match=f"{next(iter(change))} cannot change to .* once the model is made"):
        model.learn(1)


def test_what_a_callback_sets_holds_from_that_iteration_on():
    class Change(BaseCallback):
        def _on_rollout_start(self):
            self.model.ent_coef = 0.0
            self.model.clip_range = 0.1
            self.model.learning_rate = 1e-5
            self.model.n_groups = 3

        def _on_step(self):
            return True

    changed = small_model(ent_coef=0.3).learn(1, callback=Change(), log_interval=None)
    settings = dict(clip_range=0.1, learning_rate=1e-5, n_groups=3, group_size=4, seed=0)
    made_so = SeeUPO("MlpPolicy", make_vec(CHAIN, 8), **settings).learn(1, log_interval=None)
    assert th.equal(weights(changed), weights(made_so))
    values = changed.logger.name_to_value
    assert values["train/ent_coef"] == 0.0
    assert values["train/clip_range"] == 0.1
    assert values["train/learning_rate"] == 1e-5
    assert changed.rollout_buffer.rewards.shape[1:] == (3, 4)


def test_load_takes_settings_of_the_next_iterations(tmp_path):
    small_model().learn(1).save(tmp_path / "model")
    models = [
        SeeUPO.load(tmp_path / "model", env=CHAIN, **change).learn(1, reset_num_timesteps=False)
        for change in ({}, {"update_order": "forward"}, {"n_sweeps": 3})
    ]
    assert not th.equal(weights(models[0]), weights(models[1]))
    assert not th.equal(weights(models[0]), weights(models[2]))


def test_a_rule_of_ones_own_with_a_hyperparameter():
    class Leaky(UpdateRule):
        """The clipped surrogate, with some slope beyond the bounds."""

        def __init__(self, leak):
            self.leak = leak

        def surrogate(self, log_prob, old_log_prob, lengths, weighted_advantage, settings):
            clipped = Clip().surrogate(log_prob, old_log_prob, lengths, weighted_advantage, settings)
            return clipped + self.leak * weighted_advantage * (log_prob - old_log_prob)

    plain, none, some = (
        weights(small_model(update_rule=rule, clip_range=0.01).learn(1)) for rule in ("clip", Leaky(0.0), Leaky(0.5))
    )
    assert th.equal(plain, none)
    assert not th.allclose(plain, some)


def test_rules_say_what_they_lack():
    assert get_rule(MethodSettings()) is UPDATE_RULES["clip"]
    with pytest.raises(ValueError, match=r"update_rule must be one of .* or an UpdateRule, got 3"):
        get_rule(MethodSettings(update_rule=3))


@pytest.mark.parametrize("given", [-5, np.nan, "many", 1.5, None])
def test_numbers_of_steps_that_make_no_sense_are_refused(given):
    with pytest.raises(ValueError, match="total_timesteps must be an integer"):
        small_model().learn(given)


def test_a_float_that_is_a_whole_number_of_steps_is_taken():
    assert small_model().learn(1e1).num_timesteps == 48
    with pytest.raises(ValueError, match="log_interval must be an integer of at least 1"):
        small_model().learn(1, log_interval=0)
