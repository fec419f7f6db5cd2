"""Arguments that SeeUPO shares with SB3's algorithms are refused by name, before anything is trained."""

import numpy as np
import pytest
import torch as th

from seeupo_gym import SeeUPO
from seeupo_gym.agents import MlpPolicy

CHAIN = "seeupo_gym/ContextChain-v0"

BAD = {
    "policy": ["Mlp", 3, None, th.nn.Linear],
    "env": [3, object()],
    "stats_window_size": [0, -1, 2.5, "a", None, np.nan, True],
    "tensorboard_log": [3, True, []],
    "policy_kwargs": ["x", 3, [("net_arch", [8])], {"net": 1}],
    "verbose": ["a", -1, None, 2.5],
    "seed": [-1, "3", 1.5, np.nan, True, [1]],
    "device": ["cuda:99", "gpu", None],
}
BAD_POLICY_KWARGS = {
    "net_arch": ["big", [0], [-3], [2.5], {"pi": 8}, 64],
    "activation_fn": [3, th.relu],
    "log_std_init": ["a", np.inf],
    "optimizer_class": [3, "Adam"],
    "features_extractor_class": [3],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_arguments_that_make_no_sense_are_refused_by_name(name, value):
    arguments = dict(policy="MlpPolicy", env=CHAIN) | {name: value}
    with pytest.raises(ValueError, match=name):
        SeeUPO(**arguments, n_groups=2, group_size=2)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_POLICY_KWARGS.items() for value in values]
)
def test_arguments_of_the_policy_too(name, value):
    with pytest.raises(ValueError, match=name):
        SeeUPO("MlpPolicy", CHAIN, n_groups=2, group_size=2, policy_kwargs={name: value})


def test_an_unknown_policy_is_told_which_there_are():
    with pytest.raises(ValueError, match=r"'MlpPolicy', 'CnnPolicy', 'MultiInputPolicy', 'CandidatePolicy'.*got 'Mlp'"):
        SeeUPO("Mlp", CHAIN)


@pytest.mark.skipif(th.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"device='cuda' is not there \(torch finds 0 GPUs\): use \"auto\" or \"cpu\""):
        SeeUPO("MlpPolicy", CHAIN, device="cuda")


@pytest.mark.skipif(th.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_model_of_a_machine_with_a_gpu_loads_on_the_cpu(tmp_path):
    SeeUPO("MlpPolicy", CHAIN, n_groups=2, group_size=2).save(tmp_path / "model")
    with pytest.warns(UserWarning, match=r"device='cuda' is not there \(torch finds 0 GPUs\): the CPU is used"):
        model = SeeUPO.load(tmp_path / "model", device="cuda")
    assert model.device.type == "cpu"
    with pytest.raises(ValueError, match='device must be "auto", "cpu"'):
        SeeUPO.load(tmp_path / "model", device="gpu")


def test_numbers_of_numpy_are_taken():
    model = SeeUPO(
        MlpPolicy, CHAIN, n_groups=np.int64(2), group_size=2, seed=np.int64(1), learning_rate=np.float32(1e-3)
    )
    assert model.learn(1).num_timesteps == 24
