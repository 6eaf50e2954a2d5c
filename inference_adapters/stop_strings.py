"""Stop strings for every `TokenEngine`, used by `generation_routes` and `completions`.

The token ids of a completion end with the token that completes a stop string. The text ends before the stop
string. Tokens that the engine samples after that are dropped.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from contracts.errors import ContractError, ErrorCode
from contracts.inference import Enough, TokenDelta
from inference_adapters.detokenizer import Decode, Detokenizer


def text_before(text: str, stops: Sequence[str]) -> str | None:
    """Returns the text before the stop string that ends first, or None if no stop string occurs."""
    found = [(start + len(stop), start) for stop in stops if (start := text.find(stop)) >= 0]
    return text[: min(found, key=lambda place: place[0])[1]] if found else None


class StopFinder:
    """Finds the token that completes a stop string in a streamed completion."""

    def __init__(self, stops: Sequence[str], decode: Decode):
        self._stops = stops
        self._detokenizer = Detokenizer(decode)
        self._overlap = max(map(len, stops)) - 1  # characters of a stop string that earlier tokens may have
        self._tail = ""

    def tokens_until_stop(self, token_ids: Sequence[int], last: bool) -> int | None:
        """Returns the number of new tokens up to the one that completes a stop string, or None."""
        if not token_ids and last:
            return 0 if self._stops_in(self._detokenizer.decode_next([], True)) else None
        for number, token_id in enumerate(token_ids, 1):
            piece = self._detokenizer.decode_next([token_id], last and number == len(token_ids))
            if self._stops_in(piece):
                return number
        return None

    def _stops_in(self, piece: str) -> bool:
        text = self._tail + piece
        self._tail = text[-self._overlap :] if self._overlap else ""
        return any(stop in text for stop in self._stops)


class StopText:
    """Returns the text of a stream up to a stop string. It delays text that may begin a stop string."""

    def __init__(self, stops: Sequence[str]):
        self._stops = stops
        self._overlap = max(map(len, stops)) - 1
        self._delayed = ""

    def read_text(self, piece: str, last: bool) -> str:
        """Returns the text that cannot be part of a stop string. The last piece must complete the string."""
        text = self._delayed + piece
        if last:
            before = text_before(text, self._stops)
            return text if before is None else before
        given = max(0, len(text) - self._overlap)
        self._delayed = text[given:]
        return text[:given]


async def until_stop(
    source: AsyncGenerator[TokenDelta, None], stops: Sequence[str], decode: Decode
) -> AsyncIterator[TokenDelta]:
    """Yields the deltas of `source` up to the token that completes a stop string, then closes it."""
    finder = StopFinder(stops, decode)
    tokens = 0  # number yielded so far
    versions = 0
    async with aclosing(source):
        async for delta in source:
            kept = finder.tokens_until_stop(delta.token_ids, delta.finish_reason is not None)
            if kept is None:
                yield delta
                tokens += len(delta.token_ids)
                versions += len(delta.versions)
                continue
            reported = list(delta.versions)
            missing = tokens + kept - versions
            if len(reported) < missing:
                reported += await _rest_of_versions(source)
            yield TokenDelta(
                token_ids=delta.token_ids[:kept],
                logprobs=delta.logprobs[:kept],
                versions=reported[:missing],
                finish_reason="stop",
                top_logprobs=delta.top_logprobs[:kept],
            )
            return


async def _rest_of_versions(source: AsyncGenerator[TokenDelta, None]) -> list[int]:
    """Ends the request, and returns the versions that the engine reports at its end."""
    try:
        delta = await source.athrow(Enough())
        versions = list(delta.versions)
        async for delta in source:
            versions += delta.versions
    except (Enough, StopAsyncIteration):
        why = "the engine ended a completion without its versions"
        raise ContractError(ErrorCode.ENGINE_FAILED, why) from None
    return versions
