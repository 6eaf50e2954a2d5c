"""A batch of requests that differ in sampling parameters, route and form. G4 and G9 use it.

It reveals an engine that samples a batch with one request's parameters, or treats one route differently.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.http_client import describe_request
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample, samples, streamed
from contracts.conformance.inference.sampling import Sampling
from contracts.conformance.inference.server import Server
from contracts.limits import Limits

TOKENS = 32  # tokens of a completion, so that requests sent together also run together
ORDINARY = (None, 0.0, 0.5, 1.0, 1.7, 3.0, 5.0)  # temperatures; None omits the field
TRUNCATED = (Sampling(1.3, top_k=5), Sampling(0.8, top_p=0.7), Sampling(1.6, 8, 0.8), Sampling(1.0, -1, 1.0))
CUT_GREEDY = (Sampling(0.0, top_k=1), Sampling(0.0, top_p=0.3))  # reported under the full softmax
TEXTS = ("2 + 3 = ", "Once upon a time", "def f(x):\n    return x")


@dataclass(frozen=True)
class Asked:
    """One generation request."""

    path: str
    prompt: dict[str, Any]  # `prompt` or `messages`
    sampling: Sampling
    stream: bool = False
    more: dict[str, Any] = field(default_factory=dict)  # n, seed, stop_token_ids
    max_tokens: int = TOKENS
    in_lines: bool = False  # as_completed

    @property
    def body(self) -> dict[str, Any]:
        """The body of the request, without `model`."""
        fields = {"max_tokens": self.max_tokens, "logprobs": True}
        return self.prompt | fields | self.sampling.fields | self.more

    def __str__(self) -> str:
        form = " with stream: true" if self.stream else " as_completed" if self.in_lines else ""
        return describe_request(self.path, self.body) + form

    async def send(self, server: Server) -> list[Sample]:
        """Sends the request and returns the choices of the response."""
        if self.stream:
            return streamed(await server.stream(self.path, self.body))
        ask = server.joined_lines if self.in_lines else server.generate
        return samples(await ask(self.path, self.body))


def ids(prompt: list[int]) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": prompt}


def conversation(text: str) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}


async def limits_of(server: Server) -> Limits:
    """Returns the server's limits, or the defaults for a server of version 1."""
    return (await server.contract()).limits or Limits()


async def mixed(bench: Bench, server: Server, weights: Weights) -> list[Asked]:
    """Returns at least 40 requests to be sent together, in mixed order."""
    limits = await limits_of(server)
    capabilities = await bench.offered("capabilities")
    forms = [False, True] if "stream" in capabilities else [False]
    lines = [False, True] if "as_completed" in capabilities else [False]
    asked = []
    count = 0

    def add(sampling: Sampling, in_lines: bool = False, **more: Any) -> None:
        nonlocal count
        count += 1
        text = TEXTS[count % len(TEXTS)]
        forms_of_prompt = [ids(bench.reference.prompt(4 + count % 23, seed=count)), ids_of_text(text)]
        if bench.reference.chats:
            forms_of_prompt.append(conversation(text))
        path, prompt = forms_of_prompt[count % len(forms_of_prompt)]
        stream = forms[count // 3 % len(forms)] and not in_lines
        asked.append(Asked(path, prompt, sampling, stream, more, in_lines=in_lines))

    highest = limits.max_temperature
    allowed = [t for t in ORDINARY if t is None or t <= highest]
    for temperature in [*allowed, highest]:
        for _ in range(4):
            add(Sampling(temperature))
    if "truncation" in capabilities:
        for sampling in (*TRUNCATED * 3, *CUT_GREEDY):
            add(sampling)
    if limits.max_n > 1:
        for temperature in (0.7, 1.0, min(2.5, highest)):
            for in_lines in lines:
                add(Sampling(temperature), in_lines, n=2)
    asked += [
        Asked(*ids(prompt), Sampling(temperature), forms[i % len(forms)], max_tokens=8)
        for temperature, prompts in low_temperatures(bench, weights, limits.min_temperature).items()
        for i, prompt in enumerate(prompts)
    ]
    random.Random(0).shuffle(asked)
    return asked


def ids_of_text(text: str) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": text}


def low_temperatures(bench: Bench, weights: Weights, lowest: float) -> dict[float, list[list[int]]]:
    """Returns, for each low temperature, prompts after which two tokens are about equally likely.

    After other prompts, all low temperatures give the same token.
    """
    temperatures = [t for t in (0.2, 0.1, 0.02) if t >= lowest]
    tolerance = bench.settings.tolerance
    found: dict[float, list[list[int]]] = {t: [] for t in {*temperatures, lowest}}
    for seed in range(4):
        prompt = bench.reference.prompt(min(256, bench.context - 16), seed=1000 + seed)
        log_p = bench.reference.distribution(weights, prompt[:1], prompt[1:])
        gaps = -log_p.topk(2, -1).values.diff(dim=-1)[:, 0]
        for temperature, prompts in found.items():
            close = (gaps > max(1.5 * temperature, 6 * tolerance)) & (
                gaps < max(4 * temperature, 24 * tolerance)
            )
            close[:3] = False
            for position in close.nonzero()[:, 0].tolist()[: 3 - len(prompts)]:
                prompts.append(prompt[: position + 1])
    return found


async def send_together(server: Server, asked: list[Asked]) -> list[list[Sample]]:
    """Sends all requests at once, and returns their choices in order."""
    return await asyncio.gather(*(one.send(server) for one in asked))
