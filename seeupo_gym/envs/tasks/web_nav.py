"""WebNav: order the product that a user describes in a web shop, by clicking on what its pages show."""

from __future__ import annotations

from functools import partial

from seeupo_gym.envs.task import MaskedTaskEnv
from seeupo_gym.envs.tasks.web_nav_dynamics import WebNav


class WebNavEnv(MaskedTaskEnv):
    """
    ## Description
    A user wants one product of a web shop: of a category, with given attributes, in a size, for at most some price,
    with one way of delivery. The agent sees one page at a time and clicks on its elements, as a person would: the
    home page links to a list of products for each category and to a help page that leads nowhere, the lists link to
    the products, a product is put into the cart in one of its sizes, and the checkout takes the delivery and places
    the order.

    Which category is behind which link, the products and the goal are drawn anew for each episode. Every product of
    the shop, of whatever category, meets each of these requirements with probability 179/256 (about 0.7): each
    attribute, the price, being available in the wanted size. Exactly one product of the wanted category meets all of
    them; any other one that would is given one flaw. The highest price is EUR 40, 60, 80, 100 or 120; prices are 50% to
    100% of it, or 115% to 180% where they do not meet it. Each other size is available with probability 1/2. A list
    shows only the material (the first attribute) and the price, so the colour, the pattern and the sizes have to be
    looked up on the products' pages.

    | level | categories | products each | attributes | sizes, deliveries | clicks | not loaded | item in the cart |
    | --- | --- | --- | --- | --- | --- | --- | --- |
    | easy | 3 | 3 | material, of 3 values | 2, 2 | 20 | none | none |
    | medium | 4 | 8 on 2 pages | material and colour, of 3 values | 3, 3 | 24 | 5% | none |
    | hard | 5 | 15 on 3 pages | material, colour and pattern, of 4 values | 4, 3 | 36 | 10% | in 50% of episodes |

    The cart holds one item. Where one is in it from earlier, it is never of the wanted size, and has to be
    removed before another one can be added. Ordering it is a short way to a partial reward.

    ## Action Space
    ``Discrete(slots + 3)``, with 4 (easy), 6 (medium) or 7 (hard) slots: the elements of the page in their order, then
    "Back", "Home" and "Cart". The slots are

    - home: the categories, "Help"
    - list: its products, then, where there are several pages, "Next page" and "Previous page"
    - product: its sizes, "Add to cart", which loads the cart
    - cart: "Remove", which empties the cart, and "Checkout"
    - checkout: the ways of delivery, of which the first is preset, and "Place order"
    - help: none

    Pages are left as in a browser: "Back" loads the page from which the present one was reached, and a choice of
    size or delivery is lost.

    ``action_masks()`` tells which clicks are accepted: not slots without an element, sizes that are not available,
    "Add to cart" before a size is chosen or with an item in the cart, "Remove", "Checkout", "Place order" and "Cart"
    without one, "Back" at the first page, and "Home" and "Cart" on their own pages. Other clicks cost the turn.

    A click that is accepted and is not a choice of size or delivery fails with the probability of the level: the page
    does not load, and nothing else happens.

    ## Observation Space
    ``Box(0, 1, (d,))``, what the pages have shown. With features of a product meaning its attributes (one-hot each),
    its price divided by twice the highest price wanted, 1 if its page has been opened, and for each size whether it is
    available, in this order:

    - the goal: category, attributes, size, delivery (one-hot each)
    - the kind of the page (one-hot: home, help, cart, checkout, list, product), and the number of the page within its
      list (one-hot, zeros on other pages)
    - the kind of the page that "Back" leads to (one-hot, zeros at the first page)
    - on the home page, the category of each link (one-hot each), else zeros
    - on a list or a product's page, its category (one-hot), else zeros
    - on a list, the features of each of its products, else zeros; attributes after the first and the sizes are zeros
      until the product's page has been opened
    - on a product's page, the features of the product, else zeros
    - the size or delivery chosen on the page (one-hot, as long as there are options in the longer choice; zeros if
      none)
    - whether an item is in the cart
    - once the cart has shown it, the item's category, attributes (one-hot each), price (as above) and size (one-hot),
      else zeros
    - the reply to the last click (one-hot: done, not loaded, not accepted; zeros at the start)
    - the turn divided by the number of turns

    ``d`` is 79 (easy), 127 (medium), 208 (hard). Not visible are pages that have not been loaded.

    ## Rewards
    At the end: 1 if the order placed is what the user wants, else 0.5 times the share of the requirements (category,
    each attribute, price, size, delivery) that it meets; 0 if no order is placed. ``info["is_success"]`` tells
    whether the reward is 1. The optimum is 1.0 at level easy; at the others, pages may fail to load too often.

    ## Starting State
    The home page. The goal, the order of the categories, the products and the item left in the cart are drawn from
    the seed. Which clicks fail depends on the seed and the turn alone.

    ## Episode End
    The episode terminates when an order is placed, and after the last turn of the level.

    ## Arguments
    - ``level`` (default ``"easy"``): ``"easy"``, ``"medium"`` or ``"hard"``
    - ``render_mode``: ``"ansi"`` for a transcript

    ## Expert
    It sees what the pages have shown, and nothing else. It empties the cart if an item was left in it, goes to the
    list of the category, opens the products in their order unless what is known of them rules them out, goes back
    from those that turn out wrong, turns to the next page once none is left, and orders the first one that fits.

    ## Version History
    - v0: first version
    """

    def __init__(self, level: str = "easy", render_mode: str | None = None) -> None:
        super().__init__(partial(WebNav, level=level), render_mode)
