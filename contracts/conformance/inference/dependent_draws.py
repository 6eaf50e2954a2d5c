"""Checks that draws do not depend on each other. G4 calls it.

Uses a high temperature, at which a token reveals most about the noise that selected it.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.draws import uniform
from contracts.conformance.inference.independence import dependence
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError

TEMPERATURE = 5.0
MANY = 64  # choices of requests for one token
REQUESTS = 32  # requests for one token, one after the other
SEVERAL = 8  # choices of requests for several tokens, and how many of those there are
TOGETHER = 24  # requests at once
TOKENS = 16


async def check_independence(bench: Bench, server: Server, weights: Weights, seeds: bool) -> int:
    """Returns the number of tokens tried. Raises GuaranteeError if they depend on each other."""
    limits = await limits_of(server)
    fields: dict[str, Any] = {"temperature": min(TEMPERATURE, limits.max_temperature)}
    judge = _Judge(bench, server, weights, fields["temperature"])
    # Each prompt occurs twice, to reveal noise that is derived from the prompt.
    prompts = [bench.reference.prompt(9, seed=number // 2) for number in range(REQUESTS)]

    async def one_by_one(count: int, n: int, tokens: int) -> list[list[Sample]]:
        n = min(n, limits.max_n)
        return [await server.choices(prompt, tokens, n=n, **fields) for prompt in prompts[:count]]

    async def together(**more: Any) -> list[list[Sample]]:
        asked = [
            server.complete(prompts[i % REQUESTS], TOKENS, **fields, **{k: v + i for k, v in more.items()})
            for i in range(TOGETHER)
        ]
        return [await asyncio.gather(*asked)]

    judge.check(await one_by_one(REQUESTS, MANY, 1), "requests one after the other, for one token")
    judge.check(await one_by_one(SEVERAL, SEVERAL, TOKENS), "requests one after the other")
    judge.check(await together(), "requests sent together, each as a choice")
    if seeds:
        judge.check(await together(seed=1), "requests with successive seeds, each as a choice")
    return judge.tokens


class _Judge:
    def __init__(self, bench: Bench, server: Server, weights: Weights, temperature: float):
        self._bench = bench
        self._server = server
        self._weights = weights
        self._temperature = temperature
        self._generator = torch.Generator().manual_seed(0)
        self._found: dict[tuple[int, ...], torch.Tensor] = {}  # distributions, by the tokens before them
        self.tokens = 0

    def check(self, requests: Sequence[Sequence[Sample]], what: str) -> None:
        bits = [[self._bits(sample) for sample in request] for request in requests]
        if found := dependence(bits, self._bench.settings.tolerance / 2):
            raise GuaranteeError(
                f"draws depend on each other: {what}: {found}",
                "tokens that are drawn independently of each other",
                f"{self._server}: complete prompts at temperature {self._temperature:g}, and compare the ids "
                "with the reference",
            )

    def _bits(self, sample: Sample) -> list[bool]:
        """Returns, for each token, True if it lies in the upper half of its distribution."""
        read = (len(sample.token_ids), *sample.prompt_token_ids, *sample.token_ids[:-1])
        if read not in self._found:
            self._found[read] = self._bench.reference.distribution(
                self._weights, sample.prompt_token_ids, sample.token_ids, self._temperature
            )
        _, numbers = uniform(self._found[read], sample.token_ids, self._generator)
        self.tokens += len(sample.token_ids)
        return [bool(number > 0.5) for number in numbers]
