"""The completions that were sent to SGLang, and their handling in a weight update.

SGLang looks up its prefix cache when it starts to process a prompt, which may be long after the request
arrived. So each request has a cache key of its weights. A request that SGLang has not started before an
update is withdrawn, and sent again after the update.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field

from contracts.errors import ContractError, ErrorCode
from contracts.inference import Enough, SamplingParameters, TokenDelta
from inference_adapters.scoring import Scores
from inference_adapters.sglang.server_process import SglangError, SglangServer

ABORTED = TokenDelta(token_ids=[], logprobs=[], versions=[], finish_reason="abort")
CANCELLED_AT_A_TIME = 16  # each cancellation needs a connection
IMPOSSIBLE = -1e30  # SGLang reports the lowest float for a log-probability of minus infinity


@dataclass(eq=False)
class _Request:
    """One request to SGLang. `name` is its SGLang request id."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    withdrawn: bool = False
    finished: bool = False


class SentRequests:
    """Sends completions to SGLang, and withdraws and cancels them.

    ends: end-of-sequence tokens. SGLang runs without a tokenizer and knows only some of them.
    """

    def __init__(self, sglang: SglangServer, ends: Sequence[int]):
        self._sglang = sglang
        self._ends = ends
        self._unanswered: set[_Request] = set()  # requests without a token: SGLang may not have started them
        self._open = asyncio.Event()
        self._open.set()
        self.pauses = 0  # number of calls of `hold`
        self._weights = 0  # number of updates; not the version, because a resumed run reuses versions
        self._aborted = 0  # number of calls of `abort_all`
        self._cancelling = asyncio.Semaphore(CANCELLED_AT_A_TIME)
        self.queued = 0  # requests that wait here for the end of an update

    async def hold(self) -> None:
        """Queues new requests, and withdraws those without a token. Call it before pausing SGLang."""
        self.pauses += 1
        self._open.clear()
        unanswered = list(self._unanswered)
        for request in unanswered:
            request.withdrawn = True
        await asyncio.gather(*(self._cancel(request) for request in unanswered))

    def release(self) -> None:
        """Sends the queued requests. Later requests do not use keys and values cached before."""
        self._weights += 1
        self._open.set()

    async def abort_all(self) -> None:
        """Aborts all requests. Raises SglangError if SGLang has ended."""
        self._aborted += 1
        await self._sglang.post("/abort_request", abort_all=True)

    async def generate(
        self, prompt: list[int], sampling: SamplingParameters
    ) -> AsyncGenerator[TokenDelta, None]:
        """Yields the new tokens of a completion. Raises ContractError if SGLang fails."""
        aborted = self._aborted
        given = 0
        try:
            while True:
                await self._opened()
                if self._aborted > aborted:
                    yield ABORTED
                    return
                request = _Request()
                async with contextlib.aclosing(self._events(request, prompt, sampling)) as events:
                    async for event in events:
                        if self._aborted > aborted and not given:
                            yield ABORTED  # SGLang's abort does not reach requests that are queued here
                            return
                        if request.withdrawn:
                            break
                        self._unanswered.discard(request)
                        delta = read_delta(event, given, sampling.top_logprobs)
                        given += len(delta.token_ids)
                        request.finished = delta.finish_reason is not None
                        try:
                            yield delta
                        except Enough:
                            await self._cancel(request)  # SGLang then sends a last event with the versions
                if not request.withdrawn:
                    return
        except SglangError as error:
            raise ContractError(ErrorCode.ENGINE_FAILED, str(error)) from error

    async def score(self, token_ids: list[int], temperature: float, top: int) -> Scores | None:
        """Scores a sequence. Returns None if it was aborted. Raises ContractError if SGLang fails."""
        sampling = SamplingParameters(max_tokens=1, temperature=temperature, top_logprobs=top)
        await self._opened()
        request = _Request()
        answer: dict = {}
        try:
            async with contextlib.aclosing(self._events(request, token_ids, sampling, 0)) as events:
                async for event in events:
                    answer = event
                    request.finished = True
            delta = read_delta(answer, 0) if answer and not request.withdrawn else ABORTED
        except SglangError as error:
            raise ContractError(ErrorCode.ENGINE_FAILED, str(error)) from error
        if delta.finish_reason == "abort":
            return None
        found = answer["meta_info"]
        scores = [logprob for logprob, _, _ in found["input_token_logprobs"][1:]]
        likeliest = [_pairs(entry) for entry in found["input_top_logprobs"][1:]] if top else ()
        return Scores(scores, delta.versions[0], likeliest)

    async def _opened(self) -> None:
        self.queued += 1
        try:
            await self._open.wait()
        finally:
            self.queued -= 1

    async def _events(
        self, request: _Request, prompt: list[int], sampling: SamplingParameters, scores_from: int = -1
    ) -> AsyncIterator[dict]:
        """Yields SGLang's events of a request. Closing the iterator early cancels the request.

        scores_from: the prompt's token after which each is scored, without the cache. -1: none.
        """
        self._unanswered.add(request)
        events = self._sglang.events(
            "/generate",
            rid=request.name,
            input_ids=prompt,
            sampling_params={
                "max_new_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "stop_token_ids": [*self._ends, *sampling.stop_token_ids],
            },
            return_logprob=True,
            logprob_start_len=scores_from,
            top_logprobs_num=sampling.top_logprobs,
            stream=True,
            extra_key=str(self._weights),  # separates cache entries of different weights
        )
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    yield event
            if not request.finished and not request.withdrawn:
                raise SglangError("SGLang's answer broke off")
        finally:
            self._unanswered.discard(request)
            if not request.finished:
                await asyncio.shield(self._cancel(request))

    async def _cancel(self, request: _Request) -> None:
        """Aborts the request. SGLang would take seconds to notice that its client has disconnected."""
        async with self._cancelling:
            with contextlib.suppress(SglangError):
                await self._sglang.post("/abort_request", rid=request.name)


def read_delta(event: dict, given: int, likeliest: int = 0) -> TokenDelta:
    """Returns the tokens of an SGLang event after the first `given` ones.

    SGLang reports versions only in a request's last event. Raises SglangError if generation failed.
    """
    if error := event.get("error"):
        raise SglangError(error["message"])
    meta = event["meta_info"]
    reason = meta["finish_reason"]
    if reason and reason.get("status_code"):
        raise SglangError(reason["message"])
    # The last event of an aborted waiting request repeats one token and all log-probabilities.
    new = meta["completion_tokens"] - given
    ids = event["output_ids"]
    logprobs = meta["output_token_logprobs"]
    if min(len(ids), len(logprobs)) < new:
        raise SglangError(f"SGLang sampled {new} tokens, and sent {len(ids)}")
    spans = meta["weight_versions"] if reason else []
    return TokenDelta(
        token_ids=ids[:new],
        logprobs=[entry[0] for entry in logprobs[:new]],
        versions=[int(span["version"]) for span in spans for _ in range(span["start"], span["end"])],
        finish_reason=reason and reason["type"],
        top_logprobs=[_pairs(entry) for entry in meta["output_top_logprobs"][:new]] if likeliest else (),
    )


def _pairs(entry: list | None) -> list[tuple[int, float]]:
    """Converts SGLang's (log-probability, id, text) to (id, log-probability), without impossible tokens."""
    return [(token_id, logprob) for logprob, token_id, _ in entry or () if logprob > IMPOSSIBLE]
