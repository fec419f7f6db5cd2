"""A causal language model as SeeUPO's policy. An action is a whole message."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import GymEnv, PyTorchObs, Schedule
from stable_baselines3.common.vec_env import VecEnv

from seeupo_gym.agents.language.adapters import (
    activate,
    adapter_parameters,
    add_adapters,
    checkpoint_activations,
    merged,
)
from seeupo_gym.agents.language.chat import ChatView, make_chat_vec, text_env
from seeupo_gym.agents.language.checks import check_context, check_spaces, check_vocabulary
from seeupo_gym.agents.language.generation import (
    AllowedTokens,
    Decoding,
    NoTokenError,
    message_log_probs,
    sample_messages,
)
from seeupo_gym.agents.language.loading import load_model, load_tokenizer
from seeupo_gym.agents.language.message_log import MessageLog
from seeupo_gym.agents.language.tokens import PAD, stop_token_ids
from seeupo_gym.agents.language.weights import TrainedWeights
from seeupo_gym.agents.method.batches import select_rows
from seeupo_gym.agents.method.errors import NonFiniteError
from seeupo_gym.agents.policies.turn_policy import TurnPolicy
from seeupo_gym.envs.arguments import check_env_kwargs
from seeupo_gym.envs.checked_env import check_is_env
from seeupo_gym.system.files import replace_files

_SAVED = (
    "n_policies",
    "model",
    "max_context",
    "max_new_tokens",
    "chat",
    "chat_template",
    "lora",
    "temperature",
    "dtype",
    "allowed_tokens",
    "gradient_checkpointing",
    "rows_at_once",
    "conversation_interval",
    "optimizer_class",
    "optimizer_kwargs",
)


class CausalLMPolicy(TurnPolicy):
    """
    A Hugging Face causal language model that plays text environments. All weights are trained, or LoRA adapters.

    Observations and actions are tokens; see :class:`~seeupo_gym.agents.language.ChatView`.
    :class:`~seeupo_gym.agents.SeeUPO` puts this view around a text environment, or one of this package's tasks, by
        itself. Messages are sampled from the model's distribution at ``temperature``, and log-probabilities are those
        of the same distribution. Top-k and the like would make the importance ratio wrong, and so would dropout: there
        is none.

    All turns share the weights, unless ``turn_policies="separate"``, which gives every turn a LoRA adapter.
    The reference policy of ``reference_kl_coef`` is the model as it was loaded; with LoRA, the model without adapters.

    :param observation_space: that of ``ChatView``
    :param action_space: that of ``ChatView``
    :param lr_schedule: learning rate as a function of the remaining progress
    :param n_policies: number of adapters; 1: all turns share the weights
    :param use_masking: not used; see ``allowed_tokens``
    :param per_component: not used, as log-probabilities are always those of tokens
    :param model: hub name, local folder, or GGUF file
    :param max_context: see ``ChatView``
    :param max_new_tokens: see ``ChatView``
    :param chat: other arguments of ``ChatView``, for example ``dict(system_prompt="...", n_choices=64)``
    :param chat_template: Jinja template; None: the tokenizer's own
    :param lora: arguments of ``peft.LoraConfig``, such as ``dict(r=8, lora_alpha=16)``; None: all weights are trained
    :param temperature: temperature of sampling, positive
    :param dtype: type of the computation, "float32" or "bfloat16". Adapters are always float32, and so are all weights
        without LoRA
    :param allowed_tokens: function for constrained decoding by a grammar, see
        :data:`~seeupo_gym.agents.language.generation.AllowedTokens`. With ``chat=dict(n_choices=...)`` messages are the
        environment's admissible commands
    :param gradient_checkpointing: whether to compute activations twice instead of keeping them
    :param rows_at_once: number of prompts or messages that are read, written or evaluated without gradients at once;
        for the update, see ``micro_batch_size`` of ``SeeUPO``
    :param conversation_interval: number of iterations between two conversations in TensorBoard
    :param optimizer_class: class of the optimizer
    :param optimizer_kwargs: arguments of the optimizer, without the learning rate
    :raises ImportError: if a package is missing; see ``pip install -e ".[llm]"``
    :raises OSError: if there is no such model
    :raises ValueError: for spaces and settings that do not fit the model
    """

    default_settings: ClassVar[dict[str, str]] = {"turn_policies": "shared", "ratio_level": "sequence"}
    first_derivatives_only: ClassVar[bool] = True
    """torch's fast attention has no second derivative."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        n_policies: int = 1,
        use_masking: bool = False,
        per_component: bool = False,
        *,
        model: str | Path,
        max_context: int = 1024,
        max_new_tokens: int = 64,
        chat: dict[str, Any] | None = None,
        chat_template: str | None = None,
        lora: dict[str, Any] | None = None,
        temperature: float = 1.0,
        dtype: str = "float32",
        allowed_tokens: AllowedTokens | None = None,
        gradient_checkpointing: bool = False,
        rows_at_once: int = 64,
        conversation_interval: int = 10,
        optimizer_class: type[th.optim.Optimizer] = th.optim.AdamW,
        optimizer_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if optimizer_kwargs is None:
            optimizer_kwargs = {"weight_decay": 0.0} if optimizer_class is th.optim.AdamW else {}
        super().__init__(
            observation_space,
            action_space,
            n_policies,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
        )
        if n_policies > 1 and lora is None:
            raise ValueError('turn_policies="separate" needs policy_kwargs=dict(lora=...): each turn gets an adapter')
        for name, number in {"temperature": temperature, "rows_at_once": rows_at_once}.items():
            if not number > 0:
                raise ValueError(f"{name} must be positive, got {number}")
        if dtype not in ("float32", "bfloat16"):
            raise ValueError(f'dtype must be "float32" or "bfloat16", got {dtype!r}')
        check_spaces(observation_space, action_space, max_context, max_new_tokens)
        self.model, self.max_context, self.max_new_tokens = model, max_context, max_new_tokens
        self.chat, self.chat_template, self.lora = chat, chat_template, lora
        self.temperature, self.dtype_name, self.allowed_tokens = temperature, dtype, allowed_tokens
        self.gradient_checkpointing, self.rows_at_once = gradient_checkpointing, rows_at_once
        self.conversation_interval = conversation_interval
        self.tokenizer = load_tokenizer(model, chat_template)
        network = load_model(model, dtype if lora is not None else "float32")
        check_context(model, network.config, max_context, max_new_tokens)
        check_vocabulary(model, network, self.tokenizer, action_space)
        stops = stop_token_ids(self.tokenizer, network.config, network.generation_config)
        self.decoding = Decoding(len(self.tokenizer), stops, temperature, allowed_tokens)
        self.network = network if lora is None else add_adapters(network, n_policies, lora)
        trained = [self._trained(index) for index in range(n_policies)]
        groups = [{"params": list(params.values())} for params in trained]
        if gradient_checkpointing:
            checkpoint_activations(self.network, [param for params in trained for param in params.values()])
        self.optimizer = self.optimizer_class(groups, lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]
        by_name = {name: param for params in trained for name, param in params.items()}
        self.weights = TrainedWeights(by_name, f"{model} with lora={lora}")
        self._reference: Any = None
        self.n_rollouts = 0
        """Number of rollouts since the policy was made."""
        self.seconds = {"generation": 0.0, "log_probs": 0.0}
        """Time spent on messages, and on log-probabilities without gradients, since the policy was made."""
        self.n_tokens = 0
        """Number of tokens generated since the policy was made."""

    @classmethod
    def make_vec(
        cls,
        env: str | Callable[..., gym.Env[Any, Any]],
        n_envs: int,
        policy_kwargs: dict[str, Any],
        env_kwargs: dict[str, Any] | None = None,
    ) -> VecEnv:
        """
        Call :func:`~seeupo_gym.agents.language.make_chat_vec` with the policy's arguments.

        :param env: a registered id, or a function that makes a text environment
        :param n_envs: number of environments
        :param policy_kwargs: the policy's arguments
        :param env_kwargs: arguments of the environment
        """
        return make_chat_vec(env, n_envs=n_envs, env_kwargs=env_kwargs, **_chat_arguments(policy_kwargs))

    @classmethod
    def make_env(
        cls, env: Any, n_episodes: int, policy_kwargs: dict[str, Any], env_kwargs: dict[str, Any] | None = None
    ) -> GymEnv:
        """
        Put :class:`~seeupo_gym.agents.language.ChatView` around text environments.

        :param env: a registered id, or a function that makes a text environment: one environment is made for each
            episode of an iteration, so that their messages are generated together. A text environment or task is used
            alone. A vector environment of :func:`~seeupo_gym.agents.language.make_chat_vec` is returned as it is
        :param n_episodes: number of episodes of an iteration
        :param policy_kwargs: the policy's arguments
        :param env_kwargs: arguments of the environment, for an id or a function
        :return: the environment
        :raises ValueError: for what is no environment, and for arguments of one that is made already
        """
        if not (isinstance(env, str) or callable(env)):
            check_is_env(env)
        env_kwargs = check_env_kwargs(env_kwargs, env, makes_env=not isinstance(env, (gym.Env, VecEnv)))
        if isinstance(env, VecEnv):
            return env
        if not isinstance(env, gym.Env):
            return cls.make_vec(env, n_episodes, policy_kwargs, env_kwargs)
        if isinstance(env.observation_space, spaces.Dict) and "context" in env.observation_space.spaces:
            return env
        settings = _chat_arguments(policy_kwargs)
        return ChatView(text_env(env), load_tokenizer(settings.pop("model"), settings.pop("chat_template")), **settings)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        del data["normalize_images"]
        saved = {name: getattr(self, name) for name in _SAVED if name != "dtype"}
        return {**data, **saved, "dtype": self.dtype_name, "lr_schedule": self._dummy_schedule}

    def set_training_mode(self, mode: bool) -> None:
        """Set the mode, which only decides whether activations are kept, as there is no dropout."""
        self.train(mode)

    def _trained(self, index: int) -> dict[str, th.nn.Parameter]:
        """Return the parameters of one policy that are trained, by name."""
        if self.lora is None:
            return dict(self.network.named_parameters())
        return adapter_parameters(self.network, index)

    def _activate(self, turn: int) -> None:
        if self.n_policies > 1:
            trained = [param for group in self.optimizer.param_groups for param in group["params"]]
            activate(self.network, self.policy_index(turn), trained)

    def _autocast(self) -> th.autocast:
        """Use mixed precision if float32 weights are trained; with LoRA the weights have the type already."""
        enabled = self.lora is None and self.dtype_name != "float32"
        return th.autocast(self.device.type, getattr(th, self.dtype_name) if enabled else None, enabled=enabled)

    def evaluate_actions(
        self,
        obs: PyTorchObs,
        actions: th.Tensor,
        turn: int,
        action_masks: th.Tensor | None = None,
        with_entropy: bool = False,
    ) -> tuple[th.Tensor, th.Tensor | None]:
        """
        Compute the log-probabilities of messages under the current policy of one turn.

        :param obs: contexts, and choices if messages are constrained
        :param actions: messages, shape (batch, max_new_tokens)
        :param turn: the turn of the messages, counted from 0
        :param action_masks: not used
        :param with_entropy: whether to compute entropies, too
        :return: log-probabilities of the tokens, 0 where there is none, shape (batch, max_new_tokens), and the mean
            entropies of their distributions in nats, shape (batch,), or None; with gradients if those are enabled
        """
        self._activate(turn)
        if th.is_grad_enabled():
            return self._log_probs(self.network, obs, actions, with_entropy)
        started = time.perf_counter()
        parts = [
            self._log_probs(self.network, select_rows(obs, rows), actions[rows], with_entropy)
            for rows in th.arange(len(actions), device=actions.device).split(self.rows_at_once)
        ]
        self.seconds["log_probs"] += time.perf_counter() - started
        return th.cat([p for p, _ in parts]), th.cat([e for _, e in parts if e is not None]) if with_entropy else None

    def _log_probs(
        self, network: Any, obs: PyTorchObs, actions: th.Tensor, with_entropy: bool = False
    ) -> tuple[th.Tensor, th.Tensor | None]:
        assert isinstance(obs, dict)
        # Older versions of transformers 5 drop the cache by the mode alone, even where nothing is computed twice.
        network.train(self.training and th.is_grad_enabled())
        with self._autocast():
            return message_log_probs(network, obs["context"], actions, self.decoding, obs.get("choices"), with_entropy)

    def token_mask(self, actions: th.Tensor) -> th.Tensor:
        """Return a mask of the tokens that messages have: those that are not -1."""
        return actions >= 0

    @th.no_grad()
    def reference_log_probs(self, obs: PyTorchObs, actions: th.Tensor, turn: int) -> th.Tensor:
        """Compute log-probabilities of tokens under the model as it was loaded; see :meth:`evaluate_actions`."""
        with self._reference_network() as network:
            parts = [
                self._log_probs(network, select_rows(obs, rows), actions[rows])[0]
                for rows in th.arange(len(actions), device=actions.device).split(self.rows_at_once)
            ]
        return th.cat(parts)

    @contextmanager
    def _reference_network(self) -> Iterator[Any]:
        if self.lora is not None:
            with self.network.disable_adapter():
                yield self.network
            return
        if self._reference is None:
            # In a tuple, so that it is no submodule, and is neither trained nor saved.
            self._reference = (load_model(self.model).to(self.device).requires_grad_(False),)
        yield self._reference[0]

    def _act(
        self,
        obs: PyTorchObs,
        turns: NDArray[np.int64],
        envs: NDArray[np.int64],
        generator: th.Generator | None,
        action_masks: th.Tensor | None,
    ) -> tuple[th.Tensor, th.Tensor]:
        assert isinstance(obs, dict)
        self._activate(int(turns[0]))
        started = time.perf_counter()
        context = obs["context"]
        tokens = th.full((len(envs), self.max_new_tokens), PAD, dtype=context.dtype, device=self.device)
        log_probs = th.zeros(tokens.shape, device=self.device)
        # An episode that is over has an empty context, and gets no message.
        open_rows = (context >= 0).any(dim=1).nonzero().squeeze(1)
        for part in open_rows.split(self.rows_at_once) if len(open_rows) else ():
            choices = obs["choices"][part] if "choices" in obs else None
            try:
                with self._autocast():
                    messages = sample_messages(
                        self.network, context[part], self.max_new_tokens, self.decoding, generator, choices
                    )
            except FloatingPointError as error:
                row = int(part[error.args[0]])
                raise NonFiniteError(
                    f"the language model gives non-finite logits at turn {turns[row]} for environment {envs[row]}: its "
                    "weights diverged (try a smaller learning rate or max_grad_norm), or its dtype is too narrow "
                    '(try dtype="float32")'
                ) from error
            except NoTokenError as error:
                at = ", ".join(map(str, np.unique(turns[part.cpu().numpy()])))
                raise ValueError(f"{error} at turn {at}: allowed_tokens must always allow one") from error
            tokens[part], log_probs[part] = messages.tokens.to(tokens.dtype), messages.log_probs
        self.seconds["generation"] += time.perf_counter() - started
        self.n_tokens += int((tokens >= 0).sum())
        return tokens, log_probs

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens, without those of prompts, per second of generation."""
        return self.n_tokens / self.seconds["generation"] if self.n_tokens else 0.0

    def callbacks(self) -> list[BaseCallback]:
        """Return the callback that logs messages."""
        return [MessageLog()]

    def export(self, path: str | Path, turn: int = 0) -> None:
        """
        Write a plain Hugging Face folder for ``AutoModelForCausalLM`` and ``AutoTokenizer``; adapters are merged.

        :param path: the folder
        :param turn: turn whose policy is written, if each turn has an adapter
        """
        network = self.network if self.lora is None else merged(self.network, self.policy_index(turn))
        with replace_files(path) as folder:
            network.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)


def _chat_arguments(policy_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Select the arguments of ``make_chat_vec`` from those of the policy."""
    if "model" not in policy_kwargs:
        raise ValueError('policy_kwargs=dict(model="...") must name the language model')
    names = ("model", "max_context", "max_new_tokens", "chat_template")
    defaults = {name: signature(CausalLMPolicy).parameters[name].default for name in names}
    return {**{name: policy_kwargs.get(name, defaults[name]) for name in names}, **(policy_kwargs.get("chat") or {})}
