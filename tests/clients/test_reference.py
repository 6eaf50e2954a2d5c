"""The reference server scores rows in their order, several at a time, and is asked again where it fails."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from contracts.records import MicroBatchRow
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.clients import reference
from pipelinerl.clients.reference import Reference
from pipelinerl.clients.score_requests import NoScoresError, ScoreRequests
from tests.builders import completion, rollout
from tests.clients.fake_servers import serving
from tests.limits import HANG_S
from tests.virtual_time import Traffic, in_virtual_time, pass_time, time_passes

SILENCE_S = 30.0
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
SLOW, LAST = 8, 9  # tokens of rows that are scored when four are under way, and when all have come


class ScoringServer:
    """Fails as `faults` say, in turn, and then scores: token i is scored -i."""

    def __init__(self, *faults: str):
        self.faults = list(faults)
        self.requests: list[list[list[int]]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.is_ready = True
        self.hanging = 0
        self.contracts = 0  # answers to /contract
        self.version = 0  # which it serves
        self.versions: list[int] = []  # those that it serves from its next answers to /contract on
        self.rows = 0  # that will be sent

    def serving(self, traffic: Traffic | None = None):
        routes = [web.get("/health", self.health), web.get("/contract", self.contract)]
        return serving(*routes, web.post("/score", self.score), traffic=traffic)

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "loading"}, status=200 if self.is_ready else 503)

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
                await self.hang()
            case "starts again":
                self.version = 0
            case "one too few":
                return web.json_response({"logprobs": [[]] * len(sequences), "version": 0})
            case "not JSON":
                return web.Response(text="<html>")
            case status if status.isdecimal():
                return web.Response(text="no", status=int(status))
        token = sequences[0][0]
        while token == SLOW and self.most_in_flight < reference.ROWS_UNDER_WAY:
            await asyncio.sleep(0)
        while token == LAST and len(self.requests) < self.rows:
            await asyncio.sleep(0)
        logprobs = [[-float(token) for token in ids[1:]] for ids in sequences]
        return web.json_response({"logprobs": logprobs, "version": self.version})

    async def hang(self) -> None:
        self.hanging += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.hanging -= 1


# --- rows -----------------------------------------------------------------------------------------


def of(
    server: ScoringServer,
    work: Callable[[Reference], object],
    start_s: float = HANG_S,
    score_s: float = HANG_S,
    on_silence: Callable[[str], object] = lambda _: None,
) -> object:
    async def scenario() -> object:
        async with server.serving() as url:
            return await asyncio.to_thread(
                lambda: work(Reference(url, None, start_s, score_s, on_silence=on_silence))
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


def test_rows_are_scored_several_at_a_time_and_come_in_their_order():
    server = ScoringServer()
    rows = [
        row(0, LAST),
        *(row(index, SLOW) for index in (1, 2, 3)),
        *(row(index, 1) for index in range(4, 12)),
    ]
    server.rows = len(rows)
    finished = of(server, scored(rows))
    assert [each.index for each in finished] == list(range(12))
    for each in finished:
        (sequence,) = each.micro_batches[0]
        assert sequence.reference_logprobs.dtype == np.float32
        assert sequence.reference_logprobs.tolist() == [0.0, -3.0, -4.0]
    assert server.most_in_flight == reference.ROWS_UNDER_WAY


def test_as_many_sequences_are_sent_as_the_server_takes():
    server = ScoringServer()
    (finished,) = of(server, scored([row(0, 1, 2, 5, 6, 7)]))
    assert [len(sequences) for sequences in server.requests] == [2, 2, 1]
    assert [s.token_ids[0] for s in finished.micro_batches[0]] == [1, 2, 5, 6, 7]
    assert all(len(s.reference_logprobs) == 3 for s in finished.micro_batches[0])


def test_a_row_names_the_version_that_has_scored_it():
    server = ScoringServer()
    server.versions = [7]
    finished = of(server, scored([row(0, 1), row(1)]))
    assert [each.reference_version for each in finished] == [7, None]


def test_a_row_without_sequences_needs_no_server():
    server = ScoringServer()
    assert of(server, scored([row(0)])) == [row(0)]
    assert server.requests == []


def test_a_server_that_is_not_ready_in_time_is_told_of():
    server = ScoringServer()
    server.is_ready = False
    told = []
    with pytest.raises(TimeoutError, match="was not ready within"):
        of(server, scored([]), start_s=0.3, on_silence=told.append)
    assert told == ["the reference server was not ready within 0.3 s"]


def test_the_caller_is_told_of_a_silence_while_its_rows_wait():
    server = ScoringServer(*["hangs"] * 1000)
    told = []

    def work(of: Reference) -> None:
        of.begin(row(0, 1))
        while not told:
            assert of.finished() == []
        assert len(told) == 1
        server.faults.clear()
        while of.is_busy:  # otherwise its thread would log that it asks again, in later tests
            of.finished()

    of(server, work, score_s=0.1, on_silence=told.append)


# --- requests -------------------------------------------------------------------------------------


def asked(
    server: ScoringServer,
    ask: Callable[[ScoreRequests], Coroutine],
    deadline_s: float = 100.0,
    told: Callable[[str], object] = lambda _: None,
) -> Any:
    """What is made of one server's answers. Time passes while the server holds all that is under way."""
    traffic = Traffic(held=lambda: server.hanging)

    async def scenario() -> Any:
        limit = aiohttp.ClientTimeout(total=SILENCE_S)
        async with (
            server.serving(traffic) as url,
            aiohttp.ClientSession(timeout=limit) as session,
            time_passes(lambda: traffic.is_still),
        ):
            traffic.count(session)
            return await ask(ScoreRequests(session, url, deadline_s, SILENCE_S, told))

    return in_virtual_time(scenario())


async def one(requests: ScoreRequests, version: int | None = None):
    return await requests.score([[1, 3, 4]], 1.0, version)


def test_a_server_that_fails_is_asked_again():
    server = ScoringServer("reset", "500", "503", "hangs", "429")
    scores = asked(server, one)
    assert scores.logprobs[0].tolist() == [-3.0, -4.0]
    assert len(server.requests) == 6


def test_a_server_that_leaves_requests_without_an_answer_is_told_of_once_for_all_of_them():
    server = ScoringServer(*["hangs"] * 4, "500", "reset")
    told = []

    async def four(requests: ScoreRequests):
        return await asyncio.gather(*(one(requests) for _ in range(4)))

    assert len(asked(server, four, told=told.append)) == 4
    assert told == ["it left /score without an answer for 30 s"]


def test_a_server_that_answers_others_is_not_silent():
    server = ScoringServer("hangs")
    told = []

    async def one_after_the_other(requests: ScoreRequests) -> None:
        first = asyncio.create_task(one(requests))
        await asyncio.sleep(SILENCE_S / 2)
        await one(requests)
        await first

    asked(server, one_after_the_other, told=told.append)
    assert len(server.requests) == 3
    assert told == []


def test_attempts_that_end_early_add_up_to_a_silence():
    """As where a server that hangs is asked for its proof first, at each new connection."""
    told = []

    async def scenario() -> None:
        requests = ScoreRequests(None, "", 10.0, SILENCE_S, told.append)
        began = asyncio.get_running_loop().time()
        for _ in range(3):
            pass_time(SILENCE_S / 3)
            requests._check_silence(TimeoutError(), first_sent=began)

    in_virtual_time(scenario())
    assert len(told) == 1


def test_scores_wait_for_their_version_however_long_it_takes():
    server = ScoringServer("503")
    server.versions = [*[2] * 60, 4]
    scores = asked(server, lambda requests: one(requests, version=4), deadline_s=2.0)
    assert scores.version == 4 and len(server.requests) == 2


def test_scores_by_a_server_that_has_started_again_meanwhile_are_not_taken():
    server = ScoringServer("starts again")
    server.versions = [4, 0, 4]
    scores = asked(server, lambda requests: one(requests, version=4))
    assert scores.version == 4 and len(server.requests) == 2


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
        asked(server, one)
    assert len(server.requests) == 1


def test_a_server_that_keeps_failing_is_given_up_with_its_last_words():
    server = ScoringServer(*["503"] * 1000)
    with pytest.raises(NoScoresError, match=r"not answered /score within 2 s; .*503"):
        asked(server, one, deadline_s=2.0)
    assert len(server.requests) == 4  # after pauses of 0.2, 0.4 and 0.8 s
