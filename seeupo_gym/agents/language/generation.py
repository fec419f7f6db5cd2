"""Messages of a causal language model: sampling them with a key-value cache, and their log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, NamedTuple

import torch as th

from seeupo_gym.agents.language.loading import require_llm
from seeupo_gym.agents.language.tokens import PAD

AllowedTokens = Callable[[th.Tensor, th.Tensor], th.Tensor]
"""Function that says which tokens may follow, shape (batch, n_vocab).

Its arguments are contexts (tokens followed by -1), shape (batch, width), and the tokens written so far, shape (batch,
t), both int64. It is called only for messages that are not over. It must depend on nothing else, because it is called
again when log-probabilities are computed.
"""


class Decoding(NamedTuple):
    """Settings of generation. Sampling and log-probabilities must use the same, or the importance ratio is wrong."""

    n_vocab: int
    stops: Sequence[int]
    """Tokens that end a message."""
    temperature: float = 1.0
    allowed_tokens: AllowedTokens | None = None


class Messages(NamedTuple):
    """Generated messages."""

    tokens: th.Tensor
    """Tokens up to and including the one that ends the message, then -1; shape (batch, max_new_tokens)."""
    log_probs: th.Tensor
    """Log-probabilities of the tokens, 0 where there is none, same shape."""


class NoTokenError(ValueError):
    """Constrained decoding leaves no token to choose."""


def left_padded(contexts: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """
    Move padding from the right to the left, and drop columns that are padding only.

    Messages then begin in the same column, and a cache has no gap before them.

    :param contexts: tokens followed by -1, shape (batch, width)
    :return: tokens preceded by zeros, and a mask of the tokens, both of shape (batch, longest)
    """
    lengths = (contexts >= 0).sum(dim=1)
    columns = th.arange(int(lengths.max()), device=contexts.device) - (lengths.max() - lengths).unsqueeze(1)
    mask = columns >= 0
    return contexts.gather(1, columns.clamp(min=0)).masked_fill(~mask, 0).long(), mask


def choice_mask(choices: th.Tensor, prefix: th.Tensor, n_vocab: int) -> th.Tensor:
    """
    Compute a mask of the tokens that lead on to one of the choices.

    :param choices: tokens followed by -1, shape (batch, choices, width)
    :param prefix: tokens written so far, shape (batch, t) with t < width
    :param n_vocab: number of tokens
    :return: shape (batch, n_vocab)
    """
    t = prefix.shape[1]
    following = choices[:, :, t]
    open_ = (choices[:, :, :t] == prefix.unsqueeze(1)).all(dim=2) & (following >= 0)
    mask = th.zeros((len(choices), n_vocab + 1), dtype=th.bool, device=choices.device)
    return mask.scatter_(1, th.where(open_, following.long(), n_vocab), True)[:, :n_vocab]


def _allowed(
    decoding: Decoding, contexts: th.Tensor, choices: th.Tensor | None, prefix: th.Tensor, open_: th.Tensor
) -> th.Tensor | None:
    """Compute a mask of the tokens that may follow. All may if a message is over, as its scores are not used."""
    if choices is None and decoding.allowed_tokens is None:
        return None
    mask = th.ones((len(prefix), decoding.n_vocab), dtype=th.bool, device=prefix.device)
    if choices is not None:
        mask[open_] = choice_mask(choices[open_], prefix[open_], decoding.n_vocab)
    if decoding.allowed_tokens is not None:
        mask[open_] &= decoding.allowed_tokens(contexts[open_].long(), prefix[open_].long())
    return mask


def _scores(logits: th.Tensor, decoding: Decoding, allowed: th.Tensor | None) -> th.Tensor:
    """Compute the logits of the distribution that messages are sampled from."""
    scores = logits[..., : decoding.n_vocab].float() / decoding.temperature
    return scores if allowed is None else scores.masked_fill(~allowed, th.finfo(scores.dtype).min)


@th.no_grad()
def sample_messages(
    network: Any,
    contexts: th.Tensor,
    max_new_tokens: int,
    decoding: Decoding,
    generator: th.Generator | None,
    choices: th.Tensor | None = None,
) -> Messages:
    """
    Write a message after each context.

    Equal contexts, such as those of a group at its first turn, are read once. So is the part that all contexts begin
    with, unless the model counts columns (sliding windows). The next tokens are computed with a key-value cache. Rows
    whose messages have ended are dropped when they are half of all rows.

    :param network: a causal language model of transformers
    :param contexts: tokens followed by -1, shape (batch, width)
    :param max_new_tokens: number of tokens after which a message is cut off
    :param decoding: settings of generation
    :param generator: source of the samples; None: the most likely tokens
    :param choices: the only messages that are allowed, see :func:`choice_mask`; None: any
    :raises FloatingPointError: if logits are not finite; its argument is the row
    :raises NoTokenError: if constraints leave no token
    """
    n, device = len(contexts), contexts.device
    tokens = th.full((n, max_new_tokens), PAD, device=device)
    log_probs = th.zeros((n, max_new_tokens), device=device)
    stops = th.as_tensor(list(decoding.stops), device=device)
    distinct, origin = th.unique(contexts, dim=0, return_inverse=True)
    if len(distinct) == n:
        distinct, origin = contexts, th.arange(n, device=device)
    cache = _new_cache(network)
    logits, mask = _read(network, distinct, None, 1, cache)
    logits, mask = logits[origin, -1], mask[origin]
    if len(distinct) < n:
        cache.batch_select_indices(origin)
    rows, running = th.arange(n, device=device), th.ones(n, dtype=th.bool, device=device)
    for t in range(max_new_tokens):
        finite = th.isfinite(logits[:, : decoding.n_vocab]).all(dim=1) | ~running
        if not finite.all():
            raise FloatingPointError(int(rows[~finite][0]))
        of_rows = None if choices is None else choices[rows]
        allowed = _allowed(decoding, contexts[rows], of_rows, tokens[rows, :t], running)
        if allowed is not None and not allowed.any(dim=1).all():
            raise NoTokenError(f"constrained decoding allows no token after {t} tokens of a message")
        log_p = _scores(logits, decoding, allowed).log_softmax(dim=1)
        if generator is None:
            chosen = log_p.argmax(dim=1)
        else:
            chosen = th.multinomial(log_p.exp(), 1, generator=generator).squeeze(1)
        tokens[rows[running], t] = chosen[running]
        log_probs[rows[running], t] = log_p[running].gather(1, chosen[running].unsqueeze(1)).squeeze(1)
        running = running & ~th.isin(chosen, stops)
        n_running = int(running.sum())
        if n_running == 0 or t + 1 == max_new_tokens:
            break
        if 2 * n_running <= len(rows):
            kept = running.nonzero().squeeze(1)
            cache.batch_select_indices(kept)
            rows, chosen, mask, running = rows[kept], chosen[kept], mask[kept], running[kept]
        positions = mask.sum(dim=1, keepdim=True)
        mask = th.cat([mask, mask.new_ones((len(mask), 1))], dim=1)
        logits = network(
            input_ids=chosen.unsqueeze(1),
            attention_mask=mask.long(),
            position_ids=positions,
            use_cache=True,
            **_cached(network, cache),
        ).logits[:, -1]
    return Messages(tokens, log_probs)


def message_log_probs(
    network: Any,
    contexts: th.Tensor,
    messages: th.Tensor,
    decoding: Decoding,
    choices: th.Tensor | None = None,
    with_entropy: bool = False,
) -> tuple[th.Tensor, th.Tensor | None]:
    """
    Compute the log-probabilities of the tokens of messages, with the masks and the temperature of their sampling.

    Equal rows, such as the same message of several members of a group, are computed once. So is the part that all
    contexts begin with.

    :param network: a causal language model of transformers
    :param contexts: tokens followed by -1, shape (batch, width)
    :param messages: tokens followed by -1, at least one token in each row, shape (batch, max_new_tokens)
    :param decoding: settings of generation
    :param choices: the only messages that are allowed, see :func:`choice_mask`; None: any
    :param with_entropy: whether to compute entropies too
    :return: log-probabilities, 0 where there is no token, shape (batch, max_new_tokens), and the mean entropy of each
        message's tokens in nats, shape (batch,), or None; both with gradients
    """
    parts = [contexts, messages] if choices is None else [contexts, messages, choices.flatten(start_dim=1)]
    rows, origin = th.unique(th.cat(parts, dim=1), dim=0, return_inverse=True)
    if len(rows) < len(messages):
        widths = [part.shape[1] for part in parts]
        contexts, messages, *flat = rows.split(widths, dim=1)
        choices = None if choices is None else flat[0].unflatten(1, choices.shape[1:])
        log_prob, entropy = message_log_probs(network, contexts, messages, decoding, choices, with_entropy)
        return log_prob[origin], None if entropy is None else entropy[origin]
    longest = int((messages >= 0).sum(dim=1).max())
    tokens = messages[:, :longest].long()
    there = tokens >= 0
    # Activations that are computed twice cannot be kept in a cache.
    checkpointing = th.is_grad_enabled() and _is_checkpointing(_bare(network))
    logits, _ = _read(network, contexts, tokens, longest + 1, None if checkpointing else _new_cache(network))
    logits = logits[:, :-1]
    steps = [_allowed(decoding, contexts, choices, messages[:, :t], there[:, t]) for t in range(longest)]
    allowed = None if steps[0] is None else th.stack([step for step in steps if step is not None], dim=1)
    scores = _scores(logits, decoding, allowed)
    log_total = scores.logsumexp(dim=2)
    log_prob = scores.gather(2, tokens.clamp(min=0).unsqueeze(2)).squeeze(2) - log_total
    log_prob = th.nn.functional.pad(log_prob.masked_fill(~there, 0.0), (0, messages.shape[1] - longest))
    if not with_entropy:
        return log_prob, None
    # This is -sum p log p. Masked tokens have p = 0 and a finite score, so they add nothing.
    entropy = log_total - (scores.softmax(dim=2) * scores).sum(dim=2)
    return log_prob, entropy.masked_fill(~there, 0.0).sum(dim=1) / there.sum(dim=1)


def _read(
    network: Any, contexts: th.Tensor, messages: th.Tensor | None, n_logits: int, cache: Any
) -> tuple[th.Tensor, th.Tensor]:
    """
    Run the network over contexts and messages; the part that all contexts begin with is computed in one row.

    :param cache: a new cache, which is filled; None: nothing is shared
    :return: the last ``n_logits`` logits of each row, and a mask of the columns that are tokens, shape (batch, width)
    """
    n = len(contexts)
    n_shared = 0 if cache is None or n == 1 or not _allows_gaps(_bare(network)) else shared_prefix(contexts)
    if n_shared > 0:
        network(input_ids=contexts[:1, :n_shared].long(), use_cache=True, logits_to_keep=1, **_cached(network, cache))
        cache.batch_repeat_interleave(n)
    ids, mask = left_padded(contexts[:, n_shared:])
    if messages is not None:
        ids, mask = th.cat([ids, messages.clamp(min=0)], dim=1), th.cat([mask, messages >= 0], dim=1)
    mask = th.cat([mask.new_ones((n, n_shared)), mask], dim=1)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)  # counted without the padding
    logits: th.Tensor = network(
        input_ids=ids,
        attention_mask=mask.long(),
        position_ids=positions[:, n_shared:],
        use_cache=cache is not None,
        logits_to_keep=n_logits,
        **({} if cache is None else _cached(network, cache)),
    ).logits
    return logits, mask


def shared_prefix(contexts: th.Tensor) -> int:
    """
    Count the tokens that all contexts begin with, at most one less than the shortest has.

    :param contexts: tokens followed by -1, shape (batch, width)
    """
    same = (contexts == contexts[:1]).all(dim=0).long().cumprod(dim=0).sum()
    return int(th.minimum(same, (contexts >= 0).sum(dim=1).min() - 1))


def _allows_gaps(network: Any) -> bool:
    """
    Return True if columns of padding may lie between a row's tokens, as they do after a shared prefix.

    They may not if attention counts columns: in windows or chunks, or for distances if the model is given no positions.
    """
    config = network.config.get_text_config()
    return (
        "position_ids" in signature(network.forward).parameters
        and all(kind == "full_attention" for kind in getattr(config, "layer_types", None) or ())
        and not any(getattr(config, name, None) for name in ("sliding_window", "window_size", "attention_chunk_size"))
    )


def _new_cache(network: Any) -> Any:
    return require_llm().DynamicCache(config=network.config)


def _cached(network: Any, cache: Any) -> dict[str, Any]:
    """Make an argument of the cache, under the name that the model knows; it changed in transformers 5."""
    return {"cache" if "cache" in signature(_bare(network).forward).parameters else "past_key_values": cache}


def _is_checkpointing(network: Any) -> bool:
    """Return True if activations are computed twice; the attribute's name changed within transformers 5."""
    names = ("is_activation_checkpointing", "is_gradient_checkpointing")
    return bool(getattr(network, next(name for name in names if hasattr(network, name))))


def _bare(network: Any) -> Any:
    """Return the model within peft's wrapper, if it has one."""
    return network.get_base_model() if hasattr(network, "get_base_model") else network
