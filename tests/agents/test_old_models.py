"""
Files of version 0.1, before its modules were sorted into folders, load and go on.

tests/data/version_0_1/facts.json has what was true of the models when that version, revision 1a439f1, saved them.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch as th
from helpers.models import weights

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.baselines import GRPO
from seeupo_gym.benchmark.models import load_model
from seeupo_gym.cli import main

TRAP = "seeupo_gym/CoordinationTrap-v0"
OLD = Path(__file__).parent.parent / "data" / "version_0_1"
FACTS = json.loads((OLD / "facts.json").read_text())


def actions(model):
    """Greedy actions on observations that are drawn by a generator."""
    rng, space = np.random.default_rng(0), model.observation_space

    def draw(part):
        if part.dtype.kind == "f":
            return rng.uniform(0, 1, (20, *part.shape)).astype(part.dtype)
        return np.ones((20, *part.shape), part.dtype)

    obs = {key: draw(part) for key, part in space.spaces.items()} if hasattr(space, "spaces") else draw(space)
    masks = np.ones((20, sum(model.action_space.nvec)), bool) if model.masked else None
    return model.predict(obs, (np.arange(20) % 5,), np.zeros(20, bool), True, masks)[0].tolist()


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("name", ["staged", "masked_shared", "candidates"])
def test_models_of_version_0_1_are_what_they_were(name, trusted):
    facts = FACTS[name]
    model = {"SeeUPO": SeeUPO, "GRPO": GRPO}[facts["algorithm"]].load(OLD / name, trusted=trusted)
    assert model.num_timesteps == facts["num_timesteps"]
    assert model._n_updates == facts["n_updates"]
    assert model.n_turns == facts["n_turns"]
    assert model.masked == facts["masked"]
    assert model.streams.n_groups == facts["n_groups_drawn"]
    assert (None if model.stages is None else model.stages.turn) == facts["turn"]
    assert sum(p.double().abs().sum().item() for p in model.policy.state_dict().values()) == facts["weight_sum"]
    assert actions(model) == facts["actions"]


def test_a_model_of_version_0_1_goes_on_in_its_stage():
    model = SeeUPO.load(OLD / "staged", env=make_vec(TRAP, 4, turns=3))
    before = weights(model)
    model.learn(12, reset_num_timesteps=False)
    assert model.num_timesteps == FACTS["staged"]["num_timesteps"] + 12
    assert model.stages.turn == 0, "its stage ended at 48 steps"
    assert not th.equal(weights(model), before)


def test_a_model_of_the_command_line_of_version_0_1_is_evaluated(capsys):
    assert main(["evaluate", str(OLD / "command_line.zip"), "--episodes", "2", "--untrusted"]) == 0
    assert "seeupo on seeupo_gym/CoordinationTrap-v0" in capsys.readouterr().out
    assert load_model(OLD / "command_line.zip")[0].num_timesteps == FACTS["command_line"]["num_timesteps"]
