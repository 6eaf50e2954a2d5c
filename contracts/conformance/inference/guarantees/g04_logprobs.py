"""G4: the log-probability of a token is that under the distribution it was sampled from."""

import math

import torch

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError

TEMPERATURES = (0.0, 0.6, 1.0, 1.7)
DRAWS = 512
TOP_K = 5
TOP_P = 0.7


async def logprobs(bench: Bench) -> str:
    """Checks log-probabilities at several temperatures, over many draws and with every capability."""
    capabilities = await bench.offered("capabilities")
    tried = [f"T = {', '.join(f'{t:g}' for t in TEMPERATURES)}"]
    worst = 0.0
    async with bench.new_run():
        weights = bench.weights(1)
        for server in bench.servers:
            for temperature in TEMPERATURES:
                sample = await server.complete(bench.reference.prompt(9), SHORT, temperature=temperature)
                where = f"{server}: complete {sample.prompt_token_ids} at temperature {temperature:g}"
                worst = max(worst, bench.compare(sample, weights, where, temperature))
            z = await _draws(bench, server, weights)
            if "truncation" in capabilities:
                worst = max(worst, await _truncated(bench, server, weights))
            if "seed" in capabilities:
                await _seeded(bench, server)
            if "score" in capabilities:
                worst = max(worst, await _scored(bench, server, weights))
    tried += [name for name in ("truncation", "seed", "score") if name in capabilities]
    return f"{'; '.join(tried)}: off by {worst:.0e}; {DRAWS} draws follow what is reported (z {z:+.1f})"


async def _draws(bench: Bench, server: Server, weights: Weights) -> float:
    """Checks that tokens are sampled from the reported distribution.

    Over many draws the mean of log p is the negative entropy. Returns the deviation in standard errors.
    """
    prompt = bench.reference.prompt(9)
    temperature = 1.7
    n = 64
    draws: list[Sample] = []
    while len(draws) < DRAWS:
        draws += await server.choices(prompt, 1, temperature=temperature, n=n)
    log_p = bench.reference.distribution(weights, prompt, [0], temperature)[0]
    mean = float((log_p.exp() * log_p).sum())
    variance = float((log_p.exp() * (log_p - mean).square()).sum())
    z = (sum(draw.logprobs[0] for draw in draws) / len(draws) - mean) / math.sqrt(variance / len(draws))
    if abs(z) > 5 or len({draw.token_ids[0] for draw in draws}) == 1:
        raise GuaranteeError(
            f"{len(draws)} draws: the mean log-probability is off by {z:+.1f} standard errors",
            f"the negative entropy at temperature {temperature:g}, within 5 standard errors",
            f"{server}: complete {prompt} with max_tokens 1, temperature {temperature:g}, n {n}",
        )
    return z


async def _truncated(bench: Bench, server: Server, weights: Weights) -> float:
    """Checks that log-probabilities are renormalised over the tokens that top_k and top_p keep."""
    worst = 0.0
    both = {"top_k": TOP_K, "top_p": TOP_P}
    for fields, keep in (
        ({"top_k": TOP_K}, top_k),
        ({"top_p": TOP_P}, top_p),
        (both, lambda log_p: top_p(top_k(log_p))),
    ):
        sample = await server.complete(bench.reference.prompt(9), SHORT, temperature=1.3, **fields)
        log_p = bench.reference.distribution(weights, sample.prompt_token_ids, sample.token_ids, 1.3)
        expected = keep(log_p).gather(1, torch.tensor(sample.token_ids)[:, None])[:, 0]
        where = f"{server}: complete {sample.prompt_token_ids} at temperature 1.3 with {fields}"
        worst = max(
            worst,
            bench.check_positions(sample, expected, where, _unambiguous(log_p, bench.settings.tolerance)),
        )
    return worst


def _unambiguous(log_p: torch.Tensor, tolerance: float) -> list[int]:
    """Returns the positions at which rounding cannot move a token across the cut.

    There, the most likely tokens are well apart.
    """
    gaps = -log_p.topk(min(2 * TOP_K, log_p.shape[-1]), -1).values.diff(dim=-1)
    mass = log_p.exp().sort(-1, descending=True).values.cumsum(-1)
    apart = (mass - TOP_P).abs().amin(-1) > tolerance
    return (apart & (gaps.amin(-1) > 2 * tolerance)).nonzero()[:, 0].tolist()


def top_k(log_p: torch.Tensor) -> torch.Tensor:
    """Returns `[tokens, vocabulary]` log-probabilities, renormalised over the `TOP_K` most likely tokens."""
    least = log_p.topk(TOP_K, -1).values[:, -1:]
    return log_p.masked_fill(log_p < least, -torch.inf).log_softmax(-1)


def top_p(log_p: torch.Tensor) -> torch.Tensor:
    """Returns `[tokens, vocabulary]` log-probabilities, renormalised over the tokens that hold `TOP_P`."""
    ordered, order = log_p.sort(-1, descending=True)
    likelier = ordered.exp().cumsum(-1) - ordered.exp()
    kept = ordered.masked_fill(likelier >= TOP_P, -torch.inf)
    return torch.empty_like(log_p).scatter(-1, order, kept).log_softmax(-1)


async def _seeded(bench: Bench, server: Server) -> None:
    prompt = bench.reference.prompt(9)
    first, again, other = [
        (await server.complete(prompt, SHORT, temperature=1.7, seed=seed)).token_ids for seed in (7, 7, 8)
    ]
    if first != again or first == other:
        raise GuaranteeError(
            f"seed 7 gave {first}, then {again}; seed 8 gave {other}",
            "the same ids for the same seed, others for another",
            f"{server}: complete {prompt} at temperature 1.7 with seed 7",
        )


async def _scored(bench: Bench, server: Server, weights: Weights) -> float:
    ids = bench.reference.prompt(40, seed=2)
    status, body = await server.post("/score", {"sequences": [ids, ids[:1]], "temperature": 0.7})
    if status != 200 or [len(scores) for scores in body["logprobs"]] != [39, 0] or body["version"] != 1:
        raise GuaranteeError(
            f"POST /score: {status} {body}", "39 and 0 log-probabilities, of version 1", "score 40 ids"
        )
    expected = bench.reference.logprobs(weights, ids[:1], ids[1:], 0.7)
    error = float((torch.tensor(body["logprobs"][0]) - expected).abs().max())
    if not error <= bench.settings.tolerance:
        raise GuaranteeError(
            f"POST /score is off by {error:.5f}",
            f"at most {bench.settings.tolerance:g} from a Hugging Face forward at temperature 0.7",
            f"{server}: score {ids}",
        )
    return error
