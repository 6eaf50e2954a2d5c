"""Adds the contract's fields to vLLM's responses. It does no I/O: it converts dicts to dicts."""

import json
from collections.abc import Collection

IMPOSSIBLE = -9999  # vLLM reports this number for a log-probability of minus infinity
Spans = dict[int, list[dict]]  # spans by index of the choice


def with_ends(answer: dict, spans: Spans, cut_short: Collection[int]) -> dict:
    """Adds `weight_versions` to every choice that has ended.

    A choice ended by max_tokens has finish reason `length`, even if vLLM has parsed a call from it. A choice
    that had to call a tool, but ended before, has finish reason `stop`.
    """
    for choice in answer["choices"]:
        if choice.get("finish_reason"):
            choice["weight_versions"] = spans.get(choice["index"], [])
            if choice["index"] in cut_short:
                choice["finish_reason"] = "length"
            elif choice["finish_reason"] == "tool_calls" and _has_no_call(choice):
                choice["finish_reason"] = "stop"
    return answer


def _has_no_call(choice: dict) -> bool:
    """Returns whether a complete choice has no call. The calls of a stream are in earlier chunks."""
    return "message" in choice and not choice["message"].get("tool_calls")


def with_likeliest(answer: dict, asked: int) -> dict:
    """Returns a chat completion with the `asked` most likely tokens at each position, most likely first.

    vLLM puts the sampled token first. It is asked for one more, so that the most likely ones are always
    included.
    """
    for choice in answer["choices"]:
        for token in (choice.get("logprobs") or {}).get("content") or ():
            possible = [top for top in token["top_logprobs"] if top["logprob"] > IMPOSSIBLE]
            token["top_logprobs"] = sorted(possible, key=lambda top: -top["logprob"])[:asked]
    return answer


def with_possible(answer: dict) -> dict:
    """Returns a text completion whose `top_logprobs` contain only tokens that can be sampled."""
    for choice in answer["choices"]:
        form = choice.get("logprobs") or {}
        if form.get("top_logprobs"):
            form["top_logprobs"] = [
                tops and {token: logprob for token, logprob in tops.items() if logprob > IMPOSSIBLE}
                for tops in form["top_logprobs"]
            ]
    return answer


def with_usage(chunk: dict, asked: bool) -> dict:
    """Returns a chunk of a stream with the field `usage` if it was requested; it is null before the end."""
    return {"usage": None} | chunk if asked else chunk


def with_text_fields(answer: dict, content: bool) -> dict:
    """Returns a text completion in the contract's form, with the prompt's ids if there is only one prompt.

    With `content`, log-probabilities have the form of chat completions.
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
    """Returns the JSON of a server-sent event, or None for the event that ends a stream."""
    data = event.removeprefix("data: ").rstrip()
    return None if data == "[DONE]" else json.loads(data)


def event(body: dict) -> str:
    return f"data: {json.dumps(body)}\n\n"
