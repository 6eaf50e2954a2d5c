"""Finds which tokens of a pack are computed once, because their sequences begin alike.

A group's members have one prompt. A decoder's state of a token depends only on the tokens up to it, so the
prompt's states are the same in each member. Prefix Grouper (arXiv 2506.05433) describes the idea.
`TokenScorer` runs the model on the distinct tokens, and `attention` puts sequences together again.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch.autograd.function import FunctionCtx, once_differentiable

LEAST_SAVED = 1 / 16  # of a pack's tokens; attention copies its states in every layer to share fewer


@dataclass(frozen=True)
class SharedPrefixes:
    """The distinct tokens of a pack, U of T.

    Two tokens are the same if they, their temperatures, and all that comes before them in their sequences are
    equal. Where that would save few tokens, all are distinct.
    """

    distinct: torch.Tensor  # [U] int64, ascending: a place in the pack of each distinct token
    slots: torch.Tensor  # [T] int64: which of the distinct tokens each token is, 0 to U - 1

    @classmethod
    def of(
        cls,
        token_ids: torch.Tensor,  # [T] int64
        temperature: torch.Tensor,  # [T] float32
        cu_seqlens: torch.Tensor,  # [S + 1] int32
    ) -> "SharedPrefixes":
        """Returns the distinct tokens of a pack. The host waits for its tokens."""
        bits = temperature.to("cpu", torch.float32).numpy().view(np.uint32)
        keys = token_ids.cpu().numpy().astype(np.int64) << 32 | bits
        first = _first_places(keys, cu_seqlens.tolist())
        places = np.arange(len(first))
        if np.count_nonzero(first != places) < LEAST_SAVED * len(first):
            first = places
        distinct = np.flatnonzero(first == places)
        slots = np.empty_like(first)
        slots[distinct] = np.arange(len(distinct))
        device = token_ids.device
        return cls(torch.from_numpy(distinct).to(device), torch.from_numpy(slots[first]).to(device))

    @cached_property
    def has_shared(self) -> bool:
        """Whether any tokens are the same."""
        return len(self.distinct) < len(self.slots)

    def to_pack(self, values: torch.Tensor) -> torch.Tensor:
        """Returns the `[T, ...]` values of a pack's tokens, given those of the distinct ones."""
        return rows_of(values, self.slots) if self.has_shared else values

    def to_distinct(self, values: torch.Tensor) -> torch.Tensor:
        """Returns the `[U, ...]` values of the distinct tokens, given those of the pack."""
        return values.index_select(0, self.distinct) if self.has_shared else values


def rows_of(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Returns `values[index]`, the rows at an `[N]` index, of which many may be the same.

    The gradients of a row are added up in float32. In bfloat16 each member of a group would round their sum.
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


def _first_places(keys: np.ndarray, cu_seqlens: list[int]) -> np.ndarray:
    """Returns for each token of a pack the place of one that is the same, or its own. `keys`: [T] int64.

    Of sequences in the order of their bytes, each shares its longest prefix with the one before it.
    """
    first = np.arange(len(keys))
    bounds = sorted(pairwise(cu_seqlens), key=lambda bound: keys[slice(*bound)].tobytes())
    for (earlier, its_end), (begin, end) in pairwise(bounds):
        length = min(its_end - earlier, end - begin)
        differing = np.flatnonzero(keys[earlier : earlier + length] != keys[begin : begin + length])
        alike = differing[0] if len(differing) else length
        first[begin : begin + alike] = first[earlier : earlier + alike]
    return first
