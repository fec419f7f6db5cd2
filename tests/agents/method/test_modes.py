"""Layers that differ between training and evaluation do not disturb importance ratios."""

import numpy as np
import pytest
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from seeupo_gym import SeeUPO
from seeupo_gym.agents import BackwardInductionOptimizer, MultiTurnTrajectory
from seeupo_gym.agents.method.modes import layers_with_modes

CHAIN = "seeupo_gym/ContextChain-v0"


class Extractor(BaseFeaturesExtractor):
    """A layer of each kind that differs between the modes."""

    def __init__(self, space, layer):
        super().__init__(space, 32)
        self.net = nn.Sequential(nn.Linear(space.shape[0], 32), nn.ReLU(), layer())

    def forward(self, obs):
        return self.net(obs)


@pytest.mark.parametrize("layer", [nn.Dropout, lambda: nn.BatchNorm1d(32)])
@pytest.mark.filterwarnings("ignore:.* has no effect in SeeUPO")
def test_factors_are_one_where_nothing_is_learned(layer):
    kwargs = dict(features_extractor_class=Extractor, features_extractor_kwargs=dict(layer=layer), ortho_init=False)
    model = SeeUPO("MlpPolicy", CHAIN, learning_rate=0.0, seed=0, n_groups=4, group_size=4, policy_kwargs=kwargs)
    model.policy.train()  # as torch makes modules, and as a user may leave them
    model.learn(1, log_interval=None)
    values = model.logger.name_to_value
    assert (values["train/factor_min"], values["train/factor_max"]) == pytest.approx((1.0, 1.0), abs=1e-5)
    assert values["train/approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert values["train/clip_fraction"] == 0.0


def test_a_network_whose_dropout_does_nothing_says_so():
    kwargs = dict(features_extractor_class=Extractor, features_extractor_kwargs=dict(layer=nn.Dropout))
    with pytest.warns(UserWarning, match="Dropout has no effect in SeeUPO"):
        SeeUPO("MlpPolicy", CHAIN, policy_kwargs=kwargs)


def test_modules_with_dropout_in_training_mode_are_refused():
    policy = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    rng = np.random.default_rng(0)
    trajectories = [
        MultiTurnTrajectory(rng.normal(size=(2, 2)).astype(np.float32), [0, 1], [0.0, float(i)], [-1.1, -1.1])
        for i in range(4)
    ]
    optimizer = BackwardInductionOptimizer(policy, seed=0)
    with pytest.raises(ValueError, match=r"turn 0 has a Dropout in training mode.*policy.eval\(\)"):
        optimizer.train_epoch(trajectories)
    policy.eval()
    assert np.isfinite(list(optimizer.train_epoch(trajectories).values())).all()


def test_layers_without_effect_are_left_out():
    lstm = nn.LSTM(2, 2, num_layers=2, dropout=0.1)
    network = nn.ModuleList([nn.Dropout(0.0), nn.LayerNorm(2), lstm, nn.Linear(2, 2), nn.BatchNorm2d(3)])
    assert [type(layer) for layer in layers_with_modes(network)] == [nn.LSTM, nn.BatchNorm2d]


def test_a_layer_that_is_called_dropout_is_no_rate():
    network = nn.Module()
    network.dropout = nn.Dropout(0.5)
    assert layers_with_modes(network) == [network.dropout]
