"""Browsers of MiniWoB++, and players of its tasks."""

import re

# Nothing public tells which browser an environment has, or gives it another one: these two reach for it.


def browser_of(env):
    return env.unwrapped._browser


def find(info, start, what=""):
    """The one admissible command that begins so and has that in it."""
    (command,) = [c for c in info["admissible_commands"] if c.startswith(start) and what in c]
    return command


def expert_click_button(info):
    target = re.search('"(.*)"', info["utterance"])[0]
    return [next(c for c in info["admissible_commands"] if c.endswith(f"button {target}"))]


def play(env, commands):
    for command in commands:
        text, reward, done, truncated, info = env.step(command)
        assert env.observation_space.contains(text)
        assert not truncated
        if not done:
            assert reward == 0.0
            assert not info["seeupo_gym/malformed"]
    assert done, "the expert's last command ends the episode"
    return reward, info
