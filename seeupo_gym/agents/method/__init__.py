"""The method, step by step: settings, advantages, the objective of a turn, update rules, the sequential update."""
