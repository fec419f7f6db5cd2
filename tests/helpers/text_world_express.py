"""Games of TextWorldExpress, their expert, and the Java process that runs them."""

EASY_COIN = {"numLocations": 4, "numDistractorItems": 0, "includeDoors": 0}


def play_expert(env, seed):
    _, info = env.reset(seed=seed)
    rewards, done = [], False
    while not done:
        text, reward, done, truncated, info = env.step(env.expert_message())
        assert env.observation_space.contains(text)
        assert not truncated
        rewards.append(reward)
    return rewards, info


def java_of(env):
    """The Java process of an environment, if it has one; nothing public tells of it."""
    return env.unwrapped._java
