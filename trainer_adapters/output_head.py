"""Computes log-probabilities and entropies from hidden states, one chunk of logits at a time.

`TokenScorer` calls it. This module must not depend on models, packs or losses.

Backward recomputes each chunk's logits, in the memory of the previous chunk. If all tokens fit into one
chunk, forward saves their log-probabilities instead, which is faster. Backward skips tokens whose scores have
no gradient. Entropies that the loss does not use have no cost in backward.

bfloat16 states and weights may be multiplied in float32. On CUDA these products use TF32 (`tf32`), which is
exact for the factors of forward. In backward, the gradients with respect to logits, and scaled states, are
rounded to 10 bits of mantissa, while states and final gradients have 7.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd.function import FunctionCtx, once_differentiable

from trainer_adapters.tf32 import tf32_products

MIB = 2**20
LEAST_BYTES = 64 * MIB  # minimum size of a chunk's logits
MOST_BYTES = 256 * MIB
MOST_TOKENS = 1024
FLOAT32 = 4


def default_chunk(vocabulary: int, hidden_size: int) -> int:
    """Returns the default number of tokens in a chunk.

    Each chunk reads the head's weights and adds to their gradient. So its logits are a quarter as large as
    the weights, within 64 to 256 MiB.
    """
    wanted = FLOAT32 * vocabulary * hidden_size // 4
    allowed = min(max(wanted, LEAST_BYTES), MOST_BYTES)
    return min(max(allowed // (FLOAT32 * vocabulary), 1), MOST_TOKENS)


class Head(NamedTuple):
    """The output head, in the dtype in which it computes logits."""

    weight: torch.Tensor  # [vocab, hidden]
    bias: torch.Tensor | None  # [vocab]
    given: torch.dtype  # dtype of the weights before they were converted
    bound: float | None  # c, if the model replaces a logit x by c tanh(x / c)

    @classmethod
    def of(
        cls, weight: torch.Tensor, bias: torch.Tensor | None, in_float32: bool, bound: float | None
    ) -> "Head":
        if not in_float32:
            return cls(weight, bias, weight.dtype, bound)
        return cls(weight.float(), None if bias is None else bias.float(), weight.dtype, bound)

    def tf32_suits(self, hidden: torch.Tensor) -> bool:
        """Returns True if states and weights are bfloat16 values that are multiplied in float32."""
        return self.weight.dtype is torch.float32 and self.given is hidden.dtype is torch.bfloat16

    def logits(self, hidden: torch.Tensor, temperature: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Returns the [C, vocab] logits of [C, hidden] states, divided by temperature, in rows of `out`."""
        out = out[: len(hidden)]
        states = hidden.to(self.weight.dtype)
        with tf32_products(self.tf32_suits(hidden)):
            if self.weight.dtype is not torch.float32:
                out.copy_(F.linear(states, self.weight, self.bias))
            elif self.bias is None:
                torch.mm(states, self.weight.t(), out=out)
            else:
                torch.addmm(self.bias, states, self.weight.t(), out=out)
        if self.bound is not None:
            out.div_(self.bound).tanh_().mul_(self.bound)
        return out.div_(temperature.unsqueeze(1))

    def slope_of_bound(self, logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
        """Returns 1 - tanh(x / c)^2, [C, vocab], in the memory of the results of `logits`."""
        return logits.mul_((temperature / self.bound).unsqueeze(1)).square_().neg_().add_(1)


class HeadScores(torch.autograd.Function):
    """The function `(hidden, weight, bias, ...) -> (log-probabilities, entropies)` of N tokens.

    hidden: [N, hidden], the state before each token.
    weight, bias: the head's [vocab, hidden] and [vocab], or None without a bias.
    token_ids, temperature: [N] int64 and [N] float32.
    chunk: number of tokens whose logits exist at the same time.
    entropy: if False, entropies are None.
    in_float32: if True, the head computes in float32, whatever the dtype of its weights.
    bound: bound of the logits before they are divided by the temperature, or None.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        token_ids: torch.Tensor,
        temperature: torch.Tensor,
        chunk: int,
        entropy: bool,
        in_float32: bool,
        bound: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns the scores. Saves log-probabilities over the vocabulary only if there is one chunk."""
        head = Head.of(weight, bias, in_float32, bound)
        logprobs = torch.empty_like(temperature)
        log_sums = torch.empty_like(temperature)  # log Σ exp(logits)
        entropies = torch.empty_like(temperature) if entropy else None
        logits_of_chunk = temperature.new_empty(min(chunk, len(hidden)), len(weight))
        log_p_of_chunk = torch.empty_like(logits_of_chunk)
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            logits = head.logits(hidden[rows], temperature[rows], logits_of_chunk)
            log_p = torch.log_softmax(logits, 1, out=log_p_of_chunk[: len(logits)])
            chosen = token_ids[rows].unsqueeze(1)
            logprobs[rows] = log_p.gather(1, chosen).squeeze(1)
            log_sums[rows] = logits.gather(1, chosen).squeeze(1) - logprobs[rows]
            if entropies is not None:
                entropies[rows] = -torch.exp(log_p, out=logits).mul_(log_p).sum(1)
        kept = log_p_of_chunk if len(hidden) <= chunk else None
        ctx.save_for_backward(hidden, weight, bias, token_ids, temperature, log_sums, entropies, kept)
        ctx.set_materialize_grads(False)
        ctx.chunk = chunk
        ctx.how = in_float32, bound
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(
        ctx: FunctionCtx, of_logprobs: torch.Tensor | None, of_entropies: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradients of states and head. `of_entropies` is None if the loss does not use them."""
        hidden, weight, bias, token_ids, temperature, log_sums, entropies, kept = ctx.saved_tensors
        head = Head.of(weight, bias, *ctx.how)
        if of_logprobs is None:
            of_logprobs = torch.zeros_like(temperature)
        learnt = of_logprobs != 0
        if of_entropies is not None:
            learnt |= of_entropies != 0
        gradients = _Gradients.zero(hidden, head, *ctx.needs_input_grad[1:3])
        most = min(ctx.chunk, len(learnt))
        again = temperature.new_empty(most if kept is None else 0, len(weight))
        other = temperature.new_empty(0 if of_entropies is None else most, len(weight))
        for rows in learnt.nonzero().squeeze(1).split(ctx.chunk):
            if kept is None:
                log_p = head.logits(hidden[rows], temperature[rows], again).sub_(log_sums[rows].unsqueeze(1))
            else:
                log_p = kept[rows]
            steepness = None
            if head.bound is not None:
                steepness = head.slope_of_bound(log_p + log_sums[rows].unsqueeze(1), temperature[rows])
            if of_entropies is None:
                slopes = _slopes_of_logprobs(log_p, token_ids[rows])
                factor = of_logprobs[rows] / temperature[rows]
            else:
                by_score = of_logprobs[rows], of_entropies[rows], entropies[rows]
                slopes = _slopes_of_both(log_p, token_ids[rows], *by_score, other)
                factor = 1 / temperature[rows]
            if steepness is not None:
                slopes.mul_(steepness)
            gradients.add(head, rows, hidden[rows], slopes, factor.unsqueeze(1))
        of_weight = None if gradients.weight is None else gradients.weight.to(weight.dtype)
        of_bias = None if gradients.bias is None else gradients.bias.to(bias.dtype)
        return gradients.hidden, of_weight, of_bias, *[None] * 6


def _slopes_of_logprobs(log_p: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Returns d log p(token) / d logits = 1[token] - p, [C, vocab], in the memory of `log_p`."""
    slopes = log_p.exp_().neg_()
    return slopes.scatter_add_(1, token_ids.unsqueeze(1), torch.ones_like(slopes[:, :1]))


def _slopes_of_both(
    log_p: torch.Tensor,  # [C, vocab]; overwritten by the result
    token_ids: torch.Tensor,  # [C]
    of_logprobs: torch.Tensor,  # [C], a
    of_entropies: torch.Tensor,  # [C], b
    entropies: torch.Tensor,  # [C], H
    out: torch.Tensor,  # at least [C, vocab]
) -> torch.Tensor:
    """Returns d (a log p(token) + b H) / d logits = a 1[token] - p (a + b (log p + H)), [C, vocab]."""
    p = torch.exp(log_p, out=out[: len(log_p)])
    slopes = log_p.add_(entropies.unsqueeze(1)).mul_(of_entropies.unsqueeze(1))
    slopes.add_(of_logprobs.unsqueeze(1)).mul_(p).neg_()
    return slopes.scatter_add_(1, token_ids.unsqueeze(1), of_logprobs.unsqueeze(1))


class _Gradients(NamedTuple):
    """The gradients of hidden states and head. Those of the head are float32, or None if it is frozen."""

    hidden: torch.Tensor
    weight: torch.Tensor | None
    bias: torch.Tensor | None

    @classmethod
    def zero(cls, hidden: torch.Tensor, head: Head, of_weight: bool, of_bias: bool) -> "_Gradients":
        weight = torch.zeros_like(head.weight, dtype=torch.float32) if of_weight else None
        bias = torch.zeros_like(head.bias, dtype=torch.float32) if of_bias else None
        return cls(torch.zeros_like(hidden), weight, bias)

    def add(
        self,
        head: Head,
        rows: torch.Tensor,  # [C], rows of the hidden states
        hidden: torch.Tensor,  # [C, hidden]
        slopes: torch.Tensor,  # [C, vocab]; `slopes * factor` is the gradient of the head's output
        factor: torch.Tensor,  # [C, 1]
    ) -> None:
        """Adds the gradients of a chunk."""
        if self.bias is not None:
            self.bias.addmv_(slopes.t(), factor.squeeze(1))
        slopes = slopes.to(head.weight.dtype)
        with tf32_products(head.tf32_suits(hidden)):
            self.hidden[rows] = (slopes @ head.weight * factor).to(self.hidden.dtype)
            if self.weight is None:
                return
            scaled = (hidden * factor).to(head.weight.dtype)
            if slopes.dtype is torch.float32:
                self.weight.addmm_(slopes.t(), scaled)
            else:
                self.weight.add_(slopes.t() @ scaled)


class JoinedScores(torch.autograd.Function):
    """The identity of three scores [N], with zero gradients for log-probabilities or values without one.

    So every backward reaches both heads. Entropies may have no gradient.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, logprobs: torch.Tensor, entropies: torch.Tensor | None, values: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        return tuple(None if score is None else score.clone() for score in (logprobs, entropies, values))

    @staticmethod
    @once_differentiable
    def backward(
        ctx: FunctionCtx,
        of_logprobs: torch.Tensor | None,
        of_entropies: torch.Tensor | None,
        of_values: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        given = (of_logprobs, of_entropies, of_values)
        zeros = torch.zeros_like(next(gradient for gradient in given if gradient is not None))
        of_logprobs = zeros if of_logprobs is None else of_logprobs
        of_values = zeros if of_values is None else of_values
        return of_logprobs, of_entropies, of_values
