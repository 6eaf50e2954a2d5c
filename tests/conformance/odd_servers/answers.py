"""Odd servers: the form of their responses."""

import asyncio
import json

from inference_adapters import completions, generation_routes
from inference_adapters.weight_updates import WeightUpdates
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


def turned(value: object) -> object:
    """Returns the value with the fields of each of its objects in reverse order."""
    if isinstance(value, list):
        return [turned(item) for item in value]
    if isinstance(value, dict):
        return {name: turned(value[name]) for name in reversed(value)}
    return value


@odd(on="G1/context G6/joins G6/receiving G9/routes G9/lines G9/streams")
def has_more_fields_everywhere():
    changing_answers(of_json=widened)


@odd(on="G1/context G9/lines G9/openai")
def orders_fields_the_other_way():
    changing_answers(of_json=turned)


@odd(on="G1/context G9/lines G9/streams G10/routes")
def writes_ascii_with_spaces():
    changing_answers(write=lambda value: json.dumps(value, indent=1))


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


@odd(on="G2/several G4/batches G9/streams")
def begins_and_ends_streams_without_tokens():
    """The first chunk has only the prompt, and the last one only the finish reason and the spans."""
    right = generation_routes._events

    async def events(completion, deltas):
        prompt_sent = False
        async for text in right(completion, deltas):
            body = text.removeprefix("data: ").strip()
            if body == "[DONE]" or "choices" not in (chunk := json.loads(body)):
                yield text
                continue
            if not prompt_sent:
                prompt_sent = True
                empty = [_without_tokens(choice) | {"finish_reason": None} for choice in chunk["choices"]]
                for choice in empty:
                    choice.pop("weight_versions", None)
                yield _event(chunk | {"choices": empty})
                for name in ("prompt_token_ids", "prompt_token_ids_base64"):
                    chunk.pop(name, None)
            ends = [choice for choice in chunk["choices"] if choice.get("finish_reason")]
            if not ends:
                yield _event(chunk)
                continue
            before = [choice | {"finish_reason": None} for choice in chunk["choices"]]
            for choice in before:
                choice.pop("weight_versions", None)
            yield _event(chunk | {"choices": before})
            yield _event(chunk | {"choices": [_without_tokens(choice) for choice in ends]})

    generation_routes._events = events


def _without_tokens(choice: dict) -> dict:
    empty = {"delta": {}} if "delta" in choice else {"text": ""}
    of_tokens = ("token_ids", "logprobs", "token_ids_base64", "logprobs_base64")
    return {name: value for name, value in choice.items() if name not in of_tokens} | empty


def _event(chunk: dict) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


@odd(on="G2/arrivals G6/receiving G11/prompts")
def tells_its_contract_late():
    changing_answers(before={"/contract": lambda: asyncio.sleep(0.15)})


@odd(on="G1/events G2/several")
def tells_no_seconds():
    """Does not measure the duration of updates."""
    right = WeightUpdates.status

    async def status(self, version, wait_s):
        found = await right(self, version, wait_s)
        return found.model_copy(update={"paused_s": 0.0, "transfer_s": 0.0})

    WeightUpdates.status = status
