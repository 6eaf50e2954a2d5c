"""What is given to torch's variable-length kernel, which needs a GPU: a stand-in computes the same here."""

import pytest
import torch
import torch.nn.attention.varlen

from trainer_adapters.attention import Packing, _padded, _varlen
from trainer_adapters.shared_prefixes import SharedPrefixes

CU_SEQLENS = torch.tensor([0, 5, 6, 15], dtype=torch.int32)
HEADS = 4
KEY_HEADS = 2
SIZE = 8


def attended(query, key, value, bounds, scale, window, grouped) -> torch.Tensor:
    """Returns attention of each sequence by itself, as the kernel computes it."""
    if not grouped and key.shape[1] != query.shape[1]:
        raise ValueError("query and key need the same number of heads")
    outputs = []
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        q, k, v = (states[start:end].transpose(0, 1) for states in (query, key, value))
        seen = torch.ones(end - start, end - start, dtype=torch.bool).tril()
        seen = seen if window[0] < 0 else seen.triu(-window[0])
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, scale=scale, enable_gqa=grouped
            ).transpose(0, 1)
        )
    return torch.cat(outputs)


def of_torch_2_13(q, k, v, cu_q, cu_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False):
    return attended(q, k, v, cu_q, scale, window_size, enable_gqa)


def of_torch_2_11(q, k, v, cu_q, cu_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
    return attended(q, k, v, cu_q, scale, window_size, grouped=False)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("kernel", [of_torch_2_13, of_torch_2_11])
@pytest.mark.parametrize("alike", [0, 4], ids=["nothing is shared", "a prefix is shared"])
def test_the_kernel_attends_as_the_padded_path_does(monkeypatch, kernel, window, alike):
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", kernel)
    token_ids = torch.arange(15)
    token_ids[6 : 6 + alike] = token_ids[:alike]
    shared = SharedPrefixes.of(token_ids, torch.ones(15), CU_SEQLENS)
    tokens = len(shared.distinct)
    assert tokens == 15 - alike
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(tokens, heads, SIZE, generator=generator) for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )
    packing = Packing(CU_SEQLENS, shared)
    found = _varlen(query, key, value, packing, 0.3, window)
    assert len(found) == tokens
    torch.testing.assert_close(found, _padded(query, key, value, packing, 0.3, window))
