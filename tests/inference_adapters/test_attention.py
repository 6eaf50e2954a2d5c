"""Attention in groups does not depend on the memory layout of what torch's attention returns."""

from types import SimpleNamespace

import torch
from torch import nn

from inference_adapters.transformers.attention import attend, plan_groups

HEADS, KEY_HEADS, SIZE = 6, 2, 4


class Cache:
    """A cache that holds what it is given: each request's prompt is all there is."""

    def update(self, key_states, value_states, **_):
        return key_states, value_states


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    bounds = torch.tensor([0, 3, 6])  # two requests of three tokens
    groups, reads = plan_groups(bounds, bounds, torch.arange(6), HEADS // KEY_HEADS, torch.float32)
    key, value = (states[:, :, reads] for states in (key, value))
    layer = SimpleNamespace(layer_idx=0)
    return attend(layer, query, key, value, None, scaling=0.5, cache=Cache(), groups=groups)[0]


def test_a_result_in_the_layout_of_cuda_is_the_same(monkeypatch):
    torch.manual_seed(0)
    states = [torch.randn(1, heads, 6, SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    expected = attention(*states)
    of_torch = nn.functional.scaled_dot_product_attention

    def as_on_cuda(*arguments, **options):
        """In float32, CUDA's kernel returns [B, queries, heads, D] with two dimensions swapped."""
        return of_torch(*arguments, **options).transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", as_on_cuda)
    assert torch.equal(attention(*states), expected)
