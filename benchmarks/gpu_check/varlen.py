"""The trainers' packed attention in bfloat16, forward and backward, beside attention in float64.

On a GPU it is torch's variable-length kernel. The heads are those of Qwen2.5's 7B, 14B or 32B, and 0.5B.
"""

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from benchmarks.gpu_check.head import relative_errors
from benchmarks.gpu_check.machine import device_of
from benchmarks.gpu_check.outcomes import FailedError
from trainer_adapters.attention import Packing, packed_attention
from trainer_adapters.shared_prefixes import SharedPrefixes

HEADS = ((28, 4, 128), (40, 8, 128), (14, 2, 64))  # of queries, of keys and values, and their size
LENGTHS = (2048, 1, 700, 1347)  # tokens of the packed sequences
DRY_LENGTHS = (24, 1, 7)
RUNS = 5  # after one that is not counted
MOST = 2**-6  # of a norm: probabilities and their gradients are rounded to bfloat16


class Pack(NamedTuple):
    """What attention is computed of."""

    states: Sequence[torch.Tensor]  # queries, keys, values: [1, heads, T, size] bfloat16
    gradient: torch.Tensor  # by the result, [1, T, heads, size] bfloat16
    lengths: Sequence[int]


def check(dry: bool) -> list[str]:
    """Returns a line for each number of heads. Raises FailedError if one is too far from float64."""
    lines = []
    failed = False
    for heads, kv_heads, size in HEADS:
        pack = _random_pack(heads, kv_heads, size, DRY_LENGTHS if dry else LENGTHS, device_of(dry))
        found, seconds = _packed(pack)
        errors = relative_errors(found, _in_float64(pack))
        failed = failed or not max(errors) <= MOST
        of_norm = "result {:.1e}, gradients by queries {:.1e}, keys {:.1e}, values {:.1e}".format(*errors)
        time_of_both = f"forward and backward of {sum(pack.lengths):,} tokens: {seconds * 1e3:.2f} ms"
        lines.append(f"heads {heads}/{kv_heads}/{size}: {of_norm} of the norm from float64; {time_of_both}")
    if failed:
        raise FailedError(*lines, f"expected: at most {MOST:.1e}")
    return lines


def _random_pack(heads: int, kv_heads: int, size: int, lengths: Sequence[int], device: str) -> Pack:
    torch.manual_seed(0)
    tokens = sum(lengths)
    with torch.device(device):
        states = [torch.randn(1, each, tokens, size).bfloat16() for each in (heads, kv_heads, kv_heads)]
        return Pack(states, torch.randn(1, tokens, heads, size).bfloat16(), lengths)


def _packed(pack: Pack) -> tuple[list[torch.Tensor], float]:
    """Returns the result and its gradients, and the median of the seconds of forward and backward."""
    leaves = [states.requires_grad_() for states in pack.states]
    with pack.gradient.device:
        every = torch.arange(sum(pack.lengths))
        cu_seqlens = torch.tensor([0, *pack.lengths]).cumsum(0).to(torch.int32)
        packing = Packing(cu_seqlens, SharedPrefixes.of(every, torch.ones(len(every)), cu_seqlens))
    scaling = pack.states[0].shape[-1] ** -0.5
    seconds = []
    for _ in range(1 + RUNS):
        began = time.perf_counter()
        attended, _ = packed_attention(torch.nn.Identity(), *leaves, None, packing=packing, scaling=scaling)
        gradients = torch.autograd.grad(attended, leaves, pack.gradient)
        if attended.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return [attended.detach(), *gradients], statistics.median(seconds[1:])


def _in_float64(pack: Pack) -> list[torch.Tensor]:
    """Returns the result and its gradients, of one sequence at a time with its full matrix of scores."""
    leaves = [states.detach().double().requires_grad_() for states in pack.states]
    bounds = torch.tensor([0, *pack.lengths]).cumsum(0).tolist()
    attended = torch.cat(
        [_attention(*(states[0, :, begin:end] for states in leaves)) for begin, end in pairwise(bounds)]
    ).unsqueeze(0)
    return [attended.detach(), *torch.autograd.grad(attended, leaves, pack.gradient.double())]


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Returns causal attention [L, H, D] of [H, L, D] queries and [K, L, D] keys and values."""
    repeats = query.shape[0] // key.shape[0]
    key, value = (states.repeat_interleave(repeats, dim=0) for states in (key, value))
    scores = query @ key.transpose(1, 2) * query.shape[-1] ** -0.5
    later = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
    return (scores.masked_fill(later, -torch.inf).softmax(-1) @ value).transpose(0, 1)
