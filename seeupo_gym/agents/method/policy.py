"""The part of a policy that the update needs."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch as th
from stable_baselines3.common.type_aliases import PyTorchObs


class TrainablePolicies(ABC):
    """
    One policy for each turn, or one for several, as the update sees them.

    :class:`~seeupo_gym.agents.TurnPolicy` is one for :class:`~seeupo_gym.agents.SeeUPO`, and
    :class:`~seeupo_gym.agents.low_level.module_policies.ModulePolicies` makes one of torch modules.
    """

    @abstractmethod
    def evaluate_actions(
        self,
        obs: PyTorchObs,
        actions: th.Tensor,
        turn: int,
        action_masks: th.Tensor | None = None,
        with_entropy: bool = False,
    ) -> tuple[th.Tensor, th.Tensor | None]:
        """
        Compute log-probabilities of actions under the current policy of one turn, with gradients.

        :param obs: batch of observations
        :param actions: first dimension the batch
        :param turn: the turn they are at, counted from 0
        :param action_masks: valid choices; None: all
        :param with_entropy: whether to compute entropies too
        :return: log-probabilities, shape (batch,), or (batch, tokens) with 0 for tokens that an action does not have;
            and entropies in nats, shape (batch,), or None
        """

    @abstractmethod
    def turn_parameters(self, turn: int) -> list[th.nn.Parameter]:
        """
        Return the parameters that the update of a turn moves.

        :param turn: counted from 0
        """

    @abstractmethod
    def step_optimizer(self, *turns: int) -> None:
        """
        Take one optimizer step with the gradients of these turns' parameters, and of no others.

        :param turns: counted from 0
        """

    def reference_log_probs(self, obs: PyTorchObs, actions: th.Tensor, turn: int) -> th.Tensor:
        """
        Compute log-probabilities of tokens under a policy that is not trained; for ``reference_kl_coef``.

        :param obs: batch of observations
        :param actions: first dimension the batch
        :param turn: the turn they are at, counted from 0
        :return: as of :meth:`evaluate_actions`, without gradients
        :raises NotImplementedError: if there is no reference policy
        """
        raise NotImplementedError(f"reference_kl_coef is set, but {type(self).__name__} has no reference policy")
