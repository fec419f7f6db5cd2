"""WebNav's site: its plan, and what is drawn."""

import gymnasium as gym
import numpy as np
import pytest
from helpers.web_nav import ADD, BACK, CART_LINK, CHECKOUT_BUTTON, HOME_LINK, ID, fits_all, make_task

from seeupo_gym.envs.tasks.web_nav_dynamics import WebNav
from seeupo_gym.envs.tasks.web_nav_site import (
    ATTRIBUTES,
    AVAILABLE,
    CART,
    CATEGORIES,
    CHECKOUT,
    DELIVERIES,
    HELP,
    HOME,
    LEVELS,
    LIST,
    MEETS,
    MODELS,
    NONE,
    PRODUCT,
    SIZES,
    Site,
)


def in_wanted_category(task):
    return task.shop.categories[:, task.site.product_shelf] == task.goals[:, :1]


# --- The site


def test_the_plan_of_the_easy_site():
    site = Site(LEVELS["easy"])
    assert site.kind.tolist() == [HOME, HELP, CART, CHECKOUT] + [LIST] * 3 + [PRODUCT] * 9
    assert (site.n_slots, site.back, site.home, site.cart) == (4, BACK, HOME_LINK, CART_LINK)
    assert site.targets[HOME, :4].tolist() == [4, 5, 6, HELP]
    assert site.targets[4:7, :3].tolist() == [[7, 8, 9], [10, 11, 12], [13, 14, 15]]
    assert (site.targets[7:, ADD] == CART).all()
    assert site.targets[CART, CHECKOUT_BUTTON] == CHECKOUT


def test_lists_of_several_pages_are_linked_to_and_fro():
    site = Site(LEVELS["hard"])
    assert site.n_slots == 7
    assert (site.next, site.previous) == (5, 6)
    first, second, third = 4, 5, 6
    assert site.targets[[first, second], site.next].tolist() == [second, third]
    assert site.targets[[third, second], site.previous].tolist() == [second, first]
    # No way on from the last page of a list, nor back from the first one of the next.
    task = make_task(1, "hard")
    for page, valid in ((first, [True, False]), (second, [True, True]), (third, [False, True]), (7, [True, False])):
        task.page[:] = page
        assert task.action_masks()[0, [site.next, site.previous]].tolist() == valid
    assert site.list_page[[first, second, third, 7]].tolist() == [0, 1, 2, 0]
    assert site.targets[third, :5].tolist() == [site.first_product + i for i in range(10, 15)]


def test_there_is_a_name_for_everything():
    for level in LEVELS.values():
        assert level.n_categories <= len(CATEGORIES)
        assert level.n_attributes <= len(ATTRIBUTES)
        assert all(level.n_values <= len(set(values)) for values in ATTRIBUTES)
        assert level.n_sizes <= len(SIZES)
        assert level.n_deliveries <= len(DELIVERIES)
        assert level.n_pages * level.page_size <= len(set(MODELS)) == len(MODELS)


def test_unknown_level():
    with pytest.raises(ValueError, match="level must be one of 'easy', 'medium', 'hard', got 'huge'"):
        gym.make(ID, level="huge")
    with pytest.raises(ValueError, match="n_lanes must be an integer of at least 1, got 0"):
        WebNav(0)


# --- What is drawn


@pytest.mark.parametrize("level", LEVELS)
def test_one_product_of_the_category_meets_everything(level):
    n = 3000
    task = make_task(n, level, np.arange(n))
    right = fits_all(task) & in_wanted_category(task)
    assert (right.sum(axis=1) == 1).all()
    length = task.site.list_length
    place = right.argmax(axis=1) % length
    np.testing.assert_allclose(np.bincount(place, minlength=length) / n, 1 / length, atol=0.03)


@pytest.mark.parametrize("level", LEVELS)
def test_other_products_meet_each_requirement_as_often_as_said(level):
    n = 3000
    task = make_task(n, level, np.arange(n))
    other = ~in_wanted_category(task)
    shop, goals = task.shop, task.goals
    share = MEETS / 256
    for i in range(task.level.n_attributes):
        values = shop.attributes[..., i]
        assert (values == goals[:, None, 1 + i])[other].mean() == pytest.approx(share, abs=0.01)
        offset = (values - goals[:, None, 1 + i])[other] % task.level.n_values
        wrong = np.bincount(offset, minlength=task.level.n_values)[1:]
        np.testing.assert_allclose(wrong / wrong.sum(), 1 / (task.level.n_values - 1), atol=0.02)
    relative = shop.prices / task.budgets[:, None]
    assert (relative <= 1)[other].mean() == pytest.approx(share, abs=0.01)
    assert relative.min() >= 0.5
    assert 1.7 < relative.max() <= 1.8
    assert not ((relative > 1) & (relative < 1.125)).any()
    is_wanted = np.arange(task.level.n_sizes) == goals[:, None, -2:-1]
    available = shop.available[other]
    is_wanted = np.broadcast_to(is_wanted, shop.available.shape)[other]
    assert available[is_wanted].mean() == pytest.approx(share, abs=0.01)
    assert available[~is_wanted].mean() == pytest.approx(AVAILABLE / 256, abs=0.01)
    # Independently, so that some products look right but for the category.
    joint = share ** (task.level.n_attributes + 2)
    assert fits_all(task)[other].mean() == pytest.approx(joint, abs=0.02)


@pytest.mark.parametrize("level", LEVELS)
def test_rivals_of_the_right_product_get_one_flaw_of_any_kind(level):
    """Of all but one met, there are more than independent draws would give, as many of each requirement."""
    n = 3000
    task = make_task(n, level, np.arange(n))
    shop, goals, n_required = task.shop, task.goals, task.level.n_attributes + 2
    met = np.concatenate(
        [
            shop.attributes == goals[:, None, 1:-2],
            (shop.prices <= task.budgets[:, None])[..., None],
            np.take_along_axis(shop.available, goals[:, None, -2:-1], axis=2),
        ],
        axis=2,
    )
    one_short = met[in_wanted_category(task)]
    one_short = one_short[one_short.sum(axis=1) == n_required - 1]
    p, n_others = MEETS / 256, n * (task.site.list_length - 1)
    expected = n_others * (p**n_required + n_required * p ** (n_required - 1) * (1 - p))
    assert len(one_short) == pytest.approx(expected, rel=0.05)
    np.testing.assert_allclose((~one_short).mean(axis=0), 1 / n_required, atol=0.02)


def test_goals_and_the_order_of_the_categories_are_uniform():
    n = 6000
    task = make_task(n, "hard", np.arange(n))
    for i, limit in enumerate([5, 4, 4, 4, 4, 3]):
        np.testing.assert_allclose(np.bincount(task.goals[:, i]) / n, 1 / limit, atol=0.025)
    assert sorted(set(task.budgets)) == [40, 60, 80, 100, 120]
    assert (np.sort(task.shop.categories, axis=1) == np.arange(5)).all()
    for shelf in range(5):
        np.testing.assert_allclose(np.bincount(task.shop.categories[:, shelf]) / n, 0.2, atol=0.025)


def test_an_item_from_earlier_is_never_right():
    n = 4000
    for level in LEVELS:
        task = make_task(n, level, np.arange(n))
        left = task.cart_product != NONE
        assert left.mean() == pytest.approx(LEVELS[level].leftover, abs=0.03)
        assert (task.cart_size[left] != task.goals[left, -2]).all()
    assert len(set(task.cart_product[left])) == task.site.n_products
    assert set(task.cart_size[left]) == {0, 1, 2, 3}
