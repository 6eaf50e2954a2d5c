"""G17: a completion with a draw key has the tokens that the key prescribes."""

import asyncio
from typing import Any

from contracts.conformance.inference.bad_requests import BadRequest, check_all_refused
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.load import in_flight
from contracts.conformance.inference.mixed_batch import (
    TEXTS,
    Asked,
    conversation,
    ids,
    ids_of_text,
    limits_of,
)
from contracts.conformance.inference.prescribed import check_prescribed, key_of
from contracts.conformance.inference.sampling import Sampling
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.several_prompts import samples_of_each
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import NotDeclaredError

WORD = "prescribed_draws"
TEMPERATURES = (0.7, 1.0, 2.0)
TOKENS = 32
CHOICES = 4
TOGETHER = 4  # requests on each server during an update
TRIES = 5  # updates, until one has met a running request


async def rule(bench: Bench) -> str:
    """Sends requests with keys of all forms beside others, and compares each token with the rule."""
    trainer = await _declared(bench)
    capabilities = await bench.offered("capabilities")
    worst = 0.0
    tokens = 0
    for server in bench.servers:
        asked = _requests(bench, (await limits_of(server)).max_n, capabilities)
        answers = await asyncio.gather(*(one.send(server) for one in asked))
        for one, found in zip(asked, answers, strict=True):
            for sample, key in zip(found, one.more.get("draw_keys", ()), strict=False):
                divisor = one.sampling.divisor
                weights = bench.weights(trainer.version)
                worst = max(worst, check_prescribed(bench, sample, key, weights, f"{server}: {one}", divisor))
                tokens += len(sample.token_ids)
        if "openai" in capabilities:
            await _check_several_prompts(bench, server, trainer.version)
    return f"{tokens} tokens are those that their keys prescribe, within {worst:.0e}"


async def update(bench: Bench) -> str:
    """Publishes versions with `recompute` while requests with keys run, and compares their tokens."""
    trainer = await _declared(bench)
    if "recompute" not in await bench.offered("kv_cache"):
        raise NotDeclaredError("kv_cache recompute is not offered")
    for _ in range(TRIES):
        version = trainer.version + 1
        async with in_flight(bench, TOGETHER, bench.context // 2, key_of=key_of) as tasks:
            await trainer.publish(version, bench.weights(version), kv_cache="recompute")
            await asyncio.gather(*(task for _, task in tasks))
        crossed = 0
        for number, (server, task) in enumerate(tasks):
            sample = task.result()
            crossed += len(sample.spans) > 1
            where = f"{server}: publish version {version}, recompute, while requests with draw_keys run"
            for label, start, end in sample.spans:
                key = key_of(number % TOGETHER)
                check_prescribed(bench, sample, key, bench.weights(label), where, span=(start, end))
        if crossed:
            return f"{crossed} requests crossed an update with their keys"
    return f"no request ran during {TRIES} updates"


async def refusals(bench: Bench) -> str:
    """Sends keys beside what would sample other tokens, too few of them, and others that are none."""
    await _declared(bench)
    keys = {"draw_keys": [key_of("refused")], "logprobs": True}
    for server in bench.servers:
        model = (await server.contract()).model
        good = {"model": model, "max_tokens": 2, "prompt": bench.reference.prompt(4)} | keys
        wrong: list[dict[str, Any]] = [
            {"seed": 1},
            {"top_p": 0.5},
            {"top_k": 1},
            {"temperature": 0},
            {"logprobs": False},
            {"n": 2},
            {"draw_keys": [key_of(0), key_of(1)]},
            {"draw_keys": [key_of(0)[:-1]]},
            {"draw_keys": [key_of(0).upper()]},
        ]
        bad = [
            BadRequest(
                "/v1/completions",
                good | fields,
                422,
                "invalid_request",
                or_codes=frozenset({"unsupported_parameter"}),
            )
            for fields in wrong
        ]
        await check_all_refused(server, bad)
    return f"{len(wrong)} requests that contradict their keys are refused"


PARTS = {
    "rule": rule,
    "update": update,
    "refusals": refusals,
}


async def _declared(bench: Bench) -> TrainerPeer:
    """Returns the trainer of the run. Raises NotDeclaredError."""
    if WORD not in await bench.offered("capabilities"):
        raise NotDeclaredError(f"{WORD} is not offered")
    return await bench.run()


def _requests(bench: Bench, max_n: int, capabilities: list[str]) -> list[Asked]:
    """Returns requests with keys, of which some are alike, and requests without."""
    forms: list[dict[str, Any]] = [{}]
    if "stream" in capabilities:
        forms.append({"stream": True})
    if "as_completed" in capabilities:
        forms.append({"in_lines": True})
    asked = []
    prompts = [ids(bench.reference.prompt(length, seed=length)) for length in (3, 9, 9, 40)]
    prompts.append(ids_of_text(TEXTS[0]))
    if bench.reference.chats:
        prompts.append(conversation(TEXTS[1]))
    for number, (path, prompt) in enumerate(prompts * 2):
        n = min(1 + number % CHOICES, max_n)
        more = {"n": n, "draw_keys": [key_of((number % 7, choice)) for choice in range(n)]}
        sampling = Sampling(TEMPERATURES[number % len(TEMPERATURES)])
        asked.append(
            Asked(path, prompt, sampling, more=more, max_tokens=TOKENS, **forms[number % len(forms)])
        )
        asked.append(Asked(path, prompt, Sampling(1.0), max_tokens=TOKENS))
    return asked


async def _check_several_prompts(bench: Bench, server: Server, version: int) -> None:
    """Checks the keys of two choices of each of several prompts."""
    prompts = [bench.reference.prompt(length, seed=length) for length in (5, 9, 3)]
    n = min(2, (await limits_of(server)).max_n)
    keys = [key_of(number) for number in range(n * len(prompts))]
    body = {"prompt": prompts, "n": n, "draw_keys": keys, "max_tokens": TOKENS, "logprobs": True}
    found = samples_of_each(await server.generate("/v1/completions", body))
    where = f"{server}: POST /v1/completions {body}"
    for sample, key in zip(found, keys, strict=True):
        check_prescribed(bench, sample, key, bench.weights(version), where)
