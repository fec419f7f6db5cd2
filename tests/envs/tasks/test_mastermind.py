"""Mastermind: the feedback against its definition, episodes by hand, and the expert on every code."""

from functools import cache
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seeupo_gym.envs.messages import MessageError
from seeupo_gym.envs.task import NO_ACTION
from seeupo_gym.envs.tasks.mastermind import FEWEST_GUESSES, LEVELS, Mastermind
from seeupo_gym.envs.tasks.mastermind_codes import all_codes, feedback_table, minimax_guess
from seeupo_gym.envs.views.text_view import TextView

ID = "seeupo_gym/Mastermind-v0"
RED, GREEN, BLUE, YELLOW, ORANGE, PURPLE = range(6)


def make_env(secret, **kwargs):
    """An episode with a given secret, a sequence of colours."""
    env = gym.make(ID, render_mode="ansi", **kwargs).unwrapped
    env.reset(seed=0)
    env.task.secrets[0] = int("".join(map(str, secret)), env.task.level.colours)
    return env


def pegs_by_hand(guess, secret):
    """Black and white pegs as a person gives them: cross out the right places, then pair what is left."""
    open_guess = [g for g, s in zip(guess, secret, strict=True) if g != s]
    open_secret = [s for g, s in zip(guess, secret, strict=True) if g != s]
    black, white = len(guess) - len(open_guess), 0
    for colour in open_guess:
        if colour in open_secret:
            open_secret.remove(colour)
            white += 1
    return black, white


# --- Codes and feedback


@pytest.mark.parametrize(
    ("guess", "secret", "pegs"),
    [
        ([RED, RED, BLUE, BLUE], [RED, RED, BLUE, BLUE], (4, 0)),
        ([RED, RED, BLUE, BLUE], [BLUE, BLUE, RED, RED], (0, 4)),
        ([RED, RED, RED, BLUE], [BLUE, RED, GREEN, GREEN], (1, 1)),  # only one red and one blue count
        ([RED, GREEN, BLUE, YELLOW], [ORANGE, PURPLE, ORANGE, PURPLE], (0, 0)),
        ([RED, GREEN, GREEN, YELLOW], [GREEN, RED, GREEN, GREEN], (1, 2)),
    ],
)
def test_feedback_by_hand(guess, secret, pegs):
    env = make_env(secret, level="hard")
    env.step(guess)
    assert divmod(int(env.task.replies[0, 0]), 5) == pegs == pegs_by_hand(guess, secret)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), size=st.sampled_from([(1, 2), (2, 8), (3, 4), (4, 4), (4, 6), (5, 3), (10, 2)]))
def test_feedback_by_definition(data, size):
    pegs, colours = size
    table, codes = feedback_table(pegs, colours), all_codes(pegs, colours)
    guess, secret = (data.draw(st.integers(0, colours**pegs - 1)) for _ in range(2))
    assert divmod(int(table[guess, secret]), pegs + 1) == pegs_by_hand(codes[guess].tolist(), codes[secret].tolist())
    assert table[guess, secret] == table[secret, guess]


def test_codes_are_in_order():
    assert all_codes(3, 4).tolist() == [list(code) for code in product(range(4), repeat=3)]


# --- Episodes by hand


EPISODES = {
    # The secret is green, red, red; three turns: guesses, (black, white) after each, reward at the end
    "at once": ([[GREEN, RED, RED]], [(3, 0)], 1.0),
    "later": ([[RED, RED, GREEN], [RED, GREEN, RED], [GREEN, RED, RED]], [(1, 2), (1, 2), (3, 0)], 1 - 0.1 * 2 / 3),
    "the best guess counts, not the last": (
        [[GREEN, RED, BLUE], [YELLOW, YELLOW, YELLOW], [BLUE, GREEN, BLUE]],
        [(2, 0), (0, 0), (0, 1)],
        0.3 * 2 / 3,
    ),
    "white pegs earn nothing": ([[RED, GREEN, BLUE]] * 3, [(0, 2)] * 3, 0.0),
}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", EPISODES)
def test_an_episode(name, flat):
    guesses, replies, reward_at_the_end = EPISODES[name]
    env = make_env([GREEN, RED, RED], turns=3, flat=flat)
    for turn, (guess, reply) in enumerate(zip(guesses, replies, strict=True)):
        action = guess[0] * 16 + guess[1] * 4 + guess[2] if flat else guess
        _, reward, done, _, info = env.step(action)
        assert divmod(int(env.task.replies[0, turn]), 4) == reply
        assert done == (turn == len(guesses) - 1)
        assert reward == pytest.approx(reward_at_the_end if done else 0.0)
    assert info == {"is_success": reward_at_the_end > 0.3}


@pytest.mark.parametrize("flat", [False, True])
def test_the_observation(flat):
    env = make_env([1, 0], pegs=2, colours=3, turns=2, flat=flat)
    no_turn = [0] * 12
    assert env.task.observe()[0].tolist() == [*no_turn, *no_turn, 1, 0]
    # Guess 1 2: one black peg, no white one.
    first = [0, 1, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0]
    assert env.step(5 if flat else [1, 2])[0].tolist() == [*first, *no_turn, 0, 1]
    # Guess 0 1: no black peg, two white ones.
    second = [1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1]
    assert env.step(1 if flat else [0, 1])[0].tolist() == [*first, *second, 0, 0]


@pytest.mark.parametrize("flat", [False, True])
def test_no_action_leaves_its_turn_empty(flat):
    task = Mastermind(2, flat=flat)
    task.reset(np.arange(2))
    task.secrets[:] = 63  # -1 must not be taken for the last code
    nothing = np.full(2 if flat else (2, 3), NO_ACTION)
    before = task.observe()[:, :-6]
    for turn in range(6):
        result = task.step(nothing)
        assert not result.successes.any()
        np.testing.assert_array_equal(task.observe()[:, :-6], before)
        np.testing.assert_array_equal(result.dones, turn == 5)
        assert (result.rewards == 0).all()
        assert (task.to_codes(task.expert_actions()) == task.to_codes(task.expert_actions())[0]).all()


def test_a_new_episode_begins_with_an_empty_history():
    env = make_env([3, 3, 3])
    start = env.task.observe()
    env.step([0, 1, 2])
    env.step([3, 3, 2])
    env.reset(seed=1)
    np.testing.assert_array_equal(env.task.observe(), start)
    assert env.task.best_black[0] == 0


def test_the_secret_is_hidden():
    env = make_env([GREEN, RED, RED])
    env.step([BLUE, BLUE, YELLOW])
    before, choice = env.task.observe(), env.task.expert_actions()
    env.task.secrets[0] = 0
    np.testing.assert_array_equal(env.task.observe(), before)
    np.testing.assert_array_equal(env.task.expert_actions(), choice)


def test_secrets_are_uniform():
    task = Mastermind(64_000)
    task.reset(np.arange(64_000))
    np.testing.assert_allclose(np.bincount(task.secrets, minlength=64) / 1000, 1.0, atol=0.15)


# --- The expert and the optimum


@pytest.mark.parametrize(
    ("level", "solved_at_turn"),
    [("easy", [1, 3, 31, 29]), ("medium", [1, 9, 84, 162]), ("hard", [1, 6, 62, 533, 694])],
)
def test_the_expert_breaks_every_code(level, solved_at_turn):
    n = len(Mastermind(level=level)._codes)
    task = Mastermind(n, level=level)
    task.reset(np.zeros(n, dtype=np.int64))
    task.secrets[:] = np.arange(n)
    returns, live, solved = np.zeros(n), np.arange(n), []
    while live.size:
        result = task.step(task.expert_actions(live), live)
        returns[live] += result.rewards
        solved.append(int(result.successes.sum()))
        live = live[~result.dones]
    assert solved == solved_at_turn  # at hard, what is known of Knuth's rule: at most 5 turns, 5801 in all
    assert 0 < task.optimal_value() - returns.mean() < 0.003


def test_the_guess_is_the_one_of_knuths_rule():
    """Against the definition, on sets of codes that no episode needs to lead to."""
    rng = np.random.default_rng(0)
    codes = [tuple(code) for code in product(range(4), repeat=3)]
    for _ in range(40):
        possible = rng.random(64) < rng.choice([0.1, 0.3, 1.0])
        possible[rng.integers(64, size=3)] = True

        def badness(guess, possible=possible):
            replies = [pegs_by_hand(codes[guess], codes[i]) for i in np.flatnonzero(possible)]
            return max(map(replies.count, replies)), not possible[guess], guess

        expected = np.flatnonzero(possible)[0] if possible.sum() <= 2 else min(range(64), key=badness)
        assert minimax_guess(3, 4, np.packbits(possible).tobytes()) == expected


def test_the_expert_starts_the_classic_game_with_two_pairs():
    env = make_env([0, 0, 0, 0], level="hard")
    assert env.task.expert_actions().tolist() == [[0, 0, 1, 1]]


def fewest_guesses(pegs, colours, turns):
    """Smallest sum of guesses that breaks all codes within the turns, by branch and bound over all strategies."""
    table, win = feedback_table(pegs, colours).astype(int), pegs * (pegs + 1)
    n_codes, n_replies = len(table), len(np.unique(table)) - 1
    impossible = 10**6
    # At the start, guesses that use as many colours equally often are the same but for names.
    patterns = [tuple(np.sort(np.bincount(code, minlength=colours))) for code in all_codes(pegs, colours)]
    first_guesses = [patterns.index(pattern) for pattern in sorted(set(patterns))]

    @cache
    def bound(n):
        """A guess at most solves one code, and splits the rest among all other replies."""
        total, level, width = 0, 1, 1
        while n > 0:
            total, n, level, width = total + level * min(n, width), n - width, level + 1, width * n_replies
        return total

    @cache
    def fewest(possible, turns):
        n = len(possible)
        if turns == 0 or (turns == 1 and n > 1):
            return impossible
        if n <= 2:
            return 2 * n - 1
        replies = table[:, possible]
        counts = np.bincount(
            (np.arange(n_codes)[:, None] * (win + 1) + replies).ravel(), minlength=n_codes * (win + 1)
        ).reshape(n_codes, -1)[:, :win]
        bounds = n + np.array([bound(i) for i in range(n + 1)])[counts].sum(axis=1)
        best = impossible
        guesses = np.array(first_guesses) if n == n_codes else np.arange(n_codes)
        for guess in guesses[np.argsort(bounds[guesses], kind="stable")]:
            if bounds[guess] >= best:
                break
            if counts[guess].max() == n:
                continue
            parts = [
                tuple(c for c, r in zip(possible, replies[guess], strict=True) if r == reply) for reply in range(win)
            ]
            total = int(bounds[guess])
            for part in sorted(filter(None, parts), key=len):
                total += fewest(part, turns - 1) - bound(len(part))
                if total >= best:
                    break
            best = min(best, total)
        return best

    return fewest(tuple(range(n_codes)), turns)


@pytest.mark.parametrize(
    "size", [(3, 4), pytest.param((4, 4), marks=pytest.mark.slow)], ids=lambda size: f"{size[0]}x{size[1]}"
)
def test_fewest_guesses_are_those_of_an_exhaustive_search(size):
    total, worst_case = FEWEST_GUESSES[size]
    assert fewest_guesses(*size, worst_case) == total
    assert fewest_guesses(*size, worst_case + 1) == total
    assert fewest_guesses(*size, worst_case - 1) > total


def test_optimal_value_is_exact_or_none():
    assert Mastermind(level="hard").optimal_value() == pytest.approx(1 - 0.1 * (5625 / 1296 - 1) / 8)
    assert Mastermind(turns=4).optimal_value() == pytest.approx(1 - 0.1 * (206 / 64 - 1) / 4)
    assert Mastermind(turns=3).optimal_value() is None
    assert Mastermind(level="hard", colours=5).optimal_value() is None


# --- Words


def test_a_transcript():
    env = make_env([GREEN, RED, RED], turns=2)
    env.step([GREEN, BLUE, RED])
    env.step([GREEN, RED, RED])
    opening = (
        "Codemaker: My code has 3 pegs, each of them red, green, blue or yellow; a colour may occur more than once. "
        "You have 2 guesses. For each I tell how many pegs have the right colour in the right place (black), and how "
        "many more of its colours are in the code but in another place (white). Write for example: guess red green red"
    )
    assert env.render() == (
        f"{opening}\n"
        "Agent: guess green blue red\n"
        "Codemaker: 2 black, 0 white. 1 guess left.\n"
        "Agent: guess green red red\n"
        "Codemaker: 3 black, 0 white. You have broken the code in 2 turns.\n"
        "Reward: 0.95"
    )
    env = make_env([GREEN, RED, RED], turns=1)
    env.step([BLUE, RED, GREEN])
    assert env.render().endswith("1 black, 1 white. That was the last turn; the code was green red red.\nReward: 0.1")


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    "message",
    [
        "guess blue red green",
        "Blue, red, green!",
        "Red or blue may be right.\nAction: guess blue red green",
        "I guess that the first is blue, then red and green.",
    ],
)
def test_messages_name_the_colours_in_order(message, flat):
    task = make_env([0, 0, 0], flat=flat).task
    assert task.parse_action(0, message).tolist() == (33 if flat else [BLUE, RED, GREEN])


@pytest.mark.parametrize("message", ["guess red green", "guess red green blue red", "guess red green orange", "1 2 3"])
def test_messages_that_name_no_code(message):
    view = TextView(gym.make(ID))
    view.reset(seed=0)
    text, *_ = view.step(message)
    assert text == (
        "I do not understand that. Write guess and 3 colours; there are red, green, blue, yellow.\n"
        "Codemaker: That was no guess. 5 guesses left."
    )
    with pytest.raises(MessageError):
        view.task.parse_action(0, message)


# --- Arguments


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"level": "huge"}, "level must be one of 'easy', 'medium', 'hard', got 'huge'"),
        ({"pegs": 0}, "pegs must be an integer from 1 to 12, got 0"),
        ({"colours": 1}, "colours must be an integer from 2 to 8, got 1"),
        ({"colours": 9}, "colours must be an integer from 2 to 8, got 9"),
        ({"turns": 0}, "turns must be an integer from 1 to 1000, got 0"),
        ({"pegs": 5, "colours": 6}, r"the number of codes, must be at most 4096, got 6 \*\* 5 = 7776"),
    ],
)
def test_impossible_arguments_say_what_is_possible(kwargs, message):
    with pytest.raises(ValueError, match=message):
        gym.make(ID, **kwargs)


def test_levels_and_arguments():
    sizes = {level: gym.make(ID, level=level).observation_space.shape for level in LEVELS}
    assert sizes == {"easy": (126,), "medium": (189,), "hard": (280,)}
    env = gym.make(ID, level="hard", pegs=1, colours=2, turns=9, flat=True)
    assert (env.action_space.n, env.unwrapped.max_turns) == (2, 9)
    assert gym.make(ID, pegs=2, colours=5).action_space.nvec.tolist() == [5, 5]
