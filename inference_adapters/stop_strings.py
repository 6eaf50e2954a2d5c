"""Ends a completion at the token that completes a stop string, and its text before that string.

It serves every `TokenEngine`: the engine continues sampling, and its tokens after that one are dropped.
`generation_routes` and `completions` call it.
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
    """Finds the token that completes a stop string in a growing completion."""

    def __init__(self, stops: Sequence[str], decode: Decode):
        self._stops = stops
        self._detokenizer = Detokenizer(decode)
        self._overlap = max(map(len, stops)) - 1  # characters of a stop string in earlier tokens
        self._tail = ""

    def tokens_until_stop(self, token_ids: Sequence[int], last: bool) -> int | None:
        """Returns how many of the new tokens belong to the completion if one completes a stop string."""
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
    """The text of a stream up to the stop string. Text that may be part of a stop string is held back."""

    def __init__(self, stops: Sequence[str]):
        self._stops = stops
        self._overlap = max(map(len, stops)) - 1
        self._held = ""

    def read_text(self, piece: str, last: bool) -> str:
        """Returns the text that is certain. Only with the last piece are stop strings complete."""
        text = self._held + piece
        if last:
            before = text_before(text, self._stops)
            return text if before is None else before
        given = max(0, len(text) - self._overlap)
        self._held = text[given:]
        return text[:given]


async def until_stop(
    source: AsyncGenerator[TokenDelta, None], stops: Sequence[str], decode: Decode
) -> AsyncIterator[TokenDelta]:
    """Yields the deltas of `source` up to the token that completes a stop string, then ends it."""
    finder = StopFinder(stops, decode)
    tokens = 0  # yielded so far
    versions = 0  # yielded so far
    async with aclosing(source):
        async for delta in source:
            kept = finder.tokens_until_stop(delta.token_ids, delta.finish_reason is not None)
            if kept is None:
                yield delta
                tokens += len(delta.token_ids)
                versions += len(delta.versions)
                continue
            told = list(delta.versions)
            missing = tokens + kept - versions
            if len(told) < missing:
                told += await _rest_of_versions(source)
            yield TokenDelta(
                token_ids=delta.token_ids[:kept],
                logprobs=delta.logprobs[:kept],
                versions=told[:missing],
                finish_reason="stop",
                top_logprobs=delta.top_logprobs[:kept],
            )
            return


async def _rest_of_versions(source: AsyncGenerator[TokenDelta, None]) -> list[int]:
    """Returns the versions that an engine reports when it ends the request."""
    try:
        delta = await source.athrow(Enough())
        versions = list(delta.versions)
        async for delta in source:
            versions += delta.versions
    except (Enough, StopAsyncIteration):
        why = "the engine ended a completion without its versions"
        raise ContractError(ErrorCode.ENGINE_FAILED, why) from None
    return versions
