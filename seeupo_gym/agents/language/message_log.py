"""The log of generated messages: how long they are, and now and then a conversation as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from seeupo_gym.agents.method.batches import TurnBatch


def record_lengths(logger: Logger, batches: Sequence[TurnBatch], stops: Sequence[int]) -> None:
    """
    Record the mean length of messages, and the share of those that were cut off before they ended.

    :param logger: SB3's logger
    :param batches: the rollout, turn by turn
    :param stops: tokens that end a message
    """
    messages = th.cat([batch.actions for batch in batches])
    lengths = (messages >= 0).sum(dim=1)
    last = messages.gather(1, (lengths - 1).unsqueeze(1)).squeeze(1)
    unfinished = ~th.isin(last, th.as_tensor(stops, device=last.device))
    logger.record("rollout/message_length", float(lengths.float().mean()))
    logger.record("rollout/unfinished_message_fraction", float(unfinished.float().mean()))


def record_conversation(logger: Logger, batch: TurnBatch, tokenizer: Any) -> None:
    """
    Record the conversation of the first row of a turn as text for TensorBoard, and for no other output.

    :param logger: SB3's logger
    :param batch: rows of one turn
    :param tokenizer: the model's tokenizer
    """
    assert isinstance(batch.observations, dict)
    ids = th.cat([batch.observations["context"][0], batch.actions[0]])
    text = tokenizer.decode(ids[ids >= 0].tolist())
    # As a code block: TensorBoard shows Markdown.
    block = "\n".join(f"    {line}" for line in text.splitlines())
    logger.record("rollout/conversation", block, exclude=("stdout", "log", "json", "csv"))


class MessageLog(BaseCallback):
    """Records at each rollout's end the lengths of its messages, the speed, and now and then a conversation."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        policy: Any = self.model.policy
        batches = self.locals["rollout_buffer"].turn_batches
        record_lengths(self.logger, batches, policy.decoding.stops)
        self.logger.record("time/tokens_per_second", policy.tokens_per_second)
        if policy.n_rollouts % policy.conversation_interval == 0:
            record_conversation(self.logger, batches[-1], policy.tokenizer)
        policy.n_rollouts += 1
