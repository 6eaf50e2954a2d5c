"""The part of G9 for `tools`: tools and results reach the model, and a sampled call is returned as a call."""

import json
from collections.abc import Sequence
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.http_client import describe_request
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.overfit_model import overfit_weights
from contracts.conformance.inference.samples import samples
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError
from contracts.tool_calls import for_template

PATH = "/v1/chat/completions"
ARGUMENTS = {"x": 2, "y": 3}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {name: {"type": "integer"} for name in ARGUMENTS}},
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": json.dumps(ARGUMENTS)}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
CallsAndReason = tuple[list[tuple[str, object]], str]  # ([(name, arguments)], finish reason)


async def check_tools(
    bench: Bench, trainer: TrainerPeer, messages: list[dict[str, Any]], streams: bool
) -> str:
    """Checks tools on every server and returns a summary."""
    for server in bench.servers:
        prompt = await _check_tools_shown(server, messages)
    call_ids = _call_ids(bench, messages)
    if not call_ids:
        return "tools are shown (the model's template writes no call to be taught)"
    weights = overfit_weights(bench.reference, prompt, call_ids, bench.dtype)
    if not weights:
        return "tools are shown (the model is too large to be taught a call, or does not learn it)"
    await trainer.publish(trainer.version + 1, weights)
    body = {
        "messages": messages,
        "tools": [TOOL],
        "max_tokens": len(call_ids),
        "logprobs": True,
        "temperature": 0,
    }
    expected: CallsAndReason = ([("add", ARGUMENTS)], "tool_calls")
    for server in bench.servers:
        answer = await server.generate(PATH, body)
        _expect_call(answer["choices"][0]["message"].get("tool_calls"), answer, expected, body)
        if (ids := samples(answer)[0].token_ids) != call_ids:
            raise GuaranteeError(
                f"token_ids {ids}", f"those of the call, {call_ids}", describe_request(PATH, body)
            )
        await _check_uncalled(server, body)
        if (await limits_of(server)).max_n > 1:
            both = body | {"temperature": 0.1, "n": 2}
            for choice in (await server.generate(PATH, both))["choices"]:
                _expect_call(choice["message"].get("tool_calls"), {"choices": [choice]}, expected, both)
        if streams:
            chunks = await server.stream(PATH, body)
            _expect_call(_joined(chunks), chunks[-1], expected, body | {"stream": True})
    return "tools are shown and called"


async def _check_uncalled(server: Server, body: dict[str, Any]) -> None:
    """Checks that a call is returned as text with `tool_choice` none, or if it is incomplete."""
    cut = body["max_tokens"] // 2
    for changes, reason in (({"tool_choice": "none"}, "stop"), ({"max_tokens": cut}, "length")):
        choice = (await server.generate(PATH, body | changes))["choices"][0]
        message = choice["message"]
        if message.get("tool_calls") or not message.get("content") or choice["finish_reason"] != reason:
            raise GuaranteeError(
                f"{message} and {choice['finish_reason']!r} with {changes}",
                f"the call as text, and {reason!r}",
                f"teach the model a call; {describe_request(PATH, body | changes)}",
            )


async def _check_tools_shown(server: Server, messages: list[dict[str, Any]]) -> list[int]:
    """Checks that the prompt shows tools and a tool's result. Returns the prompt ids with tools."""
    plain = (await server.chat(messages, 1))[0].prompt_token_ids
    shown = (await server.chat(messages, 1, tools=[TOOL]))[0].prompt_token_ids
    if plain == shown:
        raise GuaranteeError(
            "the same prompt_token_ids with and without tools",
            "tools are shown to the model",
            describe_request(PATH, {"messages": messages, "tools": [TOOL]}),
        )
    prompts = []
    for result in ("5", "6"):
        with_result = [*messages, CALLED, {"role": "tool", "tool_call_id": "call_1", "content": result}]
        prompts.append((await server.chat(with_result, 1, tools=[TOOL]))[0].prompt_token_ids)
    if prompts[0] == prompts[1]:
        raise GuaranteeError(
            "the same prompt_token_ids whatever the tool's result",
            "the result is shown to the model",
            describe_request(PATH, {"messages": with_result, "tools": [TOOL]}),
        )
    return shown


def _call_ids(bench: Bench, messages: list[dict[str, Any]]) -> list[int]:
    """Returns the ids of a call in the model's template, with end-of-sequence, or [] if it has no calls."""
    tokenizer = bench.reference.tokenizer
    ends = bench.reference.ends
    if tokenizer is None or not ends:
        return []
    before = str(
        tokenizer.apply_chat_template(messages, tools=[TOOL], tokenize=False, add_generation_prompt=True)
    )
    called = for_template([*messages, CALLED])
    after = str(tokenizer.apply_chat_template(called, tools=[TOOL], tokenize=False))
    if not after.startswith(before) or "add" not in (call_text := after.removeprefix(before).rstrip()):
        return []
    ids = tokenizer(call_text, add_special_tokens=False)["input_ids"]
    first_end = next((i for i, token_id in enumerate(ids) if token_id in ends), len(ids))
    return [*ids[:first_end], ends[0]]


def _expect_call(
    calls: Sequence[dict[str, Any]] | None,
    answer: dict[str, Any],
    expected: CallsAndReason,
    body: dict[str, Any],
) -> None:
    reason = answer["choices"][0]["finish_reason"]
    found: object
    try:
        found = [
            (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls or []
        ]
    except (KeyError, TypeError, ValueError) as error:
        found = f"{calls}: {error!r}"
    if (found, reason) != expected:
        raise GuaranteeError(
            f"{(found, reason)}", f"{expected}", f"teach the model to say so; {describe_request(PATH, body)}"
        )


def _joined(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the calls of a stream, each joined from its pieces."""
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for piece in chunk["choices"][0]["delta"].get("tool_calls") or []:
            function = calls.setdefault(piece["index"], {"name": "", "arguments": ""})
            for name, text in (piece.get("function") or {}).items():
                function[name] += text or ""
    return [{"function": calls[index]} for index in sorted(calls)]
