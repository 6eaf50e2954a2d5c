"""G4: a token's log-probability is that under the distribution from which the token was sampled."""

import torch

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.dependent_draws import check_independence
from contracts.conformance.inference.draws import Draws
from contracts.conformance.inference.echoes import echoes
from contracts.conformance.inference.mixed_batch import (
    Asked,
    ids,
    limits_of,
    low_temperatures,
    mixed,
    send_together,
)
from contracts.conformance.inference.recomputed import check_recomputed
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.sampling import Sampling
from contracts.conformance.inference.scores import check_scores
from contracts.conformance.inference.seeds import check_seeds, check_without_seeds
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.top_scores import check_top_scores
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError

ALONE = (0.0, 0.6, 1.0, 1.7)  # temperatures of requests that are sent alone
CHOICES = 64  # choices of one request, if the server accepts so many
REQUESTS = 8  # requests for one distribution
ECHOED = Sampling(1.1)  # for prompts that repeat themselves; no other request has this temperature
THOROUGH = 8  # factor of batches and draws with `thorough`


async def alone(bench: Bench) -> str:
    """Checks log-probabilities of requests that are sent one after the other."""
    await bench.run()
    worst = 0.0
    weights = bench.weights(1)
    for server in bench.servers:
        for temperature in ALONE:
            sample = await server.complete(bench.reference.prompt(9), SHORT, temperature=temperature)
            where = f"{server}: complete {sample.prompt_token_ids} at temperature {temperature:g}"
            worst = max(worst, bench.compare(sample, weights, where, temperature))
    return f"requests alone are off by {worst:.0e}"


async def batches(bench: Bench) -> str:
    """Checks log-probabilities in mixed batches, and that tokens follow these distributions."""
    await bench.run()
    truncation = "truncation" in await bench.offered("capabilities")
    worst = 0.0
    draws = Draws()
    weights = bench.weights(1)
    for server in bench.servers:
        for _ in range(THOROUGH if bench.settings.thorough else 1):
            asked = await mixed(bench, server, weights)
            worst = max(worst, await _mixed(bench, server, weights, asked, draws))
            for many in await _many_choices(bench, server, weights, truncation):
                await _mixed(bench, server, weights, many, draws)
        _expect_drawn(draws, server)
        await check_without_seeds(bench, server)
    return (
        f"{len(asked)} side by side, at temperature 1 and above, by {worst:.0e}"
        f"{', truncated ones too' if truncation else ''}; {len(draws)} tokens are drawn as they should be"
    )


async def seeds(bench: Bench) -> str:
    """Checks that the seed alone determines the draws."""
    capabilities = await bench.offered("capabilities")
    if "seed" not in capabilities:
        raise NotDeclaredError("seed is not offered")
    await bench.run()
    for server in bench.servers:
        await check_seeds(bench, server, "stream" in capabilities, "as_completed" in capabilities)
    return "seeds"


async def independence(bench: Bench) -> str:
    """Checks that draws do not depend on each other."""
    seeded = "seed" in await bench.offered("capabilities")
    await bench.run()
    weights = bench.weights(1)
    tokens = [await check_independence(bench, server, weights, seeded) for server in bench.servers]
    return f"{sum(tokens)} tokens are drawn independently"


async def scores(bench: Bench) -> str:
    """Checks the log-probabilities of given tokens."""
    if "score" not in await bench.offered("capabilities"):
        raise NotDeclaredError("score is not offered")
    await bench.run()
    worst = max([await check_scores(bench, server, bench.weights(1), 1) for server in bench.servers])
    if "score_top" in await bench.offered("capabilities"):
        tops = [await check_top_scores(bench, server, bench.weights(1)) for server in bench.servers]
        worst = max(worst, *tops)
    return f"scores are off by {worst:.0e}"


async def recomputed(bench: Bench) -> str:
    """Checks the temperature of requests that are read again for an update."""
    if "recompute" not in await bench.offered("kv_cache"):
        raise NotDeclaredError("recompute is not offered")
    tokens = await check_recomputed(bench, await bench.run())
    return f"{tokens} tokens after an update with recompute are of their temperature"


PARTS = {
    "alone": alone,
    "batches": batches,
    "seeds": seeds,
    "independence": independence,
    "scores": scores,
    "recomputed": recomputed,
}


async def _mixed(bench: Bench, server: Server, weights: Weights, asked: list[Asked], draws: Draws) -> float:
    """Returns the largest error, in nats, of requests sent together, at temperatures of at least 1."""
    worst = 0.0
    for one, choices in zip(asked, await send_together(server, asked), strict=True):
        where = f"{server}: send, together with others, {one}"
        off = _check(bench, weights, one, choices, draws, where)
        worst = max(worst, off if one.sampling.divisor >= 1 else 0.0)
    return worst


def _check(
    bench: Bench, weights: Weights, asked: Asked, choices: list[Sample], draws: Draws, where: str
) -> float:
    """Checks one request and adds its tokens to `draws`. Returns the largest error in nats."""
    sampling = asked.sampling
    tolerance = bench.settings.tolerance
    if sampling.greedy:
        for sample in choices:
            bench.check_greedy(sample, weights, where)
    log_p = _distributions(bench, weights, asked, choices)
    chosen = torch.tensor([token_id for sample in choices for token_id in sample.token_ids])
    given = torch.tensor([value for sample in choices for value in sample.logprobs], dtype=torch.float64)
    certain = sampling.certain(log_p, tolerance)
    lowest, highest = sampling.bounds(log_p, chosen, tolerance)
    wrong = ~((given >= lowest) & (given <= highest)) & certain
    expected = sampling.distribution(log_p)
    exact = expected.gather(1, chosen[:, None])[:, 0]
    if wrong.any():
        i = int(wrong.nonzero()[0, 0])
        raise GuaranteeError(
            f"token {i} of {len(chosen)}, with {sampling.fields or 'the default parameters'}: "
            f"log-probability {given[i]:.5f}",
            f"{exact[i]:.5f}, within {tolerance:g}, and more at temperatures below 1",
            where,
        )
    if not sampling.greedy:
        name = str(sampling.fields or "temperature 1")
        draws.add(name, expected[certain], chosen[certain].tolist(), sampling.slack(tolerance))
    return float((given - exact)[certain].abs().max()) if certain.any() else 0.0


def _distributions(bench: Bench, weights: Weights, asked: Asked, choices: list[Sample]) -> torch.Tensor:
    """Returns the [tokens, vocabulary] log-probabilities, at temperature 1, of all tokens of `choices`."""
    given = asked.prompt.get("prompt")
    prompt = given if isinstance(given, list) else choices[0].prompt_token_ids
    found: dict[tuple[int, ...], torch.Tensor] = {}  # by length and all tokens except the last
    rows = []
    for sample in choices:
        read = (len(sample.token_ids), *sample.token_ids[:-1])
        if read not in found:
            found[read] = bench.reference.distribution(weights, prompt, sample.token_ids)
        rows.append(found[read])
    return torch.cat(rows)


async def _many_choices(
    bench: Bench, server: Server, weights: Weights, truncation: bool
) -> list[list[Asked]]:
    """Returns requests with few tokens and many choices, for enough draws from each distribution."""
    limits = await limits_of(server)
    n = min(CHOICES, limits.max_n)
    samplings = [Sampling(1.0), Sampling(1.7), Sampling(min(5.0, limits.max_temperature))]
    if truncation:
        samplings += [Sampling(1.3, top_k=5), Sampling(1.0, top_p=0.7)]
    several = {
        sampling: [bench.reference.prompt(9, seed=i) for i in range(REQUESTS)] for sampling in samplings
    }
    low = low_temperatures(bench, weights, limits.min_temperature).get(0.1)
    if low:
        several[Sampling(0.1)] = (low * REQUESTS)[:REQUESTS]
    together = [
        Asked(*ids(prompts[i]), sampling, more={"n": n}, max_tokens=1)
        for i in range(REQUESTS)
        for sampling, prompts in several.items()
    ]
    together += [
        Asked(*ids(prompt), ECHOED, more={"n": n}, max_tokens=2)
        for prompt in echoes(bench, weights, REQUESTS)
    ]
    return [together[start : start + 16] for start in range(0, len(together), 16)]


def _expect_drawn(draws: Draws, server: Server) -> None:
    if unlikely := draws.unlikely():
        raise GuaranteeError(
            unlikely,
            "tokens drawn from the distributions whose log-probabilities are reported",
            f"{server}: complete prompts with these parameters and compare the ids with the reference",
        )
