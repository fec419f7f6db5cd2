"""ContextChain: what it pays and shows, by hand, and how contexts are drawn."""

import gymnasium as gym
import numpy as np
import pytest

from seeupo_gym.envs.tasks import context_chain
from seeupo_gym.envs.tasks.context_chain import ContextChain

CHAIN = "seeupo_gym/ContextChain-v0"


@pytest.mark.parametrize(("reward", "paid"), [("fraction", 2 / 3), ("all", 0.0)])
def test_it_pays_and_shows(monkeypatch, reward, paid):
    contexts = iter([2, 3, 1, 0])
    monkeypatch.setattr(context_chain, "integers", lambda *_: np.array([next(contexts)]))
    env = gym.make(CHAIN, turns=3, actions=4, reward=reward).unwrapped
    assert env.reset(seed=0)[0].tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    # 2 + 0 = 2 is right, then (3 + 2) % 4 = 1, and after the wrong 0 it is 1 + 0 = 1.
    obs, *_ = env.step(2)
    assert obs.tolist() == [0, 1, 0, 0, 0, 0, 1, 0, 0, 1, 0]
    assert env.task.expert_actions().tolist() == [1]
    env.step(0)
    _, got, done, _, info = env.step(1)
    assert (got, done, info) == (pytest.approx(paid), True, {"is_success": False})


def test_contexts_are_uniform_at_every_turn():
    task = ContextChain(20_000, turns=3, actions=4)
    task.reset(np.arange(20_000))
    for _ in range(3):
        np.testing.assert_allclose(np.bincount(task.contexts, minlength=4) / 20_000, 0.25, atol=0.015)
        task.step(task.expert_actions())
