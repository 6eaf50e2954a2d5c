"""The pure parts of answers: spans and text that is decoded as it grows."""

import random

from inference_adapters.completions import spans
from inference_adapters.detokenizer import Detokenizer


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
