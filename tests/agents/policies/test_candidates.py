"""Policies that score candidates: scores by hand, masks, gradients, learning, saving; for SeeUPO, GRPO, PPO and A2C."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import assert_close
from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.vec_env import DummyVecEnv

from seeupo_gym import SeeUPO
from seeupo_gym.agents import CandidateActorCriticPolicy, CandidatePolicy, MultiInputPolicy
from seeupo_gym.agents.policies.candidates import CandidateScorer, has_candidates
from seeupo_gym.baselines.critic_free import GRPO
from seeupo_gym.baselines.registry import policy_for

pytestmark = pytest.mark.usefixtures("one_thread")

N_WORDS, MAX_TURNS = 6, 3


def make_space(n_candidates=4, n_features=N_WORDS, state=None):
    return spaces.Dict(
        {
            "state": state or spaces.Box(-1, 1, (N_WORDS,), np.float32),
            "candidates": spaces.Box(-1, 1, (n_candidates, n_features), np.float32),
            "mask": spaces.MultiBinary(n_candidates),
            "turn": spaces.Box(0, 1, (1,), np.float32),
        }
    )


class Menu(gym.Env):
    """
    A word is asked for at every turn, and words are offered in another order and number each time: choose that one.

    It pays 1 / MAX_TURNS each; with ``n_candidates`` larger there is only more empty room.
    """

    max_turns = MAX_TURNS

    def __init__(self, n_candidates=5):
        self.n_candidates = n_candidates
        self.observation_space = make_space(n_candidates)
        self.action_space = spaces.Discrete(n_candidates)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn, self.chosen = 0, []
        return self._offer(), {}

    def step(self, action):
        assert action < len(self.offered), "an empty place was chosen"
        right = self.offered[action] == self.asked
        self.turn += 1
        return self._offer(), float(right) / MAX_TURNS, self.turn == MAX_TURNS, False, {}

    def _offer(self):
        self.offered = self.np_random.permutation(N_WORDS)[: self.np_random.integers(2, 6)]
        self.asked = self.np_random.choice(self.offered)
        words = np.eye(N_WORDS, dtype=np.float32)
        candidates = np.zeros((self.n_candidates, N_WORDS), np.float32)
        candidates[: len(self.offered)] = words[self.offered]
        mask = (np.arange(self.n_candidates) < len(self.offered)).astype(np.int8)
        turn = np.array([self.turn / MAX_TURNS], np.float32)
        return {"state": words[self.asked], "candidates": candidates, "mask": mask, "turn": turn}


def batch(n_rows=32, n_candidates=5, seed=0):
    env = Menu(n_candidates)
    rows = [env.reset(seed=seed + i)[0] for i in range(n_rows)]
    return {key: th.as_tensor(np.stack([row[key] for row in rows])) for key in rows[0]}


def make_policy(cls=CandidatePolicy, n_candidates=5, seed=0, **kwargs):
    with th.random.fork_rng():
        th.manual_seed(seed)
        env = Menu(n_candidates)
        return cls(env.observation_space, env.action_space, lambda _: 1e-3, **kwargs)


def logits(policy, obs):
    return policy.get_distribution(obs, 0).distribution.logits


# The scorer ------------------------------------------------------------------------------------------------------


def test_scores_are_those_computed_by_hand():
    space = make_space(3, 2, state=spaces.Box(-1, 1, (1,), np.float32))
    scorer = CandidateScorer(space, [2], th.nn.ReLU, True)
    # Hidden unit 0 is relu(state + first feature + 1), unit 1 is relu(turn - second feature); score 2 * h0 - h1 + 0.5.
    scorer.state_layer.weight.data = th.tensor([[1.0, 0.0], [0.0, 1.0]])
    scorer.state_layer.bias.data = th.tensor([1.0, 0.0])
    scorer.candidate_layer.weight.data = th.tensor([[1.0, 0.0], [0.0, -1.0]])
    scorer.score.weight.data = th.tensor([[2.0, -1.0]])
    scorer.score.bias.data = th.tensor([0.5])
    obs = {
        "state": th.tensor([[0.5], [-1.0]]),
        "turn": th.tensor([[0.25], [1.0]]),
        "candidates": th.tensor([[[1.0, 0.0], [0.5, -0.5], [9.0, 9.0]], [[-0.5, 0.5], [7.0, 7.0], [0.25, 1.0]]]),
        "mask": th.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]),
    }
    lowest = th.finfo(th.float32).min
    # Row 0: h = (2.5, 0.25) and (2, 0.75). Row 1: h = (0, 0.5) and (0.25, 0).
    expected = th.tensor([[5.25, 3.75, lowest], [0.0, lowest, 1.0]])
    assert_close(scorer(obs), expected)


def test_it_is_a_plain_network_on_the_state_and_each_candidate():
    policy, obs = make_policy(), batch()
    net = policy.turns[0]
    scores = net(preprocess_obs(obs, policy.observation_space))
    for row in range(len(scores)):
        for place in range(5):
            if not obs["mask"][row, place]:
                assert scores[row, place] == th.finfo(th.float32).min
                continue
            hidden = net.state_layer(th.cat([obs["state"][row], obs["turn"][row]]))
            hidden = th.tanh(hidden + net.candidate_layer(obs["candidates"][row, place]))
            assert_close(scores[row, place], net.score(th.tanh(net.hidden[1](hidden)))[0])
    assert [layer.out_features for layer in net.modules() if isinstance(layer, th.nn.Linear)] == [64, 64, 64, 1]


def test_moving_candidates_moves_their_scores_along():
    policy, obs = make_policy(), batch()
    order = th.tensor([3, 0, 4, 2, 1])
    moved = {**obs, "candidates": obs["candidates"][:, order], "mask": obs["mask"][:, order]}
    assert_close(logits(policy, moved), logits(policy, obs)[:, order])


def test_what_lies_in_masked_places_and_how_many_there_are_changes_nothing():
    policy, wide = make_policy(), make_policy(n_candidates=40)
    wide.load_state_dict(policy.state_dict())  # no parameter depends on the number of places
    obs = batch()
    padded = {
        **obs,
        "candidates": th.cat([obs["candidates"], th.full((32, 35, N_WORDS), 3.0)], dim=1),
        "mask": th.cat([obs["mask"], th.zeros(32, 35, dtype=th.int8)], dim=1),
    }
    filled = copy.deepcopy(obs)
    filled["candidates"][obs["mask"] == 0] = th.nan
    actions = th.zeros(32, dtype=th.long)
    results = [
        p.evaluate_actions(o, actions, 0, None, True) for p, o in ((policy, obs), (wide, padded), (policy, filled))
    ]
    for log_probs, entropies in results[1:]:
        assert_close(log_probs, results[0][0])
        assert_close(entropies, results[0][1])
    assert_close(wide(padded, np.zeros(32, int))[0], policy(obs, np.zeros(32, int))[0])


@pytest.mark.parametrize("cls", [CandidatePolicy, CandidateActorCriticPolicy])
def test_masked_candidates_are_never_chosen(cls):
    policy, obs = make_policy(cls), batch(2000)
    parameters = policy.turns[0] if cls is CandidatePolicy else policy.mlp_extractor.actor
    parameters.score.bias.data[:] = -1e6  # valid scores may be as low as they like
    with th.no_grad():
        if cls is CandidatePolicy:
            actions, log_probs = policy(obs, np.zeros(2000, int), th.Generator().manual_seed(0))
        else:
            actions, _, log_probs = policy(obs)
    chosen = obs["mask"].gather(1, actions.long().unsqueeze(1))
    assert chosen.all()
    assert th.isfinite(log_probs).all()
    counts = np.bincount(actions, minlength=5)
    assert (counts > 0).all(), "all places of the longest menus are used"


def test_a_menu_of_nothing_gives_finite_numbers():
    policy, obs = make_policy(), batch(2)
    obs["mask"][:] = 0
    log_probs, entropies = policy.evaluate_actions(obs, th.zeros(2, dtype=th.long), 0, None, True)
    assert_close(log_probs, th.full((2,), -float(np.log(5))))
    assert_close(entropies, th.full((2,), float(np.log(5))))


def test_gradients_are_those_of_finite_differences():
    scorer, obs = make_policy(net_arch=[4, 3]).turns[0].double(), batch(3)
    obs = {key: value.double() for key, value in obs.items()}
    names, params = zip(*scorer.named_parameters(), strict=True)

    def log_probs_and_entropies(*values):
        log_probs = th.func.functional_call(scorer, dict(zip(names, values, strict=True)), (obs,)).log_softmax(1)
        return log_probs[:, 0], (log_probs.exp() * log_probs).sum(1)

    assert th.autograd.gradcheck(log_probs_and_entropies, params)


def test_log_probabilities_and_entropies_have_the_gradients_of_the_valid_scores_alone():
    policy, obs = make_policy(), batch()
    scorer = policy.turns[0]
    scorer.score.weight.data *= 100  # away from the uniform policy
    log_probs, entropies = policy.evaluate_actions(obs, th.zeros(32, dtype=th.long), 0, None, True)
    gradients = th.autograd.grad(log_probs.sum() + entropies.sum(), list(scorer.parameters()))
    total = th.zeros(())
    for row, scores in enumerate(scorer({key: value.float() for key, value in obs.items()})):
        valid = th.distributions.Categorical(logits=scores[: int(obs["mask"][row].sum())])
        total = total + valid.log_prob(th.tensor(0)) + valid.entropy()
    for got, expected in zip(gradients, th.autograd.grad(total, list(scorer.parameters())), strict=True):
        assert_close(got, expected)


def test_each_turn_has_a_scorer_of_its_own():
    policy = make_policy(n_policies=3)
    assert [type(network) for network in policy.turns] == [CandidateScorer] * 3
    assert len({id(param) for param in policy.parameters()}) == 3 * len(list(policy.turns[0].parameters()))
    obs, before = batch(), copy.deepcopy(policy.state_dict())
    policy.evaluate_actions(obs, th.zeros(32, dtype=th.long), 1)[0].sum().backward()
    policy.step_optimizer(1)
    changed = {name.split(".")[1] for name, value in policy.state_dict().items() if not th.equal(value, before[name])}
    assert changed == {"1"}


# Mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [CandidatePolicy, CandidateActorCriticPolicy])
def test_wrong_spaces_and_settings_are_refused(cls):
    def make(space=None, action_space=None, **kwargs):
        space = make_space(4) if space is None else space
        action_space = spaces.Discrete(4) if action_space is None else action_space
        return cls(space, action_space, lambda _: 1e-3, **kwargs)

    flat = spaces.Box(-1, 1, (4,), np.float32)
    with pytest.raises(ValueError, match="needs a Dict observation with a Box 'candidates'"):
        make(flat)
    with pytest.raises(ValueError, match="needs a Dict observation"):
        make(spaces.Dict({"state": flat, "candidates": make_space(4)["candidates"]}))
    with pytest.raises(ValueError, match=r"must be Discrete\(4\), one action a candidate"):
        make(action_space=spaces.Discrete(5))
    with pytest.raises(ValueError, match="must be Discrete"):
        make(action_space=spaces.Discrete(4, start=1))
    without_state = {key: space for key, space in make_space(4).spaces.items() if key in ("candidates", "mask")}
    with pytest.raises(ValueError, match="no entry for the state"):
        make(spaces.Dict(without_state))
    with pytest.raises(ValueError, match="no features extractor"):
        make(features_extractor_class=MultiInputPolicy.default_features_extractor)
    with pytest.raises(ValueError, match="needs a hidden layer"):
        make(net_arch=[])


def test_which_spaces_have_candidates():
    assert has_candidates(make_space())
    assert not has_candidates(spaces.Discrete(3))
    assert not has_candidates(spaces.Dict({**make_space(4).spaces, "mask": spaces.MultiBinary(3)}))
    assert not has_candidates(spaces.Dict({**make_space(4).spaces, "candidates": spaces.Box(-1, 1, (4,), np.float32)}))
    with_box = spaces.Dict({**make_space(5).spaces, "mask": spaces.Box(0, 1, (5,), np.float32)})
    assert has_candidates(with_box)
    assert logits(CandidatePolicy(with_box, spaces.Discrete(5), lambda _: 0.1), batch(2)).shape == (2, 5)


def test_the_registry_chooses_these_policies():
    space = make_space()
    assert policy_for(space, SeeUPO) == policy_for(space, GRPO) == "CandidatePolicy"
    assert policy_for(space, PPO) is policy_for(space, A2C) is CandidateActorCriticPolicy
    assert policy_for(space, MaskablePPO) == policy_for(space, DQN) == "MultiInputPolicy"
    assert policy_for(spaces.Dict({"state": spaces.Discrete(3)}), SeeUPO) == "MultiInputPolicy"


# Algorithms ------------------------------------------------------------------------------------------------------


def make_model(algorithm, seed=0, **kwargs):
    env = DummyVecEnv([Menu] * 8)
    small = {"device": "cpu", "seed": seed, "policy_kwargs": {"net_arch": [32]}, **kwargs}
    if issubclass(algorithm, SeeUPO):
        return algorithm("CandidatePolicy", env, **{"n_groups": 4, "group_size": 8, "learning_rate": 1e-2, **small})
    env.seed(seed)
    rollout = {"n_steps": 24, "batch_size": 96} if algorithm is PPO else {"n_steps": 12}
    return algorithm(CandidateActorCriticPolicy, env, **{"learning_rate": 1e-2, "gamma": 1.0, **rollout, **small})


def score(model):
    env, returns = Menu(), []
    for seed in range(100):
        obs, _ = env.reset(seed=10_000 + seed)
        total, done, state, start = 0.0, False, None, np.ones(1, bool)
        while not done:
            action, state = model.predict(obs, state, start, deterministic=True)
            obs, reward, done, *_ = env.step(int(action))
            total, start = total + reward, np.zeros(1, bool)
        returns.append(total)
    return np.mean(returns)


@pytest.mark.parametrize(
    ("algorithm", "settings", "steps"),
    [
        (SeeUPO, {}, 96 * 60),
        (SeeUPO, {"turn_policies": "shared"}, 96 * 25),
        (GRPO, {}, 96 * 40),
        (PPO, {}, 192 * 15),
        (A2C, {}, 96 * 60),
    ],
)
def test_it_learns(algorithm, settings, steps):
    model = make_model(algorithm, **settings)
    assert score(model) < 0.6
    model.learn(steps)
    assert score(model) > 0.9


@pytest.mark.parametrize("algorithm", [SeeUPO, PPO])
def test_runs_repeat_and_save_and_load(algorithm, tmp_path):
    model, again = (make_model(algorithm).learn(400) for _ in range(2))
    obs = {key: value.numpy() for key, value in batch().items()}
    for name, value in model.policy.state_dict().items():
        assert th.equal(value, again.policy.state_dict()[name])
    model.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model", device="cpu", env=DummyVecEnv([Menu] * 8))
    model.policy.save(tmp_path / "policy")
    alone = type(model.policy).load(tmp_path / "policy")
    start = np.ones(32, bool)
    for other in (loaded, alone):
        expected = model.predict(obs, None, start, deterministic=True)[0]
        np.testing.assert_array_equal(other.predict(obs, None, start, deterministic=True)[0], expected)
        assert other.predict({key: value[0] for key, value in obs.items()}, None, start[:1])[0].shape == ()
    loaded.learn(200)
    assert th.isfinite(th.cat([param.flatten() for param in loaded.policy.parameters()])).all()


def test_the_critic_sees_the_state_alone():
    policy, obs = make_policy(CandidateActorCriticPolicy), batch()
    values, log_probs, entropies = policy.evaluate_actions(obs, th.zeros(32))
    assert (values.shape, log_probs.shape, entropies.shape) == ((32, 1), (32,), (32,))
    other = batch(seed=100)
    assert_close(policy.predict_values({**other, "state": obs["state"]}), values)
    assert not th.equal(policy.predict_values({**obs, "state": other["state"]}), values)


def test_actor_and_turn_policy_are_the_same_network():
    policy, actor_critic, obs = make_policy(), make_policy(CandidateActorCriticPolicy), batch()
    actor_critic.mlp_extractor.actor.load_state_dict(policy.turns[0].state_dict())
    assert_close(actor_critic.get_distribution(obs).distribution.logits, logits(policy, obs))


def test_masks_of_the_environment_and_of_the_observation_agree():
    policy, masked = make_policy(), make_policy(use_masking=True)
    masked.load_state_dict(policy.state_dict())
    obs, actions = batch(), th.zeros(32, dtype=th.long)
    expected = policy.evaluate_actions(obs, actions, 0, None, True)
    for got, wanted in zip(masked.evaluate_actions(obs, actions, 0, obs["mask"].bool(), True), expected, strict=True):
        assert_close(got, wanted)
