"""Messages in place of action indices: find the action that a written message means."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

_N_SHOWN = 12
# A number with its sign and all that is joined to it (also by a typographer's apostrophe, dash or minus), or a word.
_SIGN, _JOINT = r"(?:(?<![a-z0-9])[-\u2212]|(?<![a-z0-9.])\.)", r"[.,'_/\u2019\u2013\u2212-]"
_WORD = re.compile(rf"{_SIGN}?\d[a-z0-9]*(?:{_JOINT}\d[a-z0-9]*)*|[a-z0-9]+")


class MessageError(ValueError):
    """A message means no action. The error's text is the reply to it, and says what would be understood."""


def plain(text: str) -> str:
    """
    Reduce a message to lower-case words and numbers, with single spaces between them.

    A number stays whole, with its sign: "-5" is not 5, "3.9" is not 3, "1,000" is not 1, "5-10" is neither 5 nor 10.
    After letters a hyphen is no sign: "O-2041" becomes "o 2041".
    """
    return " ".join(_WORD.findall(text.casefold()))


def find_action(
    message: str,
    texts: Mapping[str, NDArray[np.int64]],
    short_texts: Mapping[str, int | NDArray[np.int64]],
    valid_texts: Callable[[], Sequence[str]],
) -> NDArray[np.int64]:
    """
    Find the action whose text a message is, or contains. Case and punctuation do not matter.

    These are compared with the texts, in this order: the whole message; its last line; the part after its last
    ``Action:``, as agents write that reason first; its last sentence. If none of them is a text, the texts are searched
    for in the message, as whole words. If it contains several, the longest counts, provided the others are parts of it.

    :param message: the message
    :param texts: text -> action, shape () or (components,); of texts that differ in case or punctuation alone the first
        counts
    :param short_texts: more texts -> actions. Texts that are in here count only if they stand alone, never within other
        words, because they are easily said without being meant
    :param valid_texts: returns the texts of the actions that are accepted now, for the error
    :return: the action, shape () or (components,)
    :raises MessageError: if the message means no action, or several
    """
    by_text: dict[str, NDArray[np.int64]] = {}
    for text, action in texts.items():
        by_text.setdefault(plain(text), action)
    short = {plain(text): np.asarray(action) for text, action in short_texts.items()}
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
    valid = valid_texts()
    # The last one is shown as an example: actions of another kind than the first ones, such as "submit", come last.
    more = f"; and {len(valid) - _N_SHOWN} more, such as {valid[-1]}" if len(valid) > _N_SHOWN else ""
    raise MessageError(f"I do not understand that. You can write: {'; '.join(valid[:_N_SHOWN])}{more}.")
