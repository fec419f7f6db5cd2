"""WebNav: episodes computed by hand, what is seen, pages that do not load, and the expert."""

import gymnasium as gym
import numpy as np
import pytest
from helpers.tasks import play, with_noise_of_their_own
from helpers.web_nav import (
    ADD,
    BACK,
    CART_LINK,
    CHECKOUT_BUTTON,
    HELP_LINK,
    HOME_LINK,
    ID,
    ORDER,
    REMOVE,
    TO_RIGHT_PRODUCT,
    click,
    fits_all,
    make_task,
)

from seeupo_gym.envs.task import HELD_OUT_SEED, NO_ACTION
from seeupo_gym.envs.tasks.web_nav_dynamics import NOT_LOADED, OK, PARTIAL_CREDIT, REFUSED, WebNav
from seeupo_gym.envs.tasks.web_nav_site import (
    CART,
    CHECKOUT,
    HELP,
    HOME,
    LEVELS,
    LIST,
    NONE,
    PRODUCT,
)

# --- Episodes by hand

EPISODES = {
    # actions, the reward at the end: 0.5 / 5 for each requirement met, or 1
    "right": ([*TO_RIGHT_PRODUCT, 0, ADD, CHECKOUT_BUTTON, ORDER], 1.0),
    "the other size": ([*TO_RIGHT_PRODUCT, 1, ADD, CHECKOUT_BUTTON, ORDER], 0.4),
    "the other delivery": ([*TO_RIGHT_PRODUCT, 0, ADD, CHECKOUT_BUTTON, 1, ORDER], 0.4),
    "choices can be changed": ([*TO_RIGHT_PRODUCT, 1, 0, ADD, CHECKOUT_BUTTON, 1, 0, ORDER], 1.0),
    "too dear, of cotton": ([0, 0, 0, ADD, CHECKOUT_BUTTON, ORDER], 0.3),
    "a coat in the other size": ([1, 2, 1, ADD, CHECKOUT_BUTTON, ORDER], 0.3),
    "a coat, too dear": ([1, 1, 0, ADD, CHECKOUT_BUTTON, ORDER], 0.3),
    "just cheap": ([2, 2, 1, ADD, CHECKOUT_BUTTON, 1, ORDER], 0.1),
    "removed from the cart": (
        [*TO_RIGHT_PRODUCT, 1, ADD, REMOVE, BACK, 0, ADD, CHECKOUT_BUTTON, ORDER],
        1.0,
    ),
    "a detour": (
        [HELP_LINK, BACK, 2, HOME_LINK, 0, 1, BACK, 2, 0, ADD, HOME_LINK, CART_LINK, CHECKOUT_BUTTON, ORDER],
        1.0,
    ),
    "the delivery chosen is lost": (
        [*TO_RIGHT_PRODUCT, 0, ADD, CHECKOUT_BUTTON, 1, CART_LINK, CHECKOUT_BUTTON, ORDER],
        1.0,
    ),
    "never ordered": ([*TO_RIGHT_PRODUCT, 0, ADD] + [HOME_LINK, CART_LINK] * 8, 0.0),
}


@pytest.mark.parametrize("name", EPISODES)
def test_episode(name):
    actions, final_reward = EPISODES[name]
    env = gym.make(ID).unwrapped
    env.reset(seed=0)
    for i, action in enumerate(actions, start=1):
        assert env.action_masks()[action]
        _, reward, done, _, info = env.step(action)
        assert env.task.status[0] == OK
        assert done == (i == len(actions))
        assert reward == pytest.approx(final_reward if done else 0.0)
    assert info == {"is_success": final_reward == 1.0}


def test_masks_on_the_way():
    task = make_task()

    def valid():
        return np.flatnonzero(task.action_masks()[0]).tolist()

    assert valid() == [0, 1, 2, HELP_LINK]
    click(task, 0)
    assert valid() == [0, 1, 2, BACK, HOME_LINK]
    click(task, 1)
    assert valid() == [BACK, HOME_LINK]  # sold out
    click(task, BACK, 2)
    assert valid() == [0, 1, BACK, HOME_LINK]
    click(task, 0)
    assert valid() == [0, 1, ADD, BACK, HOME_LINK]
    click(task, ADD)
    assert valid() == [REMOVE, CHECKOUT_BUTTON, BACK, HOME_LINK]
    click(task, CHECKOUT_BUTTON)
    assert valid() == [0, 1, ORDER, BACK, HOME_LINK, CART_LINK]
    click(task, CART_LINK, REMOVE)
    assert valid() == [BACK, HOME_LINK]
    click(task, BACK)  # a checkout of nothing
    assert task.page[0] == CHECKOUT
    assert valid() == [0, 1, BACK, HOME_LINK]


@pytest.mark.parametrize("action", [NO_ACTION, HELP_LINK, ADD, CART_LINK])
def test_a_refused_click_costs_the_turn_and_changes_nothing_else(action):
    task = make_task()
    click(task, *TO_RIGHT_PRODUCT)
    before = task.observe()
    result = click(task, action)
    assert task.refused.tolist() == [True]
    assert task.status.tolist() == [REFUSED]
    assert not result.dones[0]
    after = task.observe()
    for name, columns in task.columns.items():
        assert np.array_equal(before[:, columns], after[:, columns]) == (name not in ("status", "turn"))
    assert task.turns.tolist() == [3]
    click(task, 0)
    assert task.refused.tolist() == [False]


def test_back_leads_through_the_history_as_in_a_browser():
    task = make_task()
    right_product = task.site.first_product + 2
    click(task, *TO_RIGHT_PRODUCT, 0, HOME_LINK)
    seen = []
    while task.action_masks()[0, BACK]:
        click(task, BACK)
        seen.append(int(task.page[0]))
    assert seen == [right_product, task.site.first_list, HOME]
    click(task, *TO_RIGHT_PRODUCT)
    assert task.chosen[0] == NONE
    assert not task.action_masks()[0, ADD]


# --- What is seen


def test_observation_entry_by_entry():
    task = make_task()
    goal = [1, 0, 0, 1, 0, 0, 1, 0, 1, 0]
    home, list_, product, cart, checkout = np.eye(6)[[HOME, LIST, PRODUCT, CART, CHECKOUT]].tolist()
    no_kind, no_category, no_product, no_item = [0] * 6, [0] * 3, [0] * 7, [0] * 9
    no_list = no_product * 3
    links = [1, 0, 0, 0, 0, 1, 0, 1, 0]  # jackets, coats, shirts
    no_links = [0] * 9
    jacket, nothing, done = [1, 0, 0], [0, 0], [1, 0, 0]

    def check(*parts):
        expected = np.concatenate(parts).astype(np.float32)
        np.testing.assert_array_equal(task.observe(), expected[None])

    rest = [no_list, no_product, nothing, [0], no_item]
    check(goal, home, [0], no_kind, links, no_category, *rest, [0, 0, 0], [0])
    click(task, 0)
    # Material, price / 160, opened, sizes.
    first, second, third = [0, 0, 1, 127 / 160, 0, 0, 0], [1, 0, 0, 40 / 160, 0, 0, 0], [1, 0, 0, 72 / 160, 0, 0, 0]
    rest = [no_product, nothing, [0], no_item, done]
    check(goal, list_, [1], home, no_links, jacket, first, second, third, *rest, [1 / 20])
    click(task, 2)
    opened = [1, 0, 0, 72 / 160, 1, 1, 1]
    check(goal, product, [0], list_, no_links, jacket, no_list, opened, nothing, [0], no_item, done, [2 / 20])
    click(task, 1)
    check(goal, product, [0], list_, no_links, jacket, no_list, opened, [0, 1], [0], no_item, done, [3 / 20])
    click(task, BACK)
    check(goal, list_, [1], home, no_links, jacket, first, second, opened, *rest, [4 / 20])
    click(task, 2, 1, ADD)
    item = [1, 0, 0, 1, 0, 0, 72 / 160, 0, 1]
    rest = [no_list, no_product]
    check(goal, cart, [0], product, no_links, no_category, *rest, nothing, [1], item, done, [7 / 20])
    click(task, CHECKOUT_BUTTON)
    check(goal, checkout, [0], cart, no_links, no_category, *rest, [1, 0], [1], item, done, [8 / 20])
    click(task, HELP_LINK)
    check(goal, checkout, [0], cart, no_links, no_category, *rest, [1, 0], [1], item, [0, 0, 1], [9 / 20])
    click(task, CART_LINK, REMOVE)
    check(goal, cart, [0], checkout, no_links, no_category, *rest, nothing, [0], no_item, done, [11 / 20])


@pytest.mark.parametrize(("level", "size"), [("easy", 79), ("medium", 127), ("hard", 208)])
def test_sizes(level, size):
    task = WebNav(1, level)
    assert task.observation_space.shape == (size,)
    assert task.action_space.n == {"easy": 7, "medium": 9, "hard": 10}[level]


def test_what_has_not_been_shown_is_hidden_from_agent_and_expert():
    """On lists of the hard level: whatever the products that were not opened hide, all looks the same."""
    n = 200
    task, changed = make_task(n, "hard", np.arange(n)), make_task(n, "hard", np.arange(n))
    for t in (task, changed):
        for _ in range(12):
            t.step(t.expert_actions())
    lanes = np.flatnonzero(task.site.kind[task.page] == LIST)
    assert len(lanes) > 20
    opened = task.shown[..., task.shop.opened_column] > 0
    assert opened[lanes].any()
    shop = changed.shop
    shop.attributes[~opened, 1:] = (shop.attributes[~opened, 1:] + 1) % 4
    shop.available[~opened] ^= True
    shop.features[~opened, 4:12] = 1 - shop.features[~opened, 4:12]
    shop.features[~opened, -4:] = 1 - shop.features[~opened, -4:]
    np.testing.assert_array_equal(task.observe(lanes), changed.observe(lanes))
    np.testing.assert_array_equal(task.expert_actions(lanes), changed.expert_actions(lanes))
    np.testing.assert_array_equal(task.action_masks(lanes), changed.action_masks(lanes))
    assert task.opening_text(lanes[0]) == changed.opening_text(lanes[0]), "which ends with the page"


def test_a_list_shows_more_once_a_product_was_opened():
    task = make_task(1, "hard", np.array([5]))
    task.cart_product[:] = NONE
    site, shop = task.site, task.shop
    row = task.columns["list"].start + np.arange(shop.n_features)
    while task.site.kind[task.page[0]] != LIST:
        click(task, 0)
    product = int(site.first_listed[task.page[0]])
    before = task.observe()[0, row]
    assert (before[4:12] == 0).all()
    assert (before[shop.opened_column :] == 0).all()
    assert before[shop.attributes[0, product, 0]] == 1
    while task.site.kind[task.page[0]] != PRODUCT:
        click(task, 0)
    while task.site.kind[task.page[0]] != LIST:
        click(task, site.back)
    np.testing.assert_array_equal(task.observe()[0, row], shop.features[0, product])
    assert before.sum() < shop.features[0, product].sum()


def test_an_item_from_earlier_is_in_the_way_and_unknown_until_the_cart_was_looked_at():
    task = make_task(200, "hard", np.arange(200))
    left, site = task.cart_product != NONE, task.site
    lanes, item = np.flatnonzero(left), task.columns["item"]
    assert (task.observe()[:, task.columns["cart"].start] == left).all()
    assert (task.observe()[:, item] == 0).all()
    for action, page in ((site.cart, CART), (site.to_checkout, CHECKOUT)):
        task.step(np.full(len(lanes), action), lanes)
        lanes = lanes[task.page[lanes] == page]  # the page may not have loaded
    assert len(lanes) > 50
    assert (task.observe(lanes)[:, item].sum(axis=1) > 5).all()  # category, three attributes, size, and the price
    result = task.step(np.full(len(lanes), site.order), lanes)
    assert not result.successes.any()
    paid = result.rewards[result.dones]
    assert (paid < PARTIAL_CREDIT).all()
    assert paid.mean() > 0.2
    # Nothing can be added to a full cart.
    task = make_task(200, "hard", np.arange(200))
    task.page[:], task.chosen[:] = site.first_product, 0
    np.testing.assert_array_equal(task.action_masks()[:, site.add], ~left)


# --- Pages that do not load


@pytest.mark.parametrize("level", LEVELS)
def test_pages_do_not_load_as_often_as_said_and_then_nothing_changes(level):
    n = 20_000
    task = make_task(n, level, np.arange(n))
    click(task, task.site.help)
    failed = task.status == NOT_LOADED
    assert failed.mean() == pytest.approx(LEVELS[level].failure, abs=0.01)
    assert not task.refused.any()
    np.testing.assert_array_equal(task.page, np.where(failed, HOME, HELP))
    assert (task.depth == ~failed).all()


def test_adding_removing_and_ordering_fail_as_well_but_choices_never_do():
    n = 5000
    task = make_task(n, "hard")  # one shop for all
    task.cart_product[:] = NONE
    task.noise_seeds[:] = np.arange(n)
    site = task.site
    product = int(np.flatnonzero(fits_all(task)[0])[0])
    size = int(task.goals[0, -2])
    task.page[:] = site.first_product + product
    task.depth[:] = 1
    click(task, size)
    assert (task.status == OK).all()
    assert (task.chosen == size).all()
    click(task, site.add)
    failed = task.status == NOT_LOADED
    assert failed.mean() == pytest.approx(0.1, abs=0.015)
    np.testing.assert_array_equal(task.cart_product, np.where(failed, NONE, product))
    assert (task.chosen[failed] == size).all()
    lanes = np.flatnonzero(~failed)
    task.step(np.full(len(lanes), site.remove), lanes)
    np.testing.assert_array_equal(task.cart_product[lanes] == product, task.status[lanes] == NOT_LOADED)
    assert (task.page[lanes] == CART).all()
    task.cart_product[:] = product
    task.page[:] = CHECKOUT
    click(task, 1)
    assert (task.status == OK).all()
    result = click(task, site.order)
    np.testing.assert_array_equal(result.dones, task.status == OK)
    assert (result.rewards[~result.dones] == 0).all()
    assert (~result.dones).mean() == pytest.approx(0.1, abs=0.015)


def test_failures_follow_the_noise_seeds_and_everything_else_the_task_seeds():
    def statuses(task):
        task.step(task.expert_actions())
        return task.status.copy()

    own = with_noise_of_their_own(WebNav(1000, "hard"), statuses)
    assert (own == NOT_LOADED).mean() == pytest.approx(0.1, abs=0.03)


# --- The expert


def valid_expert(task, lanes):
    actions = task.expert_actions(lanes)
    assert task.action_masks(lanes)[np.arange(len(lanes)), actions].all()
    return actions


def fewest_clicks(seed):
    """Brute force at level easy: the length of the shortest episode with reward 1, for one who knows everything."""
    paths = np.zeros((1, 0), dtype=np.int64)
    n_actions, known = WebNav().action_space.n, set()
    while True:
        paths = np.concatenate([paths.repeat(n_actions, axis=0), np.tile(np.arange(n_actions), len(paths))[:, None]], 1)
        task = make_task(len(paths), seeds=np.full(len(paths), seed))
        for actions in paths.T:
            result = task.step(actions)
        if result.successes.any():
            return paths.shape[1]
        new = []
        state = np.stack([task.page, task.chosen, task.cart_product, task.cart_size], axis=1)
        for i in np.flatnonzero(~result.dones & ~task.refused):
            if tuple(state[i]) not in known:
                known.add(tuple(state[i]))
                new.append(i)
        paths = paths[new]


def test_the_expert_always_succeeds_at_level_easy():
    task = make_task(5000, seeds=HELD_OUT_SEED + np.arange(5000))
    assert (play(task, valid_expert)[0] == 1).all()
    assert task.turns.max() == 11  # two wrong products opened, and a delivery chosen
    assert WebNav().optimal_value() == 1.0
    assert WebNav(level="hard").optimal_value() is None


@pytest.mark.parametrize("level", ["medium", "hard"])
def test_the_expert_nearly_always_succeeds_at_the_other_levels(level):
    returns, _ = play(make_task(2000, level, HELD_OUT_SEED + np.arange(2000)), valid_expert)
    assert 0.995 < returns.mean() <= 1


def test_the_expert_takes_no_more_clicks_than_it_needs_to_find_out():
    """As many as the shortest way, and two for each product that looked right in the list but was not."""
    seeds = np.arange(25)
    task = make_task(len(seeds), seeds=seeds)
    play(task, valid_expert)
    n_wrong = (task.shown[..., task.shop.opened_column] > 0).sum(axis=1) - 1
    assert set(n_wrong) >= {0, 1}
    shortest = np.array([fewest_clicks(seed) for seed in seeds])
    assert set(shortest) == {6, 7}
    np.testing.assert_array_equal(task.turns, shortest + 2 * n_wrong)


def test_the_expert_finds_back_from_anywhere():
    """After ten random clicks and the wrong things in the cart."""
    n = 2000
    task = make_task(n, seeds=np.arange(n))
    task.max_turns = 40  # enough to find back in any case
    task.history = np.zeros((n, 40), dtype=np.int64)
    rng = np.random.default_rng(0)
    live = np.arange(n)
    for _ in range(10):
        masks = task.action_masks(live)
        result = task.step((rng.random(masks.shape) * masks).argmax(axis=1), live)
        live = live[~result.dones]
    assert len(live) > 1500
    assert (task.cart_product[live] != NONE).any()
    while live.size:
        result = task.step(task.expert_actions(live), live)
        assert (result.successes == result.dones).all()
        live = live[~result.dones]
