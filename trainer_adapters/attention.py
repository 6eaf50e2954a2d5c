"""Attention within each sequence of a pack; registered with transformers as "packed".

Load the model with `attn_implementation="packed"`, and call it with `packing=Packing(...)`. All other
operations run on the `[1, U]` distinct tokens of the pack, which `shared_prefixes` finds. On CUDA in half
precision, attention is torch's variable-length flash kernel. Otherwise sequences are padded on the right in
groups of similar length, which needs no padding mask because attention is causal.
"""

from functools import cached_property
from inspect import signature
from itertools import pairwise

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from trainer_adapters.shared_prefixes import SharedPrefixes, rows_of

PACKED = "packed"


class Packing:
    """The sequences of a pack, and the indices that attention derives from them once per batch."""

    def __init__(self, cu_seqlens: torch.Tensor, shared: SharedPrefixes):
        self.cu_seqlens = cu_seqlens  # [S + 1] int32
        self.shared = shared
        self._bounds = list(pairwise(cu_seqlens.tolist()))
        self.max_length = max(end - start for start, end in self._bounds)

    @cached_property
    def padded(self) -> list[torch.Tensor]:
        """One `[s, L]` index of distinct tokens per length class.

        Class boundaries are powers of two, so padding at most doubles the work. A padding position repeats
        the sequence's last token.
        """
        slots = self.shared.slots
        return [slots[index] for index in self._padded_of_pack]

    @cached_property
    def _padded_of_pack(self) -> list[torch.Tensor]:
        """`padded` with indices into the pack."""
        classes: dict[int, list[tuple[int, int]]] = {}
        for start, end in self._bounds:
            if end > start:
                classes.setdefault((end - start - 1).bit_length(), []).append((start, end))
        return [self._padded_class(bounds).to(self.cu_seqlens.device) for bounds in classes.values()]

    @staticmethod
    def _padded_class(bounds: list[tuple[int, int]]) -> torch.Tensor:
        start, end = torch.tensor(bounds).unsqueeze(-1).unbind(1)  # [s, 1]
        return torch.minimum(start + torch.arange(int((end - start).max())), end - 1)

    @cached_property
    def restore(self) -> torch.Tensor:
        """The `[U]` index of each distinct token in the concatenated padded classes."""
        slots = torch.cat([index.flatten() for index in self._padded_of_pack])
        own = torch.cat([_is_own_slot(index).flatten() for index in self._padded_of_pack])
        own = own.nonzero().squeeze(1)
        where = torch.empty_like(own)
        where[slots[own]] = own
        return self.shared.to_distinct(where)


def _is_own_slot(index: torch.Tensor) -> torch.Tensor:
    """Returns a mask of `index` that is False at padding positions."""
    return torch.cat([index[:, :1] >= 0, index[:, 1:] > index[:, :-1]], dim=1)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, H, U, D]
    key: torch.Tensor,  # [1, K, U, D]
    value: torch.Tensor,  # [1, K, U, V]; V = D in most models
    attention_mask: None,
    *,
    packing: Packing | None = None,
    scaling: float,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Returns causal attention within each sequence, `[1, U, H, V]`.

    Dropout is not applied, because servers, whose log-probabilities are compared, do not apply it. Raises
    ValueError if the model needs another kind of attention.
    """
    if packing is None:
        raise ValueError(f"{type(module).__name__} is not given where sequences begin")
    if unknown := [name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]:
        raise ValueError(f"packed attention does not support {', '.join(unknown)} ({type(module).__name__})")
    rows = [states[0].transpose(0, 1) for states in (query, key, value)]
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        attended = _varlen(*rows, packing, scaling, sliding_window)
    else:
        attended = _padded(*rows, packing, scaling, sliding_window)
    return attended.unsqueeze(0), None


def _varlen(query, key, value, packing: Packing, scaling: float, window: int | None) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = (packing.shared.to_pack(states) for states in (query, key, value))
    grouped = {"enable_gqa": True}
    if "enable_gqa" not in signature(varlen_attn).parameters:  # torch 2.11
        grouped = {}
        repeats = query.shape[1] // key.shape[1]
        key = key.repeat_interleave(repeats, dim=1)
        value = value.repeat_interleave(repeats, dim=1)
    attended = varlen_attn(
        query,
        key,
        value,
        packing.cu_seqlens,
        packing.cu_seqlens,
        packing.max_length,
        packing.max_length,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        **grouped,
    )
    return packing.shared.to_distinct(attended)


def _padded(query, key, value, packing: Packing, scaling: float, window: int | None) -> torch.Tensor:
    classes = []
    for index in packing.padded:
        length = index.shape[1]
        banded = window is not None and window < length
        attended = F.scaled_dot_product_attention(
            *(_pad(states, index) for states in (query, key, value)),
            attn_mask=_band(length, window, query.device) if banded else None,
            is_causal=not banded,
            scale=scaling,
            enable_gqa=True,
        )
        classes.append(attended.transpose(1, 2).reshape(index.numel(), -1))  # [s * L, H * V]
    return torch.cat(classes).index_select(0, packing.restore).view(*query.shape[:2], value.shape[2])


def _pad(states: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Returns the states `[U, H, D]` at `index`, as `[s, H, L, D]`.

    Copying rows of `H * D` is several times faster than indexing three dimensions, especially in backward.
    """
    tokens, heads, size = states.shape
    rows = rows_of(states.reshape(tokens, heads * size), index.flatten())
    return rows.view(*index.shape, heads, size).transpose(1, 2)


def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    """Returns the `[L, L]` causal mask by which a token attends to itself and `window - 1` tokens before."""
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return causal.triu(1 - window)


AttentionInterface.register(PACKED, packed_attention)
