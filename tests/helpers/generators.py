"""The random generators that programs share."""

import random

import numpy as np
import torch as th


def global_states():
    """States of the global generators, which nobody may seed or use for others."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), (kind, keys.tolist(), rest), th.random.get_rng_state().tolist()
