"""
The weights after three iterations of many configurations, to see whether a change of the core changes them.

    git worktree add /tmp/before COMMIT
    PYTHONPATH=/tmp/before python benchmarks/core_weights.py write before.npz
    python benchmarks/core_weights.py write after.npz
    python benchmarks/core_weights.py compare before.npz after.npz
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.agents import BackwardInductionOptimizer, MultiTurnTrajectory

CHAIN, TOOLS, TRAP = "seeupo_gym/ContextChain-v0", "seeupo_gym/ToolChain-v0", "seeupo_gym/CoordinationTrap-v0"
SMALL: dict[str, Any] = {"n_groups": 8, "group_size": 4, "seed": 3}


class Several(gym.Env):  # type: ignore[type-arg]
    """Three turns with actions and observations of any spaces; the reward is a sum of both."""

    max_turns = 3

    def __init__(self, action_space: gym.Space[Any], observation_space: gym.Space[Any]) -> None:
        self.action_space, self.observation_space = action_space, observation_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.turn, self.state = 0, self.np_random.random(4).astype(np.float32)
        return self._obs(), {}

    def _obs(self) -> Any:
        if isinstance(self.observation_space, gym.spaces.Dict):
            return {"turn": np.int64(self.turn), "state": self.state}
        return self.state

    def step(self, action: Any) -> Any:
        self.turn += 1
        self.state = self.np_random.random(4).astype(np.float32)
        return self._obs(), float(np.sum(action) * self.state[0]), self.turn == 3, False, {}


BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
PLANE = gym.spaces.Box(0.0, 1.0, (4,), np.float32)
DICT = gym.spaces.Dict({"turn": gym.spaces.Discrete(4), "state": PLANE})
MULTI = gym.spaces.MultiDiscrete([3, 4])


def weights(model: Any) -> np.ndarray:
    """All parameters, one after another."""
    return th.cat([param.detach().flatten() for param in model.policy.parameters()]).numpy()


def train(env: Any, policy: str = "MlpPolicy", **settings: Any) -> np.ndarray:
    """Three iterations."""
    model = SeeUPO(policy, env, **{**SMALL, **settings})
    stop = 3
    iterations = 0

    def callback(local: dict[str, Any], _: Any) -> bool:
        return iterations <= stop

    model._setup_learn(10**9)
    _, callback_object = model._setup_learn(10**9, callback)
    for _ in range(stop):
        model.collect_rollouts(model.env, callback_object, model.rollout_buffer)
        model.train()
        iterations += 1
    return weights(model)


def staged(env: Any, **settings: Any) -> np.ndarray:
    """Train a staged run over its stages."""
    return weights(SeeUPO("MlpPolicy", env, schedule="staged", **{**SMALL, **settings}).learn(600))


def low_level(**settings: Any) -> np.ndarray:
    """Three epochs on trajectories of different lengths."""
    generator = th.Generator().manual_seed(0)
    th.manual_seed(0)
    nets = [th.nn.Sequential(th.nn.Linear(3, 8), th.nn.Tanh(), th.nn.Linear(8, 4)) for _ in range(3)]
    optimizer = BackwardInductionOptimizer(nets, seed=1, **settings)
    for _ in range(3):
        trajectories = []
        for index in range(16):
            length = 1 + index % 3
            states = th.randn(length, 3, generator=generator)
            with th.no_grad():
                dists = [th.distributions.Categorical(logits=nets[t](states[t])) for t in range(length)]
            actions = th.tensor([int(th.multinomial(d.probs, 1, generator=generator)) for d in dists])
            log_probs = th.stack([d.log_prob(a) for d, a in zip(dists, actions, strict=True)])
            rewards = th.rand(length, generator=generator)
            trajectories.append(MultiTurnTrajectory(states, actions, rewards, log_probs, group=index // 4))
        optimizer.train_epoch(trajectories)
    return th.cat([p.detach().flatten() for net in nets for p in net.parameters()]).numpy()


def language(**settings: Any) -> np.ndarray:
    """Train a tiny language model of random weights on GuessNumber."""
    from seeupo_gym.agents.language import CausalLMPolicy
    from seeupo_gym.agents.language.tiny import build, collect_texts
    from seeupo_gym.envs import TextView

    env_id = "seeupo_gym/GuessNumber-v0"
    with tempfile.TemporaryDirectory() as folder:
        build(folder, collect_texts(TextView(gym.make(env_id)), 20), max_positions=512)
        kwargs = {"model": folder, "max_context": 400, "max_new_tokens": 8}
        return train(env_id, CausalLMPolicy, policy_kwargs=kwargs, n_groups=2, group_size=3, **settings)


CONFIGURATIONS: dict[str, Any] = {
    "reverse": lambda: train(CHAIN),
    "reverse, episodes of different lengths, masks": lambda: train(TOOLS),
    "forward": lambda: train(CHAIN, update_order="forward"),
    "random": lambda: train(CHAIN, update_order="random"),
    "simultaneous": lambda: train(CHAIN, update_order="simultaneous"),
    "permutation": lambda: train(TRAP, update_order=[1, 0, 3, 2]),
    "shared": lambda: train(CHAIN, turn_policies="shared", ent_coef=0.1),
    "minibatches": lambda: train(CHAIN, batch_size=16, ent_coef=0.05),
    "micro batches": lambda: train(CHAIN, micro_batch_size=16),
    "reinforce": lambda: train(CHAIN, update_rule="reinforce"),
    "kl_penalty": lambda: train(CHAIN, update_rule="kl_penalty", kl_coef=0.5),
    "trust_region": lambda: train(CHAIN, update_rule="trust_region", target_kl=0.01),
    "target_kl": lambda: train(CHAIN, target_kl=0.002, n_epochs=10),
    "reward_to_go, clip_range_high": lambda: train(CHAIN, advantage_estimator="reward_to_go", clip_range_high=0.3),
    "Box": lambda: train(Several(BOX, PLANE), ent_coef=0.01),
    "Box, sequence": lambda: train(Several(BOX, PLANE), ratio_level="sequence"),
    "Box, token": lambda: train(Several(BOX, PLANE), ratio_level="token"),
    "MultiDiscrete, token, kl": lambda: train(Several(MULTI, PLANE), ratio_level="token", kl_coef=0.1),
    "MultiDiscrete, joint": lambda: train(Several(MULTI, PLANE)),
    "Dict": lambda: train(Several(gym.spaces.Discrete(3), DICT), "MultiInputPolicy"),
    "no masks": lambda: train(TOOLS, use_masking=False),
    "small vector environment": lambda: train(make_vec(TOOLS, 5)),
    "staged": lambda: staged(TRAP),
    "low level": lambda: low_level(),
    "low level, forward, minibatches": lambda: low_level(update_order="forward", batch_size=4, ent_coef=0.1),
    "language, sequence": lambda: language(),
    "language, token, reference": lambda: language(ratio_level="token", reference_kl_coef=0.1),
}


def main(command: str, *files: str) -> None:
    """Write one file, or compare two."""
    if command == "write":
        found = {}
        for name, run in CONFIGURATIONS.items():
            try:
                found[name] = run()
            except ImportError as error:
                print(f"{name}: left out, {error}")
        np.savez(files[0], **found)
        return
    before, after = np.load(files[0]), np.load(files[1])
    for name in before.files:
        if name in after.files:
            difference = float(np.abs(before[name] - after[name]).max())
            same = (
                "bit for bit the same" if np.array_equal(before[name], after[name]) else f"differs by {difference:.1e}"
            )
            print(f"{name:50} {len(before[name]):8} weights: {same}")


if __name__ == "__main__":
    main(*sys.argv[1:])
