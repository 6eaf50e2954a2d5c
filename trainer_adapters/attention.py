"""Attention over packed sequences that keeps neighbours apart; registered with transformers as "packed".

A model loaded with `attn_implementation="packed"` and called with `packing=Packing(...)` runs every other
operation on the `[1, T]` pack as it is; only attention looks at where sequences begin. Two paths: torch's
variable-length flash kernel (CUDA, half precision), and else padding by length class, which needs no mask:
behind a causal diagonal no real token sees the padding on its right.
"""

from functools import cached_property
from itertools import pairwise

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

PACKED = "packed"


class Packing:
    """Where each sequence of a pack begins, and the indices that both paths derive from it once per batch."""

    def __init__(self, cu_seqlens: torch.Tensor):
        self.cu_seqlens = cu_seqlens  # [S + 1] int32
        self._bounds = list(pairwise(cu_seqlens.tolist()))
        self.max_length = max(end - start for start, end in self._bounds)

    @cached_property
    def padded(self) -> list[torch.Tensor]:
        """One `[s, L]` index into the pack per length class (powers of two, so that padding at most
        doubles the work). A slot of padding repeats the sequence's last token."""
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
        """`[T]` index: where each token of the pack stands in the concatenated padded classes."""
        slots = torch.cat([index.flatten() for index in self.padded])
        own = torch.cat([_is_own_slot(index).flatten() for index in self.padded]).nonzero().squeeze(1)
        where = torch.empty_like(own)
        where[slots[own]] = own
        return where


def _is_own_slot(index: torch.Tensor) -> torch.Tensor:
    """False where a slot only repeats the sequence's last token."""
    return torch.cat([index[:, :1] >= 0, index[:, 1:] > index[:, :-1]], dim=1)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, H, T, D]
    key: torch.Tensor,  # [1, K, T, D]
    value: torch.Tensor,  # [1, K, T, D]
    attention_mask: None,
    *,
    packing: Packing,
    scaling: float,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each sequence, `[1, T, H, D]`. Dropout is not applied: a policy's
    log-probabilities are compared with those of a server, which has none."""
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

    return varlen_attn(
        query,
        key,
        value,
        packing.cu_seqlens,
        packing.cu_seqlens,
        packing.max_length,
        packing.max_length,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
    )


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
        classes.append(attended.transpose(1, 2).reshape(index.numel(), -1))  # [s * L, H * D]
    return torch.cat(classes).index_select(0, packing.restore).view(query.shape)


def _pad(states: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """`[T, H, D]` -> `[s, H, L, D]`. Whole rows of `H * D` at a time: several times the speed of
    indexing a three-dimensional tensor, backward above all."""
    tokens, heads, size = states.shape
    rows = states.reshape(tokens, heads * size).index_select(0, index.flatten())
    return rows.view(*index.shape, heads, size).transpose(1, 2)


def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    """Causal mask `[L, L]` in which a token sees itself and the `window - 1` tokens before it."""
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return causal.triu(1 - window)


AttentionInterface.register(PACKED, packed_attention)
