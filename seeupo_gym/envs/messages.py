"""Text in place of action indices: find the action that a written message means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

if TYPE_CHECKING:
    from seeupo_gym.envs.task import Task

_N_SHOWN = 12
# A number with its sign and all that is joined to it (also by a typographer's apostrophe, dash or minus), or a word.
_SIGN, _JOINT = r"(?:(?<![a-z0-9])[-\u2212]|(?<![a-z0-9.])\.)", r"[.,'_/\u2019\u2013\u2212-]"
_WORD = re.compile(rf"{_SIGN}?\d[a-z0-9]*(?:{_JOINT}\d[a-z0-9]*)*|[a-z0-9]+")


class MessageError(ValueError):
    """A message that means no action; the text is the reply to it, and says what would be understood."""


def all_actions(space: spaces.Discrete | spaces.MultiDiscrete) -> NDArray[np.int64]:
    """
    Every action of a space.

    :param space: Discrete or MultiDiscrete
    :return: shape (actions,) or (actions, components)
    """
    if isinstance(space, spaces.Discrete):
        return np.arange(int(space.n))
    size = int(np.prod(space.nvec.astype(np.int64)))
    return np.stack(np.unravel_index(np.arange(size), tuple(space.nvec)), axis=1)


def plain(text: str) -> str:
    """
    Reduce a message to lower-case words and numbers, with single spaces between them.

    A number stays whole, with its sign, so that none is taken for a part of it: -5, 3.9, 1,000 and 5-10 are not 5, 3, 1
    and 5. After letters a hyphen is no sign: O-2041 becomes "o 2041".
    """
    return " ".join(_WORD.findall(text.casefold()))


def find_action(
    task: Task, lane: int, message: str, aliases: Mapping[str, int | NDArray[np.int64]] | None = None
) -> NDArray[np.int64]:
    """
    Find the action whose text a message is, or contains, whatever its case and punctuation.

    Tried in this order: the whole message, its last line, what follows its last ``Action:`` (as agents that reason
    first write), its last sentence, and the one action whose text occurs in it as whole words; of several, the longest.

    :param task: says what each action is called
    :param lane: the lane whose episode the message belongs to
    :param message: what was written
    :param aliases: short texts for some actions; they count only alone, never within other words, and so does an
        action's own text that is as short
    :return: the action, shape () or (components,)
    :raises MessageError: if the message means none, or several
    """
    actions = all_actions(task.action_space)
    # The first action of a text keeps it: those that only differ in a part that plays no role have the same text.
    by_text: dict[str, NDArray[np.int64]] = {}
    for action in actions:
        by_text.setdefault(plain(task.action_text(lane, action)), np.asarray(action))
    # What is short, such as "submit" or "offer", is easily said without being meant.
    short = {plain(text): np.asarray(action) for text, action in (aliases or {}).items()}
    lines = [line for line in message.splitlines() if line.strip()] or [""]
    after_action = re.split(r"action\s*:", message, flags=re.IGNORECASE)[-1]
    last_sentence = re.split(r"[.!?:;]\s+", message.strip())[-1]
    for candidate in map(plain, (message, lines[-1], after_action, last_sentence)):
        if candidate in by_text or candidate in short:
            return by_text[candidate] if candidate in by_text else short[candidate]
    padded = f" {plain(message)} "
    contained = sorted((text for text in by_text if text and text not in short and f" {text} " in padded), key=len)
    if contained and all(f" {text} " in f" {contained[-1]} " for text in contained):
        return by_text[contained[-1]]
    if contained:
        raise MessageError(f"That could mean several things: {', '.join(contained[-_N_SHOWN:])}. Write only one.")
    valid = _valid_texts(task, lane, actions)
    # The last one stands for the others: an action of another kind than the first ones, such as to submit, comes last.
    more = f"; and {len(valid) - _N_SHOWN} more, such as {valid[-1]}" if len(valid) > _N_SHOWN else ""
    raise MessageError(f"I do not understand that. You can write: {'; '.join(valid[:_N_SHOWN])}{more}.")


def _valid_texts(task: Task, lane: int, actions: NDArray[np.int64]) -> list[str]:
    """The texts of the actions that are accepted now."""
    if task.has_action_masks:
        mask = task.action_masks(np.array([lane]))[0]
        if isinstance(task.action_space, spaces.Discrete):
            actions = actions[mask]
        else:
            offsets = np.concatenate([[0], np.cumsum(task.action_space.nvec)[:-1]])
            actions = actions[mask[actions + offsets].all(axis=1)]
    return list(dict.fromkeys(task.action_text(lane, action) for action in actions))
