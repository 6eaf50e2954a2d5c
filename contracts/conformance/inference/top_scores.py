"""Compares the likeliest ids of `/score`, if `score_top` is declared, with the reference. G4 calls it."""

import asyncio

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.sampling import Sampling
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError

LENGTHS = (33, 1, 2, 90)
TOPS = (1, 7)  # how many are asked for
TEMPERATURES = (0.5, 1.0, 1.6)


async def check_top_scores(bench: Bench, server: Server, weights: Weights) -> float:
    """Returns the largest error, in nats. Raises GuaranteeError if others are likelier."""
    sequences = [bench.reference.prompt(min(n, bench.context), seed=80 + n) for n in LENGTHS]
    asked = [(top, Sampling(temperature)) for top in TOPS for temperature in TEMPERATURES]
    bodies = [{"sequences": sequences, "top_logprobs": top} | sampling.fields for top, sampling in asked]
    answers = await asyncio.gather(*(server.post("/score", body) for body in bodies))
    exact = [bench.reference.distribution(weights, ids[:1], ids[1:]) for ids in sequences]
    worst = 0.0
    for (top, sampling), (status, answer) in zip(asked, answers, strict=True):
        where = f"{server}: POST /score with top_logprobs {top} at temperature {sampling.temperature}"
        forms = [_form(answer.get(name)) for name in ("top_token_ids", "top_logprobs")]
        right = [[top] * (len(ids) - 1) for ids in sequences]
        if status != 200 or forms != [right, right]:
            raise GuaranteeError(
                f"POST /score: {status} {str(answer)[:300]}", f"{top} ids at each place", where
            )
        for log_p, ids, logprobs in zip(exact, answer["top_token_ids"], answer["top_logprobs"], strict=True):
            if ids:
                worst = max(
                    worst, _off(bench, log_p, torch.tensor(ids), torch.tensor(logprobs), sampling, where)
                )
    return worst


def _form(rows: object) -> object:
    """Returns the length of each innermost list, or None for anything else."""
    try:
        return [[len(position) for position in sequence] for sequence in rows]  # type: ignore[attr-defined]
    except TypeError:
        return None


def _off(
    bench: Bench,
    log_p: torch.Tensor,
    ids: torch.Tensor,
    given: torch.Tensor,
    sampling: Sampling,
    where: str,
) -> float:
    """Compares `[positions, top]` ids with `[positions, vocabulary]` log-probabilities at temperature 1."""
    expected = sampling.distribution(log_p)
    slack = 2 * sampling.slack(bench.settings.tolerance)
    found = expected.gather(1, ids)
    error = float((given - found).abs().nan_to_num(torch.inf).max())
    others = expected.scatter(1, ids, -torch.inf).amax(
        1
    )  # repeated ids leave a likelier one among the others
    if not error <= slack or (others > found.amin(1) + slack).any():
        raise GuaranteeError(
            f"the likeliest ids of /score are off by {error:.5f}, or others are likelier",
            f"the likeliest ids by a Hugging Face forward, within {slack:g}",
            where,
        )
    return error
