"""Arguments of an environment that is given by its id."""

import gymnasium as gym
import pytest

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.baselines import GRPO

TOOL = "seeupo_gym/ToolChain-v0"
SMALL = dict(n_groups=2, group_size=2, seed=0)
HARD = dict(level="hard")
HARD_SPACE = gym.make(TOOL, **HARD).observation_space


@pytest.mark.parametrize("cls", [SeeUPO, GRPO])
def test_a_task_is_made_with_them(cls):
    model = cls("MlpPolicy", TOOL, **SMALL, env_kwargs=HARD)
    assert model.observation_space == HARD_SPACE != gym.make(TOOL).observation_space
    assert model.env.num_envs == 4, "a lane for each episode"
    assert model.learn(1).num_timesteps > 0


def test_so_is_any_other_environment():
    model = SeeUPO("MlpPolicy", "FrozenLake-v1", **SMALL, env_kwargs=dict(map_name="8x8"), turn_policies="shared")
    assert model.observation_space.n == 64
    limited = SeeUPO("MlpPolicy", TOOL, **SMALL, env_kwargs=dict(max_episode_steps=2))
    assert limited.n_turns == 2


def test_set_env_and_load_take_them(tmp_path):
    model = SeeUPO("MlpPolicy", TOOL, **SMALL, env_kwargs=HARD)
    model.save(tmp_path / "model")
    model.set_env(TOOL, env_kwargs=HARD)
    assert model.learn(1).num_timesteps > 0
    with pytest.raises(ValueError, match="spaces do not match"):
        model.set_env(TOOL)
    loaded = SeeUPO.load(tmp_path / "model", env=TOOL, env_kwargs=HARD)
    assert loaded.learn(1).num_timesteps > 0


@pytest.mark.parametrize("make", [lambda: gym.make(TOOL), lambda: make_vec(TOOL, 4), lambda: None])
def test_they_are_refused_where_the_environment_is_made_already(make, tmp_path):
    model = SeeUPO("MlpPolicy", TOOL, **SMALL)
    model.save(tmp_path / "model")
    for use in (
        lambda: SeeUPO("MlpPolicy", make(), **SMALL, env_kwargs=HARD),
        lambda: SeeUPO.load(tmp_path / "model", env=make(), env_kwargs=HARD),
        lambda: model.set_env(make(), env_kwargs=HARD),
    ):
        with pytest.raises(ValueError, match=r"env_kwargs \(level\) .*: pass the id"):
            use()


@pytest.mark.parametrize("wrong", ["level", [("level", "hard")], {1: 2}])
def test_what_is_no_dictionary_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match="env_kwargs must be a dictionary"):
        SeeUPO("MlpPolicy", TOOL, **SMALL, env_kwargs=wrong)
