"""The trained weights of a language model in the archive of a saved algorithm, as safetensors."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping

import torch as th

from seeupo_gym.agents.language.loading import require_llm

WEIGHTS_FILE = "policy.safetensors"


class TrainedWeights:
    """
    Writes and reads the weights that are trained: adapters, or those of the whole model.

    :param parameters: name -> parameter
    :param model: description of the model, for errors
    """

    def __init__(self, parameters: Mapping[str, th.nn.Parameter], model: str) -> None:
        self._parameters, self._model = parameters, model

    def write(self, archive: zipfile.ZipFile) -> None:
        """
        Add the weights to an archive. Weights that share memory, as tied embeddings do, are written once.

        :param archive: open for writing
        """
        weights = {name: param.detach().cpu().contiguous() for name, param in self._parameters.items()}
        archive.writestr(WEIGHTS_FILE, require_llm("safetensors.torch").save(weights))

    def read(self, archive: zipfile.ZipFile) -> None:
        """
        Take the weights from an archive.

        :param archive: open for reading
        :raises ValueError: if they are those of another model
        """
        weights = require_llm("safetensors.torch").load(archive.read(WEIGHTS_FILE))
        shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
        if shapes != {name: tuple(param.shape) for name, param in self._parameters.items()}:
            raise ValueError(f"the saved weights are not those of a model like {self._model}")
        with th.no_grad():
            for name, param in self._parameters.items():
                param.copy_(weights[name])
