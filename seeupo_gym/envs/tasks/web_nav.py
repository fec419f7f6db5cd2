"""WebNav: order the product that a user describes in a web shop, by clicking on what its pages show."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.envs.counter_rng import hash_bits, uniform
from seeupo_gym.envs.task import ALL_LANES, NO_ACTION, Lanes, MaskedTaskEnv, StepResult, Task, choose_level, one_hot
from seeupo_gym.envs.tasks.web_nav_site import (
    ADD,
    ATTRIBUTES,
    BACK,
    CART,
    CATEGORIES,
    CHECKOUT,
    DELIVERIES,
    DELIVERY,
    HOME,
    LEVELS,
    LINK,
    LIST,
    MODELS,
    N_KINDS,
    NONE,
    NOTHING,
    ORDER,
    PRODUCT,
    REMOVE,
    SIZE,
    SIZES,
    TO_CART,
    TO_CHECKOUT,
    Shop,
    Site,
)

PARTIAL_CREDIT = 0.5

# The reply to the last click; NONE before the first one.
OK, NOT_LOADED, REFUSED = range(3)
N_STATUSES = 3

# The highest price wanted is one of EUR 40, 60, ...
_N_BUDGETS = 5

# Streams of the draws.
_START, _FAILURE = range(2)


class WebNav(Task):
    """The batched dynamics; :class:`WebNavEnv` documents the task."""

    has_action_masks: ClassVar[bool] = True
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)

    def __init__(self, n_lanes: int = 1, level: str = "easy") -> None:
        self.level = choose_level(level, LEVELS)
        self.max_turns = self.level.max_turns
        self.site = site = Site(self.level)
        self.shop = Shop(self.level, site, n_lanes)
        n_categories, n_sizes, n_deliveries = self.level.n_categories, self.level.n_sizes, self.level.n_deliveries
        values = [self.level.n_values] * self.level.n_attributes
        self._goal_limits = np.array([n_categories, *values, n_sizes, n_deliveries])
        self._goal_values = np.concatenate([np.arange(limit) for limit in self._goal_limits])
        # What is drawn at the start, after the order of the categories and before the products: the goal, the budget,
        # the place of the wanted product, the first name, and of an item from earlier whether it is there, its size and
        # which product it is.
        others = [_N_BUDGETS, site.list_length, len(MODELS), 100, n_sizes - 1, site.n_products]
        self._limits = np.array([*self._goal_limits, *others], dtype=np.uint64)
        self._n_draws = n_categories + len(self._limits) + 2 * site.n_products
        self._n_options = max(n_sizes, n_deliveries)
        widths = {
            "goal": len(self._goal_values),
            "kind": N_KINDS,
            "list_page": self.level.n_pages,
            "back": N_KINDS,
            "categories": n_categories**2,
            "category": n_categories,
            "list": self.level.page_size * self.shop.n_features,
            "product": self.shop.n_features,
            "chosen": self._n_options,
            "cart": 1,
            "item": n_categories + self.shop.opened_column + n_sizes,
            "status": N_STATUSES,
            "turn": 1,
        }
        ends = np.cumsum(list(widths.values())).tolist()
        self.columns = {name: slice(end - width, end) for (name, width), end in zip(widths.items(), ends, strict=True)}
        self.action_space = spaces.Discrete(site.n_actions)
        self.observation_space = spaces.Box(0.0, 1.0, (ends[-1],), np.float32)
        super().__init__(n_lanes)
        page_features = [one_hot(site.kind, N_KINDS), one_hot(site.list_page, self.level.n_pages)]
        self._page_features = np.concatenate(page_features, axis=1)
        self._lanes = np.arange(n_lanes)
        # What the user wants: category, attributes, size, delivery, also as unit vectors; and the highest price.
        self.goals = np.zeros((n_lanes, len(self._goal_limits)), dtype=np.int64)
        self.goal_vectors = np.zeros((n_lanes, len(self._goal_values)), dtype=np.float32)
        self.budgets = np.zeros(n_lanes, dtype=np.int64)
        # What lists show of the products: before their pages are opened, less than the shop's features.
        self.shown = np.zeros_like(self.shop.features)
        # Where the agent is and how it came there; what it chose on the page; the cart and whether it was shown.
        self.page = np.full(n_lanes, HOME)
        self.history = np.full((n_lanes, self.max_turns), HOME)
        self.depth = np.zeros(n_lanes, dtype=np.int64)
        self.chosen = np.full(n_lanes, NONE)
        self.cart_product = np.full(n_lanes, NONE)
        self.cart_size = np.full(n_lanes, NONE)
        self.cart_shown = np.zeros(n_lanes, dtype=bool)
        self.status = np.full(n_lanes, NONE)

    def _start(self, lanes: Lanes) -> None:
        shop, n_categories, n_sizes = self.shop, self.level.n_categories, self.level.n_sizes
        draws = hash_bits(self.task_seeds[lanes][:, None], _START, np.arange(self._n_draws))
        order, picks, goods = np.split(draws, [n_categories, n_categories + len(self._limits)], axis=1)
        categories = order.argsort(axis=1, kind="stable")
        picked = (picks % self._limits).astype(np.int64)
        goals, (budget, place, first_model, percent, other_size, other_product) = picked[:, :-6], picked[:, -6:].T
        budgets = 40 + 20 * budget
        self.goals[lanes], self.budgets[lanes] = goals, budgets
        self.goal_vectors[lanes] = goals.repeat(self._goal_limits, axis=1) == self._goal_values
        shop.categories[lanes], shop.first_model[lanes] = categories, first_model
        shop.category_vectors[lanes] = categories[..., None] == np.arange(n_categories)
        self.shown[lanes] = shop.stock(lanes, goods, goals, budgets, place)
        self.page[lanes] = HOME
        self.depth[lanes] = 0
        self.chosen[lanes] = NONE
        self.status[lanes] = NONE
        self.cart_shown[lanes] = False
        # An item from earlier is never of the wanted size, so that it is never what the user wants.
        left = percent < 100 * self.level.leftover
        self.cart_product[lanes] = np.where(left, other_product, NONE)
        self.cart_size[lanes] = np.where(left, (goals[:, -2] + 1 + other_size) % n_sizes, NONE)

    def _possible(self, lanes: Lanes) -> NDArray[np.bool_]:
        """Which events can happen now, shape (lanes, events); on which page is told by ``Site.events``."""
        chosen = self.chosen[lanes] != NONE
        full = self.cart_product[lanes] != NONE
        possible = np.zeros((len(full), SIZE + self.level.n_sizes), dtype=bool)
        possible[:, LINK] = True
        possible[:, BACK] = self.depth[lanes] > 0
        possible[:, TO_CART] = full
        possible[:, ADD] = chosen & ~full
        possible[:, REMOVE] = full
        possible[:, TO_CHECKOUT] = full
        possible[:, ORDER] = full
        possible[:, DELIVERY] = True
        products = np.maximum(self.page[lanes] - self.site.first_product, 0)
        possible[:, SIZE:] = self.shop.available[self._lanes[lanes], products]
        return possible

    def action_masks(self, lanes: Lanes = ALL_LANES) -> NDArray[np.bool_]:
        return np.take_along_axis(self._possible(lanes), self.site.events[self.page[lanes]], axis=1)

    def _advance(self, actions: NDArray[np.int64], lanes: Lanes) -> StepResult:
        site, index = self.site, self._lanes[lanes]
        turns, pages, depth, chosen = self.turns[lanes], self.page[lanes], self.depth[lanes], self.chosen[lanes]
        events = np.where(actions == NO_ACTION, NOTHING, site.events[pages, actions])
        accepted = self._possible(lanes)[np.arange(len(index)), events]
        chooses = events >= DELIVERY
        works, fails = accepted, np.zeros(len(index), dtype=bool)
        if self.level.failure:
            fails = accepted & ~chooses & (uniform(self.noise_seeds[lanes], _FAILURE, turns) < self.level.failure)
            works = accepted & ~fails
        self.refused[lanes] = ~accepted
        self.status[lanes] = np.where(works, OK, np.where(fails, NOT_LOADED, REFUSED))

        adds, removes, orders = works & (events == ADD), works & (events == REMOVE), works & (events == ORDER)
        rewards, successes = np.zeros(len(index), dtype=np.float32), np.zeros(len(index), dtype=bool)
        if orders.any():
            share_met = self._share_met(index[orders])
            successes[orders] = share_met == 1.0
            rewards[orders] = np.where(successes[orders], 1.0, PARTIAL_CREDIT * share_met)
        kept = np.where(removes, NONE, self.cart_product[lanes])
        self.cart_product[lanes] = np.where(adds, pages - site.first_product, kept)
        self.cart_size[lanes] = np.where(adds, chosen, self.cart_size[lanes])

        loads = works & ~chooses & ~orders
        returns = loads & (events == BACK)
        # Beyond the depth the history is never read, so that this page can be noted before it is known to be left.
        self.history[index, depth] = pages
        loaded = np.where(returns, self.history[index, depth - 1], site.targets[pages, actions])
        loaded = np.where(loads, loaded, pages)
        self.page[lanes] = loaded
        self.depth[lanes] = np.where(returns, depth - 1, depth + (loads & ~removes))
        # The checkout offers the first delivery unless another one is chosen.
        preset = np.where(loaded == CHECKOUT, 0, NONE)
        self.chosen[lanes] = np.where(loads, preset, np.where(chooses & works, actions, chosen))
        self.cart_shown[lanes] |= loaded == CART
        opened = site.kind[loaded] == PRODUCT
        at, products = index[opened], loaded[opened] - site.first_product
        self.shown[at, products] = self.shop.features[at, products]
        return StepResult(rewards, orders | (turns == self.max_turns), successes)

    def _share_met(self, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """The share of the goal's requirements that an order of the cart, delivered as chosen, would meet."""
        products, goals = self.cart_product[index], self.goals[index]
        bought = [
            self.shop.categories[index, self.site.product_shelf[products]][:, None],
            self.shop.attributes[index, products],
            self.cart_size[index][:, None],
            self.chosen[index][:, None],
        ]
        n_met = (np.concatenate(bought, axis=1) == goals).sum(axis=1)
        n_met += self.shop.prices[index, products] <= self.budgets[index]
        share: NDArray[np.float64] = n_met / (goals.shape[1] + 1)
        return share

    def observe(self, lanes: Lanes = ALL_LANES) -> NDArray[np.float32]:
        site, shop, columns, index = self.site, self.shop, self.columns, self._lanes[lanes]
        pages, depth, cart_product = self.page[lanes], self.depth[lanes], self.cart_product[lanes]
        kinds, rows = site.kind[pages], np.arange(len(index))
        obs = np.zeros((len(index), *self.observation_space.shape), dtype=np.float32)  # type: ignore[misc]
        obs[:, columns["goal"]] = self.goal_vectors[lanes]
        obs[:, columns["kind"].start : columns["list_page"].stop] = self._page_features[pages]
        at = rows[depth > 0]
        obs[at, columns["back"].start + site.kind[self.history[index[at], depth[at] - 1]]] = 1.0
        at = rows[kinds == HOME]
        obs[at, columns["categories"]] = shop.category_vectors[index[at]].reshape(len(at), self.level.n_categories**2)
        at = rows[kinds >= LIST]
        obs[at, columns["category"]] = shop.category_vectors[index[at], site.shelf[pages[at]]]
        at = rows[kinds == LIST]
        by_list = self.shown.reshape(self.n_lanes, site.first_product - site.first_list, -1)
        obs[at, columns["list"]] = by_list[index[at], pages[at] - site.first_list]
        at = rows[kinds == PRODUCT]
        obs[at, columns["product"]] = shop.features[index[at], pages[at] - site.first_product]
        obs[:, columns["chosen"]] = one_hot(self.chosen[lanes], self._n_options)
        obs[:, columns["cart"].start] = cart_product != NONE
        at = rows[self.cart_shown[lanes] & (cart_product != NONE)]
        start, products = columns["item"].start, cart_product[at]
        middle = start + self.level.n_categories
        obs[at, start:middle] = shop.category_vectors[index[at], site.product_shelf[products]]
        obs[at, middle : middle + shop.opened_column] = shop.features[index[at], products, : shop.opened_column]
        obs[at, middle + shop.opened_column + self.cart_size[index[at]]] = 1.0
        obs[:, columns["status"]] = one_hot(self.status[lanes], N_STATUSES)
        obs[:, columns["turn"].start] = self.turns[lanes] / self.max_turns
        return obs

    def _seems_right(self, index: NDArray[np.int64], products: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether all that the agent has seen of these products, shape (lanes, some), is what the user wants."""
        shop, rows, goals = self.shop, index[:, None], self.goals[index][:, None]
        seen_all = self.shown[rows, products, shop.opened_column] > 0
        right = shop.attributes[rows, products] == goals[..., 1 : 1 + self.level.n_attributes]
        right[..., 1:] |= ~seen_all[..., None]
        right_category = shop.categories[rows, self.site.product_shelf[products]] == goals[..., 0]
        available = shop.available[rows, products, goals[..., -2]] | ~seen_all
        cheap = shop.prices[rows, products] <= self.budgets[rows]
        seems_right: NDArray[np.bool_] = right_category & right.all(axis=2) & cheap & available
        return seems_right

    def expert_actions(self, lanes: Lanes = ALL_LANES) -> NDArray[np.int64]:
        site, index = self.site, self._lanes[lanes]
        pages, chosen, cart_product = self.page[lanes], self.chosen[lanes], self.cart_product[lanes]
        category, size, delivery = self.goals[lanes][:, [0, -2, -1]].T
        wanted_shelf = (self.shop.categories[lanes] == category[:, None]).argmax(axis=1)
        # What is asked of a page of another kind is asked of product 0, and of no consequence.
        listed = np.where(site.kind[pages] == LIST, site.first_listed[pages], 0)
        candidates = self._seems_right(index, listed[:, None] + np.arange(self.level.page_size))
        more = (site.shelf[pages] == wanted_shelf) & (site.events[pages, site.next] == LINK)
        otherwise = np.where(more, site.next, site.home)
        in_list = np.where(candidates.any(axis=1), candidates.argmax(axis=1), otherwise)
        right_product = self._seems_right(index, np.maximum(pages - site.first_product, 0)[:, None])[:, 0]
        in_product = np.where(right_product, np.where(chosen == size, site.add, size), site.back)
        full = cart_product != NONE
        # An item of the wanted size is one that the agent put there, so it has seen the product's page.
        right_item = full & self.cart_shown[lanes] & (self.cart_size[lanes] == size)
        right_item &= self._seems_right(index, np.maximum(cart_product, 0)[:, None])[:, 0]
        in_cart = np.where(right_item, site.to_checkout, np.where(full, site.remove, site.back))
        in_checkout = np.where(chosen == delivery, site.order, delivery)
        by_kind = np.stack([wanted_shelf, np.full(len(index), site.home), in_cart, in_checkout, in_list, in_product])
        actions = by_kind[site.kind[pages], np.arange(len(index))]
        # Elsewhere than in the cart, a full cart is looked at first; only the right item is taken to the checkout.
        look = full & (pages != CART) & ~(right_item & (pages == CHECKOUT))
        leave = ~full & (pages == CHECKOUT)
        return np.where(look, site.cart, np.where(leave, site.home, actions))

    def optimal_value(self) -> float | None:
        # Where all pages load, even the longest way of the expert, past every product of a list, ends in time.
        return None if self.level.failure else 1.0

    def _item(self, lane: int) -> str:
        product, size = int(self.cart_product[lane]), int(self.cart_size[lane])
        return "empty" if product == NONE else f"{self.shop.item(lane, product)}, size {SIZES[size]}"

    def _page_text(self, lane: int) -> str:
        mask = self.action_masks(np.array([lane]))[0]
        page = self.shop.page_text(lane, int(self.page[lane]), mask, int(self.chosen[lane]), self._item(lane))
        items = "1 item" if self.cart_product[lane] != NONE else "nothing"
        return f"{page} In the cart: {items}. Clicks left: {self.max_turns - self.turns[lane]}."

    def opening_text(self, lane: int) -> str:
        category, *values, size, delivery = (int(part) for part in self.goals[lane])
        adjectives = " ".join(ATTRIBUTES[i][value] for i, value in reversed(list(enumerate(values))))
        failures = " A page may not load: click again." if self.level.failure else ""
        return (
            'System: You order in a web shop. Write click "..." with the name or the number of an element of the page. '
            "The cart holds one item; to add one, choose its size first."
            f"{failures}\n"
            f"User: Please order me a {adjectives} {CATEGORIES[category][1]} in size {SIZES[size]} for at most "
            f"EUR {self.budgets[lane]}. Choose {DELIVERIES[delivery].lower()}.\n"
            f"{self._page_text(lane)}"
        )

    def action_text(self, lane: int, action: NDArray[np.int64]) -> str:
        return f'click "{self.shop.labels(lane, int(self.page[lane]))[int(action)]}"'

    def reply_text(self, lane: int, action: NDArray[np.int64], result: StepResult) -> str:
        done, works = bool(result.dones[0]), self.status[lane] == OK
        if works and self.page[lane] == CHECKOUT and action == self.site.order:
            thanks = "That is exactly what I wanted." if result.successes[0] else "That is not what I asked for."
            text = f"Page: Order placed: {self._item(lane)}, {DELIVERIES[self.chosen[lane]].lower()}\nUser: {thanks}"
        else:
            notice = "" if works else "That cannot be clicked.\n" if self.refused[lane] else "The page did not load.\n"
            text = notice + self._page_text(lane) + ("\nUser: I cannot wait any longer. Goodbye." if done else "")
        return f"{text}\nReward: {result.rewards[0]:.3g}" if done else text

    def short_texts(self, lane: int) -> dict[str, int | NDArray[np.int64]]:
        # An element's number alone, and the element as it stands on the page.
        elements = self.shop.elements(lane, int(self.page[lane]))
        numbers = {f"click {slot + 1}": slot for slot in range(self.site.n_slots)}
        return {**numbers, **{f"click {text}": slot for slot, text in elements.items()}}


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
