"""G18: commitments are those of the states from which the output head sampled each token."""

import asyncio
import base64
from dataclasses import dataclass, replace
from typing import Any

import torch

from contracts.commitments import FORMAT, Difference, compare
from contracts.conformance.inference.bad_requests import BadRequest, check_all_refused
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.crossing_updates import CrossingUpdates
from contracts.conformance.inference.keyed_requests import keyed_requests, several_prompts
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError

WORD = "commitments"
ASKED = {"commitments": True}
TOKENS = 40  # more than a chunk, and no multiple of it
FLOAT32 = Difference(0.02, 0.1)  # of a chunk: one wrong row of 32 has 0.04
ROUNDED = Difference(0.25, 8.0)  # of servers that compute in 16 bits, for which the tolerance is larger
ROUNDS = 0.01  # such a tolerance, in nats


@dataclass
class Compared:
    """What was found of all completions: their chunks, and the largest differences."""

    bench: Bench
    chunks: int = 0
    exponents: float = 0.0
    mantissa: float = 0.0

    def summary(self) -> str:
        return f"at most {self.exponents:.1%} of the exponents and {self.mantissa:.2g} of a mantissa apart"

    def check(self, sample: Sample, rows: torch.Tensor, where: str) -> None:
        """Compares the proofs of a completion with the rows of a forward pass. Raises GuaranteeError."""
        wanted = f"proofs of the format {FORMAT} of what the output head read for each token, and of no other"
        try:
            given: Any = sample.commitments
            if given["format"] != FORMAT:
                raise ValueError(f"the format {given['format']}")
            differences = compare(base64.b64decode(given["proofs"], validate=True), rows.numpy())
        except (KeyError, TypeError, ValueError) as error:
            raise GuaranteeError(f"commitments {sample.commitments!r:.200}: {error}", wanted, where) from None
        exponents = max(each.exponents for each in differences)
        mantissa = max(each.mantissa for each in differences)
        most = ROUNDED if self.bench.settings.tolerance > ROUNDS else FLOAT32
        self.chunks += len(differences)
        if not (exponents <= most.exponents and mantissa <= most.mantissa):
            raise GuaranteeError(
                f"{exponents:.0%} of the exponents differ in a chunk, or mantissas by {mantissa:.2g}",
                f"{wanted}: at most {most.exponents:.1%} and {most.mantissa:g}",
                where,
            )
        self.exponents = max(self.exponents, exponents)
        self.mantissa = max(self.mantissa, mantissa)


async def states(bench: Bench) -> str:
    """Requests commitments in all forms beside other requests, and compares them with a forward."""
    trainer = await _declared(bench)
    weights = bench.weights(trainer.version)
    capabilities = await bench.offered("capabilities")
    found = Compared(bench)

    def check(sample: Sample, where: str) -> None:
        rows = bench.reference.states(weights, sample.prompt_token_ids, sample.token_ids)
        found.check(sample, rows, where)

    for server in bench.servers:
        asked = [
            replace(one, more=_without_keys(one.more) | ASKED, max_tokens=TOKENS) if one.more else one
            for one in keyed_requests(bench, await limits_of(server), capabilities)
        ]
        answers = await asyncio.gather(*(one.send(server) for one in asked))
        for one, samples in zip(asked, answers, strict=True):
            for sample in samples if one.more else ():
                check(sample, f"{server}: {one}")
        if "openai" in capabilities:
            async for sample, _, where in several_prompts(bench, server, capabilities, ASKED):
                check(sample, where)
    return f"{found.chunks} chunks of tokens are committed to, {found.summary()}"


async def update(bench: Bench) -> str:
    """Publishes versions while requests with commitments run, and compares them."""
    trainer = await _declared(bench)
    found = Compared(bench)
    crossing = CrossingUpdates(bench, trainer, lambda number: ASKED)
    for kv_cache in await bench.offered("kv_cache"):
        for _, sample, where in await crossing.cross(kv_cache):
            rows = [
                bench.reference.states(
                    crossing.weights(version), sample.prompt_token_ids, sample.token_ids[:end]
                )[start:]
                for version, start, end in sample.spans
            ]
            found.check(sample, torch.cat(rows), where)
    return f"{found.chunks} chunks of requests that crossed updates, {found.summary()}"


async def refusals(bench: Bench) -> str:
    """Sends requests whose tokens cannot be committed to."""
    await _declared(bench)
    changes: list[dict[str, Any]] = [{"logprobs": False}]
    if "stop_strings" in await bench.offered("capabilities"):
        changes.append({"stop": ["1"]})
    for server in bench.servers:
        good = {"model": (await server.contract()).model, "max_tokens": 2, "logprobs": True} | ASKED
        forms: list[tuple[str, dict[str, Any]]] = [("/v1/completions", {"prompt": bench.reference.prompt(4)})]
        if bench.reference.chats:
            forms.append(("/v1/chat/completions", {"messages": [{"role": "user", "content": "1"}]}))
        bad = [
            BadRequest(path, good | prompt | change, 422, "invalid_request")
            for path, prompt in forms
            for change in changes
        ]
        await check_all_refused(server, bad)
    return f"{len(changes)} kinds of requests that cannot have commitments are refused"


PARTS = {
    "states": states,
    "update": update,
    "refusals": refusals,
}


def _without_keys(more: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in more.items() if name != "draw_keys"}


async def _declared(bench: Bench) -> TrainerPeer:
    """Returns the trainer of the run. Raises NotDeclaredError."""
    if WORD not in await bench.offered("capabilities"):
        raise NotDeclaredError(f"{WORD} is not offered")
    return await bench.run()
