"""WebNav: order the product that a user describes in a web shop, by clicking on what its pages show."""

from __future__ import annotations

from functools import partial

from seeupo_gym.envs.task import MaskedTaskEnv
from seeupo_gym.envs.tasks.web_nav_dynamics import WebNav


class WebNavEnv(MaskedTaskEnv):
    """
    ## Description
    A user wants one product of a web shop: of a category, with given attributes, in a size, for at most some price,
    with one way of delivery. The agent sees one page at a time and clicks on its elements, as a person would. The home
    page links to a list of products for each category, and to a help page that leads nowhere. The lists link to the
    products. A product is put into the cart in one of its sizes. The checkout asks for the delivery and places the
    order.

    The order of the categories, the products and the goal are drawn anew for each episode. Every product of any
    category meets each of these requirements with probability 179/256 (about 0.7): each attribute, the price, and being
    available in the wanted size. Exactly one product of the wanted category meets all of them; any other one that would
    is given one flaw. The highest price is EUR 40, 60, 80, 100 or 120. Prices are 50% to 100% of it, or 115% to 180% if
    they do not meet it. Each other size is available with probability 1/2. A list shows only the material (the first
    attribute) and the price. The colour, the pattern and the sizes have to be looked up on the products' pages.

    | level | categories | products each | attributes | sizes, deliveries | clicks | not loaded | item in the cart |
    | --- | --- | --- | --- | --- | --- | --- | --- |
    | easy | 3 | 3 | material, of 3 values | 2, 2 | 20 | none | none |
    | medium | 4 | 8 on 2 pages | material and colour, of 3 values | 3, 3 | 24 | 5% | none |
    | hard | 5 | 15 on 3 pages | material, colour and pattern, of 4 values | 4, 3 | 36 | 10% | in 50% of episodes |

    The cart holds one item. An item that is in it from earlier never has the wanted size, and has to be removed before
    another one can be added. To order it is a short way to a partial reward.

    ## Action Space
    ``Discrete(slots + 3)``, with 4 (easy), 6 (medium) or 7 (hard) slots: the elements of the page in their order, then
    "Back", "Home" and "Cart". The slots of each kind of page are:

    - home: the categories, "Help"
    - list: its products, then "Next page" and "Previous page" if there are several pages
    - product: its sizes, "Add to cart", which loads the cart
    - cart: "Remove", which empties the cart, and "Checkout"
    - checkout: the ways of delivery, of which the first is chosen at first, and "Place order"
    - help: none

    Pages behave as in a browser: "Back" loads the page from which the present one was reached. A choice of size or
    delivery is lost when the page is left.

    ``action_masks()`` tells which clicks are accepted. Not accepted, and so a wasted turn, are: slots without an
    element; sizes that are not available; "Add to cart" before a size is chosen, or with an item in the cart; "Remove",
    "Checkout", "Place order" and "Cart" without an item in the cart; "Back" at the first page; "Home" and "Cart" on
    their own pages.

    An accepted click that loads a page fails with the probability of the level: the page does not load, and nothing
    else happens. Choices of a size or a delivery load no page and never fail.

    ## Observation Space
    ``Box(0, 1, (d,))``: what the pages have shown. The features of a product are its attributes (one-hot each), its
    price divided by twice the highest price wanted, 1 if its page has been opened, and for each size whether it is
    available. In this order:

    - the goal: category, attributes, size, delivery (one-hot each)
    - the kind of the page (one-hot: home, help, cart, checkout, list, product), and the page number within its list
      (one-hot, zeros on other pages)
    - the kind of the page that "Back" leads to (one-hot, zeros at the first page)
    - on the home page, the category of each link (one-hot each), else zeros
    - on a list or a product's page, its category (one-hot), else zeros
    - on a list, the features of each of its products, else zeros; all attributes but the first, and the sizes, are
      zeros until the product's page has been opened
    - on a product's page, the features of the product, else zeros
    - the size or delivery chosen on the page (one-hot, as long as the larger number of options; zeros if none)
    - whether an item is in the cart
    - once the cart has shown it, the item's category, attributes (one-hot each), price (as above) and size (one-hot),
      else zeros
    - the reply to the last click (one-hot: done, not loaded, not accepted; zeros at the start)
    - the turn divided by the number of turns

    ``d`` is 79 (easy), 127 (medium), 208 (hard). Pages that have not been loaded are hidden.

    ## Rewards
    At the end: 1 if the order is what the user wants, else 0.5 times the share of the requirements (category, each
    attribute, price, size, delivery) that it meets; 0 if no order is placed. ``info["is_success"]`` tells whether the
    reward is 1. The optimum is 1.0 at level easy. It is lower at the others, where pages may fail to load too often.

    ## Starting State
    The home page. The goal, the order of the categories, the products and the item in the cart are drawn from the seed.
    Whether a click fails depends on the seed and the turn alone.

    ## Episode End
    The episode terminates when an order is placed, and after the last turn of the level.

    ## Arguments
    - ``level`` (default ``"easy"``): ``"easy"``, ``"medium"`` or ``"hard"``
    - ``render_mode``: ``"ansi"`` for a transcript

    ## Expert
    It sees what the pages have shown, and nothing else. It empties the cart if an item is in it, goes to the list of
    the category, and opens the products in their order, except those that are known to be wrong. It goes back from a
    product that turns out to be wrong, turns to the next page once none is left, and orders the first product that
    fits.

    ## Version History
    - v0: first version
    """

    def __init__(self, level: str = "easy", render_mode: str | None = None) -> None:
        super().__init__(partial(WebNav, level=level), render_mode)
