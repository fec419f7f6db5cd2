"""An oracle menu: BFCL's conversations as a choice among given calls. Its scores are not BFCL's."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np

from seeupo_gym.envs.suites.bfcl import MESSAGES_PER_TURN, BFCLMultiTurnEnv, load
from seeupo_gym.envs.suites.bfcl_calls import read_calls
from seeupo_gym.envs.views.candidate_view import CandidateView

SIZES = (16, 32, 64)
END_TURN = "Done."
# Number of the menus' random stream, apart from everything else that is drawn with the same seed.
_MENU_STREAM = 0x3E9D


def gold_fits(turns: list[list[str]], k: int) -> bool:
    """
    Return True if the gold calls of a task can be played from a menu, one a message.

    :param turns: the gold calls of each user turn
    :param k: number of entries of the menu, one of which ends the user's turn
    """
    return len({call for turn in turns for call in turn}) < k and max(map(len, turns)) <= MESSAGES_PER_TURN


@functools.cache
def _calls_of_classes(category: str, classes: frozenset[str]) -> dict[str, frozenset[int]]:
    """Collect the category's distinct gold calls of some tool classes, each with its tasks."""
    data = load(category)
    names = {doc["name"] for name in classes for doc in data.documents[name]}
    found: dict[str, set[int]] = {}
    for task, turns in enumerate(data.gold):
        for call in (call for turn in turns for call in turn):
            if getattr(read_calls(call)[0].node.func, "id", None) in names:
                found.setdefault(call, set()).add(task)
    return {call: frozenset(tasks) for call, tasks in sorted(found.items())}


class OracleMenu(gym.Wrapper[str, str, str, str]):
    """
    Wrapper that lists a task's gold calls, shuffled among other calls, in ``info["admissible_commands"]``.

    ``info`` also has ``request`` (the user's message), ``made`` (the calls made since then) and ``reply`` (the result
    of the last call). The episode fails after ``max_turns`` messages.

    :param env: the conversation
    :param k: length of the list, whose first entry ends the user's turn
    :param turns: turn limit; None: twice the longest gold play of the category
    :raises ValueError: if the gold calls of no task fit
    """

    def __init__(self, env: BFCLMultiTurnEnv, k: int, turns: int | None) -> None:
        super().__init__(env)
        gold = load(env.category).gold
        self._base, self._k = env, k
        env.tasks = [task for task in env.tasks if gold_fits(gold[task], k)]
        if not env.tasks:
            raise ValueError(f"the gold calls of the task do not fit into a menu of {k}: choose another task or k")
        # The longest of the whole category, so that the limit is the same in all splits.
        longest = max(sum(map(len, task)) + len(task) for task in gold if gold_fits(task, k))
        self.max_turns = 2 * longest if turns is None else turns
        self._made: list[str] = []
        self._running = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a conversation; the seed decides on the task and on the menu."""
        text, info = self.env.reset(seed=seed, options=options)
        seed = int(self.np_random.integers(2**63)) if seed is None else seed
        rng = np.random.default_rng([_MENU_STREAM, seed])
        self._menu = [END_TURN, *self._shuffled_calls(rng)]
        self._request, self._made = text, []
        self._turn, self._running = 0, True
        return text, {**info, **self._menu_info("")}

    def _shuffled_calls(self, rng: np.random.Generator) -> list[str]:
        data, task = load(self._base.category), self._base.task
        gold = sorted({call for turn in data.gold[task] for call in turn})
        known = _calls_of_classes(self._base.category, frozenset(data.entries[task]["involved_classes"]))
        others = [call for call, tasks in known.items() if task not in tasks]
        chosen = rng.choice(len(others), self._k - 1 - len(gold), replace=False)
        calls = gold + [others[i] for i in chosen]
        return [calls[i] for i in rng.permutation(len(calls))]

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """
        Send a message.

        :raises gymnasium.error.ResetNeeded: before the first reset and after the end of an episode
        """
        if not self._running:
            raise gym.error.ResetNeeded("the episode is over (or never began): call reset() before step()")
        text, reward, done, truncated, info = self.env.step(action)
        self._turn += 1
        if info["calls"]:
            self._made.append(action)
        else:
            self._request, self._made = text, []
        if not done and self._turn >= self.max_turns:
            done, info = True, {**info, "is_success": False, "error": "oracle_menu:turn_limit"}
        self._running = not done
        return text, reward, done, truncated, {**info, **self._menu_info(text if info["calls"] else "")}

    def _menu_info(self, reply: str) -> dict[str, Any]:
        made = "\n".join(self._made)
        return {"admissible_commands": list(self._menu), "request": self._request, "made": made, "reply": reply}

    def expert_action(self) -> int:
        """Return the next choice of gold play, whatever the agent did before."""
        gold = self._base._gold[self._base._turn] if self._running else []
        return self._menu.index(gold[len(self._made)]) if len(self._made) < len(gold) else 0


class BFCLOracleMenuEnv(CandidateView):
    """
    ## Description
    The conversations of :class:`~seeupo_gym.envs.suites.bfcl.BFCLMultiTurnEnv` as a choice among ``k`` messages. **An
    oracle menu**: it holds the task's gold calls with the right values of all their arguments, so a policy only has to
    find and order them. A score here says nothing about BFCL's, and must never stand beside one. It serves to run and
    to stress algorithms that have no language model.

    ## Action Space
    ``Discrete(k)``. Action 0 ends the user's turn. The others are one call each: the distinct gold calls of the task,
    shuffled among calls of the same tool classes from other tasks of the category (of any split). The menu stays the
    same for the whole conversation, and every entry may be chosen again. ``info["admissible_commands"]`` lists it.

    ## Observation Space
    That of :class:`~seeupo_gym.envs.views.candidate_view.CandidateView`: a dict of ``state`` (features of the user's
    message, of the calls made since then, of the result of the last call, and of the last message), ``candidates`` (a
    row for each entry), ``mask`` (always all entries) and ``turn``.

    ## Rewards
    As in ``BFCLMultiTurnEnv``: the verdict at the end, or with ``dense_reward`` a share for each user turn that passes.

    ## Starting State
    Task ``task``. If it is None, number ``seed`` modulo their number among the split's tasks whose gold calls fit.
    Another seed with the same task gives another menu. The gold calls fit if there are at most ``k - 1`` distinct ones,
    and at most 20 in one user turn, since a message is one call here. They fit in all tasks of base, miss_func and
    miss_param, with every ``k``. In long_context two tasks are left out, which have 34 calls in one user turn.

    ## Episode End
    As in ``BFCLMultiTurnEnv``. In addition, the episode terminates as a failure after ``turns`` messages, with
    "oracle_menu:turn_limit" as ``info["error"]``.

    ## Arguments
    See below. ``expert_action()`` gives the next choice of gold play.

    ## Version History
    * v0: initial version, for bfcl-eval 2026.3.23

    :param k: number of actions, 16, 32 or 64
    :param category: as in ``BFCLMultiTurnEnv``
    :param split: as in ``BFCLMultiTurnEnv``
    :param task: index of the task in the category; None: the seed decides
    :param dense_reward: whether to pay for each user turn
    :param turns: turn limit (``max_turns``); None: twice the longest gold play of the category
    :param n_features: features of each text
    :param render_mode: ``"ansi"`` makes :meth:`render` return the transcript of the episode so far
    :raises ImportError: if bfcl-eval, mpmath or scikit-learn is not installed
    :raises ValueError: for an argument out of range, or a task that is not in the split or whose gold calls do not fit
    """

    def __init__(
        self,
        k: int = 16,
        category: str = "base",
        split: str = "all",
        task: int | None = None,
        dense_reward: bool = False,
        turns: int | None = None,
        n_features: int = 64,
        render_mode: str | None = None,
    ) -> None:
        if k not in SIZES:
            raise ValueError(f"k must be one of {SIZES}, got {k!r}")
        if turns is not None and (isinstance(turns, bool) or not isinstance(turns, int) or turns < 1):
            raise ValueError(f"turns must be None or an integer of at least 1, got {turns!r}")
        self._oracle = OracleMenu(BFCLMultiTurnEnv(category, split, task, dense_reward, render_mode), k, turns)
        super().__init__(self._oracle, n_candidates=k, n_features=n_features, state_keys=("request", "made", "reply"))

    def expert_action(self) -> int:
        """Return the next choice of gold play, whatever the agent did before."""
        return self._oracle.expert_action()
