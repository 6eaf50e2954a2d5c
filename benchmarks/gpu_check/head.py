"""The output head in float32 on bfloat16 values, as TF32 products, beside float64 and float32 ones.

States and weights are random. As bfloat16 tensors, they are multiplied as TF32. As float32 tensors of the
same values, they are not.
"""

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from benchmarks.gpu_check.machine import device_of
from benchmarks.gpu_check.models import ONE_AND_A_HALF_BILLION, TINY
from benchmarks.gpu_check.outcomes import FailedError
from trainer_adapters.output_head import HeadScores, default_chunk

TOKENS = 2048
DRY_TOKENS = 64
RUNS = 5  # after one that is not counted
MOST_NATS = 1e-4
MOST_OF_A_GRADIENT = 2**-8  # of its norm: gradients are rounded to bfloat16


class Learnt(NamedTuple):
    """What one forward and one backward give, and how long they take."""

    logprobs: torch.Tensor  # [N]
    gradients: Sequence[torch.Tensor]  # by states and weights
    seconds: float


def check(dry: bool) -> list[str]:
    """Returns a line on differences and one on times. Raises FailedError if a difference is too large."""
    shape = TINY if dry else ONE_AND_A_HALF_BILLION
    tokens = DRY_TOKENS if dry else TOKENS
    torch.manual_seed(0)
    with torch.device(device_of(dry)):
        hidden = torch.randn(tokens, shape.hidden_size).bfloat16()
        weight = (torch.randn(shape.vocab_size, shape.hidden_size) / shape.hidden_size**0.5).bfloat16()
        token_ids = torch.randint(shape.vocab_size, (tokens,))
        advantages = torch.randn(tokens)
    rounded = _learn(hidden, weight, token_ids, advantages)
    single = _learn(hidden.float(), weight.float(), token_ids, advantages)
    logprobs, gradients = _in_float64(hidden, weight, token_ids, advantages)

    nats = [float((found.logprobs - logprobs).abs().max()) for found in (rounded, single)]
    errors = [relative_errors(found.gradients, gradients) for found in (rounded, single)]
    lines = [
        f"log-probabilities {nats[0]:.1e} nats from float64 at most ({nats[1]:.1e} without TF32), "
        f"gradients by states {errors[0][0]:.1e} and by weights {errors[0][1]:.1e} of their norm "
        f"({errors[1][0]:.1e} and {errors[1][1]:.1e} without TF32 and rounding to bfloat16)",
        f"forward and backward of {tokens:,} tokens: {rounded.seconds * 1e3:.1f} ms, "
        f"{single.seconds * 1e3:.1f} ms without TF32",
    ]
    if not (nats[0] <= MOST_NATS and max(errors[0]) <= MOST_OF_A_GRADIENT):
        raise FailedError(
            *lines, f"expected: at most {MOST_NATS:g} nats and {MOST_OF_A_GRADIENT:g} of a gradient's norm"
        )
    return lines


def _learn(
    hidden: torch.Tensor, weight: torch.Tensor, token_ids: torch.Tensor, advantages: torch.Tensor
) -> Learnt:
    leaves = [tensor.detach().requires_grad_() for tensor in (hidden, weight)]
    rest = token_ids, torch.ones_like(advantages), default_chunk(*weight.shape), False, True
    seconds = []
    for _ in range(1 + RUNS):
        began = time.perf_counter()
        logprobs, _ = HeadScores.apply(*leaves, None, *rest)
        gradients = torch.autograd.grad((logprobs * advantages).sum(), leaves)
        if hidden.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return Learnt(logprobs.detach(), gradients, statistics.median(seconds[1:]))


def _in_float64(
    hidden: torch.Tensor, weight: torch.Tensor, token_ids: torch.Tensor, advantages: torch.Tensor
) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    """Returns log-probabilities and gradients of full logits."""
    leaves = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    log_p = (leaves[0] @ leaves[1].t()).log_softmax(1)
    logprobs = log_p.gather(1, token_ids.unsqueeze(1)).squeeze(1)
    return logprobs.detach(), torch.autograd.grad((logprobs * advantages).sum(), leaves)


def relative_errors(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> list[float]:
    """Returns how far each tensor is from the expected one, as a share of its norm."""
    return [
        float((one.double() - other).norm() / other.norm())
        for one, other in zip(found, expected, strict=True)
    ]
