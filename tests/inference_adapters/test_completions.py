"""The pure parts of answers: spans, text that is decoded as it grows, choices, log-probabilities."""

import asyncio
import random
from contextlib import ExitStack

import pytest

from contracts.errors import ContractError, ErrorCode
from contracts.inference import TokenDelta
from inference_adapters.choices import Choice
from inference_adapters.completions import spans
from inference_adapters.detokenizer import Detokenizer
from inference_adapters.logprob_forms import TokenTexts
from inference_adapters.streaming import EventStream


def decode_bytes(token_ids) -> str:
    """One token a byte: every character but ASCII is split over tokens."""
    return bytes(token_ids).decode(errors="replace")


def decode_words(token_ids) -> str:
    """As sentencepiece does: a word brings its space, but for the first."""
    return " ".join(f"w{token_id}" for token_id in token_ids)


def pieces(decode, token_ids, sizes) -> list[str]:
    detokenizer, found, start = Detokenizer(decode), [], 0
    while start < len(token_ids):
        end = start + sizes()
        found.append(detokenizer.decode_next(token_ids[start:end], last=end >= len(token_ids)))
        start = end
    return found


def test_characters_are_never_cut():
    text = "naïve – 東京 🚀 e\u0301"
    assert pieces(decode_bytes, list(text.encode()), lambda: 1) == [
        piece for char in text for piece in [""] * (len(char.encode()) - 1) + [char]
    ]


def test_pieces_make_the_whole():
    rng = random.Random(0)
    for _ in range(300):
        token_ids = [
            rng.choice([65, 0xC3, 0xA9, 0xE6, 0x9D, 0xB1, 0xF0]) for _ in range(rng.randrange(1, 30))
        ]
        for decode in (decode_bytes, decode_words):
            assert "".join(pieces(decode, token_ids, lambda: rng.randrange(1, 4))) == decode(token_ids)


def test_an_end_without_tokens_gives_what_was_held_back():
    detokenizer = Detokenizer(decode_bytes)
    assert detokenizer.decode_next([0xE6], last=False) == ""
    assert detokenizer.decode_next([], last=True) == "\ufffd"


def test_spans_cover_every_token_once():
    assert spans([]) == []
    assert spans([3, 3, 5]) == [{"version": 3, "start": 0, "end": 2}, {"version": 5, "start": 2, "end": 3}]
    assert [span["version"] for span in spans([4, 3, 4])] == [4, 3, 4]


def test_a_token_is_decoded_once():
    asked = []

    def decode(token_ids) -> str:
        asked.append(list(token_ids))
        return "é" if token_ids == [7] else "\ufffd"

    texts = TokenTexts(decode)
    found = texts.content([7, 8, 7], [-0.1, -0.2, -0.3], [[(8, -0.4)], [], [(7, -0.3)]])
    assert asked == [[7], [8]]
    seven = {"token": "é", "bytes": [0xC3, 0xA9]}
    eight = {"token": "\ufffd", "bytes": None}
    assert found["content"] == [
        seven | {"logprob": -0.1, "top_logprobs": [eight | {"logprob": -0.4}]},
        eight | {"logprob": -0.2, "top_logprobs": []},
        seven | {"logprob": -0.3, "top_logprobs": [seven | {"logprob": -0.3}]},
    ]


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), float("-inf")])
def test_a_log_probability_that_is_no_number_fails_the_request(logprob):
    choice = Choice()
    choice.extend(TokenDelta([3], [-0.5], [0]))
    with pytest.raises(ContractError) as raised:
        choice.extend(TokenDelta([4, 5], [-0.5, logprob], [0, 0]))
    assert raised.value.code is ErrorCode.ENGINE_FAILED
    assert choice.token_ids == [3]


@pytest.mark.asyncio
async def test_a_stream_whose_client_goes_while_a_chunk_is_sent_is_closed_at_once():
    sending = asyncio.Event()

    async def chunks():
        yield "data: 1"

    async def receive() -> dict:
        await sending.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        if message["type"] == "http.response.body":
            sending.set()
            await asyncio.Event().wait()  # the client reads no more

    events = chunks()
    await EventStream(events, ExitStack())({"type": "http"}, receive, send)
    assert events.ag_frame is None  # closed, though this test still holds it
