"""Actions of many tokens, not all of the same number: ratio levels, masks, reference KL and micro-batches."""

import numpy as np
import pytest
import torch as th
from helpers.updates import method_settings, sequential_update

from seeupo_gym import SeeUPO
from seeupo_gym.agents.method.batches import TurnBatch
from seeupo_gym.agents.method.objective import at_ratio_level, mean_over_tokens
from seeupo_gym.agents.method.policy import TrainablePolicies

N, TOKENS, WORDS = 10, 4, 5


class TokenPolicy(TrainablePolicies):
    """Log-probabilities per token from a table of logits, 0 where there is no token."""

    def __init__(self, mask, learning_rate=0.1):
        generator = th.Generator().manual_seed(0)
        self.logits = th.nn.Parameter(th.randn((N, TOKENS, WORDS), generator=generator, dtype=th.float64))
        self.reference = th.randn((N, TOKENS, WORDS), generator=generator, dtype=th.float64).log_softmax(-1)
        self.mask = mask
        self.optimizer = th.optim.SGD([self.logits], lr=learning_rate)
        self.calls, self.calls_without_gradients = [], []

    def tokens(self, table, obs, actions):
        log_probs = table.log_softmax(-1)[obs].gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return th.where(self.mask[obs], log_probs, 0.0)

    def evaluate_actions(self, obs, actions, turn, action_masks=None, with_entropy=False):
        (self.calls if th.is_grad_enabled() else self.calls_without_gradients).append(len(actions))
        table = self.logits.log_softmax(-1)
        entropy = th.where(self.mask, -(table.exp() * table).sum(-1), 0.0).sum(-1) / self.mask.sum(-1)
        return self.tokens(self.logits, obs, actions), entropy[obs] if with_entropy else None

    def reference_log_probs(self, obs, actions, turn):
        self.calls_without_gradients.append(len(actions))
        return self.tokens(self.reference, obs, actions)

    def turn_parameters(self, turn):
        return [self.logits]

    def step_optimizer(self, *turns):
        self.optimizer.step()


def make(seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, TOKENS + 1, size=N)
    mask = th.as_tensor(np.arange(TOKENS) < lengths[:, None])
    policy = TokenPolicy(mask)
    actions = th.as_tensor(rng.integers(WORDS, size=(N, TOKENS)))
    rows = th.arange(N)
    with th.no_grad():
        noise = th.as_tensor(rng.normal(size=(N, TOKENS))) * 0.3
        old = th.where(mask, policy.tokens(policy.logits, rows, actions) + noise, 0.0)
    batch = TurnBatch(rows, actions, old, rows, None, mask)
    return policy, batch, th.as_tensor(rng.normal(size=N))


def by_definition(policy, batch, advantages, level, ent_coef=0.0, reference_kl_coef=0.0):
    """The objective, one row and one token after the other."""
    total = 0.0
    for i in range(N):
        keep = batch.token_mask[i]
        log_prob = policy.logits[i].log_softmax(-1).gather(-1, batch.actions[i, :, None])[keep, 0]
        ratio = (log_prob - batch.log_probs[i][keep]).exp()
        if level == "joint":
            ratio = ratio.prod()[None]
        elif level == "sequence":
            ratio = ratio.prod()[None] ** (1 / int(keep.sum()))
        row = th.min(ratio * advantages[i], ratio.clamp(0.8, 1.2) * advantages[i]).mean()
        table = policy.logits[i][keep].log_softmax(-1)
        row = row - ent_coef * (table.exp() * table).sum(-1).mean()
        back = policy.reference[i].gather(-1, batch.actions[i, :, None])[keep, 0] - log_prob
        total = total + row - reference_kl_coef * (back.exp() - 1.0 - back).mean()
    return total / N


@pytest.mark.parametrize("level", ["joint", "sequence", "token"])
@pytest.mark.parametrize("extra", [{}, {"ent_coef": 0.3}, {"reference_kl_coef": 0.5}])
@pytest.mark.parametrize("micro_batch_size", [None, 3])
def test_a_step_is_the_gradient_of_the_definition(level, extra, micro_batch_size):
    policy, batch, advantages = make()
    expected = by_definition(policy, batch, advantages, level, **extra)
    (gradient,) = th.autograd.grad(expected, policy.logits)
    after = policy.logits.detach() + 0.1 * gradient
    settings = method_settings(ratio_level=level, micro_batch_size=micro_batch_size, **extra)
    stats = sequential_update(policy, [batch], advantages, [[0]], settings, th.Generator())[0]
    th.testing.assert_close(policy.logits.detach(), after)
    assert stats.policy_loss == pytest.approx(-expected.item())
    sizes = [N] if micro_batch_size is None else [3, 3, 3, 1]
    assert policy.calls == sizes
    # Under the reference, and after the update.
    assert policy.calls_without_gradients == (2 * sizes if "reference_kl_coef" in extra else sizes)


def test_micro_batches_give_the_update_of_one_batch_with_minibatches_epochs_and_clipping():
    tables = []
    for micro_batch_size in (None, 2):
        policy, batch, advantages = make()
        settings = method_settings(
            ratio_level="sequence", n_epochs=3, batch_size=5, micro_batch_size=micro_batch_size, max_grad_norm=0.01
        )
        sequential_update(policy, [batch], advantages, [[0]], settings, th.Generator().manual_seed(0))
        tables.append(policy.logits.detach())
    th.testing.assert_close(*tables)


def test_micro_batches_obey_the_kl_target():
    steps = []
    for micro_batch_size in (None, 2):
        policy, batch, advantages = make()
        policy.optimizer.param_groups[0]["lr"] = 50.0
        exact = policy.tokens(policy.logits, batch.observations, batch.actions).detach()
        settings = method_settings(
            ratio_level="sequence", n_epochs=9, micro_batch_size=micro_batch_size, target_kl=0.05
        )
        on_policy = batch._replace(log_probs=exact)
        steps.append(sequential_update(policy, [on_policy], advantages, [[0]], settings, th.Generator())[0])
    assert steps[0].n_gradient_steps == steps[1].n_gradient_steps < 9


def test_statistics_by_hand():
    policy, batch, advantages = make()
    policy.optimizer.param_groups[0]["lr"] = 0.0
    settings = method_settings(ratio_level="sequence", reference_kl_coef=0.1)
    stats = sequential_update(policy, [batch], advantages, [[0]], settings, th.Generator())[0]
    new = policy.tokens(policy.logits, batch.observations, batch.actions).detach()
    token, sequence, kl, reference = [], [], [], []
    for i in range(N):
        keep = batch.token_mask[i]
        log_ratio = (new - batch.log_probs)[i][keep]
        outside = [abs(r - 1.0) > 0.2 for r in log_ratio.exp().tolist()]
        token.append(np.mean(outside))
        sequence.append(abs(log_ratio.mean().exp().item() - 1.0) > 0.2)
        kl.append((log_ratio.exp() - 1.0 - log_ratio).sum().item())
        back = policy.reference_log_probs(batch.observations, batch.actions, 0)[i][keep] - new[i][keep]
        reference.append((back.exp() - 1.0 - back).mean().item())
    assert stats.token_clip_fraction == pytest.approx(np.mean(token))
    assert stats.clip_fraction == stats.sequence_clip_fraction == pytest.approx(np.mean(sequence))
    assert 0.0 < np.mean(sequence) < 1.0
    assert stats.approx_kl == pytest.approx(np.mean(kl))
    assert stats.reference_kl == pytest.approx(np.mean(reference))


def test_the_kl_to_a_reference_of_whole_actions_is_called_that():
    """A policy with one log-probability per action has no statistics of tokens."""
    policy, batch, advantages = make()
    policy.optimizer.param_groups[0]["lr"] = 0.0
    tokens, reference = policy.tokens, policy.reference
    policy.tokens = lambda *arguments: tokens(*arguments).sum(dim=1)
    batch = batch._replace(log_probs=batch.log_probs.sum(dim=1), token_mask=None)
    stats = sequential_update(
        policy, [batch], advantages, [[0]], method_settings(reference_kl_coef=0.1), th.Generator()
    )
    assert stats[0].token_clip_fraction is None
    assert stats[0].sequence_clip_fraction is None
    with th.no_grad():
        now, then = (policy.tokens(t, batch.observations, batch.actions) for t in (policy.logits, reference))
    assert stats[0].reference_kl == pytest.approx(((then - now).exp() - 1.0 - (then - now)).mean().item())


@pytest.mark.parametrize("level", ["joint", "sequence", "token"])
def test_padding_tokens_change_nothing(level):
    """Two more columns of tokens that no action has."""
    policy, batch, advantages = make()
    settings = method_settings(ratio_level=level, ent_coef=0.1, reference_kl_coef=0.1)
    sequential_update(policy, [batch], advantages, [[0]], settings, th.Generator())
    padded, batch, advantages = make()
    wide = th.cat([padded.mask, th.zeros((N, 2), dtype=th.bool)], dim=1)
    padded.mask = wide
    for name in ("logits", "reference"):
        table = getattr(padded, name).detach()
        table = th.cat([table, th.ones((N, 2, WORDS), dtype=th.float64)], dim=1)
        setattr(padded, name, th.nn.Parameter(table) if name == "logits" else table)
    padded.optimizer = th.optim.SGD([padded.logits], lr=0.1)
    zeros = th.zeros((N, 2), dtype=th.float64)
    batch = batch._replace(
        actions=th.cat([batch.actions, th.zeros((N, 2), dtype=th.long)], dim=1),
        log_probs=th.cat([batch.log_probs, zeros], dim=1),
        token_mask=wide,
    )
    sequential_update(padded, [batch], advantages, [[0]], settings, th.Generator())
    th.testing.assert_close(padded.logits[:, :TOKENS], policy.logits)


def test_levels_of_log_probabilities_by_hand():
    log_prob = th.tensor([[-1.0, -2.0, 0.0], [-1.0, -1.0, -4.0]])
    mask = th.tensor([[True, True, False], [True, True, True]])
    assert at_ratio_level(log_prob, "joint", mask)[0].tolist() == [-3.0, -6.0]
    whole, lengths = at_ratio_level(log_prob, "sequence", mask)
    assert (whole / lengths).tolist() == [-1.5, -2.0]
    assert at_ratio_level(log_prob, "sequence", None)[1].tolist() == [3.0, 3.0]
    assert at_ratio_level(log_prob, "token", mask)[0] is log_prob
    assert mean_over_tokens(log_prob, mask).tolist() == [-1.5, -2.0]
    assert mean_over_tokens(log_prob, None).tolist() == [-1.0, -2.0]


def test_a_policy_without_a_reference_says_so():
    model = SeeUPO("MlpPolicy", "seeupo_gym/ToolChain-v0", reference_kl_coef=0.1, n_groups=2, group_size=2)
    with pytest.raises(NotImplementedError, match="SeeUPOPolicy has no reference policy"):
        model.learn(1)


def test_a_micro_batch_has_at_least_one_row():
    with pytest.raises(ValueError, match="micro_batch_size must be an integer of at least 1, got 0"):
        SeeUPO("MlpPolicy", "seeupo_gym/ToolChain-v0", micro_batch_size=0)
