"""CandidateView: a changing list of commands as features and a masked choice. Needs scikit-learn."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from stable_baselines3 import PPO

pytest.importorskip("sklearn")

from seeupo_gym import SeeUPO
from seeupo_gym.agents import CandidateActorCriticPolicy
from seeupo_gym.agents.method.threads import one_torch_thread
from seeupo_gym.envs.views.candidate_view import CandidateView, HashedText

ROOMS = [["take key", "go north"], ["open door"], ["go east", "go west", "look"]]


class Corridor(gym.Env):
    """Three rooms with different commands; the first one is the right one everywhere."""

    observation_space = spaces.Text(100)
    action_space = spaces.Text(100)
    max_turns = 3

    def __init__(self):
        self.sent = []  # in all episodes

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.room = 0
        return "room 0", {"admissible_commands": ROOMS[0], "inventory": "nothing"}

    def step(self, action):
        right = action == ROOMS[self.room][0]
        self.sent.append(action)
        self.room += 1
        done = self.room == len(ROOMS)
        info = {"admissible_commands": [] if done else ROOMS[self.room], "inventory": f"{self.room} things"}
        return f"room {self.room}", float(right) / 3, done, False, info


def make(**kwargs):
    return CandidateView(Corridor(), **{"n_candidates": 4, "n_features": 32, **kwargs})


def test_observations_and_masks_follow_the_commands():
    env, features = make(), HashedText(32)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    np.testing.assert_array_equal(obs["candidates"][:2], features(ROOMS[0]))
    np.testing.assert_array_equal(obs["candidates"][2:], 0.0)
    np.testing.assert_array_equal(obs["state"], np.concatenate(features(["room 0", ""])))
    assert (env.action_masks().tolist(), obs["turn"].tolist()) == ([True, True, False, False], [0.0])
    assert obs["mask"].tolist() == [1, 1, 0, 0]
    obs, reward, _, _, info = env.step(0)
    assert (reward, info["command"]) == (pytest.approx(1 / 3), "take key")
    np.testing.assert_array_equal(obs["state"], np.concatenate(features(["room 1", "take key"])))
    assert env.action_masks().tolist() == [True, False, False, False]
    _, reward, *_, info = env.step(3)
    assert (reward, info["command"]) == (0.0, ""), "an action that the mask rules out says nothing"
    assert env.unwrapped.sent == ["take key", ""]
    obs, _, done, *_ = env.step(1)
    assert done
    assert not env.action_masks().any()
    assert not obs["candidates"].any()
    assert not obs["mask"].any()


def test_chosen_entries_of_info_stand_in_for_the_observation():
    env, features = make(state_keys=("inventory",)), HashedText(32)
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(obs["state"], np.concatenate(features(["nothing", ""])))


def test_features_are_those_of_the_text_alone():
    features = HashedText(64)
    first = features(["go north", "look", "go north"])
    assert first.shape == (3, 64)
    np.testing.assert_array_equal(first[0], first[2])
    np.testing.assert_array_equal(HashedText(64)(["look"])[0], first[1])
    assert not np.array_equal(first[0], first[1])
    np.testing.assert_allclose(np.linalg.norm(first[:, :32], axis=1), 1.0, rtol=1e-4)
    np.testing.assert_array_equal(features([""]), 0.0)


@pytest.mark.filterwarnings(
    "ignore:.*different from the unwrapped version.*", "ignore:.*(in|max)imum value is.*infinity.*"
)
def test_a_function_stands_in_for_the_hashed_features():
    asked = []

    def lengths_and_vowels(texts):
        asked.extend(texts)
        return [[len(text), sum(text.count(vowel) for vowel in "aeiou")] for text in texts]

    env = make(features=lengths_and_vowels)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    np.testing.assert_array_equal(obs["candidates"], [[8, 3], [8, 2], [0, 0], [0, 0]])
    np.testing.assert_array_equal(obs["state"], [6, 2, 0, 0])
    env.reset(seed=0)
    assert len(asked) == len(set(asked)), "no text is computed twice"
    check_env(env, skip_render_check=True)


@pytest.mark.filterwarnings(
    "ignore:.*different from the unwrapped version.*", "ignore:.*(in|max)imum value is.*infinity.*"
)
def test_a_sentence_embedding_model_stands_in_for_the_hashed_features(tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    transformers = pytest.importorskip("transformers")
    # A BERT without training: what it says is of no use, but it comes in the shape that real ones have.
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "take", "key", "open", "door", "look", "nothing"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    model = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    env = make(features=lambda texts: model.encode(texts, normalize_embeddings=True))
    obs, info = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert obs["candidates"].shape == (4, 16)
    lengths = np.linalg.norm(obs["candidates"], axis=1)
    np.testing.assert_allclose(lengths, [1, 1, 0, 0], rtol=1e-4)
    for row, command in zip(obs["candidates"], info["admissible_commands"], strict=False):
        np.testing.assert_allclose(row, model.encode(command, normalize_embeddings=True), rtol=1e-4, atol=1e-4)
    check_env(env, skip_render_check=True)


def test_mistakes_are_refused():
    env = make(n_candidates=2)
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(ValueError, match="3 commands are admissible now: set n_candidates"):
        env.step(0)
    with pytest.raises(ValueError, match="max_turns"):
        CandidateView(gym.make("CartPole-v1"))
    for kwargs, complaint in (
        ({"n_features": 1}, "n_features must be an integer of at least 2, got 1"),
        ({"n_candidates": "5"}, "n_candidates must be an integer of at least 1, got '5'"),
        ({"state_keys": "look"}, r"state_keys must be a list of names such as \['look'\], got 'look'"),
        ({"features": 3}, "features must be a function from texts to rows of numbers, or None, got 3"),
        ({"features": lambda texts: [0.0]}, r"for 1 texts the shape \(1, n_features\), got \(1,\)"),
    ):
        with pytest.raises(ValueError, match=complaint):
            make(**kwargs)
    with pytest.raises(
        ValueError, match=r"needs \['look'\] in info, .*has only \['admissible_commands', 'inventory'\]"
    ):
        make(state_keys=("look",)).reset(seed=0)
    env = make()
    env.env.reset = lambda **kwargs: ("", {})
    with pytest.raises(ValueError, match=r"needs \['admissible_commands'\] in info"):
        env.reset(seed=0)
    env = make()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="must be in Discrete"):
        env.step(4)


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped version.*")
def test_the_checker_accepts_it():
    check_env(make(), skip_render_check=True)


@pytest.mark.parametrize("policy", ["CandidatePolicy", "MultiInputPolicy"])
def test_seeupo_learns_from_it(policy):
    model = SeeUPO(policy, make(), n_groups=8, group_size=8, learning_rate=1e-2, seed=0)
    assert model.masked
    model.learn(64 * 3 * 15)
    assert np.mean([info["r"] for info in model.ep_info_buffer]) > 0.9


def test_ppo_never_chooses_what_the_mask_rules_out():
    env = make()
    with one_torch_thread():
        model = PPO(CandidateActorCriticPolicy, env, n_steps=96, batch_size=48, n_epochs=2, seed=0, device="cpu")
        model.learn(192)
    assert len(env.unwrapped.sent) == 192
    assert "" not in env.unwrapped.sent
