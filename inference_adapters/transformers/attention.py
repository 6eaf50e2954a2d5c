"""Attention over the paged cache, in batches of requests with the same number of new tokens.

Without flash attention, transformers packs a batch into one row and masks a dense [all queries, all keys]
product. Its cost is quadratic in the number of requests. Here, requests with the same number of new tokens
form a group, whose cached keys are gathered into one tensor. With 64 requests of 100 tokens, a step takes a
third of the time; with 150 tokens, a fifth. All layers of the model must have full attention.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

IMPLEMENTATION = "per_request"  # its name as an attention implementation of transformers


@dataclass(frozen=True)
class Group:
    """B requests with q new tokens each, and at most L tokens per request."""

    rows: Tensor  # [B * q] index of each query in the packed batch
    mask: Tensor  # [B, 1, heads_per_key * q, L] 0 where a query attends, else -inf

    @property
    def key_slots(self) -> int:
        return self.mask.shape[0] * self.mask.shape[-1]


def plan_groups(
    cu_seq_lens_q: Tensor,  # [requests + 1] bounds of each request's new tokens in the packed batch
    cu_seq_lens_k: Tensor,  # [requests + 1] bounds of each request's tokens in `slots`
    slots: Tensor,  # [all tokens] cache slot of every token, request by request
    heads_per_key: int,
    dtype: torch.dtype,
) -> tuple[list[Group], Tensor]:
    """Returns the groups, and the `[sum of B * L]` cache slots to read, group by group."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for request, new_tokens in enumerate(cu_seq_lens_q.diff().tolist()):
        by_length[new_tokens].append(request)

    groups = []
    reads = []
    for new_tokens, requests in by_length.items():
        chosen = torch.tensor(requests, device=slots.device)
        new = torch.arange(new_tokens, device=slots.device)
        length = cu_seq_lens_k.diff()[chosen][:, None]  # [B, 1]
        key = torch.arange(int(length.max()), device=slots.device)  # [L]
        # A shorter request repeats its last slot; no query attends to it.
        reads.append(slots[cu_seq_lens_k[chosen][:, None] + key.minimum(length - 1)].flatten())
        seen = key <= (length - new_tokens + new)[:, :, None]  # [B, q, L]
        mask = torch.zeros(seen.shape, dtype=dtype, device=slots.device).masked_fill_(~seen, -torch.inf)
        groups.append(
            Group(
                rows=(cu_seq_lens_q[chosen][:, None] + new).flatten(),
                mask=mask[:, None].repeat(1, 1, heads_per_key, 1),
            )
        )
    return groups, torch.cat(reads)


def attend(
    module: nn.Module,
    query: Tensor,  # [1, heads, packed, D]
    key: Tensor,  # [1, key heads, packed, D]
    value: Tensor,
    attention_mask: None,
    *,
    scaling: float,
    cache: Any,
    groups: list[Group],
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Returns the `[1, packed, heads, D]` attention and None, as transformers' attention functions do.

    `groups`, and the cache's read index, come from `plan_groups`.
    """
    key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=kwargs)
    _, heads, packed, dim = query.shape
    key_heads = key.shape[1]
    output = query.new_empty(packed, heads, dim)
    start = 0
    for group in groups:
        b, _, queries, _ = group.mask.shape
        q = query[0].index_select(1, group.rows)  # [heads, B * q, D]
        # Heads that share a key head become queries of one head, so that keys are not repeated.
        q = q.view(key_heads, heads // key_heads, b, -1, dim).permute(2, 0, 1, 3, 4)
        end = start + group.key_slots
        k, v = (x[0, :, start:end].unflatten(1, (b, -1)).transpose(0, 1) for x in (key, value))
        o = nn.functional.scaled_dot_product_attention(
            q.reshape(b, key_heads, queries, dim), k, v, attn_mask=group.mask, scale=scaling
        )
        o = o.reshape(b, heads, -1, dim).transpose(1, 2)  # [B, q, heads, D]; of CUDA not contiguous
        output[group.rows] = o.reshape(-1, heads, dim)
        start = end
    return output[None], None


AttentionInterface.register(IMPLEMENTATION, attend)
