"""The JSON forms of log-probabilities: that of chat completions, and the classic one of text completions.

`completions` uses it. `likeliest` has, for each sampled token, the most likely tokens at its position as (id,
log-probability) in descending order. It is empty if they were not requested.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from inference_adapters.detokenizer import Decode, Detokenizer

Likeliest = Sequence[Sequence[tuple[int, float]]]
MOST_KEPT = 2**14  # texts: a few megabytes


class TokenTexts:
    """The texts of single tokens, with a cache, because decoding a token costs more than sending it."""

    def __init__(self, decode: Decode):
        self.decode = decode
        self._of = lru_cache(MOST_KEPT)(self._read)

    def _read(self, token_id: int) -> tuple[str, list[int] | None]:
        token = self.decode([token_id])
        # The bytes of a token that is part of a character are unknown.
        return token, None if "\ufffd" in token else list(token.encode())

    def content(self, token_ids: Sequence[int], logprobs: Sequence[float], likeliest: Likeliest) -> dict:
        """Returns the form of chat completions."""
        tokens = []
        for token_id, logprob in zip(token_ids, logprobs, strict=True):
            token, known = self._of(token_id)
            tokens.append({"token": token, "bytes": known, "logprob": logprob, "top_logprobs": []})
        if likeliest:
            for token, others in zip(tokens, likeliest, strict=True):
                token["top_logprobs"] = [self._alternative(*other) for other in others]
        return {"content": tokens}

    def _alternative(self, token_id: int, logprob: float) -> dict[str, Any]:
        token, known = self._of(token_id)
        return {"token": token, "bytes": known, "logprob": logprob}


class Classic:
    """Builds the classic form of one streamed completion. It counts characters for `text_offset`."""

    def __init__(self, decode: Decode):
        self._decode = decode
        self._detokenizer = Detokenizer(decode)
        self._characters = 0

    def next(self, token_ids: Sequence[int], logprobs: Sequence[float], likeliest: Likeliest) -> dict:
        """Returns the form of the new tokens."""
        tokens = [self._decode([token_id]) for token_id in token_ids]
        return {
            "tokens": tokens,
            "token_logprobs": list(logprobs),
            "text_offset": [self._offset(token_id) for token_id in token_ids],
            "top_logprobs": [
                self._by_text(token, logprob, likeliest[position] if likeliest else ())
                for position, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True))
            ],
        }

    def _offset(self, token_id: int) -> int:
        offset = self._characters
        self._characters += len(self._detokenizer.decode_next([token_id], last=False))
        return offset

    def _by_text(self, token: str, logprob: float, others: Sequence[tuple[int, float]]) -> dict[str, float]:
        """Returns log-probabilities by text. If tokens have the same text, the first one is kept."""
        found = {token: logprob}
        for other, its_logprob in others:
            found.setdefault(self._decode([other]), its_logprob)
        return found
