"""Odd servers: the form of their responses."""

from inference_adapters import completions
from tests.conformance.odd_servers.middleware import changing_answers
from tests.conformance.odd_servers.registry import odd

MORE = {"queue_s": 0.25, "metrics": {"blocks": [1, 2]}, "kv_transfer_params": None, "system_fingerprint": "x"}


def widened(value: object) -> object:
    """Returns the value with additional fields in each of its objects."""
    if isinstance(value, list):
        return [widened(item) for item in value]
    if isinstance(value, dict):
        return {name: item if by_text(name, item) else widened(item) for name, item in value.items()} | MORE
    return value


def by_text(name: str, value: object) -> bool:
    """Returns whether these are the classic log-probabilities by text, not an object with fields."""
    return name == "top_logprobs" and not any("logprob" in each for each in value or [])


@odd(on="G1/context G6/joins G6/receiving G9/routes G9/lines G9/streams")
def has_more_fields_everywhere():
    changing_answers(of_json=widened)


@odd(on="G2/several G9/streams")
def writes_events_without_a_space():
    """Its events have no space after the colon, end with CRLF, and have comments and names between them."""
    changing_answers(of_event=lambda text: f": a comment\r\nevent: message\r\ndata:{text}\r\nid: 1\r\n\r\n")


@odd(on="G2/several G3/takeover G5/updates")
def splits_spans():
    """Returns a span for every four tokens, whatever their version."""
    right = completions.spans

    def spans(versions):
        found = []
        for span in right(versions):
            starts = range(span["start"], span["end"], 4)
            found += [span | {"start": start, "end": min(start + 4, span["end"])} for start in starts]
        return found

    completions.spans = spans
