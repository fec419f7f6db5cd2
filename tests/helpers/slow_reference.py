"""One iteration of the method in plain Python, written from the equations of arXiv:2602.06554 and docs/algorithm.md."""

import math


def advantages(rewards, groups, gamma, normalize):
    """
    Eq. 9: an episode's return less the mean of its group; 0 where all returns of the group are equal.

    :param rewards: those of each episode, turn by turn
    :param groups: episodes of each group
    :param gamma: discount factor
    :param normalize: "batch", "group" or "none"
    :return: one per episode
    """
    returns = [sum(gamma**t * r for t, r in enumerate(episode)) for episode in rewards]
    result = [0.0] * len(returns)
    for members in groups:
        mine = [returns[i] for i in members]
        if max(mine) - min(mine) <= 1e-6 * max(map(abs, mine)):
            continue
        mean = sum(mine) / len(mine)
        std = math.sqrt(sum((r - mean) ** 2 for r in mine) / len(mine)) if normalize == "group" else 1.0
        for i in members:
            result[i] = (returns[i] - mean) / std
    if normalize == "batch":
        std = math.sqrt(sum(a * a for a in result) / len(result))
        result = [a / std if std > 0 else a for a in result]
    return result


def softmax(logits, mask):
    """Probabilities of the valid actions; 0 for the others."""
    highest = max(x for x, valid in zip(logits, mask, strict=True) if valid)
    weights = [math.exp(x - highest) if valid else 0.0 for x, valid in zip(logits, mask, strict=True)]
    return [w / sum(weights) for w in weights]


class Iteration:
    """
    The update of a table of logits for each turn, by gradient ascent with a fixed step.

    :param tables: for each turn the logits of each state
    :param rows: for each turn its rows (episode, state, action, recorded log-probability, mask)
    :param advantages: one per episode
    :param step: size of a gradient step
    :param clip_range: of the ratio
    :param factor_clip: delta of eq. 8
    """

    def __init__(self, tables, rows, advantages, step, clip_range, factor_clip):
        self.tables = [[list(logits) for logits in table] for table in tables]
        self.rows, self.advantages = rows, advantages
        self.step, self.clip_range, self.factor_clip = step, clip_range, factor_clip
        self.ratios = {}  # turn -> episode -> ratio, measured after the turn's last update

    def run(self, order, n_sweeps, n_passes):
        """Update the turns in order (blocks of turns that are updated together), and all that again."""
        for _ in range(n_sweeps):
            for position, block in enumerate(order):
                before = [t for b in order[:position] for t in b]
                after = [t for b in order[:position:-1] for t in b]
                weights = {t: self.weights(t, before, after) for t in block}
                for _ in range(n_passes):
                    self.ascend(block, weights)
                for t in block:
                    self.ratios[t] = {row[0]: self.ratio(t, row) for row in self.rows[t]}

    def weights(self, turn, before, after):
        """Eq. 7: M = A F, F the clipped product of the ratios of the other turns, as far as there are any yet."""
        result = {}
        for episode, *_ in self.rows[turn]:
            factor = self.product(episode, before)
            if turn in self.ratios:
                factor = self.times(factor, self.product(episode, after))
            result[episode] = self.advantages[episode] * factor
        return result

    def product(self, episode, turns):
        factor = 1.0
        for turn in turns:
            if episode in self.ratios.get(turn, {}):
                factor = self.times(factor, self.ratios[turn][episode])
        return factor

    def times(self, factor, ratio):
        """Eq. 8."""
        low, high = 1 - self.factor_clip, 1 + self.factor_clip
        return min(max(factor * min(max(ratio, low), high), low), high)

    def log_ratio(self, turn, row):
        _, state, action, recorded, mask = row
        logits = self.tables[turn][state]
        highest = max(x for x, valid in zip(logits, mask, strict=True) if valid)
        total = math.log(sum(math.exp(x - highest) for x, valid in zip(logits, mask, strict=True) if valid))
        return logits[action] - highest - total - recorded

    def ratio(self, turn, row):
        return math.exp(min(max(self.log_ratio(turn, row), -20.0), 20.0))

    def ascend(self, block, weights):
        """One step along the gradient of eq. 6, the mean over all rows of min(rho M, clip(rho) M)."""
        n_rows = sum(len(self.rows[turn]) for turn in block)
        gradients = {}
        for turn in block:
            for row in self.rows[turn]:
                episode, state, action, _, mask = row
                m, rho, log_rho = weights[turn][episode], self.ratio(turn, row), self.log_ratio(turn, row)
                flat = (m > 0 and rho > 1 + self.clip_range) or (m < 0 and rho < 1 - self.clip_range)
                if flat or abs(log_rho) > 20.0:
                    continue
                for other, p in enumerate(softmax(self.tables[turn][state], mask)):
                    slope = m * rho * ((other == action) - p) / n_rows
                    key = (turn, state, other)
                    gradients[key] = gradients.get(key, 0.0) + slope
        for (turn, state, action), slope in gradients.items():
            self.tables[turn][state][action] += self.step * slope
