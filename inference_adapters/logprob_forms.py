"""The two forms of log-probabilities: that of chat completions, and the classic one of text completions.

They are called by `completions` and are pure. `likeliest` holds, for each token, the likeliest ones at its
position as (id, log-probability), most likely first; it is empty where none were asked for.
"""

from collections.abc import Sequence
from typing import Any

from inference_adapters.detokenizer import Decode, Detokenizer

Likeliest = Sequence[Sequence[tuple[int, float]]]


def content(
    token_ids: Sequence[int], logprobs: Sequence[float], likeliest: Likeliest, decode: Decode
) -> dict:
    """Returns the form of chat completions."""
    tokens = []
    for position, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
        others = likeliest[position] if likeliest else ()
        tops = [_token(other, its_logprob, decode) for other, its_logprob in others]
        tokens.append(_token(token_id, logprob, decode) | {"top_logprobs": tops})
    return {"content": tokens}


def _token(token_id: int, logprob: float, decode: Decode) -> dict[str, Any]:
    token = decode([token_id])
    # The text of a token that is part of a character does not tell its bytes.
    known = None if "\ufffd" in token else list(token.encode())
    return {"token": token, "bytes": known, "logprob": logprob}


class Classic:
    """The classic form of a growing completion: it counts the characters of the text so far."""

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
        """Returns log-probabilities by text. Of two tokens with one text the first counts."""
        found = {token: logprob}
        for other, its_logprob in others:
            found.setdefault(self._decode([other]), its_logprob)
        return found
