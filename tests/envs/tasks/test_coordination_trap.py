"""CoordinationTrap: what it pays and shows, by hand."""

import gymnasium as gym
import pytest

TRAP = "seeupo_gym/CoordinationTrap-v0"


@pytest.mark.parametrize(
    ("actions", "rewards"),
    [
        ([1, 2, 3, 0], [0, 0, 0, 1.0]),
        ([0, 2, 3, 0], [0, 0, 0, 0.6]),
        ([0, 0, 0, 0], [0, 0, 0, 0.6]),
        ([1, 2, 3, 1], [0, 0, 0, 0.0]),
        ([1, 0, 3, 0], [0, 0, 0, 0.0]),
        ([2, 2, 3, 0], [0, 0, 0, 0.0]),
    ],
)
def test_it_pays(actions, rewards):
    env = gym.make(TRAP)
    env.reset(seed=0)
    paid = [env.step(action)[1] for action in actions]
    assert paid == pytest.approx(rewards)


def test_it_shows():
    env = gym.make(TRAP)
    assert env.reset(seed=0)[0].tolist() == [1, 0, 0, 0, 1, 0, 0, 0]
    assert env.step(1)[0].tolist() == [0, 1, 0, 0, 0, 0, 1, 0]
    assert env.step(1)[0].tolist() == [0, 0, 1, 0, 0, 0, 0, 1]
    assert env.step(3)[0].tolist() == [0, 0, 0, 1, 0, 0, 0, 1]
    assert env.step(0)[0].tolist() == [0, 0, 0, 0, 0, 0, 0, 1]
