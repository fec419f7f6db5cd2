"""TwentyQuestions: rules and texts by hand, answers that err as often as said, the expert against exact optima."""

from functools import cache

import gymnasium as gym
import numpy as np
import pytest
from helpers.tasks import with_noise_of_their_own

from seeupo_gym.envs.task import HELD_OUT_SEED, NO_ACTION
from seeupo_gym.envs.tasks.twenty_questions import ATTRIBUTES, LEVELS, OBJECTS, TURN_COST, Level, TwentyQuestions

ENV_ID = "seeupo_gym/TwentyQuestions-v0"
FLY, SWIM, CLIMB, DIG, SING, GLOW, PEBBLE, CLOVER, BISCUIT, JUNIPER, MARBLE, NUTMEG = range(12)
# Easy, seed 0: which animals, from Pebble to Nutmeg, fly, swim, climb, dig, sing and glow. The secret is Biscuit.
TABLE = [
    *([1, 0, 0, 0, 1, 0], [0, 0, 0, 1, 1, 0], [0, 1, 1, 0, 1, 0]),
    *([0, 0, 0, 1, 1, 0], [1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 1, 0]),
]
each_level = pytest.mark.parametrize("level", LEVELS)


def make(level="easy", seed=0, **kwargs):
    env = gym.make(ENV_ID, level=level, **kwargs).unwrapped
    env.reset(seed=seed)
    return env


def started(n, level):
    task = TwentyQuestions(n, level)
    task.reset(np.arange(n))
    return task


# --- Rules by hand

EPISODES = {
    # actions, the reward at the end
    "a lucky guess": ([BISCUIT], 1.0),
    "an unlucky guess": ([PEBBLE], 0.0),
    "as the expert": ([CLIMB, FLY, SING, BISCUIT], 0.94),
    "an animal that the answers exclude": ([CLIMB, FLY, PEBBLE], -0.04),
    "no question costs as much as one": ([NO_ACTION, BISCUIT], 0.98),
    "named at the last turn": ([CLIMB] * 5 + [BISCUIT], 0.9),
    "never named": ([FLY, SWIM, CLIMB, DIG, SING, GLOW], -0.12),
    "silent": ([NO_ACTION] * 6, -0.12),
}


@pytest.mark.parametrize("name", EPISODES)
def test_episode(name):
    actions, final_reward = EPISODES[name]
    env = make()
    for i, action in enumerate(actions, start=1):
        _, reward, done, _, info = env.take(np.array(action), "")
        assert done == (i == len(actions))
        assert reward == pytest.approx(final_reward if done else 0.0)
    assert info == {"is_success": actions[-1] == BISCUIT}


def test_observation_entry_by_entry():
    env = gym.make(ENV_ID)
    obs, _ = env.reset(seed=0)
    table = np.ravel(TABLE).tolist()
    nothing = [0] * 6
    assert obs.tolist() == pytest.approx([*table, *nothing, *nothing, *[1 / 6] * 6, 1, 0, 0, 0, 0, 0])
    # Clover, Biscuit and Marble climb.
    obs, *_ = env.step(CLIMB)
    yes = [0, 0, 1 / 2, 0, 0, 0]
    assert obs.tolist() == pytest.approx([*table, *yes, *nothing, 0, 1 / 3, 1 / 3, 0, 1 / 3, 0, 0, 1, 0, 0, 0, 0])
    obs, *_ = env.step(SING)
    no = [0, 0, 0, 0, 1 / 2, 0]
    assert obs.tolist() == pytest.approx([*table, *yes, *no, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0])
    obs, *_ = env.step(CLIMB)
    yes = [0, 0, 2 / 3, 0, 0, 0]
    assert obs.tolist() == pytest.approx([*table, *yes, *no, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0])
    for _ in range(3):
        obs, *_ = env.step(GLOW)
    no = [0, 0, 0, 0, 1 / 2, 3 / 4]
    assert obs.tolist() == pytest.approx([*table, *yes, *no, 0, 0, 1, 0, 0, 0, *nothing])


def test_no_action_only_passes_the_turn():
    task = started(50, "hard")
    task.step(np.arange(50) % 16)
    before = task.observe()
    result = task.step(np.full(50, NO_ACTION))
    np.testing.assert_array_equal(task.observe()[:, :-20], before[:, :-20])
    assert (task.turns == 2).all()
    assert not result.dones.any()
    assert not result.rewards.any()


# --- Text


def test_transcript_reads_like_one():
    env = make(render_mode="ansi")
    for action in (CLIMB, SING, BISCUIT):
        env.step(action)
    opening = (
        "Keeper: I am thinking of one of our 6 animals. Here is what each of them does.\n"
        "Pebble: flies, sings\n"
        "Clover: climbs, sings\n"
        "Biscuit: climbs\n"
        "Juniper: swims, digs\n"
        "Marble: flies, swims, climbs, digs, sings, glows\n"
        "Nutmeg: sings\n"
        'Keeper: Ask "Does it fly?" (or swim, climb, dig, sing, glow), or name it once: "Is it Pebble?" '
        "You have 6 turns. The right name earns 1, a wrong one 0, less 0.02 for each other turn.\n"
    )
    assert env.render() == (
        f"{opening}"
        "Agent: Does it climb?\n"
        "Keeper: Yes, it climbs.\n"
        "Agent: Does it sing?\n"
        "Keeper: No, it does not sing.\n"
        "Agent: Is it Biscuit?\n"
        "Keeper: Yes, it is Biscuit!\n"
        "Reward: 0.96"
    )
    env.reset(seed=0)
    env.take(np.array(NO_ACTION), "Hello!")
    env.step(PEBBLE)
    assert env.render() == (
        f"{opening}"
        "Agent: Hello!\n"
        "Keeper: That was no question.\n"
        "Agent: Is it Pebble?\n"
        "Keeper: No, it is Biscuit.\n"
        "Reward: -0.02"
    )
    env.reset(seed=0)
    for _ in range(6):
        env.step(FLY)
    assert env.render().endswith(
        "Agent: Does it fly?\n"
        "Keeper: No, it does not fly.\n"
        "Keeper: That was your last turn. It is Biscuit.\n"
        "Reward: -0.12"
    )


def test_opening_tells_how_often_answers_are_wrong_and_who_does_nothing():
    text = make("medium").task.opening_text(0)
    assert "An answer is wrong with probability 0.1, so it can pay to ask again. You have 12 turns." in text
    assert "\nClover: nothing\nBiscuit: bites\n" in text


def test_there_are_names_for_all_of_the_largest_level():
    assert len(set(OBJECTS)) == len(OBJECTS) == LEVELS["hard"].n_objects
    assert len(set(ATTRIBUTES)) == len(ATTRIBUTES) == LEVELS["hard"].n_attributes


# --- Draws


@each_level
def test_tables_have_the_stated_frequencies_and_no_two_animals_are_alike(level):
    n = 4000
    task = started(n, level)
    codes = (task.table * 2 ** np.arange(task.level.n_attributes)[:, None]).sum(axis=1)
    assert all(len(set(row)) == task.level.n_objects for row in codes.tolist())
    # Alike animals are more frequent in tables with many rare attributes, so those are drawn again more often.
    frequency = 0.375 if task.level.rare else 0.5
    assert task.table.mean() == pytest.approx(frequency, abs=0.01)
    np.testing.assert_allclose(task.table.mean(axis=0), frequency, atol=0.04)
    np.testing.assert_allclose(np.bincount(task.secrets) / n, 1 / task.level.n_objects, atol=0.02)


def test_half_of_the_attributes_are_rare():
    # A binomial of 24 trials is at most 7 with probability 0.766 for 1/4 and 0.032 for 1/2.
    few = started(4000, "hard").table.sum(axis=2) <= 7
    assert few.mean() == pytest.approx((0.766 + 0.032) / 2, abs=0.01)


@each_level
def test_answers_are_wrong_as_often_as_said_and_anew_each_time(level):
    n = 20_000
    task = started(n, level)
    noise = task.level.noise
    rows = np.arange(n)
    attributes = rows % task.level.n_attributes
    truth = task.table[rows, attributes, task.secrets]
    wrong = []
    for _ in range(2):
        task.step(attributes)
        wrong.append(task.last_answers != truth)
        assert wrong[-1].mean() == pytest.approx(noise, abs=0.01)
    assert (wrong[0] & wrong[1]).mean() == pytest.approx(noise**2, abs=0.006)
    assert wrong[0][truth].mean() == pytest.approx(wrong[0][~truth].mean(), abs=0.02)


def test_wrong_answers_follow_the_noise_seeds_and_everything_else_the_task_seeds():
    def first_answers(task):
        assert (task.secrets == task.secrets[0]).all()
        task.step(np.zeros(task.n_lanes, dtype=np.int64))
        return task.last_answers.copy()

    own = with_noise_of_their_own(TwentyQuestions(1000, "hard"), first_answers)
    assert min(own.mean(), 1 - own.mean()) == pytest.approx(0.15, abs=0.04)


@each_level
def test_the_secret_is_hidden(level):
    task = started(100, level)
    for _ in range(3):
        seen, plan = task.observe(), task.expert_actions()
        secrets = task.secrets.copy()
        task.secrets = (secrets + 1) % task.level.n_objects
        np.testing.assert_array_equal(task.observe(), seen)
        np.testing.assert_array_equal(task.expert_actions(), plan)
        task.secrets = secrets
        task.step(task.turns % task.level.n_attributes)


# --- Probabilities and the expert


def played(level, n, turns):
    """A task after random questions, and what was asked and answered: lists of arrays over the lanes."""
    task, rng, history = started(n, level), np.random.default_rng(0), []
    for _ in range(turns):
        attributes = rng.integers(task.level.n_attributes, size=n)
        task.step(attributes)
        history.append((attributes, task.last_answers.copy()))
    return task, history


@each_level
def test_probabilities_follow_from_bayes_rule(level):
    task, history = played(level, 200, 4)
    for lane in range(200):
        likelihood = np.ones(task.level.n_objects)
        for attributes, answers in history:
            right = task.table[lane, attributes[lane]] == answers[lane]
            likelihood *= np.where(right, 1 - task.level.noise, task.level.noise)
        np.testing.assert_allclose(task.posterior()[lane], likelihood / likelihood.sum(), atol=1e-12)


def test_probabilities_are_calibrated():
    task, _ = played("hard", 20_000, 10)
    probability = task.posterior()[np.arange(20_000), task.posterior().argmax(axis=1)]
    right = task.posterior().argmax(axis=1) == task.secrets
    for low, high in ((0.3, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.0)):
        inside = (probability >= low) & (probability < high)
        assert right[inside].mean() == pytest.approx(probability[inside].mean(), abs=0.025)


@each_level
@pytest.mark.parametrize("turns", [0, 3])
def test_the_expert_asks_a_question_of_the_largest_information(level, turns):
    def entropy(p):
        return -sum(np.where(q > 0, q * np.log2(np.maximum(q, 1e-300)), 0.0) for q in (p, 1 - p))

    task, _ = played(level, 300, turns)
    noise, actions = task.level.noise, task.expert_actions()
    yes = (np.where(task.table, 1 - noise, noise) * task.posterior()[:, None]).sum(axis=2)
    information = entropy(yes) - entropy(np.array(noise))
    asks = np.flatnonzero(actions < task.level.n_attributes)
    assert asks.size > 50
    np.testing.assert_allclose(information[asks, actions[asks]], information[asks].max(axis=1), atol=1e-9)


@each_level
def test_the_expert_names_the_most_probable_animal_at_the_last_turn(level):
    task, _ = played(level, 300, LEVELS[level].max_turns - 1)
    names = task.expert_actions() - task.level.n_attributes
    np.testing.assert_array_equal(names, task.posterior().argmax(axis=1))


def exact_values(task):
    """The values of optimal play and of the expert's in the table of lane 0, by dynamic programming."""
    level, table = task.level, task.table[0]

    @cache
    def values(turn, contradictions):
        if turn == level.max_turns:
            return np.full(2, -TURN_COST * turn)
        task.turns[0], task.contradictions[0] = turn, contradictions
        action = int(task.expert_actions()[0])
        likelihood = np.array([level.noise**c * (1 - level.noise) ** (turn - c) for c in contradictions])
        posterior = likelihood / likelihood.sum()
        options = [posterior.max() - TURN_COST * turn]
        for attribute, has in enumerate(table):
            total = np.zeros(2)
            for answer in (False, True):
                probability = posterior @ np.where(has == answer, 1 - level.noise, level.noise)
                if probability > 0:
                    # Without noise one contradiction is as good as many.
                    later = np.minimum(contradictions + (has != answer), level.max_turns if level.noise else 1)
                    total += probability * values(turn + 1, tuple(later.tolist()))
            options.append(total[0])
            if action == attribute:
                expert = total[1]
        if action >= level.n_attributes:
            expert = posterior[action - level.n_attributes] - TURN_COST * turn
        return np.array([max(options), expert])

    return values(0, (0,) * level.n_objects)


SOLVED = {
    # level, how much the expert loses at most: in the mean, in any table
    "easy": (LEVELS["easy"], 1e-4, 0.005),
    "small with noise": (Level(n_objects=4, n_attributes=3, max_turns=6, noise=0.15, rare=True), 0.01, 0.015),
}


@pytest.mark.parametrize("name", SOLVED)
def test_the_expert_is_close_to_the_exact_optimum(monkeypatch, name):
    level, mean_loss, largest_loss = SOLVED[name]
    monkeypatch.setitem(LEVELS, "solved", level)
    task = TwentyQuestions(1, "solved")
    losses = []
    for seed in range(HELD_OUT_SEED, HELD_OUT_SEED + 20):
        task.reset(np.array([seed]))
        optimum, expert = exact_values(task)
        losses.append(optimum - expert)
    assert min(losses) > -1e-12
    assert np.mean(losses) < mean_loss
    assert max(losses) < largest_loss


# --- Levels and arguments


@pytest.mark.parametrize(
    ("level", "n_actions", "size", "max_turns"), [("easy", 12, 60, 6), ("medium", 22, 164, 12), ("hard", 40, 460, 20)]
)
def test_levels_differ_in_size(level, n_actions, size, max_turns):
    env = make(level)
    assert (env.action_space.n, env.observation_space.shape, env.max_turns) == (n_actions, (size,), max_turns)


def test_impossible_arguments_say_what_is_possible():
    with pytest.raises(ValueError, match="level must be one of 'easy', 'medium', 'hard', got 'huge'"):
        TwentyQuestions(1, "huge")
    with pytest.raises(ValueError, match="n_lanes must be an integer of at least 1, got 0"):
        TwentyQuestions(0)
