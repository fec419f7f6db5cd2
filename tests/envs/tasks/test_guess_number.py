"""GuessNumber: episodes by hand, what is shown and what is hidden, false hints, and the expert against exact optima."""

from functools import cache

import gymnasium as gym
import numpy as np
import pytest
from helpers.tasks import play
from hypothesis import given, settings
from hypothesis import strategies as st

from seeupo_gym.envs.messages import MessageError
from seeupo_gym.envs.task import NO_ACTION
from seeupo_gym.envs.tasks.guess_number import HIGHER, LATE_COST, LEVELS, LOWER, GuessNumber
from seeupo_gym.envs.views.text_view import TextView

ID = "seeupo_gym/GuessNumber-v0"


def make_env(secret, **kwargs):
    """An episode with a given secret."""
    env = gym.make(ID, render_mode="ansi", **kwargs).unwrapped
    env.reset(seed=0)
    env.task.secrets[0] = secret
    return env


def play_every_secret(**kwargs):
    """Returns of the expert, one a secret."""
    task = GuessNumber(GuessNumber(**kwargs).level.range, **kwargs)
    task.reset(np.zeros(task.n_lanes, dtype=np.int64))
    task.secrets[:] = np.arange(task.n_lanes)
    return play(task)[0]


# --- Episodes by hand


EPISODES = {
    # secret, guesses, replies (2 is "found"), reward at the end
    "at once": (3, [3], [2], 1.0),
    "bisected": (6, [4, 7, 6], [HIGHER, LOWER, 2], 1.0 - 0.1 * 2 / 4),
    "at the last turn": (9, [0, 1, 2, 9], [HIGHER, HIGHER, HIGHER, 2], 1.0 - 0.1 * 3 / 4),
    "wasted on what is ruled out": (5, [4, 0, 4, 9], [HIGHER, HIGHER, HIGHER, LOWER], 0.0),
}


@pytest.mark.parametrize("name", EPISODES)
def test_an_episode_with_true_hints(name):
    secret, guesses, replies, reward_at_the_end = EPISODES[name]
    env = make_env(secret, range=10, turns=4)
    for turn, (guess, reply) in enumerate(zip(guesses, replies, strict=True), start=1):
        _, reward, done, _, info = env.step(guess)
        assert env.task.replies[0] == reply
        assert done == (turn == len(guesses))
        assert reward == pytest.approx(reward_at_the_end if done else 0.0)
    assert info == {"is_success": reward_at_the_end > 0}


def test_warmth_goes_by_distance():
    env = make_env(20, level="medium")
    words = []
    for distance in range(1, 21):
        env.reset()
        env.task.secrets[0] = 20
        env.step(20 - distance)
        words.append(env.task.hints[env.task.replies[0]])
        env.reset()
        env.task.secrets[0] = 20
        env.step(20 + distance)
        assert env.task.hints[env.task.replies[0]] == words[-1]
    assert words == ["burning"] + ["hot"] * 2 + ["warm"] * 4 + ["cool"] * 8 + ["cold"] * 5


def test_no_action_passes_the_turn_and_tells_nothing():
    task = GuessNumber(2, range=4, turns=3)
    task.reset(np.array([0, 1]))
    task.secrets[:] = 3, 0  # -1 must not be taken for the last number
    result = task.step(np.full(2, NO_ACTION))
    assert not result.dones.any()
    assert task.observe().tolist() == [[1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]] * 2
    task.step(np.array([1, 1]))
    assert task.step(np.full(2, NO_ACTION)).dones.all()


# --- The observation


def test_the_observation_with_true_hints():
    env = make_env(2, range=4, turns=3)
    assert env.task.observe()[0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    # Numbers 2 and 3 are left; guess 1; "higher"; turn 1.
    assert env.step(1)[0].tolist() == [0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0]
    assert env.step(3)[0].tolist() == [0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]
    assert env.step(2)[0].tolist() == [0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]


def test_the_observation_with_false_hints():
    task = GuessNumber(range=4, turns=3, noise=0.2)
    task.reset(np.array([next(s for s in range(99) if first_hint_is_false(s))]))
    task.secrets[:] = 3
    task.step(np.array([1]))
    # "Lower" though it is 3: 0.2 / 0.8 of the odds that 0 has, and nothing for 1, which was guessed.
    assert task.observe()[0, :4].tolist() == [1, 0, 0.25, 0.25]
    assert task.observe()[0, 8:11].tolist() == [0, 1, 0]


def first_hint_is_false(seed):
    task = GuessNumber(range=4, turns=3, noise=0.2)
    task.reset(np.array([seed]))
    task.secrets[:] = 3
    task.step(np.array([1]))
    return task.replies[0] == LOWER


@settings(max_examples=60, deadline=None)
@given(data=st.data(), level=st.sampled_from(list(LEVELS)))
def test_the_likelihoods_are_those_of_bayes(data, level):
    """Against the definition: multiply, for each number, the probabilities of all the replies."""
    task = GuessNumber(1, level=level)
    task.reset(np.array([data.draw(st.integers(0, 2**63 - 1))]))
    n, noise = task.level.range, task.level.noise
    expected = np.ones(n)
    for _ in range(task.max_turns):
        guess = data.draw(st.integers(0, n - 1))
        done = task.step(np.array([guess])).dones[0]
        reply = task.replies[0]
        for number in range(n):
            if level == "medium":
                distance = abs(guess - number)
                truth = sum(distance >= bound for bound in (2, 4, 8, 16)) if distance else task.found
            else:
                truth = task.found if number == guess else LOWER if number < guess else HIGHER
            both_hints = task.found not in (truth, reply)
            expected[number] *= (1 - noise if both_hints else 1) if truth == reply else noise * both_hints
        np.testing.assert_allclose(task.observe()[0, :n], expected / expected.max(), rtol=1e-5)
        if done:
            break


def test_the_secret_is_hidden():
    env = make_env(8, level="hard", noise=0)
    env.step(3)
    env.step(90)
    before = env.task.observe()
    env.task.secrets[0] = 77
    np.testing.assert_array_equal(env.task.observe(), before)
    assert env.task.expert_actions().tolist() == [46]  # the middle of 4 to 89


# --- Randomness


def test_secrets_are_uniform():
    task = GuessNumber(24_000)
    task.reset(np.arange(24_000))
    np.testing.assert_allclose(np.bincount(task.secrets, minlength=24) / 1000, 1.0, atol=0.15)


def test_hints_are_false_at_the_rate_of_the_level_and_anew_at_each_turn():
    task = GuessNumber(40_000, level="hard")
    task.reset(np.arange(40_000))
    false = []
    for _ in range(2):
        task.step(np.full(40_000, 50))
        false.append((task.replies == HIGHER) != (task.secrets > 50))
    wrong = task.secrets != 50
    assert false[0][wrong].mean() == pytest.approx(0.2, abs=0.01)
    assert false[1][wrong].mean() == pytest.approx(0.2, abs=0.01)
    assert (false[0] & false[1])[wrong].mean() == pytest.approx(0.04, abs=0.005)
    assert (task.replies[~wrong] == task.found).all()


def test_noise_seeds_decide_the_hints_alone():
    first, second = GuessNumber(500, level="hard"), GuessNumber(500, level="hard")
    first.reset(np.arange(500))
    second.reset(np.arange(500), np.arange(500, 1000))
    np.testing.assert_array_equal(first.secrets, second.secrets)
    for task in (first, second):
        task.step(np.full(500, 50))
    # Two hints of noise 0.2 differ with probability 2 * 0.2 * 0.8.
    assert (first.replies != second.replies).mean() == pytest.approx(0.32, abs=0.06)


# --- The expert and the optimum


@pytest.mark.parametrize(("n", "turns"), [(2, 1), (15, 4), (16, 4), (16, 8), (24, 5), (100, 3), (500, 9)])
def test_binary_search_is_optimal(n, turns):
    returns = play_every_secret(range=n, turns=turns)
    assert (returns > 0).sum() == min(n, 2**turns - 1)
    assert returns.mean() == pytest.approx(GuessNumber(range=n, turns=turns).optimal_value(), abs=1e-6)


def true_replies(n, **kwargs):
    """The hint to each guess, in rows, about each secret."""
    task = GuessNumber(n * n, range=n, **kwargs)
    task.reset(np.zeros(n * n, dtype=np.int64))
    task.secrets[:] = np.tile(np.arange(n), n)
    task.step(np.repeat(np.arange(n), n))
    return task.replies.reshape(n, n).tolist()


def best_total(n, turns, truth):
    """The largest sum of returns over all secrets, by trying every strategy; ``truth[guess][secret]``."""

    @cache
    def best(possible, turn):
        if turn > turns or not possible:
            return 0.0
        totals = []
        for guess in range(n):
            left = {}
            for secret in possible:
                if secret != guess:
                    left.setdefault(truth[guess][secret], []).append(secret)
            found = (guess in possible) * (1 - LATE_COST * (turn - 1) / turns)
            totals.append(found + sum(best(tuple(part), turn + 1) for part in left.values()))
        return max(totals)

    return best(tuple(range(n)), 1)


@pytest.mark.parametrize(("n", "turns"), [(3, 1), (4, 2), (6, 4), (9, 3)])
def test_optimal_value_is_that_of_the_best_strategy(n, turns):
    task = GuessNumber(range=n, turns=turns)
    assert task.optimal_value() == pytest.approx(best_total(n, turns, true_replies(n)) / n)


@pytest.mark.parametrize(("n", "turns", "share"), [(10, 2, 0.95), (12, 3, 0.99), (20, 3, 0.9), (24, 4, 0.99)])
def test_the_expert_is_near_the_optimum_with_warmth(n, turns, share):
    task = GuessNumber(range=n, turns=turns, feedback="warmth")
    optimum = best_total(n, turns, true_replies(n, feedback="warmth"))
    assert share * optimum < play_every_secret(range=n, turns=turns, feedback="warmth").sum() <= optimum + 1e-5
    assert task.optimal_value() is None


@pytest.mark.parametrize(("n", "turns", "noise"), [(3, 3, 0.2), (5, 3, 0.1), (4, 4, 0.4)])
def test_the_expert_is_near_the_optimum_with_false_hints(n, turns, noise):
    def best(weights, turn):
        """The largest expected return from the joint probabilities of numbers and hints so far."""
        if turn > turns:
            return 0.0
        values = []
        for guess in range(n):
            value = weights[guess] * (1 - LATE_COST * (turn - 1) / turns)
            for reply in (HIGHER, LOWER):
                right = [(k > guess) == (reply == HIGHER) for k in range(n)]
                rest = [0.0 if k == guess else w * (1 - noise if right[k] else noise) for k, w in enumerate(weights)]
                value += best(rest, turn + 1)
            values.append(value)
        return max(values)

    optimum = best([1 / n] * n, 1)
    task = GuessNumber(40_000, range=n, turns=turns, noise=noise)
    task.reset(np.arange(40_000))
    assert play(task)[0].mean() == pytest.approx(optimum, rel=0.02)
    assert task.optimal_value() is None


def test_the_expert_gets_harder_levels_less_often_right():
    solved = {}
    for level in LEVELS:
        task = GuessNumber(2000, level=level)
        task.reset(np.arange(2000))
        solved[level] = (play(task)[0] > 0).mean()
    assert solved["easy"] == solved["medium"] == 1.0
    assert 0.75 < solved["hard"] < 0.85


# --- Words


def test_a_transcript_with_false_hints_off():
    env = make_env(6, range=10, turns=4)
    for action in (4, 7, 6):
        env.step(action)
    assert env.render() == (
        "Host: I am thinking of a number from 0 to 9. You have 4 guesses. After a wrong one I say whether my number "
        "is higher or lower. Write for example: guess 3\n"
        "Agent: guess 4\n"
        "Host: My number is higher. 3 guesses left.\n"
        "Agent: guess 7\n"
        "Host: My number is lower. 2 guesses left.\n"
        "Agent: guess 6\n"
        "Host: Yes, it is 6!\n"
        "Reward: 0.95"
    )


def test_a_transcript_with_warmth():
    env = make_env(20, level="medium", turns=2)
    env.step(45)
    env.step(21)
    assert env.render() == (
        "Host: I am thinking of a number from 0 to 49. You have 2 guesses. After a wrong one I say how near it is: "
        "burning if 1 away, hot if 2 or 3, warm if 4 to 7, cool if 8 to 15, else cold. Write for example: guess 16\n"
        "Agent: guess 45\n"
        "Host: Cold. 1 guess left.\n"
        "Agent: guess 21\n"
        "Host: Burning. That was the last turn; it was 20.\n"
        "Reward: 0"
    )


def test_a_number_alone_is_a_guess():
    view = TextView(gym.make(ID, level="hard"))
    text, _ = view.reset(seed=0)
    assert "Each of these hints is false with probability 0.2." in text
    assert view.task.parse_action(0, " 17\n") == view.task.parse_action(0, "Could it be so? I guess 17!") == 17
    with pytest.raises(MessageError, match="guess 0; guess 1"):
        view.task.parse_action(0, "100")
    text, *_ = view.step("something in the middle")
    assert text.endswith("\nHost: That was no guess. 14 guesses left.")


# --- Arguments


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"level": "huge"}, "level must be one of 'easy', 'medium', 'hard', got 'huge'"),
        ({"range": 1}, "range must be an integer from 2 to 500, got 1"),
        ({"range": 501}, "range must be an integer from 2 to 500, got 501"),
        ({"turns": 0}, "turns must be an integer from 1 to 1000, got 0"),
        ({"feedback": "smell"}, "feedback must be one of 'higher_lower', 'warmth', got 'smell'"),
        ({"noise": 0.5}, "noise must be a finite number of at least 0 and below 0.5, got 0.5"),
        ({"noise": -0.1}, "noise must be a finite number of at least 0 and below 0.5, got -0.1"),
        ({"noise": 0.2, "feedback": "warmth"}, "noise must be 0 with feedback 'warmth', got 0.2"),
    ],
)
def test_impossible_arguments_say_what_is_possible(kwargs, message):
    with pytest.raises(ValueError, match=message):
        gym.make(ID, **kwargs)


def test_arguments_change_the_level():
    task = gym.make(ID, level="hard", feedback="warmth", range=30).unwrapped.task
    assert (task.level.range, task.max_turns, task.found, task.level.noise) == (30, 15, 5, 0.0)
    sizes = {level: gym.make(ID, level=level).observation_space.shape for level in LEVELS}
    assert sizes == {"easy": (56,), "medium": (111,), "hard": (218,)}
