"""Stop strings where tokens and versions come in any pieces, and characters are split over tokens."""

import asyncio
import random

import pytest

from contracts.errors import ContractError
from contracts.inference import Enough, TokenDelta
from inference_adapters.stop_strings import StopFinder, StopText, text_before, until_stop
from tests.inference_adapters.test_completions import decode_bytes

LETTERS = "aab é東"


def pieces(items: list, drawn: random.Random) -> list[list]:
    found, start = [], 0
    while start < len(items):
        end = start + drawn.randrange(1, 4)
        found.append(items[start:end])
        start = end
    return found


def kept_tokens(token_ids: list[int], stops: list[str], drawn: random.Random) -> int | None:
    finder, before = StopFinder(stops, decode_bytes), 0
    parts = pieces(token_ids, drawn)
    for number, part in enumerate(parts, 1):
        kept = finder.tokens_until_stop(part, last=number == len(parts))
        if kept is not None:
            return before + kept
        before += len(part)
    return None


def test_the_token_that_completes_a_stop_string_is_the_first_after_which_the_text_has_one():
    drawn = random.Random(0)
    stopped = 0
    for _ in range(400):
        text = "".join(drawn.choices(LETTERS, k=drawn.randrange(1, 15)))
        stops = ["".join(drawn.choices(LETTERS, k=drawn.randrange(1, 4))) for _ in range(2)]
        token_ids = list(text.encode())
        having = [
            count
            for count in range(1, len(token_ids) + 1)
            if any(stop in decode_bytes(token_ids[:count]) for stop in stops)
        ]
        kept = kept_tokens(token_ids, stops, drawn)
        assert kept == (having[0] if having else None), (text, stops)
        if kept is None:
            assert text_before(text, stops) is None
            continue
        stopped += 1
        whole = decode_bytes(token_ids[:kept])
        before = text_before(whole, stops)
        assert any((before + stop) == whole for stop in stops)
        parts = pieces(list(whole), drawn)
        reader = StopText(stops)
        read = [reader.read_text("".join(p), last=i == len(parts)) for i, p in enumerate(parts, 1)]
        assert "".join(read) == before
    assert stopped > 100


def test_a_stream_without_a_stop_string_gives_all_its_text():
    reader = StopText(["abc"])
    assert [reader.read_text(piece, False) for piece in ("xa", "bz", "a")] == ["", "xa", "b"]
    assert reader.read_text("b", True) == "zab"


def asked(source) -> list[TokenDelta]:
    async def read() -> list[TokenDelta]:
        return [delta async for delta in until_stop(source, ["cd"], decode_bytes)]

    return asyncio.run(read())


def delta(text: str, versions=(), reason=None) -> TokenDelta:
    return TokenDelta(list(text.encode()), [-1.0] * len(text), versions, reason)


def test_versions_that_come_last_are_asked_for():
    ended = []

    async def engine(takes: bool):
        try:
            yield delta("ab")
            try:
                yield delta("cde")
            except Enough:
                if not takes:
                    raise
            yield delta("f")
            yield delta("", [3, 3, 4, 4, 5, 5], "abort")
        finally:
            ended.append(takes)

    first, last = asked(engine(True))
    assert (first.versions, first.finish_reason) == ((), None)
    assert (bytes(last.token_ids), last.versions, last.finish_reason) == (b"cd", [3, 3, 4, 4], "stop")
    assert last.logprobs == [-1.0, -1.0]
    with pytest.raises(ContractError, match="without its versions"):
        asked(engine(False))
    assert ended == [True, False]


def test_versions_that_come_with_the_tokens_need_no_more_of_them():
    async def engine():
        yield delta("ab", [1, 1])
        yield delta("cde", [1, 2, 2])
        raise AssertionError("it was asked for more")

    last = asked(engine())[-1]
    assert (bytes(last.token_ids), last.versions, last.finish_reason) == (b"cd", [1, 2], "stop")


def test_what_ends_by_itself_keeps_its_end():
    async def engine():
        yield delta("ab", [1, 1])
        yield delta("c", [1], "length")

    assert [d.finish_reason for d in asked(engine())] == [None, "length"]
