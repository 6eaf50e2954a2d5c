"""The states and keys of requests that decode together, one row for each, in a cache of transformers.

A request is prefilled alone, and its cache is joined to those of the others. Recurrent states are stacked;
keys are padded on the left. It depends on attributes of transformers 5.19's cache layers.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache, PreTrainedModel

STATES = ("conv_states", "recurrent_states")  # of a layer: index -> tensor, or None


class RowCache:
    """The rows of the requests that run, in the order in which they joined."""

    def __init__(self, model: PreTrainedModel):
        self._model = model
        self._cache: Cache | None = None
        self._mask = torch.zeros(0, 0, dtype=torch.long, device=model.device)  # [B, W], 0 where padded

    @property
    def width(self) -> int:
        """The length of the longest row in tokens, which all rows occupy."""
        return self._mask.shape[1]

    @torch.inference_mode()
    def prefill(self, token_ids: list[int], rows: int) -> Tensor:
        """Adds `rows` equal rows, and returns the float32 logits `[rows, V]` of their next token."""
        ids = torch.tensor([token_ids], device=self._model.device)
        output = self._model(input_ids=ids, use_cache=True, logits_to_keep=1)
        equal = torch.zeros(rows, dtype=torch.long, device=self._model.device)
        added = output.past_key_values
        added.reorder_cache(equal)
        self._join(added, torch.ones_like(ids).expand(rows, -1))
        return output.logits[:, -1].float().expand(rows, -1)

    @torch.inference_mode()
    def decode(self, token_ids: list[int]) -> Tensor:
        """Adds one token to each row, and returns the float32 logits `[B, V]` of the next token."""
        ids = torch.tensor(token_ids, device=self._model.device)[:, None]
        self._mask = F.pad(self._mask, (0, 1), value=1)
        output = self._model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=self._mask.sum(1, keepdim=True) - 1,
            past_key_values=self._cache,
            use_cache=True,
        )
        return output.logits[:, -1].float()

    @torch.inference_mode()
    def keep(self, rows: list[int]) -> None:
        """Drops all other rows, and the columns that are padding in all rows that stay."""
        if not rows:
            self.__init__(self._model)
            return
        index = torch.tensor(rows, device=self._model.device)
        self._cache.reorder_cache(index)
        self._mask = self._mask[index]
        unused = int((self._mask.cumsum(1) == 0).all(0).sum())
        self._mask = self._mask[:, unused:]
        for layer in self._cache.layers:
            _set_keys(layer, lambda keys: keys[:, :, unused:])

    def _join(self, added: Cache, mask: Tensor) -> None:
        if self._cache is None:
            self._cache = added
            self._mask = mask
            return
        width = max(self.width, mask.shape[1])
        for layer, other in zip(self._cache.layers, added.layers, strict=True):
            for name in ("keys", "values"):
                if isinstance(getattr(layer, name, None), Tensor):
                    both = (_padded(getattr(each, name), 2, width) for each in (layer, other))
                    setattr(layer, name, torch.cat([*both]))
            for name in STATES:
                states = getattr(layer, name, None) or {}
                for i, state in getattr(other, name, {}).items():
                    states[i] = None if state is None else torch.cat([states[i], state])
        self._mask = torch.cat([_padded(each, 1, width) for each in (self._mask, mask)])


def _set_keys(layer: Any, change: Any) -> None:
    for name in ("keys", "values"):
        if isinstance(getattr(layer, name, None), Tensor):
            setattr(layer, name, change(getattr(layer, name)))


def _padded(tensor: Tensor, dim: int, width: int) -> Tensor:
    """Pads `dim` on the left with zeros to `width`."""
    behind = 2 * (tensor.dim() - dim - 1)
    return F.pad(tensor, (*(0,) * behind, width - tensor.shape[dim], 0))
