"""The site of WebNav: levels of difficulty, names, the plan of the pages, and their contents."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seeupo_gym.envs.task import Lanes


class Level(NamedTuple):
    """
    A level of difficulty.

    :param n_categories: number of categories of the shop, each with a list of products
    :param n_pages: number of pages of each list
    :param page_size: number of products on each page of a list
    :param n_attributes: number of attributes of a product; the lists show the first one
    :param n_values: number of values of each attribute
    :param n_sizes: number of sizes that a product may be available in
    :param n_deliveries: number of ways of delivery
    :param max_turns: length of the longest episode
    :param failure: probability that a page does not load
    :param leftover: probability that an item from earlier is in the cart at the start
    """

    n_categories: int
    n_pages: int
    page_size: int
    n_attributes: int
    n_values: int
    n_sizes: int
    n_deliveries: int
    max_turns: int
    failure: float
    leftover: float


LEVELS = {
    "easy": Level(3, 1, 3, 1, 3, n_sizes=2, n_deliveries=2, max_turns=20, failure=0.0, leftover=0.0),
    "medium": Level(4, 2, 4, 2, 3, n_sizes=3, n_deliveries=3, max_turns=24, failure=0.05, leftover=0.0),
    "hard": Level(5, 3, 5, 3, 4, n_sizes=4, n_deliveries=3, max_turns=36, failure=0.1, leftover=0.5),
}

# The name of each category, and of one of its products.
CATEGORIES = (("Jackets", "jacket"), ("Shirts", "shirt"), ("Coats", "coat"), ("Dresses", "dress"), ("Skirts", "skirt"))
# Material, colour, pattern.
ATTRIBUTES = (
    ("wool", "linen", "cotton", "denim"),
    ("red", "blue", "green", "black"),
    ("plain", "striped", "checked", "dotted"),
)
SIZES = ("S", "M", "L", "XL")
DELIVERIES = ("Standard delivery", "Express delivery", "Pick-up")
# The products of a list have names in this order. The seed decides on the first one.
MODELS = (
    *("Alba", "Birk", "Calla", "Dorn", "Elva", "Finn", "Garda", "Hale", "Iris"),
    *("Juno", "Kira", "Lund", "Mira", "Nora", "Opal", "Pike", "Runa", "Saga"),
)

NONE = -1

# Kinds of pages. There is one page of each of the first four kinds, whose number is that of the kind.
HOME, HELP, CART, CHECKOUT, LIST, PRODUCT = range(6)
N_KINDS = 6

# Events: what a click on an element does. From DELIVERY on it chooses an option of the page, and loads no page. The
# event of size i is SIZE + i.
NOTHING, LINK, BACK, TO_CART, ADD, REMOVE, TO_CHECKOUT, ORDER, DELIVERY, SIZE = range(10)

# Number of the 256 values of a random byte that make a product meet a requirement, or a size available.
MEETS, AVAILABLE = 179, 128


class Site:
    """
    The plan of the pages. It is the same for every seed of a level; the seed decides what is sold where.

    The pages are numbered in this order: the four single ones, the pages of the lists, shelf by shelf, and the products
    in the order of the lists. A shelf holds the products of one category, on which the seed decides. Elements have the
    numbers of the actions: the slots of the page, then back, home and cart.

    :param level: the level, which decides on the number of pages
    """

    def __init__(self, level: Level) -> None:
        n_lists = level.n_categories * level.n_pages
        self.list_length = level.n_pages * level.page_size
        self.n_products = level.n_categories * self.list_length
        self.product_shelf = np.arange(self.n_products) // self.list_length
        self.first_list = LIST
        self.first_product = self.first_list + n_lists
        n_pages = self.first_product + self.n_products
        lists, products = np.split(np.arange(self.first_list, n_pages), [n_lists])
        self.kind = np.minimum(np.arange(n_pages), LIST)
        self.kind[products] = PRODUCT
        # The shelf of lists and products, and the page number and the first product of lists; NONE for all other pages.
        self.shelf = np.full(n_pages, NONE)
        self.shelf[lists] = np.arange(n_lists) // level.n_pages
        self.shelf[products] = self.product_shelf
        self.list_page, self.first_listed = np.full((2, n_pages), NONE)
        self.list_page[lists] = np.arange(n_lists) % level.n_pages
        self.first_listed[lists] = np.arange(n_lists) * level.page_size

        # The slots of a page that come after its links or options. Lists of one page have no links to other pages.
        self.help = level.n_categories
        self.next, self.previous = level.page_size, level.page_size + 1
        self.add, self.order = level.n_sizes, level.n_deliveries
        self.remove, self.to_checkout = 0, 1
        in_list = level.page_size + 2 * (level.n_pages > 1)
        self.n_slots = max(self.help + 1, in_list, self.add + 1, self.order + 1)
        self.back, self.home, self.cart = range(self.n_slots, self.n_slots + 3)
        self.n_actions = self.n_slots + 3

        # The event of each action on each page, and the page that it loads (the same page for "back", and if it loads
        # none).
        self.events = np.full((n_pages, self.n_actions), NOTHING)
        self.targets = np.arange(n_pages)[:, None].repeat(self.n_actions, axis=1)
        self.events[:, self.back] = BACK
        self._link(self.kind != HOME, self.home, HOME)
        self.events[self.kind != CART, self.cart] = TO_CART
        self.targets[:, self.cart] = CART
        for shelf in range(level.n_categories):
            self._link(HOME, shelf, lists[shelf * level.n_pages])
        self._link(HOME, self.help, HELP)
        for i in range(level.page_size):
            self._link(lists, i, products[i :: level.page_size])
        if level.n_pages > 1:
            by_shelf = lists.reshape(-1, level.n_pages)
            self._link(by_shelf[:, :-1], self.next, by_shelf[:, 1:])
            self._link(by_shelf[:, 1:], self.previous, by_shelf[:, :-1])
        self.events[products, : self.add] = SIZE + np.arange(level.n_sizes)
        self.events[products, self.add] = ADD
        self.targets[products, self.add] = CART
        self.events[CART, [self.remove, self.to_checkout]] = REMOVE, TO_CHECKOUT
        self.targets[CART, self.to_checkout] = CHECKOUT
        self.events[CHECKOUT, : self.order] = DELIVERY
        self.events[CHECKOUT, self.order] = ORDER

    def _link(self, pages: Any, slot: int, targets: Any) -> None:
        """Make a slot of some pages a link, to one page for all or to one page for each."""
        self.events[pages, slot] = LINK
        self.targets[pages, slot] = targets


class Shop:
    """
    The contents of the pages, for many lanes: row ``i`` of every array is the shop of lane ``i``.

    :param level: the level, which decides on the sizes
    :param site: the plan of the pages
    :param n_lanes: number of lanes
    """

    def __init__(self, level: Level, site: Site, n_lanes: int) -> None:
        self.level, self.site = level, site
        n_values, n_attributes, n_products = level.n_values, level.n_attributes, site.n_products
        # The category of each shelf, also as unit vectors; then the products, in the order of the site.
        self.categories = np.zeros((n_lanes, level.n_categories), dtype=np.int64)
        self.category_vectors = np.zeros((n_lanes, level.n_categories, level.n_categories), dtype=np.float32)
        self.attributes = np.zeros((n_lanes, n_products, n_attributes), dtype=np.uint8)
        self.prices = np.zeros((n_lanes, n_products), dtype=np.int64)
        self.available = np.zeros((n_lanes, n_products, level.n_sizes), dtype=bool)
        self.first_model = np.zeros(n_lanes, dtype=np.int64)
        # The features that a product's page shows. Columns: attributes, price, whether the page was opened, sizes.
        self.price_column = n_values * n_attributes
        self.opened_column = self.price_column + 1
        self.n_features = self.opened_column + 1 + level.n_sizes
        self.features = np.zeros((n_lanes, n_products, self.n_features), dtype=np.float32)

    def stock(
        self,
        lanes: Lanes,
        draws: NDArray[np.uint64],
        goals: NDArray[np.int64],
        budgets: NDArray[np.int64],
        place: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """
        Fill the shelves with products that meet most requirements. One product of the wanted category meets them all.

        :param lanes: the lanes of the shops, whose shelves have their categories already
        :param draws: 128 random bits for each product, shape (lanes, 2 * products)
        :param goals: category, attributes, size and delivery that are wanted
        :param budgets: highest price that is wanted
        :param place: place of the product that meets all requirements in the list of its category
        :return: the features that lists show of the products; 0 for all others
        """
        level, site = self.level, self.site
        n_attributes, n_values, n_sizes = level.n_attributes, level.n_values, level.n_sizes
        # Sixteen random bytes for each product. For speed, the axis of several requirements or sizes comes first:
        # (several, lanes, products). The requirements are the attributes, the price, and the wanted size being
        # available.
        in_bytes = draws.astype("<u8").view(np.uint8).reshape(len(goals), site.n_products, 16)
        draws_of = np.ascontiguousarray(in_bytes.transpose(2, 0, 1))
        n_required = n_attributes + 2
        meets = draws_of[:n_required] < MEETS
        shelf = (self.categories[lanes] == goals[:, :1]).argmax(axis=1)
        rivals = (site.product_shelf == shelf[:, None]) & meets.all(axis=0)
        flaws = np.where(rivals, draws_of[5] % n_required, n_required)
        meets &= flaws != np.arange(n_required, dtype=np.uint8)[:, None, None]
        meets[:, np.arange(len(goals)), shelf * site.list_length + place] = True
        wanted = goals.T[1 : 1 + n_attributes, :, None].astype(np.uint8)
        others = (wanted + 1 + draws_of[6 : 6 + n_attributes] % (n_values - 1)) % n_values
        attributes = np.where(meets[:n_attributes], wanted, others)
        percent = np.where(meets[n_attributes], 50 + draws_of[9] % 51, 115 + draws_of[10] % 66)
        prices = budgets[:, None] * percent // 100
        is_wanted = (np.arange(n_sizes)[:, None] == goals[:, -2])[..., None]
        available = np.where(is_wanted, meets[-1], draws_of[11 : 11 + n_sizes] < AVAILABLE)
        self.attributes[lanes] = attributes.transpose(1, 2, 0)
        self.prices[lanes] = prices
        self.available[lanes] = available.transpose(1, 2, 0)
        is_value = attributes[:, None] == np.arange(n_values, dtype=np.uint8)[:, None, None]
        features = np.ones((self.n_features, *prices.shape), dtype=np.float32)
        features[: self.price_column] = is_value.reshape(self.price_column, *prices.shape)
        features[self.price_column] = prices / (2 * budgets[:, None])
        features[self.opened_column + 1 :] = available
        self.features[lanes] = features.transpose(1, 2, 0)
        features[n_values : self.price_column] = 0.0
        features[self.opened_column :] = 0.0
        return features.transpose(1, 2, 0)

    def model(self, lane: int, product: int) -> str:
        """Return the name of a product in its list."""
        return MODELS[(self.first_model[lane] + product % self.site.list_length) % len(MODELS)]

    def details(self, lane: int, product: int, n_attributes: int) -> str:
        """Describe a product by its first attributes and its price."""
        values = [ATTRIBUTES[i][self.attributes[lane, product, i]] for i in range(n_attributes)]
        return ", ".join([*values, f"EUR {self.prices[lane, product]}"])

    def item(self, lane: int, product: int) -> str:
        """Describe a product as its own page and the cart do."""
        noun = CATEGORIES[self.categories[lane, self.site.product_shelf[product]]][1]
        return f"{self.model(lane, product)} {noun}, {self.details(lane, product, self.level.n_attributes)}"

    def labels(self, lane: int, page: int) -> list[str]:
        """List the label of each action's element on a page."""
        kind, n_sizes, n_deliveries = self.site.kind[page], self.level.n_sizes, self.level.n_deliveries
        labels = []
        if kind == HOME:
            labels = [CATEGORIES[category][0] for category in self.categories[lane]] + ["Help"]
        elif kind == LIST:
            first = int(self.site.first_listed[page])
            labels = [self.model(lane, first + i) for i in range(self.level.page_size)]
            labels += ["Next page", "Previous page"] if self.level.n_pages > 1 else []
        elif kind == PRODUCT:
            labels = [*SIZES[:n_sizes], "Add to cart"]
        elif kind == CART:
            labels = ["Remove", "Checkout"]
        elif kind == CHECKOUT:
            labels = [*DELIVERIES[:n_deliveries], "Place order"]
        labels += [f"element {i + 1}" for i in range(len(labels), self.site.n_slots)]
        return [*labels, "Back", "Home", "Cart"]

    def elements(self, lane: int, page: int) -> dict[int, str]:
        """Describe the elements in the slots of a page, with number, role and label."""
        labels, events = self.labels(lane, page), self.site.events[page]
        elements = {}
        for i in np.flatnonzero(events[: self.site.n_slots] != NOTHING).tolist():
            role = "link" if events[i] == LINK else "option" if events[i] >= DELIVERY else "button"
            elements[i] = f'[{i + 1}] {role} "{labels[i]}"'
        return elements

    def title(self, lane: int, page: int) -> str:
        """Write the title of a page, without the contents of the cart."""
        if self.site.kind[page] == LIST:
            name = CATEGORIES[self.categories[lane, self.site.shelf[page]]][0]
            return f"{name}, page {self.site.list_page[page] + 1} of {self.level.n_pages}"
        if self.site.kind[page] == PRODUCT:
            return self.item(lane, page - self.site.first_product)
        help_text = "Help: how to return an item. Send it back within 30 days. Nothing can be ordered here."
        return ("Home", help_text, "Cart", "Checkout")[page]

    def page_text(self, lane: int, page: int, mask: NDArray[np.bool_], chosen: int, item: str) -> str:
        """
        Write a page as a screen reader would read it.

        :param lane: the lane of the shop
        :param page: the page
        :param mask: mask of the accepted actions
        :param chosen: the slot of the chosen option
        :param item: the item in the cart
        :return: its title, its elements with their numbers, and the menu
        """
        site, labels, title = self.site, self.labels(lane, page), self.title(lane, page)
        lines = [f"Page: {title}: {item}" if page in (CART, CHECKOUT) else f"Page: {title}"]
        for i, element in self.elements(lane, page).items():
            note = " (chosen)" if i == chosen else "" if mask[i] else " (not available)"
            if site.kind[page] == LIST and i < self.level.page_size:
                note = f": {self.details(lane, int(site.first_listed[page]) + i, 1)}"
            lines.append(f"{element}{note}")
        menu = [f'"{labels[i]}"' for i in range(site.n_slots, site.n_actions) if mask[i]]
        return "\n".join([*lines, f"Menu: {', '.join(menu) or 'none'}."])
