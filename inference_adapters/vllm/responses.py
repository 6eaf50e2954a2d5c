"""Adds the contract's fields to vLLM's responses, which are dicts. This module does no I/O."""

import json
from base64 import b64encode
from collections.abc import Collection, Mapping

from contracts.commitments import FORMAT

IMPOSSIBLE = -9999  # vLLM's value for a log-probability of minus infinity
Spans = dict[int, list[dict]]  # index of the choice -> version spans


def with_ends(
    answer: dict, spans: Spans, cut_short: Collection[int], commitments: Mapping[int, bytes]
) -> dict:
    """Adds `weight_versions` and `commitments` to every choice that has ended, and corrects finish reasons.

    A choice that reached max_tokens gets `length`, even if vLLM parsed a tool call from it. A choice without
    a tool call gets `stop` instead of `tool_calls`.
    """
    for choice in answer["choices"]:
        if choice.get("finish_reason"):
            choice["weight_versions"] = spans.get(choice["index"], [])
            if proofs := commitments.get(choice["index"]):
                choice["commitments"] = {"format": FORMAT, "proofs": b64encode(proofs).decode()}
            if choice["index"] in cut_short:
                choice["finish_reason"] = "length"
            elif choice["finish_reason"] == "tool_calls" and _has_no_call(choice):
                choice["finish_reason"] = "stop"
    return answer


def _has_no_call(choice: dict) -> bool:
    """Returns True if a complete choice has no call. In a stream, earlier chunks have the calls."""
    return "message" in choice and not choice["message"].get("tool_calls")


def with_likeliest(answer: dict, asked: int) -> dict:
    """Returns a chat completion with the `asked` most likely tokens per position, in descending order.

    vLLM puts the sampled token first. So the adapter requests one more token than the client.
    """
    for choice in answer["choices"]:
        for token in (choice.get("logprobs") or {}).get("content") or ():
            possible = [top for top in token["top_logprobs"] if top["logprob"] > IMPOSSIBLE]
            token["top_logprobs"] = sorted(possible, key=lambda top: -top["logprob"])[:asked]
    return answer


def with_possible(answer: dict) -> dict:
    """Returns a text completion without impossible tokens in `top_logprobs`."""
    for choice in answer["choices"]:
        form = choice.get("logprobs") or {}
        if form.get("top_logprobs"):
            form["top_logprobs"] = [
                tops and {token: logprob for token, logprob in tops.items() if logprob > IMPOSSIBLE}
                for tops in form["top_logprobs"]
            ]
    return answer


def with_usage(chunk: dict, asked: bool) -> dict:
    """Returns a chunk with `usage` if it was requested, which is null before the end of a stream."""
    return {"usage": None} | chunk if asked else chunk


def with_text_fields(answer: dict, content: bool) -> dict:
    """Returns a text completion in the contract's form, with the prompt's ids if all prompts are equal.

    If `content` is True, log-probabilities have the form of chat completions.
    """
    prompts = [ids for choice in answer["choices"] if (ids := choice.get("prompt_token_ids"))]
    if prompts and all(ids == prompts[0] for ids in prompts):
        answer["prompt_token_ids"] = prompts[0]
    for choice in answer["choices"]:
        if content and choice.get("logprobs"):
            choice["logprobs"] = {"content": _content(choice["logprobs"])}
    return answer


def _content(native: dict) -> list[dict]:
    return [
        {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}
        for token, logprob in zip(native["tokens"], native["token_logprobs"], strict=True)
    ]


def event_body(event: str) -> dict | None:
    """Returns the JSON of a server-sent event, or None for `[DONE]`."""
    data = event.removeprefix("data: ").rstrip()
    return None if data == "[DONE]" else json.loads(data)


def event(body: dict) -> str:
    return f"data: {json.dumps(body)}\n\n"
