"""Turn policies: networks, distributions, the turn index of predict, standalone saving."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import NatureCNN

from seeupo_gym import SeeUPO
from seeupo_gym.agents import CnnPolicy, MlpPolicy, MultiInputPolicy, SeeUPOPolicy
from seeupo_gym.agents.policies.distributions import sample

ACTION_SPACES = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "discrete": spaces.Discrete(3),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary(3),
}


def make_policy(action_space=ACTION_SPACES["discrete"], observation_space=None, cls=MlpPolicy, **kwargs):
    observation_space = observation_space or spaces.Box(-1, 1, (4,), np.float32)
    return cls(observation_space, action_space, lambda _: 1e-3, **kwargs)


@pytest.mark.parametrize(
    ("name", "masked"),
    [(name, masked) for name in ACTION_SPACES for masked in (False, True) if (name, masked) != ("box", True)],
)
def test_samples_follow_the_distribution_and_log_probs_are_right(name, masked):
    space = ACTION_SPACES[name]
    policy = make_policy(space, n_policies=2, use_masking=masked, net_arch=[8])
    obs = th.zeros(20_000, 4)
    generator = th.Generator().manual_seed(0)
    network = policy.turns[1]
    bias = network.action_net.bias
    bias.data = th.linspace(-0.5, 0.5, len(bias))
    with th.no_grad():
        actions, log_probs = policy(obs, np.ones(20_000, dtype=int), generator)
    assert actions.shape == (20_000, *space.shape)
    if name == "box":
        np.testing.assert_allclose(actions.mean(0), bias.detach(), atol=0.03)
        np.testing.assert_allclose(actions.std(0), 1.0, atol=0.03)
        expected = th.distributions.Normal(bias, 1.0).log_prob(actions).sum(1)
        th.testing.assert_close(log_probs, expected.detach())
        return
    # Probabilities of each component, written down with softmax or sigmoid.
    if name == "multi_binary" and not masked:
        blocks = [th.stack([th.sigmoid(-b), th.sigmoid(b)]) for b in bias.detach()]
    else:
        sizes = {"discrete": [3], "multi_discrete": [2, 3], "multi_binary": [2, 2, 2]}[name]
        blocks = [block.softmax(0) for block in bias.detach().split(sizes)]
    components = actions.reshape(20_000, -1).long()
    expected = th.zeros(20_000)
    for column, probs in zip(components.T, blocks, strict=True):
        np.testing.assert_allclose(np.bincount(column, minlength=len(probs)) / 20_000, probs, atol=0.015)
        expected += probs.log()[column]
    th.testing.assert_close(log_probs, expected, atol=1e-5, rtol=1e-5)
    again, entropy = policy.evaluate_actions(obs[:1], actions[:1], 1, with_entropy=True)
    th.testing.assert_close(again, expected[:1], atol=1e-5, rtol=1e-5)
    th.testing.assert_close(entropy, policy.get_distribution(obs[:1], 1).entropy(), atol=1e-6, rtol=0)
    th.testing.assert_close(entropy, th.stack([-(p * p.log()).sum() for p in blocks]).sum()[None], atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_log_probs_of_box_actions_of_any_shape(shape):
    policy = make_policy(spaces.Box(-1, 1, shape, np.float32), log_std_init=-0.5, net_arch=[8])
    obs = th.randn(5, 4, generator=th.Generator().manual_seed(0))
    actions, recorded = policy(obs, np.zeros(5, dtype=int), th.Generator().manual_seed(1))
    assert actions.shape == (5, *shape)
    means = policy.turns[0](obs).reshape(5, *shape)
    expected = th.distributions.Normal(means, np.exp(-0.5)).log_prob(actions).reshape(5, -1).sum(dim=1)
    evaluated, entropy = policy.evaluate_actions(obs, actions, 0, with_entropy=True)
    th.testing.assert_close(recorded, expected)
    th.testing.assert_close(evaluated, expected)
    n = int(np.prod(shape))
    th.testing.assert_close(entropy, th.full((5,), n * (0.5 * np.log(2 * np.pi * np.e) - 0.5)))


def test_masked_choices_are_never_sampled_and_probabilities_are_renormalized():
    policy = make_policy(ACTION_SPACES["multi_discrete"], use_masking=True, net_arch=[])
    for parameter in policy.parameters():
        parameter.data.zero_()
    masks = th.tensor([[True, True, True, False, True]]).repeat(1000, 1)
    actions, log_probs = policy(th.zeros(1000, 4), np.zeros(1000, dtype=int), th.Generator(), masks)
    assert set(actions[:, 1].tolist()) == {0, 2}
    th.testing.assert_close(log_probs, th.full((1000,), np.log(1 / 4)))
    again, entropy = policy.evaluate_actions(th.zeros(1000, 4), actions, 0, masks, with_entropy=True)
    assert th.equal(again, log_probs)
    th.testing.assert_close(entropy, th.full((1000,), 2 * np.log(2)))
    policy.turns[0].action_net.bias.data[4] = np.log(3.0)  # now 1/4, masked, 3/4
    _, entropy = policy.evaluate_actions(th.zeros(1000, 4), actions, 0, masks, with_entropy=True)
    expected = np.log(2) - 0.25 * np.log(0.25) - 0.75 * np.log(0.75)
    th.testing.assert_close(entropy, th.full((1000,), expected))


@pytest.mark.parametrize("name", ["discrete", "multi_discrete", "multi_binary"])
@pytest.mark.parametrize("masked", [True, False])
def test_the_update_has_the_numbers_of_sb3_contrib_s_distributions_bit_for_bit(name, masked):
    space = ACTION_SPACES[name]
    policy = make_policy(space, use_masking=True, net_arch=[8], ortho_init=False)
    generator = th.Generator().manual_seed(0)
    obs = th.randn(500, 4, generator=generator)
    masks = th.rand(500, policy.turns[0].n_params, generator=generator) < 0.6
    masks[:, {"discrete": [0], "multi_discrete": [0, 2], "multi_binary": [0, 2, 4]}[name]] = True
    masks = masks if masked else None
    actions, recorded = policy(obs, np.zeros(500, dtype=int), generator, masks)
    outcomes = []
    for evaluate in (False, True):
        policy.zero_grad()
        if evaluate:
            log_prob, entropy = policy.evaluate_actions(obs, actions, 0, masks, with_entropy=True)
        else:
            distribution = policy.get_distribution(obs, 0, masks)
            log_prob, entropy = distribution.log_prob(actions), distribution.entropy()
        (log_prob * obs[:, 0] + 0.1 * entropy).mean().backward()
        outcomes.append([log_prob, entropy, *(p.grad.clone() for p in policy.parameters())])
    assert all(th.equal(a, b) for a, b in zip(*outcomes, strict=True))
    assert th.equal(recorded, outcomes[0][0])


def test_masks_need_a_masking_policy():
    policy = make_policy()
    with pytest.raises(ValueError, match="use_masking=True"):
        policy(th.zeros(1, 4), np.zeros(1, dtype=int), None, th.ones(1, 3, dtype=th.bool))


def test_sampling_uses_the_given_generator_alone():
    policy = make_policy(ACTION_SPACES["box"])
    distribution = policy.get_distribution(th.zeros(5, 4), 0)
    before = th.get_rng_state()
    first, second = (sample(distribution, th.Generator().manual_seed(1)) for _ in range(2))
    assert th.equal(first, second)
    assert th.equal(before, th.get_rng_state())


def test_rows_at_different_turns_are_played_by_their_own_networks():
    policy = make_policy(n_policies=3, net_arch=[8])
    for k, network in enumerate(policy.turns):
        network.action_net.bias.data = 10.0 * th.eye(3)[k]
    turns = np.array([2, 0, 1, 7, 0])
    actions, log_probs = policy(th.zeros(5, 4), turns, None)
    assert actions.tolist() == [2, 0, 1, 2, 0], "turn 7 is beyond the last network"
    for row, turn in enumerate(turns):
        expected, _ = policy.evaluate_actions(th.zeros(1, 4), actions[row : row + 1], int(turn))
        th.testing.assert_close(log_probs[row : row + 1], expected)


def test_there_is_no_value_network():
    policy = make_policy(n_policies=2)
    names = [name for name, _ in policy.named_parameters()]
    assert not [name for name in names if "value" in name or "vf" in name]
    per_turn = 4 * 64 + 64 + 64 * 64 + 64 + 64 * 3 + 3
    assert sum(p.numel() for p in policy.parameters()) == 2 * per_turn


def test_networks_share_nothing():
    policy = make_policy(n_policies=3)
    ids = [id(p) for turn in range(3) for p in policy.turn_parameters(turn)]
    assert len(set(ids)) == len(ids) == len(list(policy.parameters()))


@pytest.mark.parametrize(("net_arch", "sizes"), [([7, 5], [7, 5]), (dict(pi=[6]), [6]), ([], []), (None, [64, 64])])
def test_net_arch(net_arch, sizes):
    policy = make_policy(net_arch=net_arch, activation_fn=th.nn.ReLU)
    linear = [m.out_features for m in policy.turns[0].mlp if isinstance(m, th.nn.Linear)]
    assert linear == sizes
    assert all(isinstance(m, (th.nn.Linear, th.nn.ReLU)) for m in policy.turns[0].mlp)
    assert policy.net_arch == sizes, "as in SB3, the default takes the place of None"


def test_value_part_of_net_arch_gets_one_warning():
    with pytest.warns(UserWarning, match="no value network.*'vf'") as warned:
        make_policy(net_arch=dict(pi=[4], vf=[4]), n_policies=3)
    assert len(warned) == 1


def test_old_form_of_net_arch_gets_a_warning():
    with pytest.warns(UserWarning, match="old form"):
        assert make_policy(net_arch=[dict(pi=[4, 3])]).net_arch == [4, 3]


def test_features_extractor_has_sb3_s_name_but_is_saved_once():
    policy = make_policy(n_policies=2)
    copied = copy.deepcopy(policy)
    for each in (policy, copied):
        assert each.features_extractor is each.turns[0].features_extractor
    assert copied.features_extractor is not policy.features_extractor
    assert all(key.startswith("turns.") for key in policy.state_dict())


def test_default_extractors():
    image = spaces.Box(0, 255, (3, 36, 36), np.uint8)
    assert isinstance(make_policy(cls=CnnPolicy, observation_space=image).turns[0].features_extractor, NatureCNN)
    mixed = spaces.Dict({"image": image, "x": spaces.Box(-1, 1, (2,))})
    policy = make_policy(cls=MultiInputPolicy, observation_space=mixed, n_policies=2)
    obs = {"image": th.zeros(4, 3, 36, 36, dtype=th.uint8), "x": th.zeros(4, 2)}
    assert policy(obs, np.array([0, 1, 1, 0]), None)[0].shape == (4,)


def test_standalone_save_and_load(tmp_path):
    policy = make_policy(n_policies=3, net_arch=[5], activation_fn=th.nn.ReLU)
    policy.save(tmp_path / "policy.pkl")
    loaded = SeeUPOPolicy.load(tmp_path / "policy.pkl", device="cpu")
    obs = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    for turn in range(3):
        state = (np.full(6, turn),)
        np.testing.assert_array_equal(
            policy.predict(obs, state, deterministic=True)[0], loaded.predict(obs, state, deterministic=True)[0]
        )
    copy.deepcopy(policy).predict(obs, state)


def biased_policy(**kwargs):
    """Network ``k`` always takes action ``k``."""
    policy = make_policy(n_policies=3, **kwargs)
    for k, network in enumerate(policy.turns):
        network.action_net.bias.data = 50.0 * th.eye(3)[k]
    return policy


def test_predict_counts_turns_in_its_state():
    policy, obs = biased_policy(), np.zeros((2, 4), dtype=np.float32)
    starts, state, taken = np.ones(2, dtype=bool), None, []
    for step in range(5):
        actions, state = policy.predict(obs, state, starts, deterministic=True)
        taken.append(actions.tolist())
        starts = np.array([False, step == 1])
    assert taken == [[0, 0], [1, 1], [2, 0], [2, 1], [2, 2]]


def test_predict_for_one_observation_keeps_its_shape():
    policy, obs = biased_policy(), np.zeros(4, dtype=np.float32)
    action, state = policy.predict(obs, episode_start=np.array([True]), deterministic=True)
    assert action.shape == ()
    action, state = policy.predict(obs, state, deterministic=True)
    assert action == 1
    assert state[0].tolist() == [2]


def test_predict_reads_the_turn_from_the_observation():
    space = spaces.Dict({"turn": spaces.Discrete(3), "x": spaces.Box(-1, 1, (4,))})
    policy = biased_policy(cls=MultiInputPolicy, observation_space=space)
    obs = {"turn": np.array([2, 0, 1]), "x": np.zeros((3, 4), dtype=np.float32)}
    assert policy.predict(obs, deterministic=True)[0].tolist() == [2, 0, 1]
    assert policy.predict(obs, (np.zeros(3),), deterministic=True)[0].tolist() == [2, 0, 1], "it precedes the state"
    box = spaces.Dict({"turn": spaces.Box(0, 2, (1,), np.int64), "x": spaces.Box(-1, 1, (4,))})
    policy = biased_policy(cls=MultiInputPolicy, observation_space=box)
    assert policy.predict({"turn": np.array([2]), "x": np.zeros(4)}, deterministic=True)[0] == 2


@pytest.mark.parametrize("episode_start", [None, np.array([False, True]), np.array([False, False])], ids=str)
def test_predict_without_a_turn_is_refused_where_turns_have_policies(episode_start):
    policy, obs = biased_policy(), np.zeros((2, 4), dtype=np.float32)
    with pytest.raises(ValueError, match=r"does not know the turn.*pass the state.*baselines\.evaluate"):
        policy.predict(obs, episode_start=episode_start, deterministic=True)
    make_policy(n_policies=1).predict(obs, episode_start=episode_start)  # one policy plays all turns


def test_predict_without_masks_is_refused_where_there_were_masks():
    policy, obs, starts = biased_policy(use_masking=True), np.zeros((2, 4), dtype=np.float32), np.ones(2, dtype=bool)
    with pytest.raises(ValueError, match=r"got no masks.*action_masks=.*all True.*baselines\.evaluate"):
        policy.predict(obs, None, starts, deterministic=True)
    free = np.ones((2, 3), dtype=bool)
    assert policy.predict(obs, None, starts, True, free)[0].tolist() == [0, 0]
    free[1, 0] = False
    actions, state = policy.predict(obs, None, starts, True, free.astype(int).tolist())
    assert (actions[0], actions[1] > 0, state[0].tolist()) == (0, True, [1, 1])


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ([[True] * 3], r"a row for each of the 2 observations, got 1"),
        ([[True] * 3, [0.0, -np.inf, 0.0]], r"action_masks of observation 1 must be 3 booleans"),
        ([[False] * 3, [True] * 3], r"action_masks of observation 0 allows no action"),
    ],
)
def test_predict_refuses_what_is_no_mask(masks, message):
    policy, obs, starts = biased_policy(use_masking=True), np.zeros((2, 4), dtype=np.float32), np.ones(2, dtype=bool)
    with pytest.raises(ValueError, match=message):
        policy.predict(obs, None, starts, action_masks=masks)


def test_predict_clips_box_actions_and_takes_masks():
    policy = make_policy(ACTION_SPACES["box"])
    policy.turns[0].action_net.bias.data[:] = 5.0
    np.testing.assert_array_equal(policy.predict(np.zeros(4), deterministic=True)[0], [1.0, 1.0])
    masked = biased_policy(use_masking=True)
    masks = np.array([False, True, True])
    starts = np.array([True])
    assert masked.predict(np.zeros(4), None, starts, deterministic=True, action_masks=masks)[0] in (1, 2)


def test_predict_refuses_what_gymnasium_s_reset_returns():
    with pytest.raises(ValueError, match=r"pass the observation alone.*mixing Gym API"):  # SB3's words
        make_policy().predict((np.zeros(4), {}))


def test_stochastic_predict_leaves_training_as_it_is():
    runs = []
    for n_predictions in (0, 7):
        model = SeeUPO("MlpPolicy", "seeupo_gym/CoordinationTrap-v0", n_groups=2, group_size=4, seed=0)
        for _ in range(n_predictions):
            model.predict(np.zeros(8, dtype=np.float32), episode_start=np.array([True]))
        model.learn(100)
        runs.append(th.nn.utils.parameters_to_vector(model.policy.parameters()))
    assert th.equal(*runs)


def test_a_number_as_action_is_learned():
    class Target(gym.Env):
        max_turns = 1
        observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, ())

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(1, dtype=np.float32), {}

        def step(self, action):
            assert self.action_space.contains(np.asarray(action))
            return np.zeros(1, dtype=np.float32), -float((action - 0.5) ** 2), True, False, {}

    # 0.54, 0.50, 0.52, 0.51, 0.50 on seeds 0 to 4.
    model = SeeUPO("MlpPolicy", Target(), n_groups=2, group_size=8, learning_rate=1e-2, seed=0).learn(1500)
    action, _ = model.predict(np.zeros(1, dtype=np.float32), deterministic=True)
    assert action.shape == ()
    assert abs(action - 0.5) < 0.1


UNSUPPORTED = {
    "Tuple": (spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), "FlattenObservation"),
    "Text": (spaces.Text(5), "TransformObservation"),
    "Sequence": (spaces.Sequence(spaces.Discrete(2)), "TransformObservation"),
    "nested Dict": (spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})}), "entry 'a'.*FlattenObservation"),
}


class AnySpaces(gym.Env):
    max_turns = 3

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        self.turn = 0
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.turn += 1
        return self.observation_space.sample(), 0.0, self.turn == 3, False, {}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_observation_spaces_name_the_wrapper(name):
    space, message = UNSUPPORTED[name]
    with pytest.raises(ValueError, match=message):
        SeeUPO("MlpPolicy", AnySpaces(space, spaces.Discrete(2)))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=1),
        spaces.Dict({"turn": spaces.Discrete(3, start=1), "x": spaces.Box(-1, 1, (1,))}),
        spaces.MultiDiscrete([2, 3], start=[0, 1]),
        spaces.MultiDiscrete([[2, 3], [2, 3]]),
        spaces.Box(-1, 1, ()),
    ],
    ids=str,
)
def test_flattening_helps_observations_that_a_network_cannot_take(space):
    env = AnySpaces(space, spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"(?s)observation space .*must start at 0.*FlattenObservation"):
        SeeUPO("MultiInputPolicy" if isinstance(space, spaces.Dict) else "MlpPolicy", env)
    SeeUPO("MlpPolicy", gym.wrappers.FlattenObservation(env), n_groups=1, group_size=2, seed=0).learn(4)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple([spaces.Discrete(2)]),
        spaces.Text(3),
        spaces.Discrete(3, start=1),
        spaces.MultiBinary([2, 2]),
        spaces.MultiDiscrete([[2, 3], [2, 3]]),
    ],
)
def test_unsupported_action_spaces_name_the_wrapper(space):
    with pytest.raises(ValueError, match=r"(?s)action space.*TransformAction"):
        SeeUPO("MlpPolicy", AnySpaces(spaces.Discrete(2), space))
