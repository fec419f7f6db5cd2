"""Sites of the task WebNav, and clicks on them."""

import numpy as np

from seeupo_gym.envs.tasks.web_nav_dynamics import WebNav

ID = "seeupo_gym/WebNav-v0"
# The actions at level easy: four slots and the menu.
ADD = ORDER = 2
CHECKOUT_BUTTON, REMOVE = 1, 0
HELP_LINK, BACK, HOME_LINK, CART_LINK = 3, 4, 5, 6
# Easy, seed 0: a wool jacket in size S for at most EUR 80, with standard delivery.
#   jackets (link 0): cotton, 127, S | wool, 40, sold out | wool, 72, S and M
#   coats (link 1): wool, 101, M | wool, 109, S and M | wool, 63, M
#   shirts (link 2): cotton, 142, sold out | wool, 62, M | cotton, 63, S and M
TO_RIGHT_PRODUCT = [0, 2]


def make_task(n=1, level="easy", seeds=None, noise_seeds=None):
    task = WebNav(n, level)
    task.reset(np.zeros(n, dtype=np.int64) if seeds is None else seeds, noise_seeds)
    return task


def click(task, *actions):
    """Click in all lanes; the last result."""
    for action in actions:
        result = task.step(np.full(task.n_lanes, action))
    return result


def fits_all(task):
    """Which products meet all requirements but the category, shape (lanes, products)."""
    goals, shop = task.goals, task.shop
    right = (shop.attributes == goals[:, None, 1:-2]).all(axis=2) & (shop.prices <= task.budgets[:, None])
    return right & np.take_along_axis(shop.available, goals[:, None, -2:-1], axis=2)[..., 0]
