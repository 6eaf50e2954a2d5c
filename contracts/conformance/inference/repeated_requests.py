"""Requests that are sent before an update and again after it, to reveal cached results. G3 uses them.

A server may cache keys and values of a prompt's prefix, complete responses or scores.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import torch

from contracts.conformance.inference.bench import FEW, SHORT, Bench
from contracts.conformance.inference.mixed_batch import Asked, ids, limits_of
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.sampling import Sampling
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.several_prompts import samples_of_each
from contracts.conformance.verdicts import GuaranteeError

# Prompts are one token longer than usual block sizes, so that all other tokens may be cached.
MIDDLE = 257  # tokens of a prompt that fills several cache blocks
LENGTHS = (49, MIDDLE)
LONG = 385  # tokens of the longest prompt, except one that fills the context
MORE_LENGTHS = (17, 33, 65, 129, 513, 769, 1025, 1537)  # additional lengths if thorough
CHOICES = 3  # choices of one request
BODY = {"temperature": 0.0}  # a server might cache responses to identical greedy requests
CHAT = [{"role": "user", "content": "Say it again, in the same words as before, please."}]
TEXT = "The same text as before, word for word."

Ask = Callable[[Server], Coroutine[Any, Any, list[Sample]]]


@dataclass(frozen=True)
class Repeated:
    """Requests by description, and sequences to score."""

    bench: Bench
    requests: dict[str, Ask]
    sequences: list[list[int]]  # empty if scores are not offered

    async def ask(self) -> None:
        """Sends all requests, so that a server may cache their results."""
        await asyncio.gather(*(self._ask(server) for server in self.bench.servers))

    async def _ask(self, server: Server) -> None:
        await asyncio.gather(
            *(request(server) for request in self.requests.values()),
            *(self._score(server, sequence, "before") for sequence in self.sequences),
        )

    async def check(self, weights: Weights, version: int, how: str) -> float:
        """Sends all requests again. Returns the largest error, in nats, relative to `weights`."""
        return max([await self._check(server, weights, version, how) for server in self.bench.servers])

    async def _check(self, server: Server, weights: Weights, version: int, how: str) -> float:
        worst = 0.0
        found = await asyncio.gather(*(request(server) for request in self.requests.values()))
        for what, samples in zip(self.requests, found, strict=True):
            reproduce = f"{server}: complete {what}, publish version {version} ({how}), complete it again"
            for sample in samples:
                worst = max(worst, self.bench.compare(sample, weights, reproduce))
                self.bench.check_label(sample, version, reproduce)
        for sequence in self.sequences:
            given = await self._score(server, sequence, how)
            expected = self.bench.reference.logprobs(weights, sequence[:1], sequence[1:])
            error = float((torch.tensor(given["logprobs"][0]) - expected).abs().nan_to_num(torch.inf).max())
            if not error <= self.bench.settings.tolerance or given["version"] != version:
                raise GuaranteeError(
                    f"/score of {len(sequence)} tokens says version {given['version']}; a log-probability is "
                    f"off by {error:.5f}",
                    f"version {version}, at most {self.bench.settings.tolerance:g} from Hugging Face",
                    f"{server}: score {sequence}, publish version {version} ({how}), score it again",
                )
            worst = max(worst, error)
        return worst

    def prefixes(self) -> "Repeated":
        """Returns the requests with short prompts only."""
        short = [f"a prompt of {length} tokens" for length in LENGTHS]
        return Repeated(
            self.bench, {what: self.requests[what] for what in short if what in self.requests}, []
        )

    async def _score(self, server: Server, sequence: list[int], how: str) -> dict[str, Any]:
        status, body = await server.post("/score", {"sequences": [sequence], "temperature": 1.0})
        if status != 200 or len(body["logprobs"][0]) != len(sequence) - 1:
            raise GuaranteeError(
                f"{server}: POST /score: {status} {str(body)[:300]}",
                f"200 and {len(sequence) - 1} log-probabilities",
                f"score {sequence} ({how})",
            )
        return body


def completion(prompt: list[int] | str, max_tokens: int = FEW, **fields: Any) -> Ask:
    return lambda server: server.choices(prompt, max_tokens, **fields)


async def repeated(bench: Bench, longest: int) -> Repeated:
    """Returns requests of every kind that the servers offer, with prompts of at most `longest` tokens."""
    capabilities = await bench.offered("capabilities")
    make = bench.reference.prompt
    lengths = [*LENGTHS, *(MORE_LENGTHS if bench.settings.thorough else ())]
    longest = min(longest, bench.context - SHORT)
    lengths = [*(length for length in lengths if length < longest), longest]
    prompts = [make(length, seed=length) for length in lengths]
    half = min(MIDDLE, bench.context) // 2
    prompts.append(make(MIDDLE, seed=MIDDLE)[:half] + make(half // 2, seed=1))
    requests = {f"a prompt of {len(prompt)} tokens": completion(prompt) for prompt in prompts}
    requests["a request at temperature 0"] = completion(make(30, seed=2), SHORT, **BODY)
    if "seed" in capabilities:
        requests["a request with a seed"] = completion(make(31, seed=3), SHORT, seed=7)
    if bench.reference.chats:
        requests["a chat"] = lambda server: server.chat(CHAT, FEW, **BODY)
    requests["a text"] = completion(TEXT, FEW, **BODY)
    requests |= await _together(bench, capabilities, longest)
    sequences = []
    if "score" in capabilities:
        sequence = make(min(100, bench.context // 2), seed=4)
        sequences = [sequence, sequence[: len(sequence) // 2] + make(20, seed=5)]
    return Repeated(bench, requests, sequences)


async def _together(bench: Bench, capabilities: list[str], longest: int) -> dict[str, Ask]:
    """Returns requests of several completions in every form, as servers may cache shared prompts."""
    n = min([CHOICES, *[(await limits_of(server)).max_n for server in bench.servers]])
    make = bench.reference.prompt
    lengths = [length for length in LENGTHS if length < longest] or [longest]
    requests: dict[str, Ask] = {}
    if n > 1:
        for length in lengths:
            requests[f"{n} choices of a prompt of {length} tokens"] = completion(make(length, seed=6), n=n)
        forms: dict[str, dict[str, Any]] = {"stream": {"stream": True}, "as_completed": {"in_lines": True}}
        for number, (capability, form) in enumerate(forms.items()):
            if capability in capabilities:
                prompt = make(lengths[-1], seed=7 + number)
                asked = Asked(*ids(prompt), Sampling(), more={"n": n}, max_tokens=FEW, **form)
                requests[f"{n} choices, {capability}"] = asked.send
        if bench.reference.chats:
            requests[f"{n} choices of a chat"] = lambda server: server.chat(CHAT, FEW, n=n)
    if "openai" in capabilities:
        prompts = [make(length, seed=9) for length in (*lengths, lengths[0] - 1)]
        body = {"prompt": prompts, "max_tokens": FEW, "logprobs": True}
        requests[f"{len(prompts)} prompts"] = lambda server: _of_prompts(server, body)
    return requests


async def _of_prompts(server: Server, body: dict[str, Any]) -> list[Sample]:
    return samples_of_each(await server.generate("/v1/completions", body))
