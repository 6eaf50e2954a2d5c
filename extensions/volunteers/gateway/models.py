"""The weight versions with which the gateway audits: the newest ones, each as a model in memory."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import torch
from transformers import PreTrainedModel

from contracts.causal_model import load_causal
from contracts.weights import torch_dtype
from contracts.whole_model import IncompleteModelError, fault_in_files, fault_of_loading


class AuditModels:
    """Models of the last `behind` + 1 versions of a run. Methods may be called in any thread."""

    def __init__(self, path: str, dtype: str, device: str, behind: int):
        self._path = path
        self._dtype = torch_dtype(dtype)
        self._device = torch.device(device)
        self._most = behind + 1
        self._first: PreTrainedModel | None = None  # as loaded from the path, until the first version
        self._models: dict[int, PreTrainedModel] = {}
        self._in_use = Lock()

    def load(self) -> PreTrainedModel:
        """Loads the model in the directory. Raises IncompleteModelError."""
        if why := fault_in_files(Path(self._path)):
            raise IncompleteModelError(f"{self._path}: {why}")
        options = {"dtype": self._dtype, "attn_implementation": "sdpa", "local_files_only": True}
        try:
            model, report = load_causal(self._path, ignore_mismatched_sizes=True, **options)
        except ValueError:  # a model without this attention
            options["attn_implementation"] = "eager"
            model, report = load_causal(self._path, ignore_mismatched_sizes=True, **options)
        if why := fault_of_loading(model, report):
            raise IncompleteModelError(f"{self._path}: {why}")
        self._first = model.to(self._device).eval().requires_grad_(False)
        return self._first

    @property
    def versions(self) -> list[int]:
        return sorted(self._models)

    def forget(self) -> None:
        """Forgets the versions of a run that has ended. Their memory is used again."""
        with self._in_use:
            for version in self.versions:
                self._first = self._models.pop(version)

    @torch.no_grad()
    def add(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Makes a version known. It replaces the oldest one if there are enough."""
        with self._in_use:
            model = self._models.get(version) or self._free_model()
            parameters = dict(model.named_parameters())  # a tied weight occurs once
            for name, tensor in tensors.items():
                parameters[name].copy_(tensor)
            self._models[version] = model

    def _free_model(self) -> PreTrainedModel:
        if self._first is not None:
            model = self._first
            self._first = None
            return model
        if len(self._models) >= self._most:
            return self._models.pop(min(self._models))
        return copy.deepcopy(next(iter(self._models.values())))

    @contextmanager
    def of(self, version: int) -> Iterator[PreTrainedModel | None]:
        """Yields the model of a version, or None if it is too old. It does not change in the block."""
        with self._in_use:
            yield self._models.get(version)
