"""The output head in chunks, against full logits that torch differentiates by itself."""

import pytest
import torch

from contracts.conformance.trainer.guarantees.t7_memory import peak_bytes
from trainer_adapters.output_head import MIB, HeadScores, default_chunk

TOKENS, HIDDEN, VOCAB, CHUNK = 45, 8, 31, 7


def inputs(dtype: torch.dtype, bias: bool) -> tuple[torch.Tensor | None, ...]:
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype).requires_grad_()

    token_ids = torch.randint(VOCAB, (TOKENS,), generator=generator)
    temperature = 0.5 + torch.rand(TOKENS, generator=generator)
    return leaf(TOKENS, HIDDEN), leaf(VOCAB, HIDDEN), leaf(VOCAB) if bias else None, token_ids, temperature


def full(hidden, weight, bias, token_ids, temperature):
    """Returns the scores by full logits in float32."""
    logits = torch.nn.functional.linear(
        hidden.float(), weight.float(), None if bias is None else bias.float()
    )
    log_p = (logits / temperature[:, None]).log_softmax(1)
    return log_p.gather(1, token_ids[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(1)


LOSSES = {
    "logprobs": lambda logprobs, entropies, w: (logprobs * w).sum(),
    "both": lambda logprobs, entropies, w: (logprobs.square() * w).sum() + (entropies.square() * w).sum(),
    "entropies": lambda logprobs, entropies, w: (entropies * w).sum(),
    "of other tokens": lambda logprobs, entropies, w: (
        (logprobs * w)[::2].sum()
        + (entropies * w)[1::3].sum()
        + (logprobs.detach() * entropies.detach()).sum()
    ),
    "none": lambda logprobs, entropies, w: 0 * logprobs.sum(),
}


@pytest.mark.parametrize(("bias", "chunk"), [(False, CHUNK), (True, CHUNK), (True, TOKENS)])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("dtype", "in_float32", "tolerance"),
    [(torch.float32, True, 1e-5), (torch.bfloat16, True, 4e-3), (torch.bfloat16, False, 4e-2)],
)
def test_scores_and_gradients_are_those_of_full_logits(dtype, in_float32, tolerance, loss, bias, chunk):
    """In bfloat16 the results are rounded to 8 bits, and without `in_float32` the logits are too."""
    given = inputs(dtype, bias)
    leaves = [tensor for tensor in given[:3] if tensor is not None]
    weights = torch.linspace(-1, 1, TOKENS)
    expected = full(*given)
    right = torch.autograd.grad(LOSSES[loss](*expected, weights), leaves)
    found = HeadScores.apply(*given, chunk, True, in_float32)
    gradients = torch.autograd.grad(LOSSES[loss](*found, weights), leaves)
    for one, other in zip((*found, *gradients), (*expected, *right), strict=True):
        assert one.dtype == other.dtype
        assert (one - other).norm() <= tolerance * other.norm()


def test_a_frozen_head_allocates_no_gradient():
    hidden = torch.randn(4, HIDDEN).requires_grad_()
    weight = torch.randn(50_000, HIDDEN)
    scores = HeadScores.apply(hidden, weight, None, torch.arange(4), torch.ones(4), 4, False, True)
    frozen = peak_bytes("cpu", lambda: scores[0].sum().backward())
    weight.requires_grad_()
    scores = HeadScores.apply(hidden, weight, None, torch.arange(4), torch.ones(4), 4, False, True)
    assert peak_bytes("cpu", lambda: scores[0].sum().backward()) > frozen + 0.9 * weight.nbytes


def test_a_chunk_has_as_many_tokens_as_its_bytes_allow():
    def logits_bytes(vocabulary: int, hidden_size: int) -> int:
        return 4 * vocabulary * default_chunk(vocabulary, hidden_size)

    assert default_chunk(100, 32) == 1024
    assert default_chunk(10**9, 32) == 1
    assert 63 * MIB < logits_bytes(151_936, 64) <= 64 * MIB
    assert 129 * MIB < logits_bytes(151_936, 896) <= 130 * MIB  # a quarter of the head's 519 MiB
    assert 255 * MIB < logits_bytes(152_064, 3584) <= 256 * MIB
