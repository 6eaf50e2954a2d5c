"""CPU time and peak memory of the output head, in chunks and by full logits, in turn.

python -m benchmarks.head [--tokens 1024 2048 4096] [--runs 3] [--vocabulary 151936] [--hidden 64]

Each runs a forward and a backward through the log-probabilities of random states. Entropies are a metric,
which no loss uses. Peak memory is what torch allocates, with the gradients and without the weights.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.arguments import positive_int
from benchmarks.ratios import ratio_of_medians
from contracts.conformance.trainer.guarantees.t7_memory import peak_bytes
from contracts.support.command_line import command_parser
from trainer_adapters.output_head import HeadScores, default_chunk

Scores = tuple[torch.Tensor, torch.Tensor | None]
GB = 10**9


def full_logits(
    hidden: torch.Tensor,  # [N, hidden]
    weight: torch.Tensor,  # [vocab, hidden]
    token_ids: torch.Tensor,  # [N]
    temperature: torch.Tensor,  # [N]
    entropy: bool,
) -> Scores:
    log_p = (hidden @ weight.t()).div(temperature.unsqueeze(1)).log_softmax(1)
    logprobs = log_p.gather(1, token_ids.unsqueeze(1)).squeeze(1)
    return logprobs, -(log_p.exp() * log_p).sum(1) if entropy else None


def in_chunks(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    token_ids: torch.Tensor,
    temperature: torch.Tensor,
    entropy: bool,
) -> Scores:
    chunk = default_chunk(*weight.shape)
    return HeadScores.apply(hidden, weight, None, token_ids, temperature, chunk, entropy, True)


def learning(score: Callable[..., Scores], options: argparse.Namespace, tokens: int, entropy: bool):
    """Returns a function that runs one forward and one backward."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, options.hidden, generator=generator)
    weight = torch.randn(options.vocabulary, options.hidden, generator=generator) / options.hidden**0.5
    token_ids = torch.randint(options.vocabulary, (tokens,), generator=generator)
    advantages = torch.randn(tokens, generator=generator)
    temperature = torch.ones(tokens)

    def learn() -> None:
        leaves = hidden.requires_grad_(), weight.requires_grad_()
        logprobs, entropies = score(*leaves, token_ids, temperature, entropy)
        (logprobs * advantages).sum().backward()
        for leaf in leaves:
            leaf.grad = None

    return learn


def cpu_seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def row(options: argparse.Namespace, tokens: int, entropy: bool) -> str:
    works = [learning(score, options, tokens, entropy) for score in (full_logits, in_chunks)]
    peaks = [peak_bytes("cpu", work) / GB for work in works]
    times: list[list[float]] = [[], []]
    for _ in range(options.runs):
        for work, seconds in zip(works, times, strict=True):
            seconds.append(cpu_seconds(work))
    cells = [
        tokens,
        "a metric" if entropy else "none",
        *(
            f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
            for seconds in times
        ),
        ratio_of_medians(times[1], times[0]),
        *(f"{peak:.2f}" for peak in peaks),
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = command_parser("benchmarks.head", __doc__)
    parser.add_argument("--tokens", type=positive_int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--runs", type=positive_int, default=3)
    parser.add_argument("--vocabulary", type=positive_int, default=151_936)
    parser.add_argument("--hidden", type=positive_int, default=64)
    options = parser.parse_args()
    print(
        "| tokens | entropies | full logits, CPU s | chunks, CPU s | ratio | full logits, GB | chunks, GB |"
    )
    print("|---|---|---|---|---|---|---|")
    for tokens in options.tokens:
        for entropy in (False, True):
            print(row(options, tokens, entropy), flush=True)


if __name__ == "__main__":
    main()
