"""Checks that each response of `/score` during updates is computed by one version and names it.

G5 calls it if `score` is declared.
"""

import asyncio
from typing import Any

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.load import cancelling
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

LENGTH = 12  # tokens of the sequence that is scored repeatedly
MANY = 64  # sequences of one request
UPDATES = 3


async def check_scores_beside_updates(bench: Bench, trainer: TrainerPeer) -> None:
    """Scores many sequences in one request, repeatedly, while versions are published."""
    sequence = bench.reference.prompt(LENGTH, seed=LENGTH)
    first = trainer.version
    tasks = [asyncio.create_task(_score_until(server, sequence, first + UPDATES)) for server in bench.servers]
    async with cancelling(tasks):
        receives = await bench.receive_modes()
        for number in range(UPDATES):
            version = trainer.version + 1
            await trainer.publish(version, bench.weights(version), receive=receives[number % len(receives)])
        answers = await asyncio.gather(*tasks)
    exact: dict[int, torch.Tensor] = {}
    for server, found in zip(bench.servers, answers, strict=True):
        for answer in found:
            version = answer["version"]
            if not first <= version <= trainer.version:
                raise GuaranteeError(
                    f"/score says version {version}", f"{first} to {trainer.version}", f"{server}: score"
                )
            if version not in exact:
                weights = bench.weights(version)
                exact[version] = bench.reference.logprobs(weights, sequence[:1], sequence[1:])
            _check(bench, server, answer, exact[version])


async def _score_until(server: Server, sequence: list[int], version: int) -> list[dict[str, Any]]:
    """Scores repeatedly, and returns the responses up to the first one of `version` or a newer version."""
    count = min(MANY, (await limits_of(server)).max_sequences)
    body = {"sequences": [sequence] * count}
    answers = []
    while True:
        status, answer = await server.post("/score", body)
        scored = answer.get("logprobs") or []
        if status != 200 or len(scored) != count or not isinstance(answer.get("version"), int):
            raise GuaranteeError(
                f"POST /score: {status} {str(answer)[:200]}",
                f"200, a version, and the log-probabilities of {count} sequences",
                f"{server}: score {count} times {sequence} while versions are published",
            )
        answers.append(answer)
        if answer["version"] >= version:
            return answers


def _check(bench: Bench, server: Server, answer: dict[str, Any], expected: torch.Tensor) -> None:
    given = torch.tensor(answer["logprobs"])
    off = (given - expected).abs().nan_to_num(torch.inf).amax(-1)
    if not float(off.max()) <= bench.settings.tolerance:
        raise GuaranteeError(
            f"sequence {int(off.argmax())} of {len(off)}, scored by version {answer['version']}, is off by "
            f"{float(off.max()):.5f}",
            f"at most {bench.settings.tolerance:g}: its version computes all of an answer",
            f"{server}: score many sequences in one request while versions are published",
        )
