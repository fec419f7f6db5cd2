"""Load tokenizers and causal language models: from the hub by name, from a local folder, or from a GGUF file."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch as th

_DTYPES = ("float32", "bfloat16", "float16")
_LIMIT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


def require_llm(package: str = "transformers") -> Any:
    """
    Import a package of the extra ``llm``.

    :param package: its name
    :return: the module
    :raises ImportError: if it is missing; one line says what to install
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        missing = error.name or package
        raise ImportError(f'language models need {missing}: pip install -e ".[llm]" in a checkout') from error


class Source(NamedTuple):
    """
    The place of a model's files.

    :param name: hub name or local folder
    :param gguf: name of the GGUF file in the folder; None: the folder has another format
    :param local: whether only local files are used, and not the hub
    """

    name: str
    gguf: str | None = None
    local: bool = True

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of ``from_pretrained``."""
        gguf = {} if self.gguf is None else {"gguf_file": self.gguf}
        return {"local_files_only": self.local, "trust_remote_code": False, **gguf}


def find_source(model: str | Path) -> Source:
    """
    Find the files that a model's name stands for.

    :param model: hub name, local folder, GGUF file, or folder with exactly one GGUF file
    :raises OSError: for a path that does not exist
    :raises ValueError: for a file or folder that is no model
    """
    if not isinstance(model, str | Path) or not str(model):
        raise ValueError(f"model must be a hub name, a folder or a .gguf file, got {model!r}")
    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ValueError(f"the model file {path} is no .gguf file: give its folder, or a .gguf file")
        return Source(str(path.parent), path.name)
    if path.is_dir():
        found = sorted(file.name for file in path.glob("*.gguf"))
        if (path / "config.json").is_file() or (not found and (path / "tokenizer_config.json").is_file()):
            return Source(str(path))
        if len(found) == 1:
            return Source(str(path), found[0])
        if found:
            raise ValueError(f"the folder {path} has {len(found)} .gguf files: give one of them, as {path / found[0]}")
        raise ValueError(f"the folder {path} has neither config.json nor a .gguf file: it is no model's folder")
    name = str(model)
    # A hub name is "model" or "owner/model".
    if isinstance(model, Path) or path.is_absolute() or name[0] in "./~" or name.count("/") > 1 or "\\" in name:
        raise FileNotFoundError(f"no model at {path}: there is no such folder or file")
    return Source(name, local=False)


@contextmanager
def _clear_errors(what: str, source: Source) -> Iterator[None]:
    """Replace the many errors of loading by one line that says what to do."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        if source.local:
            place = source.name if source.gguf is None else str(Path(source.name) / source.gguf)
            raise OSError(f"cannot load the {what} of {place}: {first}") from error
        raise OSError(
            f"cannot load the {what} of {source.name!r}: there is no such folder, and the hub did not give it "
            f"({first}); give a local folder or .gguf file, or check the name and the network (with HF_HUB_OFFLINE=1 "
            "only models that were downloaded before are found)"
        ) from error


def load_tokenizer(model: str | Path, chat_template: str | None = None) -> Any:
    """
    Load a model's tokenizer, which needs no padding token.

    :param model: see :func:`find_source`
    :param chat_template: Jinja template; None: the tokenizer's own
    :raises ImportError: if a package is missing
    :raises OSError: if there is no such tokenizer, or it cannot be fetched
    :raises ValueError: if it has no chat template or no end-of-sequence token
    """
    transformers = require_llm()
    source = find_source(model)
    if source.gguf is not None:
        require_llm("gguf")
    with _clear_errors("tokenizer", source):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source.name, **source.options)
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if tokenizer.chat_template is None:
        raise ValueError(
            f"the tokenizer of {model} has no chat template (a base model?): use an instruct model, "
            "or pass chat_template=... with a Jinja template"
        )
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"the tokenizer of {model} has no end-of-sequence token, so no message would ever end: "
            "set eos_token in its tokenizer_config.json"
        )
    return tokenizer


def load_model(model: str | Path, dtype: str = "float32") -> Any:
    """
    Load a causal language model for training, without dropout, so that importance ratios are 1 before an update.

    The global random state does not change.

    :param model: see :func:`find_source`
    :param dtype: type of the weights: "float32", "bfloat16" or "float16"
    :raises ImportError: if a package is missing
    :raises OSError: if there is no such model, or it cannot be fetched
    :raises ValueError: if weights are missing or not finite, if the model has a recurrent state, or for an unknown type
    """
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(repr, _DTYPES))}, got {dtype!r}")
    transformers = require_llm()
    source = find_source(model)
    options = source.options
    if source.gguf is not None:
        require_llm("gguf")
        # Dequantised for good, or the model could be neither trained nor saved. Versions without the setting always do
        # this.
        if hasattr(transformers, "GgufConfig"):
            options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with th.random.fork_rng(devices=[]), _clear_errors("model", source):
        network, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            source.name, dtype=getattr(th, dtype), output_loading_info=True, **options
        )
    missing = sorted(loaded["missing_keys"])
    if missing:
        raise ValueError(f"the model {model} lacks {len(missing)} of its weights, as {missing[0]}: is it a causal LM?")
    for name, weight in network.named_parameters():
        if not bool(th.isfinite(weight).all()):
            raise ValueError(f"the weights {name} of the model {model} are not all finite: the files are damaged")
    # Its state can neither be padded on the left nor lose rows (Mamba, and hybrids with it).
    if getattr(network, "_is_stateful", False):
        raise ValueError(
            f"the model {model} ({type(network).__name__}) has a recurrent state: use one with attention alone, such "
            "as Llama, Qwen2.5, Qwen3, Mistral, Gemma or GPT-2"
        )
    _switch_dropout_off(network)
    return network.eval()


def _switch_dropout_off(network: Any) -> None:
    """Switch dropout off, also where attention reads it as a number, and in the configuration of a saved copy."""
    for module in network.modules():
        if isinstance(module, th.nn.modules.dropout._DropoutNd):
            module.p = 0.0
    for owner in (*network.modules(), network.config, network.config.get_text_config()):
        for name, value in list(vars(owner).items()):
            if "drop" in name and isinstance(value, float):
                setattr(owner, name, 0.0)


def context_limit(model_config: Any) -> int:
    """
    Find the number of tokens that a model can read and write together.

    :param model_config: the model's configuration
    :return: its number of positions; a huge number if it has no limit
    """
    config = model_config.get_text_config()
    limits = [value for name in _LIMIT_NAMES if isinstance(value := getattr(config, name, None), int)]
    return min(limits, default=sys.maxsize)
