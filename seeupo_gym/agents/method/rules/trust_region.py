"""The rule "trust_region": a natural-gradient step with a line search, in the role TRPO's step has in HATRPO."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch as th
from sb3_contrib.common.utils import conjugate_gradient_solver

from seeupo_gym.agents.method.batches import WeightedTurn
from seeupo_gym.agents.method.objective import action_kl
from seeupo_gym.agents.method.policy import TrainablePolicies
from seeupo_gym.agents.method.rules.kl_penalty import KLPenalty
from seeupo_gym.agents.method.sequential import Ascent, non_finite, parameters
from seeupo_gym.agents.method.settings import MethodSettings

# As in sb3-contrib's TRPO.
CG_MAX_STEPS = 15
CG_DAMPING = 0.1
LINE_SEARCH_SHRINKING = 0.8
LINE_SEARCH_STEPS = 10


# Settings of gradient ascent, and of policies whose second derivatives are not known.
_NOT_HERE = ("batch_size", "micro_batch_size", "reference_kl_coef")


class TrustRegion(KLPenalty):
    """
    The importance ratio under a bound on the KL divergence (arXiv:1502.05477, eq. 14): one step with all episodes of a
    turn, whose KL is at most ``target_kl``.
    """

    second_derivatives = True

    def check(self, settings: MethodSettings) -> None:
        if settings.target_kl is None:
            raise ValueError('update_rule="trust_region" needs target_kl, the bound of its steps (for example 0.01)')
        for name in _NOT_HERE:
            if getattr(settings, name):
                raise ValueError(
                    f'{name} is for update_rule="clip", "reinforce" and "kl_penalty", got {getattr(settings, name)}: '
                    '"trust_region" takes one step, with all episodes of a turn at once and no reference policy'
                )

    def n_passes(self, settings: MethodSettings) -> int:
        return 1

    def maximise(
        self,
        policy: TrainablePolicies,
        block: list[WeightedTurn],
        settings: MethodSettings,
        generator: th.Generator,
        first_sweep: bool = True,
    ) -> Ascent:
        assert settings.target_kl is not None
        start: list[th.Tensor] = []
        n_rows = sum(len(rows.weighted_advantages) for rows in block)

        def evaluate() -> tuple[th.Tensor, th.Tensor]:
            objective, log_probs = self.objective(policy, block, settings)
            if not start:
                start.extend(log_prob.detach() for log_prob in log_probs)
            kl = objective.new_zeros(())
            for rows, log_prob, before in zip(block, log_probs, start, strict=True):
                of_turn = action_kl(log_prob, before, self.ratio_level(settings), rows.batch.token_mask).mean()
                kl = kl + len(rows.weighted_advantages) / n_rows * of_turn
            return objective, kl

        before, accepted = natural_gradient_step(parameters(policy, block), evaluate, settings.target_kl)
        if not np.isfinite(before):
            raise non_finite(-before, "its gradient", block, "the natural-gradient step")
        return Ascent(int(accepted), -before)


def natural_gradient_step(
    params: Sequence[th.nn.Parameter],
    evaluate: Callable[[], tuple[th.Tensor, th.Tensor]],
    radius: float,
) -> tuple[float, bool]:
    """
    Maximise an objective under a bound on the KL divergence (arXiv:1502.05477, appendix C)::

        x = F^-1 g,   step = sqrt(2 * radius / x^T F x) * x,   shrunk until the objective improves and KL <= radius

    F is the Hessian of the KL from the current policy, estimated from the same samples: that of the k3 form is
    the mean of ``grad log pi (grad log pi)^T``, the Fisher matrix, so log-probabilities are all it takes.

    :param params: the parameters to move; as they were if no step is accepted
    :param evaluate: objective (to be maximised) and KL, both differentiable scalars, at the current parameters;
        the KL must be 0 at the start
    :param radius: bound on the KL
    :return: the objective before the step, and whether a step was accepted
    """
    objective, kl = evaluate()
    gradient = _flat(th.autograd.grad(objective, params, retain_graph=True, allow_unused=True), params)
    kl_grad = _flat(th.autograd.grad(kl, params, create_graph=True, allow_unused=True), params)

    def fisher_vector_product(vector: th.Tensor) -> th.Tensor:
        product = th.autograd.grad((kl_grad * vector).sum(), params, retain_graph=True, allow_unused=True)
        return _flat(product, params) + CG_DAMPING * vector

    before = float(objective.detach())
    if not th.isfinite(gradient).all():
        return float("nan"), False
    if not gradient.any():
        return before, False
    with th.random.fork_rng(devices=[]):
        # The solver starts from a small random vector of torch's global generator; on the CPU, to lend only that one.
        th.default_generator.manual_seed(0)
        direction = conjugate_gradient_solver(
            lambda vector: fisher_vector_product(vector.to(gradient.device)).cpu(), gradient.cpu(), CG_MAX_STEPS
        ).to(gradient.device)
    curvature = direction.dot(fisher_vector_product(direction))
    step = (2.0 * radius / curvature).sqrt() * direction
    start = [param.detach().clone() for param in params]
    with th.no_grad():
        for _ in range(LINE_SEARCH_STEPS):
            _move(params, start, step)
            objective, kl = evaluate()
            if kl <= radius and objective > before:
                return before, True
            step = LINE_SEARCH_SHRINKING * step
        _move(params, start, th.zeros_like(step))
    return before, False


def _flat(grads: Sequence[th.Tensor | None], params: Sequence[th.nn.Parameter]) -> th.Tensor:
    return th.cat([(th.zeros_like(p) if g is None else g).reshape(-1) for g, p in zip(grads, params, strict=True)])


def _move(params: Sequence[th.nn.Parameter], start: Sequence[th.Tensor], step: th.Tensor) -> None:
    """Set ``params = start + step``."""
    parts = step.split([param.numel() for param in params])
    for param, origin, part in zip(params, start, parts, strict=True):
        param.copy_(origin + part.view_as(origin))
