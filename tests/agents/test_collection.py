"""Groups, lanes, horizons and errors of the collection, on small environments written for the purpose."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import CHAIN
from helpers.rollouts import collect
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from seeupo_gym import SeedQueue, SeeUPO, make_vec
from seeupo_gym.agents import NonFiniteError
from seeupo_gym.agents.method.advantages import discounted_returns


class WalkEnv(gym.Env):
    """The initial position is drawn from the seed; each step adds noise; ends after 2 to 4 turns, by the seed."""

    max_turns = 4

    def __init__(self, poison=None, reproducible=True):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.poison = poison
        self.reproducible = reproducible
        self.n_steps_taken = 0

    def _obs(self):
        return np.array([self.position, self.turn], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        rng = self.np_random if self.reproducible else np.random.default_rng()
        self.position, self.turn = rng.normal(), 0
        self.length = int(self.np_random.integers(2, 5))
        return self._obs(), {}

    def step(self, action):
        self.n_steps_taken += 1
        self.turn += 1
        self.position += float(self.np_random.normal())
        reward = self.position + action
        if self.turn == 2 and self.poison == "reward":
            reward = np.nan
        if self.turn == 2 and self.poison == "observation":
            self.position = np.inf
        return self._obs(), reward, self.turn >= self.length, False, {}


def rows_by_episode(buffer):
    """(turn, observation) of every row, by episode."""
    rows = {}
    for turn, batch in enumerate(buffer.turn_batches):
        for episode, obs in zip(batch.episodes.tolist(), batch.observations.tolist(), strict=True):
            rows.setdefault(episode, []).append((turn, obs))
    return rows


@pytest.mark.parametrize("queued", [True, False])
@pytest.mark.parametrize("n_envs", [1, 3, 12, 20])
def test_every_number_of_environments_gives_the_same_groups(n_envs, queued):
    """One environment, fewer than G, B * G, and more; with a queue of seeds and in rounds."""
    wrap = SeedQueue if queued else Monitor
    env = DummyVecEnv([lambda: wrap(WalkEnv())] * n_envs)
    model = SeeUPO("MlpPolicy", env, n_groups=3, group_size=4, seed=5)
    buffer = collect(model)
    rows = rows_by_episode(buffer)
    assert sorted(rows) == list(range(12))
    starts = np.array([rows[episode][0][1] for episode in range(12)]).reshape(3, 4, 2)
    assert (starts == starts[:, :1]).all(), "members of a group start from identical observations"
    assert len(np.unique(starts[:, 0, 0])) == 3, "different groups do not"
    for episode, turns in rows.items():
        assert [turn for turn, _ in turns] == list(range(len(turns))), "turns of an episode are consecutive"
        assert len(turns) == len(rows[episode - episode % 4]), "in a group the transitions are shared too"
    n_used = sum(len(turns) for turns in rows.values())
    taken = sum(e.unwrapped.n_steps_taken for e in env.envs)
    assert model.num_timesteps == taken, "every step taken counts"
    if queued:
        assert taken == n_used, "no step is taken that nobody uses"
    alone = rows_by_episode(collect(SeeUPO("MlpPolicy", make_walks(1), n_groups=3, group_size=4, seed=5)))
    np.testing.assert_array_equal(starts[:, 0], np.array([alone[4 * group][0][1] for group in range(3)]))


def test_every_iteration_starts_new_groups():
    model = SeeUPO("MlpPolicy", make_walks(4), n_groups=3, group_size=2, seed=0)
    starts = {tuple(obs) for _ in range(3) for obs in collect(model).turn_batches[0].observations.tolist()}
    assert len(starts) == 9


def make_walks(n_envs, **kwargs):
    return DummyVecEnv([lambda: SeedQueue(Monitor(WalkEnv(**kwargs)))] * n_envs)


def test_returns_are_those_of_the_environment():
    model = SeeUPO("MlpPolicy", make_walks(3), n_groups=2, group_size=3, gamma=0.5, seed=1)
    buffer = collect(model)
    rewards = np.zeros((6, 4))
    for turn, batch in enumerate(buffer.turn_batches):
        positions = {}
        if turn + 1 < len(buffer.turn_batches):
            following = buffer.turn_batches[turn + 1]
            positions = dict(zip(following.episodes.tolist(), following.observations[:, 0].tolist(), strict=True))
        for episode, action in zip(batch.episodes.tolist(), batch.actions.tolist(), strict=True):
            if episode in positions:  # the reward is the next position plus the action
                rewards[episode, turn] = positions[episode] + action
            else:
                rewards[episode, turn] = np.nan  # last turn: the position is not observed
    lengths = np.array([len(rows_by_episode(buffer)[e]) for e in range(6)])
    partial = np.nansum(rewards * 0.5 ** np.arange(4), axis=1)
    last = discounted_returns(buffer.rewards, model.gamma).ravel() - partial
    # What remains is 0.5 ** (T - 1) times the last reward, which Monitor's undiscounted return confirms.
    undiscounted = np.nansum(rewards, axis=1) + last / 0.5 ** (lengths - 1)
    monitored = sorted(info["r"] for info in model.ep_info_buffer)
    np.testing.assert_allclose(sorted(undiscounted), monitored, atol=1e-4)


def test_independent_noise_gives_members_transitions_of_their_own():
    for wrapped in (True, False):
        env = make_walks(4) if wrapped else DummyVecEnv([WalkEnv] * 4)
        model = SeeUPO("MlpPolicy", env, n_groups=2, group_size=4, seed=3, independent_noise=True)
        rows = rows_by_episode(collect(model))
        for group in range(2):
            members = [rows[4 * group + i] for i in range(4)]
            assert len({tuple(m[0][1]) for m in members}) == 1, "the start is shared"
            assert len({tuple(m[1][1]) for m in members}) == 4, "what follows is not"


@pytest.mark.parametrize("native", [True, False])
def test_independent_noise_of_native_tasks(native):
    env = make_vec(CHAIN, 8) if native else make_vec(CHAIN, 8, vec_env_cls=DummyVecEnv)
    model = SeeUPO("MlpPolicy", env, n_groups=1, group_size=8, seed=3, independent_noise=True)
    buffer = collect(model)
    contexts = [batch.observations[:, 6:10].argmax(1) for batch in buffer.turn_batches]
    assert len(contexts[0].unique()) == 1
    assert any(len(c.unique()) > 1 for c in contexts[1:])


def test_native_and_dummy_collect_the_same():
    buffers = []
    for env in (make_vec(CHAIN, 8), make_vec(CHAIN, 8, vec_env_cls=DummyVecEnv)):
        buffers.append(collect(SeeUPO("MlpPolicy", env, n_groups=4, group_size=4, seed=2)))
    np.testing.assert_array_equal(buffers[0].rewards, buffers[1].rewards)
    for a, b in zip(buffers[0].turn_batches, buffers[1].turn_batches, strict=True):
        assert th.equal(a.observations, b.observations)
        assert th.equal(a.actions, b.actions)


def test_recorded_log_probs_are_the_policy_s_and_the_ratio_is_exactly_one():
    model = SeeUPO("MlpPolicy", make_walks(5), n_groups=4, group_size=4, seed=0)
    for turn, batch in enumerate(collect(model).turn_batches):
        log_probs, _ = model.policy.evaluate_actions(batch.observations, batch.actions, turn)
        assert th.equal((log_probs - batch.log_probs).abs() < 1e-6, th.ones(len(log_probs), dtype=th.bool))
    model = SeeUPO("MlpPolicy", make_vec(CHAIN, 16), n_groups=4, group_size=4, seed=0)
    for turn, batch in enumerate(collect(model).turn_batches):
        log_probs, _ = model.policy.evaluate_actions(batch.observations, batch.actions, turn)
        assert th.equal((log_probs - batch.log_probs).exp(), th.ones(16)), "one lane an episode: bit for bit"


# An observation is named with the turn that would have acted on it.
@pytest.mark.parametrize(("poison", "turn"), [("reward", 1), ("observation", 2)])
def test_non_finite_numbers_stop_training_and_keep_what_was_learned(poison, turn):
    env = DummyVecEnv([lambda: SeedQueue(WalkEnv())] * 3)
    model = SeeUPO("MlpPolicy", env, n_groups=1, group_size=3, seed=0)
    model.learn(1)
    learned = {k: v.clone() for k, v in model.policy.state_dict().items()}
    env.envs[2].unwrapped.poison = poison
    with pytest.raises(
        NonFiniteError, match=rf"environment 2 returned a non-finite {poison} at turn {turn} \(step \d+\)"
    ):
        model.learn(10, reset_num_timesteps=False)
    assert all(th.equal(learned[k], v) for k, v in model.policy.state_dict().items())
    env.envs[2].unwrapped.poison = None
    env.reset()
    before = sum(e.unwrapped.n_steps_taken for e in env.envs)
    for _ in range(10):
        env.step([0, 0, 0])
    assert sum(e.unwrapped.n_steps_taken for e in env.envs) == before + 30, "no lane stays parked after an error"


def test_non_finite_logits_name_the_turn_and_the_environment():
    model = SeeUPO("MlpPolicy", make_walks(2), n_groups=1, group_size=2, seed=0)
    model.policy.turns[1].action_net.bias.data[0] = np.nan
    with pytest.raises(NonFiniteError, match="policy of turn 1 gives non-finite action parameters for environment 0"):
        model.learn(10)


class Unequal(WalkEnv):
    """Episodes of the given number of turns."""

    def __init__(self, length):
        super().__init__()
        self.given = length

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed, options=options)
        self.length = self.given
        return obs, info


@pytest.mark.parametrize("schedule", ["sweep", "staged"])
def test_non_finite_logits_name_the_environment_also_where_others_are_parked(schedule):
    env = DummyVecEnv([lambda length=length: SeedQueue(Unequal(length)) for length in (1, 1, 4)])
    model = SeeUPO("MlpPolicy", env, n_groups=1, group_size=3, seed=0, schedule=schedule)
    model.policy.turns[3].action_net.bias.data[0] = np.nan
    with pytest.raises(NonFiniteError, match="policy of turn 3 gives non-finite action parameters for environment 2"):
        model.learn(10)


@pytest.mark.parametrize("queued", [True, False])
def test_non_finite_observation_of_a_reset_is_the_environment_s_fault(queued):
    class Env(WalkEnv):
        def _obs(self):
            return np.where(self.poison is not None and self.turn == 0, np.nan, super()._obs()).astype(np.float32)

    wrap = SeedQueue if queued else Monitor
    env = DummyVecEnv([lambda poison=poison: wrap(Env(poison)) for poison in (None, "reset")])
    model = SeeUPO("MlpPolicy", env, n_groups=1, group_size=2, seed=0)
    with pytest.raises(NonFiniteError, match=r"environment 1 returned a non-finite observation at turn 0 \(step 0\)"):
        model.learn(10)


def test_environment_that_ignores_seeds_gets_one_warning():
    model = SeeUPO("MlpPolicy", make_walks(4, reproducible=False), n_groups=2, group_size=2, seed=0)
    with pytest.warns(UserWarning, match=r"reset\(seed=...\) does not reproduce.*group mean is no baseline") as record:
        model.learn(50)
    assert len(record) == 1


def test_environment_that_ignores_seeds_is_seen_through_vec_normalize():
    env = VecNormalize(make_walks(4, reproducible=False), norm_reward=False)
    with pytest.warns(UserWarning, match="does not reproduce"):
        SeeUPO("MlpPolicy", env, n_groups=2, group_size=2, seed=0).learn(1)
    env = VecNormalize(make_walks(4), norm_reward=False)
    SeeUPO("MlpPolicy", env, n_groups=2, group_size=2, seed=0).learn(1)


def test_normalized_rewards_get_a_warning():
    with pytest.warns(UserWarning, match="norm_reward=False"):
        SeeUPO("MlpPolicy", VecNormalize(make_walks(4)), n_groups=2, group_size=2, seed=0).learn(1)


class Endless(WalkEnv):
    def __init__(self):
        super().__init__()
        del self.max_turns

    max_turns = property(fdel=lambda self: None)

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


class NothingSaid(WalkEnv):
    max_turns = None


@pytest.mark.parametrize("cls", [Endless, NothingSaid])
def test_unknown_horizon_is_an_error_that_says_what_to_do(cls):
    with pytest.raises(ValueError, match=r"max_turns=.*TimeLimit"):
        SeeUPO("MlpPolicy", cls(), seed=0)


@pytest.mark.parametrize(("max_turns", "limit"), [(6, 3), (3, 6)])
def test_the_horizon_is_the_shorter_of_max_turns_and_a_time_limit(max_turns, limit):
    """With the longer one, three stages of the schedule would wait for turns that no episode has."""

    env = WalkEnv()
    env.max_turns = max_turns
    model = SeeUPO("MlpPolicy", gym.wrappers.TimeLimit(env, limit), n_groups=1, group_size=2, schedule="staged")
    assert model.n_turns == 3


@pytest.mark.parametrize("max_turns", ["six", 2.5, 0, np.inf, True])
def test_a_horizon_that_is_no_number_of_turns_is_an_error(max_turns):
    env = WalkEnv()
    env.max_turns = max_turns
    with pytest.raises(ValueError, match="the environment's max_turns must be an integer of at least 1"):
        SeeUPO("MlpPolicy", env)


@pytest.mark.parametrize("vec_env_cls", [None, DummyVecEnv, SubprocVecEnv])
def test_horizon_of_a_time_limit_around_an_unregistered_environment(vec_env_cls):
    def make():
        return gym.wrappers.TimeLimit(Endless(), 4)

    env = make() if vec_env_cls is None else vec_env_cls([make])
    model = SeeUPO("MlpPolicy", env, n_groups=1, group_size=2, seed=0).learn(1)
    assert model.n_turns == len(model.rollout_buffer.turn_batches) == 4
    model.env.close()


def test_new_model_without_an_environment_is_an_error():
    with pytest.raises(ValueError, match="env is None"):
        SeeUPO("MlpPolicy", None)


def test_endless_episode_is_an_error_and_not_a_hang():
    model = SeeUPO("MlpPolicy", Endless(), max_turns=2, n_groups=1, group_size=2, seed=0)
    with pytest.raises(RuntimeError, match=r"has not ended after 200 turns.*TimeLimit"):
        model.learn(10)


def test_turns_beyond_the_last_policy_use_and_train_the_last_one():
    model = SeeUPO("MlpPolicy", make_vec(CHAIN, 32), max_turns=2, n_groups=4, group_size=8, seed=0)
    assert model.policy.n_policies == 2
    buffer = collect(model)
    assert len(buffer.turn_batches) == 6
    for turn, batch in enumerate(buffer.turn_batches):
        log_probs, _ = model.policy.evaluate_actions(batch.observations, batch.actions, min(turn, 1))
        assert th.equal(log_probs.detach(), batch.log_probs)
    before = [p.detach().clone() for p in model.policy.turn_parameters(5)]
    model.train()
    assert model.policy.turn_parameters(5) is model.policy.turn_parameters(1)
    assert not any(th.equal(a, b) for a, b in zip(before, model.policy.turn_parameters(1), strict=True))


class TurnObsEnv(WalkEnv):
    """Dict observations with a "turn" entry, counted from ``offset``."""

    def __init__(self, offset=0):
        super().__init__()
        self.offset = offset
        self.observation_space = spaces.Dict({"turn": spaces.Discrete(6), "position": spaces.Box(-100, 100, (1,))})

    def _obs(self):
        return {"turn": self.turn + self.offset, "position": np.array([self.position], dtype=np.float32)}


def test_observed_turn_must_agree_with_the_steps():
    SeeUPO("MultiInputPolicy", TurnObsEnv(), n_groups=1, group_size=2, seed=0).learn(5)
    with pytest.raises(ValueError, match="is 1 at turn 0"):
        SeeUPO("MultiInputPolicy", TurnObsEnv(offset=1), n_groups=1, group_size=2, seed=0).learn(5)


class StopAt(BaseCallback):
    def __init__(self, n_calls):
        super().__init__()
        self.stop = n_calls

    def _on_step(self):
        return self.n_calls < self.stop


def test_callback_stops_at_once_and_cleanly():
    env = make_walks(3)
    model = SeeUPO("MlpPolicy", env, n_groups=2, group_size=3, seed=0)
    before = {k: v.clone() for k, v in model.policy.state_dict().items()}
    model.learn(1000, callback=StopAt(2))
    assert sum(e.unwrapped.n_steps_taken for e in env.envs) == 6
    assert all(th.equal(before[k], v) for k, v in model.policy.state_dict().items())
    env.reset()
    for _ in range(10):
        env.step([0, 0, 0])
    assert sum(e.unwrapped.n_steps_taken for e in env.envs) == 36, "no lane stays parked"
    model.learn(50)
    assert model.num_timesteps >= 50


@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])
def test_foreign_environments_in_both_vector_classes(vec_env_cls):
    env = make_vec("FrozenLake-v1", 2, vec_env_cls=vec_env_cls)
    model = SeeUPO("MlpPolicy", env, n_groups=2, group_size=2, seed=0)
    model.learn(50)
    env.close()
    assert model.n_turns == 100
