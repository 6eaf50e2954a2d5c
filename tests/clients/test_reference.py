"""The reference server scores rows in their order, several at a time, and is asked again where it fails."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
from aiohttp import web

from contracts.records import MicroBatchRow
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.clients import reference, score_requests
from pipelinerl.clients.reference import Reference
from pipelinerl.clients.score_requests import NoScoresError
from tests.builders import completion, rollout

SCORE_TIMEOUT_S = 0.3
CONTRACT = {
    "contract": 1,
    "engine": "fake",
    "engine_version": "1",
    "model": "m",
    "backends": [],
    "accepts_dtypes": [],
    "kv_cache": [],
    "capabilities": ["score"],
    "run": None,
    "group": None,
    "weights": {"version": 0, "state": "live"},
    "process": {"resident_bytes": 0, "running": 0, "waiting": 0},
    "limits": {"max_sequences": 2},
}


class ScoringServer:
    """Fails as `faults` say, in turn, and then scores: token i is scored -i. Rows of token 9 take longer."""

    def __init__(self, *faults: str):
        self.faults = list(faults)
        self.requests: list[list[list[int]]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.contracts = 0  # answers to /contract
        self.version = 0  # which it serves
        self.versions: list[int] = []  # those that it serves from its next answers to /contract on

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ready"})

    async def contract(self, request: web.Request) -> web.Response:
        self.contracts += 1
        if self.versions:
            self.version = self.versions.pop(0)
        return web.json_response(CONTRACT | {"weights": {"version": self.version, "state": "live"}})

    async def score(self, request: web.Request) -> web.Response:
        sequences = (await request.json())["sequences"]
        self.requests.append(sequences)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._answer(request, sequences)
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.Request, sequences: list[list[int]]) -> web.Response:
        match self.faults.pop(0) if self.faults else "none":
            case "reset":
                request.transport.abort()
            case "hangs":
                await asyncio.sleep(60)
            case "starts again":
                self.version = 0
            case "one too few":
                return web.json_response({"logprobs": [[]] * len(sequences), "version": 0})
            case "not JSON":
                return web.Response(text="<html>")
            case status if status.isdecimal():
                return web.Response(text="no", status=int(status))
        await asyncio.sleep(0.1 if sequences[0][0] == 9 else 0.02)
        logprobs = [[-float(token) for token in ids[1:]] for ids in sequences]
        return web.json_response({"logprobs": logprobs, "version": self.version})


@asynccontextmanager
async def serving(server: ScoringServer) -> AsyncIterator[str]:
    """Yields the URL of the server."""
    app = web.Application()
    app.router.add_get("/health", server.health)
    app.router.add_get("/contract", server.contract)
    app.router.add_post("/score", server.score)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    finally:
        await runner.cleanup()


def of(
    server: ScoringServer,
    work: Callable[[Reference], object],
    deadline_s: float = 10.0,
    on_silence: Callable[[str], object] = lambda _: None,
) -> object:
    async def scenario() -> object:
        async with serving(server) as url:
            return await asyncio.to_thread(
                lambda: work(Reference(url, None, deadline_s, SCORE_TIMEOUT_S, on_silence=on_silence))
            )

    return asyncio.run(scenario())


def row(index: int, *prompts: int) -> MicroBatchRow:
    sampled = [completion([prompt], [3, 4]) for prompt in prompts]
    sequences = [s for c in sampled for s in training_sequences(rollout(0, completions=[c]), [0.0])]
    return MicroBatchRow(step=0, index=index, micro_batches=[sequences, []], closes_step=False)


def scored(
    rows: list[MicroBatchRow], version: int | None = None
) -> Callable[[Reference], list[MicroBatchRow]]:
    def work(of: Reference) -> list[MicroBatchRow]:
        finished = []
        waiting = list(rows)
        while waiting or of.is_busy:
            while waiting and not of.is_full:
                of.begin(waiting.pop(0), version)
            finished += [scored.row for scored in of.finished()]
            time.sleep(0.001)
        return finished

    return work


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(score_requests, "FIRST_PAUSE_S", 0.01)


def test_rows_are_scored_several_at_a_time_and_come_in_their_order():
    server = ScoringServer()
    rows = [row(0, 9), *(row(index, 1) for index in range(1, 12))]
    finished = of(server, scored(rows))
    assert [each.index for each in finished] == list(range(12))
    for each in finished:
        (sequence,) = each.micro_batches[0]
        assert sequence.reference_logprobs.dtype == np.float32
        assert sequence.reference_logprobs.tolist() == [0.0, -3.0, -4.0]
    assert server.most_in_flight == reference.ROWS_UNDER_WAY


def test_a_server_that_fails_is_asked_again():
    server = ScoringServer("reset", "500", "503", "hangs", "429")
    (finished,) = of(server, scored([row(0, 1)]))
    assert finished.micro_batches[0][0].reference_logprobs.tolist() == [0.0, -3.0, -4.0]
    assert len(server.requests) == 6


def test_a_server_that_leaves_requests_without_an_answer_is_told_of_once_for_all_of_them():
    server = ScoringServer(*["hangs"] * reference.ROWS_UNDER_WAY, "500", "reset")
    told = []
    finished = of(server, scored([row(index, 1) for index in range(8)]), on_silence=told.append)
    assert len(finished) == 8
    assert told == ["it left /score without an answer for 0 s"]


def test_a_server_that_answers_others_is_not_silent():
    server = ScoringServer("hangs")
    told = []
    finished = of(server, scored([row(index, 1) for index in range(8)]), on_silence=told.append)
    assert len(finished) == 8 and len(server.requests) == 9
    assert told == []


def test_attempts_that_end_early_add_up_to_a_silence(monkeypatch):
    """As where a server that hangs is asked for its proof first, at each new connection."""
    told = []
    requests = score_requests.ScoreRequests(None, "", 10.0, SCORE_TIMEOUT_S, told.append)
    now = [100.0]
    monkeypatch.setattr(score_requests.time, "monotonic", lambda: now[0])
    for _ in range(3):
        now[0] += SCORE_TIMEOUT_S / 3
        requests._listen(TimeoutError(), first_sent=100.0)
    assert len(told) == 1


def test_a_server_that_is_not_ready_in_time_is_told_of():
    server = ScoringServer()
    server.health = _never
    told = []
    with pytest.raises(TimeoutError, match="was not ready within"):
        of(server, scored([]), deadline_s=0.3, on_silence=told.append)
    assert told == ["the reference server was not ready within 0.3 s"]


async def _never(_: web.Request) -> web.Response:
    await asyncio.sleep(60)


def test_as_many_sequences_are_sent_as_the_server_takes():
    server = ScoringServer()
    (finished,) = of(server, scored([row(0, 1, 2, 5, 6, 7)]))
    assert [len(sequences) for sequences in server.requests] == [2, 2, 1]
    assert [s.token_ids[0] for s in finished.micro_batches[0]] == [1, 2, 5, 6, 7]
    assert all(len(s.reference_logprobs) == 3 for s in finished.micro_batches[0])


def test_a_row_waits_for_its_version_however_long_it_takes():
    server = ScoringServer("503")
    server.versions = [0, *[2] * 60, 4]
    (finished,) = of(server, scored([row(0, 1)], version=4), deadline_s=0.05)
    assert finished.reference_version == 4 and len(server.requests) == 2


def test_scores_by_a_server_that_has_started_again_meanwhile_are_not_taken():
    server = ScoringServer("starts again")
    server.versions = [0, 4, 0, 4]
    (finished,) = of(server, scored([row(0, 1)], version=4))
    assert finished.reference_version == 4 and len(server.requests) == 2


def test_a_row_names_the_version_that_has_scored_it():
    server = ScoringServer()
    server.versions = [7]
    finished = of(server, scored([row(0, 1), row(1)]))
    assert [each.reference_version for each in finished] == [7, None]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("422", "answered 422 to /score: no"),
        ("one too few", "did not score every token"),
        ("not JSON", "outside the contract"),
    ],
)
def test_what_no_retry_helps_ends_it_at_once(fault, words):
    server = ScoringServer(fault)
    with pytest.raises(NoScoresError, match=words):
        of(server, scored([row(0, 1)]))
    assert len(server.requests) == 1


def test_a_server_that_keeps_failing_is_given_up_with_its_last_words():
    server = ScoringServer(*["503"] * 1000)
    with pytest.raises(NoScoresError, match=r"not answered /score within 0\.5 s; .*503"):
        of(server, scored([row(0, 1)]), deadline_s=0.2)
    assert len(server.requests) >= 3


def test_a_row_without_sequences_needs_no_server():
    server = ScoringServer()
    assert of(server, scored([row(0)])) == [row(0)]
    assert server.requests == []
