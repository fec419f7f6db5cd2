"""The event files are read back."""

import pytest
from helpers.models import read_events
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.agents.turn_logging import TURN_SCALARS, logged_turns

CHAIN = "seeupo_gym/ContextChain-v0"


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensorboard")
    model = SeeUPO("MlpPolicy", CHAIN, n_groups=2, group_size=4, seed=0, tensorboard_log=str(folder))
    model.learn(144)
    model.learn(48, reset_num_timesteps=False)
    assert [p.name for p in folder.iterdir()] == ["SeeUPO_1"]
    return read_events(folder / "SeeUPO_1")


def test_scalars(events):
    tags = set(events.Tags()["scalars"])
    expected = {"rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/success_rate", "rollout/group_reward_std"}
    expected |= {"rollout/degenerate_group_fraction", "rollout/unused_step_fraction", "time/fps", "train/loss"}
    expected |= {"train/clip_fraction", "train/approx_kl", "train/entropy", "train/learning_rate", "train/clip_range"}
    expected |= {f"train/factor_{which}" for which in ("mean", "min", "max")}
    expected |= {f"train/turn_{turn:02d}/{name}" for turn in range(6) for name in TURN_SCALARS}
    assert expected <= tags, expected - tags


def test_steps_continue_after_a_second_learn(events):
    assert [event.step for event in events.Scalars("train/loss")] == [48, 96, 144, 192]


def test_values_of_the_first_updated_turn(events):
    assert [event.value for event in events.Scalars("train/turn_05/factor_mean")] == [1.0] * 4
    assert any(event.value != 1.0 for event in events.Scalars("train/turn_00/factor_mean"))
    assert all(0 < event.value <= 1.3863 for event in events.Scalars("train/turn_03/entropy"))
    assert [event.value for event in events.Scalars("rollout/unused_step_fraction")] == [0.0] * 4


def test_layout_shows_the_turns_of_one_quantity_in_one_chart(events):
    (event,) = events.Tensors("custom_scalars__config__")[:1]
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    (category,) = layout.category
    assert [chart.title for chart in category.chart] == list(TURN_SCALARS)
    assert list(category.chart[0].multiline.tag) == [r"train/turn_\d+/policy_loss"]


def test_hparams_tab_is_filled(events):
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hparams = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert hparams["group_size"].number_value == 4
    assert hparams["update_order"].string_value == "reverse"
    assert hparams["algorithm"].string_value == "SeeUPO"
    content = events.SummaryMetadata("_hparams_/experiment").plugin_data.content
    metrics = plugin_data_pb2.HParamsPluginData.FromString(content).experiment.metric_infos
    assert {metric.name.tag for metric in metrics} <= set(events.Tags()["scalars"])


def test_many_turns_are_thinned_out_evenly(tmp_path):
    assert logged_turns(20) == list(range(20))
    assert len(logged_turns(100)) == 20
    assert logged_turns(100)[0] == 0
    assert logged_turns(100)[-1] == 99
    assert logged_turns(1) == [0]
    env = make_vec(CHAIN, 4, turns=50)
    SeeUPO("MlpPolicy", env, n_groups=1, group_size=4, n_epochs=1, tensorboard_log=str(tmp_path)).learn(1)
    tags = read_events(tmp_path / "SeeUPO_1").Tags()["scalars"]
    turns = {tag.split("/")[1] for tag in tags if tag.startswith("train/turn_")}
    assert turns == {f"turn_{turn:02d}" for turn in logged_turns(50)}
