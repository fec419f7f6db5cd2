"""Distributions over actions: their parameters, samples from one's own generator, log-probabilities, entropies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import (
    MaskableCategorical,
    MaskableCategoricalDistribution,
    MaskableDistribution,
    MaskableMultiCategoricalDistribution,
)
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    MultiCategoricalDistribution,
)

# As in sb3-contrib.
MASKED_LOGIT = -1e8


def parametrize(
    distribution: Distribution, params: th.Tensor, log_std: th.Tensor | None, action_masks: th.Tensor | None
) -> Distribution:
    """
    Set the parameters of a distribution, without torch's validation of them: that costs a tenth of an update,
    and non-finite parameters are refused before an action is sampled and before a gradient step is taken.

    :param distribution: one of SB3's or sb3-contrib's distributions; changed in place
    :param params: logits, or means of continuous actions, shape (batch, parameters)
    :param log_std: log standard deviations of continuous actions, else None
    :param action_masks: valid choices, shape (batch, sum of choices); None: all
    :return: the distribution
    :raises ValueError: for masks where the distribution takes none
    """
    if action_masks is not None and not isinstance(distribution, MaskableDistribution):
        raise ValueError("action masks were given to a policy that was made without use_masking=True")
    if isinstance(distribution, DiagGaussianDistribution):
        assert log_std is not None
        distribution.distribution = th.distributions.Normal(params, log_std.exp().expand_as(params), False)
    elif isinstance(distribution, BernoulliDistribution):
        distribution.distribution = th.distributions.Bernoulli(logits=params, validate_args=False)
    elif isinstance(distribution, CategoricalDistribution):
        distribution.distribution = th.distributions.Categorical(logits=params, validate_args=False)
    elif isinstance(distribution, MaskableCategoricalDistribution):
        distribution.distribution = MaskableCategorical(logits=params, validate_args=False, masks=action_masks)
    elif isinstance(distribution, MultiCategoricalDistribution):
        parts = params.split(list(distribution.action_dims), dim=1)
        distribution.distribution = [th.distributions.Categorical(logits=p, validate_args=False) for p in parts]
    elif isinstance(distribution, MaskableMultiCategoricalDistribution):
        distribution.distributions = [
            MaskableCategorical(logits=logits, validate_args=False, masks=mask)
            for logits, mask in _components(distribution.action_dims, params, action_masks)
        ]
    else:
        raise NotImplementedError(f"{type(distribution).__name__} is none of the supported distributions")
    return distribution


def _components(
    sizes: Sequence[int], params: th.Tensor, action_masks: th.Tensor | None
) -> Iterator[tuple[th.Tensor, th.Tensor | None]]:
    """Pair the logits and the mask of each component of an action."""
    masks = [None] * len(sizes) if action_masks is None else action_masks.split(list(sizes), dim=1)
    return zip(params.split(list(sizes), dim=1), masks, strict=True)


def sample_with_log_prob(
    distribution: Distribution, params: th.Tensor, generator: th.Generator | None, per_component: bool = False
) -> tuple[th.Tensor, th.Tensor]:
    """
    Choose actions, with log-probabilities that :func:`log_prob_and_entropy` reproduces bit for bit.

    :param distribution: already parametrised with ``params``
    :param params: see :func:`parametrize`
    :param generator: see :func:`sample`; None: the most likely actions
    :param per_component: see :func:`log_prob_and_entropy`
    :return: actions, first dimension the batch, and their log-probabilities
    """
    actions = distribution.mode() if generator is None else sample(distribution, generator)
    if isinstance(distribution, CategoricalDistribution):
        return actions, _gather(params.log_softmax(dim=1), actions)
    return actions, _log_prob(distribution, actions, per_component)


def n_components(action_space: spaces.Space[Any]) -> int:
    """
    Count the components of an action: the tokens of a policy that decides on each by itself.

    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary
    :return: 1 for Discrete, else the number of entries
    """
    return int(np.prod(action_space.shape or (1,)))


def _log_prob(distribution: Distribution, actions: th.Tensor, per_component: bool) -> th.Tensor:
    if not per_component:
        return distribution.log_prob(actions)
    if isinstance(distribution, (DiagGaussianDistribution, BernoulliDistribution)):
        base: th.distributions.Distribution = distribution.distribution
        return base.log_prob(actions)
    components: Sequence[th.distributions.Categorical]
    if isinstance(distribution, MultiCategoricalDistribution):
        components = distribution.distribution
    elif isinstance(distribution, MaskableMultiCategoricalDistribution):
        components = distribution.distributions
    else:  # one component: a categorical
        return distribution.log_prob(actions)
    parts = [c.log_prob(a) for c, a in zip(components, actions.unbind(dim=1), strict=True)]
    return th.stack(parts, dim=1)


def _gather(log_probs: th.Tensor, actions: th.Tensor) -> th.Tensor:
    return log_probs.gather(1, actions.long().unsqueeze(1)).squeeze(1)


def log_prob_and_entropy(
    distribution: Distribution,
    params: th.Tensor,
    log_std: th.Tensor | None,
    actions: th.Tensor,
    action_masks: th.Tensor | None,
    with_entropy: bool,
    per_component: bool = False,
) -> tuple[th.Tensor, th.Tensor | None]:
    """
    Log-probabilities of actions, and entropies where they are wanted; both with gradients.

    :param distribution: see :func:`parametrize`
    :param params: see :func:`parametrize`
    :param log_std: see :func:`parametrize`
    :param actions: shape (batch, *action shape)
    :param action_masks: see :func:`parametrize`
    :param with_entropy: whether to compute entropies
    :param per_component: whether to give one log-probability per component of the action, where it has several
    :return: log-probabilities, shape (batch,), or (batch, components) if asked for, and entropies in nats, shape
        (batch,), or None
    """
    if isinstance(distribution, CategoricalDistribution):
        # The same numbers as torch's Categorical in half as many operations: this is the update's inner loop.
        log_probs = params.log_softmax(dim=1)
        log_prob = _gather(log_probs, actions)
        return log_prob, -(log_probs.exp() * log_probs).sum(dim=1) if with_entropy else None
    if isinstance(distribution, MaskableDistribution):
        sizes = [params.shape[1]]
        if isinstance(distribution, MaskableMultiCategoricalDistribution):
            sizes = distribution.action_dims
        log_probs, entropies = _masked_log_probs_and_entropies(sizes, params, actions, action_masks, with_entropy)
        log_prob = log_probs if per_component and len(sizes) > 1 else log_probs.sum(dim=1)
        return log_prob, None if entropies is None else entropies.sum(dim=1)
    distribution = parametrize(distribution, params, log_std, action_masks)
    if isinstance(distribution, DiagGaussianDistribution):  # whose actions are flat, whatever the shape of the Box
        actions = actions.reshape(params.shape)
    return _log_prob(distribution, actions, per_component), distribution.entropy() if with_entropy else None


def _masked_log_probs_and_entropies(
    sizes: Sequence[int], params: th.Tensor, actions: th.Tensor, action_masks: th.Tensor | None, with_entropy: bool
) -> tuple[th.Tensor, th.Tensor | None]:
    """
    Those of each component, shape (batch, components): the numbers of sb3-contrib's maskable distributions, bit for
    bit, without making these.
    """
    log_probs, entropies = [], []
    components = _components(sizes, params, action_masks)
    for (logits, mask), action in zip(components, actions.reshape(len(params), -1).unbind(dim=1), strict=True):
        logits = logits - logits.logsumexp(dim=1, keepdim=True)
        if mask is not None:
            logits = th.where(mask, logits, MASKED_LOGIT)
        logits = logits - logits.logsumexp(dim=1, keepdim=True)
        log_probs.append(_gather(logits, action))
        if with_entropy:
            entropies.append(-(logits * logits.softmax(dim=1)).sum(dim=1))
    return th.stack(log_probs, dim=1), th.stack(entropies, dim=1) if with_entropy else None


def sample(distribution: Distribution, generator: th.Generator) -> th.Tensor:
    """
    Sample actions with a generator of one's own; the ``sample`` methods of SB3 draw from torch's global one.

    :param distribution: one of SB3's or sb3-contrib's distributions, already parametrised
    :param generator: on the device of the distribution
    :return: actions, first dimension the batch
    """
    if isinstance(distribution, DiagGaussianDistribution):
        normal = distribution.distribution
        noise = th.randn(normal.mean.shape, generator=generator, device=normal.mean.device)
        return normal.mean + normal.stddev * noise
    if isinstance(distribution, BernoulliDistribution):
        return th.bernoulli(distribution.distribution.probs, generator=generator)
    if isinstance(distribution, (CategoricalDistribution, MaskableCategoricalDistribution)):
        return th.multinomial(distribution.distribution.probs, 1, generator=generator).squeeze(1)
    components: Sequence[th.distributions.Categorical]
    if isinstance(distribution, MultiCategoricalDistribution):
        components = distribution.distribution
    elif isinstance(distribution, MaskableMultiCategoricalDistribution):
        components = distribution.distributions
    else:
        raise NotImplementedError(f"no sampler for {type(distribution).__name__}")
    return th.cat([th.multinomial(c.probs, 1, generator=generator) for c in components], dim=1)


def sample_uniform(
    distribution: Distribution,
    action_space: spaces.Space[Any],
    size: tuple[int, int],
    generator: th.Generator,
    action_masks: th.Tensor | None,
) -> th.Tensor:
    """
    Sample actions uniformly over the valid ones.

    :param distribution: as it is made for the action space
    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary
    :param size: number of actions, and of parameters that the distribution takes for one
    :param generator: see :func:`sample`
    :param action_masks: valid choices, shape (batch, sum of choices); None: all
    :return: actions, first dimension the batch
    """
    if isinstance(action_space, spaces.Box):
        # In the networks' type, which is that of sampled actions, whatever that of the space is.
        bounds = (action_space.low, action_space.high)
        low, high = (th.as_tensor(b, dtype=th.float32, device=generator.device).flatten() for b in bounds)
        return low + (high - low) * th.rand(size[0], len(low), generator=generator, device=generator.device)
    logits = th.zeros(size, device=generator.device)
    return sample(parametrize(distribution, logits, None, action_masks), generator)
