"""Attention within each sequence of a pack; registered with transformers as "packed".

Load the model with `attn_implementation="packed"`, and call it with `packing=Packing(...)`. All other
operations run on the `[1, U]` distinct tokens of the pack, which `shared_prefixes` finds. On CUDA in half
precision, attention is torch's variable-length flash kernel. Otherwise sequences are padded on the right in
groups of similar length, which needs no padding mask because attention is causal.

A sink is a score that takes part in the softmax of a query, and has no value (gpt-oss). It is computed as one
more key before the first one. A bound c replaces each score x by c tanh(x / c) (Gemma 2).
"""

from collections.abc import Iterable
from functools import cached_property
from inspect import signature
from itertools import pairwise

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from trainer_adapters.layers.held_packing import held_packing
from trainer_adapters.shared_prefixes import SharedPrefixes, rows_of

PACKED = "packed"
ON_CUDA = "attention with {} is not implemented on CUDA ({}); train this model on the CPU, or choose another"


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

    def classes_of(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Returns the `[U, ...]` values of the distinct tokens as `[s, L, ...]` of each length class."""
        return [
            rows_of(values, index.flatten()).view(*index.shape, *values.shape[1:]) for index in self.padded
        ]

    def join(self, classes: Iterable[torch.Tensor]) -> torch.Tensor:
        """Returns the `[U, ...]` values of the distinct tokens from `[s, L, ...]` of each length class."""
        return torch.cat([values.flatten(0, 1) for values in classes]).index_select(0, self.restore)


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
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,  # [H]
    dropout: float = 0.0,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Returns causal attention within each sequence, `[1, U, H, V]`.

    softcap: bound of the scores. s_aux: a sink of each head. Dropout is not applied, because servers, whose
    log-probabilities are compared, do not apply it. Raises ValueError if the model needs another kind of
    attention.
    """
    packing = packing or held_packing()
    name = type(module).__name__
    if packing is None:
        raise ValueError(f"{name} is not given where sequences begin")
    if unknown := [word for word in ("indices", "position_bias") if kwargs.get(word) is not None]:
        raise ValueError(f"packed attention does not support {', '.join(unknown)} ({name})")
    if softcap is not None and s_aux is not None:
        raise ValueError(f"packed attention does not support sinks with a bound ({name})")
    if query.is_cuda and (softcap is not None or s_aux is not None):
        raise ValueError(ON_CUDA.format("sinks" if softcap is None else "bounded scores", name))
    rows = [states[0].transpose(0, 1) for states in (query, key, value)]
    if softcap is not None or s_aux is not None:
        attended = _padded_otherwise(*rows, packing, scaling, sliding_window, softcap, s_aux)
    elif query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
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
        classes.append(attended.transpose(1, 2).flatten(2))  # [s, L, H * V]
    return packing.join(classes).view(*query.shape[:2], value.shape[2])


def _padded_otherwise(
    query, key, value, packing: Packing, scaling: float, window: int | None, bound: float | None, sinks
) -> torch.Tensor:
    classes = []
    for index in packing.padded:
        states = [_pad(each, index) for each in (query, key, value)]
        if sinks is None:
            attended = _bounded(*states, scaling, window, bound)
        else:
            attended = _with_sinks(*states, scaling, window, sinks)
        classes.append(attended.transpose(1, 2).flatten(2))
    return packing.join(classes).view(*query.shape[:2], value.shape[2])


def _with_sinks(query, key, value, scaling: float, window: int | None, sinks) -> torch.Tensor:
    """Returns attention [s, H, L, V] with one more key of value 0, whose score is the head's sink.

    The key stands before the first one. Its product with a query is that of one more dimension, in which the
    query is the sink and all other keys are 0. A first query, whose result is dropped, keeps the mask causal.
    """
    of_sinks = (sinks / scaling).to(query.dtype).view(1, -1, 1, 1).expand(*query.shape[:3], 1)
    query = F.pad(torch.cat([query, of_sinks], dim=3), (0, 0, 1, 0))
    sink = F.one_hot(torch.tensor(key.shape[3]), key.shape[3] + 1).to(key)
    key = torch.cat([sink.expand(*key.shape[:2], 1, -1), F.pad(key, (0, 1))], dim=2)
    length = query.shape[2]
    mask = None
    if window is not None and window + 1 < length:
        mask = _band(length, window, query.device)
        mask[:, 0] = True
    size = value.shape[3]
    attended = F.scaled_dot_product_attention(
        query,
        key,
        F.pad(value, (0, query.shape[3] - size, 1, 0)),  # fused kernels need values as long as keys
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=True,
    )
    return attended[:, :, 1:, :size]


def _bounded(query, key, value, scaling: float, window: int | None, bound: float) -> torch.Tensor:
    """Returns attention [s, H, L, V] with scores c tanh(x / c)."""
    length = query.shape[2]
    repeats = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(repeats, dim=1) for states in (key, value))
    scores = bound * torch.tanh(query @ key.transpose(2, 3) * (scaling / bound))
    seen = _band(length, window or length, query.device)
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value


def _pad(states: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Returns the states `[U, H, D]` at `index`, as `[s, H, L, D]`.

    Copying rows of `H * D` is several times faster than indexing three dimensions, especially in backward.
    """
    tokens, heads, size = states.shape
    rows = rows_of(states.reshape(tokens, heads * size), index.flatten())
    return rows.view(*index.shape, heads, size).transpose(1, 2)


def causal_mask(rows: int, length: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
    """Returns a mask [s, 1, L, L] to add to scores, with the dtype and device of `like`."""
    seen = _band(length, window or length, like.device)
    mask = torch.zeros(length, length, dtype=like.dtype, device=like.device)
    return mask.masked_fill(~seen, torch.finfo(like.dtype).min).expand(rows, 1, length, length)


def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    """Returns the `[L, L]` causal mask by which a token attends to itself and `window - 1` tokens before."""
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return causal.triu(1 - window)


AttentionInterface.register(PACKED, packed_attention)
