"""Text environments with changing lists of commands, seen as features and a choice among candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.envs.arguments import check_count
from seeupo_gym.envs.packages import require

# Function from texts to features, shape (texts, features). Each row depends on its text alone.
TextFeatures = Callable[[Sequence[str]], Any]

# Number of texts whose features are kept, as the commands of a game come again and again.
_CACHE_SIZE = 4096


class HashedText:
    """
    Features of text: hashed word 1-2-grams, and hashed character 2-4-grams within words, half each.

    Both halves have length 1 (0 for an empty text), with entries in [-1, 1].

    :param n_features: length of the feature vector, at least 2
    :raises ImportError: if scikit-learn is missing
    """

    def __init__(self, n_features: int) -> None:
        check_count("n_features", n_features, least=2)
        text = require("sklearn.feature_extraction.text", "CandidateView needs a package: pip install scikit-learn")
        half = n_features // 2
        self._vectorizers = (
            text.HashingVectorizer(n_features=n_features - half, ngram_range=(1, 2), dtype=np.float32),
            text.HashingVectorizer(n_features=half, analyzer="char_wb", ngram_range=(2, 4), dtype=np.float32),
        )

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """
        Compute the features.

        :param texts: at least one text
        :return: shape (len(texts), n_features)
        """
        rows = np.hstack([vectorizer.transform(texts).toarray() for vectorizer in self._vectorizers])
        # Entries of normed rows can pass 1 by a rounding error.
        return np.clip(rows, -1.0, 1.0, out=rows)


class _Cache:
    """Remembers the features of texts that come again."""

    def __init__(self, features: TextFeatures) -> None:
        self._features = features
        self._rows: dict[str, NDArray[np.float32]] = {}

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        new = [text for text in dict.fromkeys(texts) if text not in self._rows]
        if len(self._rows) + len(new) > _CACHE_SIZE:
            self._rows.clear()
            new = list(dict.fromkeys(texts))
        if new:
            rows = np.asarray(self._features(new), dtype=np.float32)
            if rows.ndim != 2 or len(rows) != len(new):
                raise ValueError(
                    f"features must return a row of numbers for each text: for {len(new)} texts the shape ({len(new)}, "
                    f"n_features), got {rows.shape}"
                )
            self._rows.update(zip(new, rows, strict=True))
        return np.stack([self._rows[text] for text in texts])


class CandidateView(gym.Wrapper[Any, Any, Any, Any]):
    """
    View of a text environment with ``info["admissible_commands"]`` as a choice among candidates.

    The observation is a dict of

    - ``state``: the features of the text that was read, then those of the last command;
    - ``candidates``: a row of features for each admissible command, in the environment's order, then rows of zeros;
    - ``mask``: 1 for each admissible command, then zeros;
    - ``turn``: the share of the turns that have been taken.

    Action ``i`` sends command ``i``. An action that the mask rules out sends an empty message. ``info["command"]`` is
    the message that was sent.

    ``CandidatePolicy`` of SeeUPO and ``CandidateActorCriticPolicy`` for SB3's PPO and A2C are made for it.

    By default the features are hashes of the texts. Any function can take their place, for example a model of
    sentence-transformers::

        model = SentenceTransformer("all-MiniLM-L6-v2")
        env = CandidateView(env, features=lambda texts: model.encode(texts, normalize_embeddings=True))

    :param env: the text environment; it needs an attribute ``max_turns``
    :param n_candidates: number of rows and of actions
    :param n_features: hashed features of each text (see :class:`HashedText`)
    :param state_keys: entries of ``info`` that are read in place of the observation, each with its own features
    :param features: function from a list of texts to an array, one row a text, in place of the hashed features
    :raises ImportError: if scikit-learn is missing and ``features`` is None
    :raises ValueError: for an argument of another kind; at a reset or step, if ``info`` lacks an entry
    """

    def __init__(
        self,
        env: gym.Env[str, str],
        n_candidates: int = 96,
        n_features: int = 512,
        state_keys: Sequence[str] = (),
        features: TextFeatures | None = None,
    ) -> None:
        super().__init__(env)
        check_count("n_candidates", n_candidates)
        if isinstance(state_keys, str) or not all(isinstance(key, str) for key in state_keys):
            raise ValueError(f"state_keys must be a list of names such as ['look'], got {state_keys!r}")
        if features is not None and not callable(features):
            raise ValueError(f"features must be a function from texts to rows of numbers, or None, got {features!r}")
        if not env.has_wrapper_attr("max_turns"):
            raise ValueError(f"CandidateView needs an environment with an attribute max_turns, got {env}")
        self._features = _Cache(HashedText(n_features) if features is None else features)
        bound = 1.0
        if features is not None:
            bound, n_features = np.inf, self._features([""]).shape[1]
        self._state_keys = tuple(state_keys)
        self._max_turns: int = env.get_wrapper_attr("max_turns")
        state_size = n_features * (max(len(self._state_keys), 1) + 1)
        self.observation_space = spaces.Dict(
            {
                "state": spaces.Box(-bound, bound, (state_size,), np.float32),
                "candidates": spaces.Box(-bound, bound, (n_candidates, n_features), np.float32),
                "mask": spaces.MultiBinary(n_candidates),
                "turn": spaces.Box(0.0, 1.0, (1,), np.float32),
            }
        )
        self.action_space = spaces.Discrete(n_candidates)
        self._n_candidates, self._n_features = n_candidates, n_features
        self._commands: list[str] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Start an episode of the environment."""
        text, info = self.env.reset(seed=seed, options=options)
        self._turn = 0
        return self._observe(text, "", info), info

    def step(self, action: int) -> tuple[dict[str, NDArray[Any]], Any, bool, bool, dict[str, Any]]:
        """
        Send a command.

        :param action: its place in the list of admissible commands
        :raises ValueError: if the action is outside the action space
        """
        if not self.action_space.contains(action):
            raise ValueError(f"the action must be in {self.action_space}, got {action!r}")
        command = self._commands[action] if action < len(self._commands) else ""
        text, reward, terminated, truncated, info = self.env.step(command)
        self._turn += 1
        return self._observe(text, command, info), reward, terminated, truncated, {**info, "command": command}

    def _observe(self, text: str, command: str, info: dict[str, Any]) -> dict[str, NDArray[Any]]:
        if missing := [key for key in ("admissible_commands", *self._state_keys) if key not in info]:
            raise ValueError(f"CandidateView needs {missing} in info, and {self.env} has only {sorted(info)} there")
        self._commands = list(info["admissible_commands"])
        n = len(self._commands)
        if n > self._n_candidates:
            # To leave some out could silently leave out the only right one.
            raise ValueError(f"{n} commands are admissible now: set n_candidates to at least that many")
        read = [info[key] for key in self._state_keys] or [text]
        candidates = np.zeros((self._n_candidates, self._n_features), dtype=np.float32)
        if n:
            candidates[:n] = self._features(self._commands)
        return {
            "state": self._features([*read, command]).ravel(),
            "candidates": candidates,
            "mask": self.action_masks().astype(np.int8),
            "turn": np.array([min(self._turn / self._max_turns, 1.0)], dtype=np.float32),
        }

    def action_masks(self) -> NDArray[np.bool_]:
        """Return a mask of the actions that send an admissible command, shape (n_candidates,)."""
        mask: NDArray[np.bool_] = np.arange(self._n_candidates) < len(self._commands)
        return mask
