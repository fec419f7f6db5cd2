"""The batched dynamics of WebNav: clicks, pages, the cart, and the expert."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.envs.counter_rng import hash_bits, uniform
from seeupo_gym.envs.task import ALL_LANES, NO_ACTION, Lanes, StepResult, Task, choose_level, one_hot
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

# The reply to the last click. It is NONE before the first click.
OK, NOT_LOADED, REFUSED = range(3)
N_STATUSES = 3

# Number of highest prices that a user may want: EUR 40, 60, ...
_N_BUDGETS = 5

# Random streams.
_START, _FAILURE = range(2)


class WebNav(Task):
    """Batched dynamics; :class:`~seeupo_gym.envs.tasks.web_nav.WebNavEnv` documents the task."""

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
        # The draws at the start, after the order of the categories and before the products: the goal; the budget, the
        # place of the wanted product, the first name; then whether an item from earlier is in the cart, its size and
        # its product.
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
        # The user's wishes: category, attributes, size, delivery, also as unit vectors; and the highest price.
        self.goals = np.zeros((n_lanes, len(self._goal_limits)), dtype=np.int64)
        self.goal_vectors = np.zeros((n_lanes, len(self._goal_values)), dtype=np.float32)
        self.budgets = np.zeros(n_lanes, dtype=np.int64)
        # The features that lists show of the products: until their pages are opened, less than the shop's features.
        self.shown = np.zeros_like(self.shop.features)
        # The page, and the pages before it; the choice on the page; the cart, and whether the agent has seen it.
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
        # An item from earlier never has the wanted size, so it is never what the user wants.
        left = percent < 100 * self.level.leftover
        self.cart_product[lanes] = np.where(left, other_product, NONE)
        self.cart_size[lanes] = np.where(left, (goals[:, -2] + 1 + other_size) % n_sizes, NONE)

    def _possible(self, lanes: Lanes) -> NDArray[np.bool_]:
        """Return a mask of the events that can happen now, shape (lanes, events), on whatever page."""
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
        """Compute the share of the requirements that an order of the cart, delivered as chosen, would meet."""
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
        """Return True for products, shape (lanes, some), of which all that was seen is what the user wants."""
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
        # On pages of other kinds this asks about product 0, which has no effect.
        listed = np.where(site.kind[pages] == LIST, site.first_listed[pages], 0)
        candidates = self._seems_right(index, listed[:, None] + np.arange(self.level.page_size))
        more = (site.shelf[pages] == wanted_shelf) & (site.events[pages, site.next] == LINK)
        otherwise = np.where(more, site.next, site.home)
        in_list = np.where(candidates.any(axis=1), candidates.argmax(axis=1), otherwise)
        right_product = self._seems_right(index, np.maximum(pages - site.first_product, 0)[:, None])[:, 0]
        in_product = np.where(right_product, np.where(chosen == size, site.add, size), site.back)
        full = cart_product != NONE
        # An item of the wanted size was put there by the agent, so the agent has seen the product's page.
        right_item = full & self.cart_shown[lanes] & (self.cart_size[lanes] == size)
        right_item &= self._seems_right(index, np.maximum(cart_product, 0)[:, None])[:, 0]
        in_cart = np.where(right_item, site.to_checkout, np.where(full, site.remove, site.back))
        in_checkout = np.where(chosen == delivery, site.order, delivery)
        by_kind = np.stack([wanted_shelf, np.full(len(index), site.home), in_cart, in_checkout, in_list, in_product])
        actions = by_kind[site.kind[pages], np.arange(len(index))]
        # With an item in the cart, the expert goes to the cart first, unless it takes the right item to the checkout.
        look = full & (pages != CART) & ~(right_item & (pages == CHECKOUT))
        leave = ~full & (pages == CHECKOUT)
        return np.where(look, site.cart, np.where(leave, site.home, actions))

    def optimal_value(self) -> float | None:
        # If all pages load, even the longest way of the expert, past every product of a list, ends in time.
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
        # The number of an element, and the element as it stands on the page.
        elements = self.shop.elements(lane, int(self.page[lane]))
        numbers = {f"click {slot + 1}": slot for slot in range(self.site.n_slots)}
        return {**numbers, **{f"click {text}": slot for slot, text in elements.items()}}
