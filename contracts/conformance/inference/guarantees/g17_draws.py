"""G17: a completion with a draw key has the tokens that the key prescribes."""

import asyncio
from typing import Any

from contracts.conformance.inference.bad_requests import BadRequest, check_all_refused
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.crossing_updates import TOGETHER, TRIES, CrossingUpdates
from contracts.conformance.inference.keyed_requests import keyed_requests, several_prompts
from contracts.conformance.inference.load import in_flight
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.prescribed import Prescribed, key_of
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.sleeps import put_to_sleep, wake
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import NotDeclaredError

WORD = "prescribed_draws"
REFUSED = frozenset({"unsupported_parameter"})


async def rule(bench: Bench) -> str:
    """Sends requests with keys of all forms beside others, and compares each token with the rule."""
    trainer = await _declared(bench)
    weights = bench.weights(trainer.version)
    capabilities = await bench.offered("capabilities")
    found = Prescribed(bench)
    for server in bench.servers:
        asked = keyed_requests(bench, await limits_of(server), capabilities)
        answers = await asyncio.gather(*(one.send(server) for one in asked))
        for one, samples in zip(asked, answers, strict=True):
            for sample, key in zip(samples, one.more.get("draw_keys", ()), strict=False):
                found.check(sample, key, weights, f"{server}: {one}", one.sampling.divisor)
        if "openai" in capabilities:
            async for sample, key, where in several_prompts(bench, server, capabilities, {}):
                found.check(sample, key, weights, where)
    return f"{found.tokens} tokens are those that their keys prescribe, {found.summary()}"


async def update(bench: Bench) -> str:
    """Publishes versions while requests with keys run, and compares their tokens."""
    trainer = await _declared(bench)
    found = Prescribed(bench)
    crossing = CrossingUpdates(bench, trainer, _keys)
    crossed = 0
    for kv_cache in await bench.offered("kv_cache"):
        for number, sample, where in await crossing.cross(kv_cache):
            crossed += len(sample.spans) > 1
            for label, start, end in sample.spans:
                found.check(sample, key_of(number), crossing.weights(label), where, span=(start, end))
    return f"{crossed} requests crossed an update with their keys, {found.summary()}"


async def sleep(bench: Bench) -> str:
    """Lets servers sleep while requests with keys run, and compares their tokens."""
    trainer = await _declared(bench)
    if "sleep" not in await bench.offered("capabilities"):
        raise NotDeclaredError("sleep is not offered")
    found = Prescribed(bench)
    weights = bench.weights(trainer.version)
    for _ in range(TRIES):
        async with in_flight(bench, TOGETHER, bench.context // 2, fields_of=_keys) as tasks:
            held = sum([(await put_to_sleep(trainer, server))["held"] for server in bench.servers])
            for server in bench.servers:
                await wake(trainer, server, trainer.version)
            await asyncio.gather(*(task for _, task in tasks))
        for number, (server, task) in enumerate(tasks):
            where = f"{server}: sleep and wake while requests with draw_keys run"
            found.check(task.result(), key_of(number % TOGETHER), weights, where)
        if held:
            return f"{held} slept, {found.summary()}"
    return f"no request ran when servers were put to sleep, {TRIES} times"


async def refusals(bench: Bench) -> str:
    """Sends keys beside what would sample other tokens, too few of them, and others that are none."""
    await _declared(bench)
    capabilities = await bench.offered("capabilities")
    count = 0
    for server in bench.servers:
        bad = await _bad_requests(bench, server, capabilities)
        await check_all_refused(server, bad)
        count = len(bad)
    return f"{count} requests that contradict their keys are refused"


PARTS = {
    "rule": rule,
    "update": update,
    "sleep": sleep,
    "refusals": refusals,
}


async def _declared(bench: Bench) -> TrainerPeer:
    """Returns the trainer of the run. Raises NotDeclaredError."""
    if WORD not in await bench.offered("capabilities"):
        raise NotDeclaredError(f"{WORD} is not offered")
    return await bench.run()


def _keys(number: int) -> dict[str, Any]:
    return {"draw_keys": [key_of(number)]}


async def _bad_requests(bench: Bench, server: Server, capabilities: list[str]) -> list[BadRequest]:
    good = {"model": (await server.contract()).model, "max_tokens": 2, "logprobs": True}
    good["draw_keys"] = [key_of("refused")]
    changes: list[dict[str, Any]] = [
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
    forms: list[tuple[str, dict[str, Any]]] = [("/v1/completions", {"prompt": bench.reference.prompt(4)})]
    if bench.reference.chats:
        forms.append(("/v1/chat/completions", {"messages": [{"role": "user", "content": "1"}]}))
    bodies = [(path, good | prompt | change) for path, prompt in forms for change in changes]
    if "openai" in capabilities:
        bodies.append(("/v1/completions", good | {"prompt": [bench.reference.prompt(4)] * 2}))
    return [BadRequest(path, body, 422, "invalid_request", or_codes=REFUSED) for path, body in bodies]
