"""Torch modules of one's own as turn policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Protocol

import torch as th
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn
from torch.distributions import Categorical, Distribution

from seeupo_gym.agents.method.batches import TurnBatch
from seeupo_gym.agents.method.errors import NonFiniteError
from seeupo_gym.agents.method.modes import layers_with_modes
from seeupo_gym.agents.method.policy import TrainablePolicies
from seeupo_gym.agents.method.threads import SMALL_MATRIX

_DIVERGED = "its weights diverged (try a smaller learning rate or max_grad_norm) or its input is extreme"


class LogProbPolicy(Protocol):
    """A policy that computes its log-probabilities itself; it may have ``entropy(states)`` too, shape (batch,)."""

    def log_prob(self, states: PyTorchObs, actions: th.Tensor) -> th.Tensor:
        """Log-probabilities, shape (batch,), or (batch, tokens) where those were recorded; with gradients."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters to train."""


Policy = nn.Module | LogProbPolicy


class ModulePolicies(TrainablePolicies):
    """
    Torch modules as the turn policies that the update takes.

    There is one optimizer per distinct module, so that updating a turn leaves the others' parameters and optimizer
    state untouched.

    :param policies: one policy per turn, or one for all turns
    :param optimizer_class: optimizer
    :param optimizer_kwargs: its arguments
    :raises ValueError: for what is no policy, has nothing to train, or is spread over several devices
    """

    def __init__(
        self,
        policies: Policy | Sequence[Policy] | nn.ModuleList,
        optimizer_class: type[th.optim.Optimizer],
        optimizer_kwargs: dict[str, Any],
    ) -> None:
        self.shared = not isinstance(policies, (Sequence, nn.ModuleList))
        self.policies: list[Any] = list(policies) if isinstance(policies, (Sequence, nn.ModuleList)) else [policies]
        if not self.policies:
            raise ValueError("policies is empty: pass one policy per turn, or a single one for all turns")
        of_policy: dict[int, th.optim.Optimizer] = {}
        for turn, policy in enumerate(self.policies):
            if not hasattr(policy, "parameters") or not (isinstance(policy, nn.Module) or hasattr(policy, "log_prob")):
                raise ValueError(
                    f"the policy of turn {turn} is a {type(policy).__name__}: it must be a torch module, or an object "
                    "with log_prob(states, actions) and parameters()"
                )
            params = [param for param in policy.parameters() if param.requires_grad]
            if not params:
                raise ValueError(
                    f"the policy of turn {turn} has no parameters that require a gradient: nothing to train"
                )
            if id(policy) not in of_policy:
                of_policy[id(policy)] = optimizer_class(params, **optimizer_kwargs)
        self.optimizers = [of_policy[id(policy)] for policy in self.policies]
        """The optimizer of each policy; the same object where the policy is."""
        devices = {str(param.device) for turn in range(len(self.policies)) for param in self.turn_parameters(turn)}
        if len(devices) > 1:
            raise ValueError(f"all policies must be on one device, got {sorted(devices)}")
        # Whether the trajectories recorded one log-probability per token.
        self.per_token = False

    @property
    def device(self) -> th.device:
        """Device of the parameters."""
        return self.turn_parameters(0)[0].device

    @property
    def small(self) -> bool:
        """True where one torch thread is faster than several."""
        return self.device.type == "cpu" and all(
            param.numel() < SMALL_MATRIX for turn in range(len(self.policies)) for param in self.turn_parameters(turn)
        )

    @property
    def log_dtype(self) -> th.dtype:
        """The type of log-probabilities, advantages and factors: at least float32, also for smaller weights."""
        dtypes = (self.turn_parameters(turn)[0].dtype for turn in range(len(self.policies)))
        return reduce(th.promote_types, dtypes, th.float32)

    def index(self, turn: int) -> int:
        """Return the number of the policy that plays a turn."""
        return 0 if self.shared else turn

    def turn_parameters(self, turn: int) -> list[nn.Parameter]:
        return [param for group in self.optimizers[self.index(turn)].param_groups for param in group["params"]]

    def step_optimizer(self, *turns: int) -> None:
        for optimizer in dict.fromkeys(self.optimizers[self.index(turn)] for turn in turns):
            optimizer.step()

    def evaluate_actions(
        self,
        obs: PyTorchObs,
        actions: th.Tensor,
        turn: int,
        action_masks: th.Tensor | None = None,
        with_entropy: bool = False,
        check_logits: bool = False,
    ) -> tuple[th.Tensor, th.Tensor | None]:
        """
        Log-probabilities of actions under the current policy of one turn, with gradients.

        :param obs: batch of states
        :param actions: first dimension the batch
        :param turn: the turn they are at, counted from 0
        :param action_masks: valid choices, in the shape of the logits; None: all
        :param with_entropy: whether to compute entropies too
        :param check_logits: whether to see first that the actions and masks fit the logits, whatever their values
        :return: log-probabilities, shape (batch,), or (batch, tokens) with ``per_token``, and entropies, shape
            (batch,), or None where the policy gives none
        :raises ValueError: if the policy does not fit the actions or the masks
        """
        policy = self.policies[self.index(turn)]
        output = None if hasattr(policy, "log_prob") else policy(obs)
        if action_masks is not None and not isinstance(output, th.Tensor):
            raise ValueError(
                f"the trajectories have action masks at turn {turn}, but its policy returns no logits to mask: return "
                "logits, or leave the masks out and apply them inside the policy"
            )
        if output is None:
            entropy = policy.entropy(obs) if with_entropy and hasattr(policy, "entropy") else None
            return policy.log_prob(obs, actions), entropy
        if isinstance(output, th.Tensor):
            if check_logits:
                _check_logits(output, actions, action_masks, turn)
            if action_masks is not None:
                output = output.masked_fill(~action_masks, th.finfo(output.dtype).min)
            # Without torch's validation, which costs a tenth of an update: NaN is refused before a step is taken.
            output = Categorical(logits=output, validate_args=False)
        if not isinstance(output, Distribution):
            raise ValueError(
                f"the policy of turn {turn} returns a {type(output).__name__}: its forward(states) must return logits "
                "or a torch.distributions.Distribution"
            )
        shape = output.batch_shape + output.event_shape
        if shape != actions.shape or output.batch_shape[:1] != actions.shape[:1]:
            raise ValueError(
                f"the distribution of turn {turn} is one over actions of shape {tuple(shape)}, batch first, but those "
                f"recorded have shape {tuple(actions.shape)}"
            )
        log_prob = output.log_prob(actions)
        try:
            entropy = output.entropy().reshape(len(actions), -1).sum(dim=1) if with_entropy else None
        except NotImplementedError:
            entropy = None
        # The components of an action are independent, so that of the whole action is their sum.
        return log_prob if self.per_token else log_prob.reshape(len(actions), -1).sum(dim=1), entropy

    def check(self, turn: int, batch: TurnBatch, entropy_needed: bool) -> None:
        """
        Evaluate a turn once, for what would go wrong in its update.

        :param turn: counted from 0
        :param batch: its rows
        :param entropy_needed: whether the loss has an entropy bonus
        :raises ValueError: if the policy does not fit the trajectories
        :raises NonFiniteError: if it gives NaN or infinity
        """
        n_rows = len(batch.log_probs)
        policy = self.policies[self.index(turn)]
        if isinstance(policy, nn.Module):
            for layer in layers_with_modes(policy):
                if layer.training:
                    raise ValueError(
                        f"the policy of turn {turn} has a {type(layer).__name__} in training mode, so that its "
                        "log-probabilities change with every call and importance ratios with them: call policy.eval() "
                        "before collecting and updating"
                    )
        try:
            log_prob, entropy = self.evaluate_actions(
                batch.observations, batch.actions, turn, batch.action_masks, with_entropy=True, check_logits=True
            )
        except ValueError as error:
            # Distributions refuse NaN when they are made, inside the policy, and cannot know the turn.
            if all(bool(param.isfinite().all()) for param in self.turn_parameters(turn)):
                raise
            raise NonFiniteError(f"the policy of turn {turn} has non-finite weights; {_DIVERGED}") from error
        if log_prob.shape != batch.log_probs.shape:
            raise ValueError(
                f"the policy of turn {turn} gives log-probabilities of shape {tuple(log_prob.shape)}, but those "
                f"recorded have shape {tuple(batch.log_probs.shape)}: both must be (batch,), or (batch, tokens)"
            )
        if not log_prob.requires_grad:
            raise ValueError(
                f"the log-probabilities of turn {turn} have no gradient: the policy must not detach them, nor be "
                "called under torch.no_grad()"
            )
        finite = log_prob.isfinite().reshape(n_rows, -1).all(dim=1)
        if not bool(finite.all()):
            row = int((~finite).nonzero()[0])
            raise NonFiniteError(
                f"the policy of turn {turn} gives a log-probability of {log_prob[row].tolist()} for trajectory "
                f"{int(batch.episodes[row])}; {_DIVERGED}, or it rules out an action that was taken"
            )
        if entropy is None and entropy_needed:
            raise ValueError(
                f"ent_coef is not 0, but the policy of turn {turn} gives no entropy: add a method entropy(states) that "
                "returns shape (batch,), or set ent_coef=0"
            )
        if entropy is not None and entropy.shape != (n_rows,):
            raise ValueError(f"entropy(states) of turn {turn} must have shape ({n_rows},), got {tuple(entropy.shape)}")


def _check_logits(logits: th.Tensor, actions: th.Tensor, masks: th.Tensor | None, turn: int) -> None:
    if actions.is_floating_point():
        raise ValueError(
            f"the policy of turn {turn} returns logits, which are for discrete actions, but its actions are floats: "
            "record integers, or return a torch.distributions.Distribution"
        )
    if logits.shape[:-1] != actions.shape:
        raise ValueError(
            f"the logits of turn {turn} must have the shape of the actions, {tuple(actions.shape)}, and a last "
            f"dimension for the choices, got {tuple(logits.shape)}"
        )
    low, high = int(actions.min()), int(actions.max())
    if low < 0 or high >= logits.shape[-1]:
        raise ValueError(
            f"the policy of turn {turn} gives {logits.shape[-1]} logits, but its actions go from {low} to {high}: they "
            "are counted from 0, with one logit for each"
        )
    if masks is None:
        return
    if masks.shape != logits.shape:
        raise ValueError(
            f"the action masks of turn {turn} must have the shape of the logits, {tuple(logits.shape)}, got "
            f"{tuple(masks.shape)}"
        )
    if not bool(masks.gather(-1, actions.long().unsqueeze(-1)).all()):
        raise ValueError(
            f"an action taken at turn {turn} is invalid by its own mask: record the mask it was chosen with"
        )
