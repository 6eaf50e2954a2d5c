"""Finds common prefixes of a pack's sequences, whose tokens are computed only once.

The members of a group share a prompt. A decoder's hidden state depends only on the tokens before it, so the
states of a common prefix are equal. Prefix Grouper (arXiv 2506.05433) describes the idea. `TokenScorer` runs
the model on the distinct tokens, and `attention` reassembles the sequences.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch.autograd.function import FunctionCtx, once_differentiable

LEAST_SAVED = 1 / 16  # minimum share of a pack's tokens: every layer's attention has to copy states


@dataclass(frozen=True)
class SharedPrefixes:
    """The U distinct tokens of a pack of T tokens.

    Two tokens are the same if the tokens and temperatures of their sequences are equal up to and including
    them. If this saves few tokens, all tokens count as distinct.
    """

    distinct: torch.Tensor  # [U] int64, ascending: index in the pack of each distinct token
    slots: torch.Tensor  # [T] int64: index of each token among the distinct ones, 0 to U - 1

    @classmethod
    def of(
        cls,
        token_ids: torch.Tensor,  # [T] int64
        temperature: torch.Tensor,  # [T] float32
        cu_seqlens: torch.Tensor,  # [S + 1] int32
    ) -> "SharedPrefixes":
        """Finds the distinct tokens. Synchronises with the GPU, because it copies the tokens to the host."""
        bits = temperature.to("cpu", torch.float32).numpy().view(np.uint32)
        keys = token_ids.cpu().numpy().astype(np.int64) << 32 | bits
        first = _first_occurrences(keys, cu_seqlens.tolist())
        indices = np.arange(len(first))
        if np.count_nonzero(first != indices) < LEAST_SAVED * len(first):
            first = indices
        distinct = np.flatnonzero(first == indices)
        slots = np.empty_like(first)
        slots[distinct] = np.arange(len(distinct))
        device = token_ids.device
        return cls(torch.from_numpy(distinct).to(device), torch.from_numpy(slots[first]).to(device))

    @cached_property
    def has_shared(self) -> bool:
        """True if any tokens are shared."""
        return len(self.distinct) < len(self.slots)

    def to_pack(self, values: torch.Tensor) -> torch.Tensor:
        """Expands the `[U, ...]` values of the distinct tokens to the `[T, ...]` values of the pack."""
        return rows_of(values, self.slots) if self.has_shared else values

    def to_distinct(self, values: torch.Tensor) -> torch.Tensor:
        """Selects the `[U, ...]` values of the distinct tokens from the `[T, ...]` values of the pack."""
        return values.index_select(0, self.distinct) if self.has_shared else values


def rows_of(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Returns `values[index]`, with an `[N]` index of rows that may repeat.

    Backward accumulates the gradients of a row in float32, because repeated bfloat16 sums would round.
    """
    return _Rows.apply(values, index)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.shape = values.shape
        return values.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (index,) = ctx.saved_tensors
        added = torch.zeros(ctx.shape, dtype=torch.float32, device=gradient.device)
        return added.index_add_(0, index, gradient.float()).to(gradient.dtype), None


def _first_occurrences(keys: np.ndarray, cu_seqlens: list[int]) -> np.ndarray:
    """Returns the [T] index of a same token for each token, or the token's own. `keys`: [T] int64.

    Among sequences sorted by their bytes, each one shares its longest prefix with the one before it.
    """
    first = np.arange(len(keys))
    bounds = sorted(pairwise(cu_seqlens), key=lambda bound: keys[slice(*bound)].tobytes())
    for (earlier, its_end), (begin, end) in pairwise(bounds):
        length = min(its_end - earlier, end - begin)
        differing = np.flatnonzero(keys[earlier : earlier + length] != keys[begin : begin + length])
        alike = differing[0] if len(differing) else length
        first[begin : begin + alike] = first[earlier : earlier + alike]
    return first
