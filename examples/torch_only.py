"""
SeeUPO without an environment class: two torch modules, a simulator of one's own, and the low-level API.

The simulator shows a cue. The first action chooses one of three doors: the one that the cue calls for hides 1, the
others 0.2. The second action is a code that depends on the cue and on the door; a wrong one pays nothing. So the
second policy has to know the codes before the choice of the first one makes a difference: that is why turns are
updated from the last to the first.
"""

import torch

from seeupo_gym.agents import MultiTurnTrajectory, train_multi_turn_agent

N = 3  # cues, doors and codes


class Simulator:
    """Any number of episodes at once; nothing about it is known to the package."""

    def __init__(self, cues: torch.Tensor) -> None:
        self.cues = cues

    def first_state(self) -> torch.Tensor:
        """Return the cue, one-hot."""
        return torch.nn.functional.one_hot(self.cues, N).float()

    def second_state(self, doors: torch.Tensor) -> torch.Tensor:
        """Cue and door, one-hot."""
        return torch.nn.functional.one_hot(N * self.cues + doors, N * N).float()

    def reward(self, doors: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Return the episode's reward, at its second turn."""
        found = torch.where(doors == (self.cues + 1) % N, 1.0, 0.2)
        return torch.where(codes == (self.cues + 2 * doors) % N, found, 0.0)


def main(seed: int = 0) -> float:
    """Train for a few seconds, and return what the most likely actions earn on average over the cues (at best 1)."""
    generator = torch.Generator().manual_seed(seed)
    policies = [torch.nn.Linear(N, N), torch.nn.Linear(N * N, N)]  # logits of turn 0 and of turn 1
    for policy in policies:
        torch.nn.init.zeros_(policy.weight)  # start uniform, whatever torch's global seed is
        torch.nn.init.zeros_(policy.bias)

    def act(policy: torch.nn.Module, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            log_probs = policy(states).log_softmax(dim=1)
        actions = torch.multinomial(log_probs.exp(), 1, generator=generator)
        return actions.squeeze(1), log_probs.gather(1, actions).squeeze(1)

    def collect(policies: list[torch.nn.Module]) -> list[MultiTurnTrajectory]:
        simulator = Simulator(torch.arange(N).repeat_interleave(12))  # groups of 12, one for each cue
        states = [simulator.first_state()]
        doors, door_log_probs = act(policies[0], states[0])
        states.append(simulator.second_state(doors))
        codes, code_log_probs = act(policies[1], states[1])
        rewards = simulator.reward(doors, codes)
        return [
            MultiTurnTrajectory(
                states=[states[0][i], states[1][i]],
                actions=[doors[i], codes[i]],
                rewards=[0.0, rewards[i]],
                log_probs=[door_log_probs[i], code_log_probs[i]],
                group=int(simulator.cues[i]),
            )
            for i in range(len(doors))
        ]

    def greedy_return() -> float:
        simulator = Simulator(torch.arange(N))
        doors = policies[0](simulator.first_state()).argmax(dim=1)
        codes = policies[1](simulator.second_state(doors)).argmax(dim=1)
        return float(simulator.reward(doors, codes).mean())

    history = train_multi_turn_agent(policies, collect, n_epochs=50, learning_rate=0.1, seed=seed)
    print(f"mean return of sampled actions: {history[0]['mean_return']:.2f} -> {history[-1]['mean_return']:.2f}")
    greedy = greedy_return()
    print(f"mean return of the most likely actions: {greedy:.2f}")
    return greedy


if __name__ == "__main__":
    main()
