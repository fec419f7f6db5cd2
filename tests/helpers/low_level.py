"""Policies of tests of the low-level API that are no networks, and settings that make an update easy to compute."""

import torch as th
from test_trajectories import N_ACTIONS, parameters_of
from torch.distributions import Categorical, Independent, Normal

PLAIN = dict(optimizer_class=th.optim.SGD, learning_rate=1.0, n_epochs=1, max_grad_norm=None)


def assert_close(policies, others, atol):
    for a, b in zip(parameters_of(policies), parameters_of(others), strict=True):
        th.testing.assert_close(a, b, atol=atol, rtol=0)


class Gaussian(th.nn.Module):
    """Two-dimensional actions around a mean that does not depend on the state; standard deviation 1."""

    def __init__(self, independent=False):
        super().__init__()
        self.mean = th.nn.Parameter(th.zeros(2))
        self.independent = independent

    def forward(self, states):
        normal = Normal(self.mean.expand(len(states), 2), 1.0)
        return Independent(normal, 1) if self.independent else normal


class OwnLogProb:
    """No module: log-probabilities of a softmax over one vector of logits, and a setting for what goes wrong."""

    def __init__(self, fault=None):
        self.logits = th.nn.Parameter(th.zeros(N_ACTIONS))
        self.fault = fault

    def parameters(self):
        return iter([self.logits])

    def log_prob(self, states, actions):
        log_prob = self.logits.log_softmax(dim=0)[actions]
        return {"column": log_prob.unsqueeze(1), "detached": log_prob.detach()}.get(self.fault, log_prob)


class OwnLogProbAndEntropy(OwnLogProb):
    def entropy(self, states):
        entropy = Categorical(logits=self.logits).entropy()
        return entropy if self.fault == "scalar entropy" else entropy.expand(len(states))
