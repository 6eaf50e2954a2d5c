"""What each field of a request for a chat completion does. All rules are in the table of this module."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from extensions.agents.endpoint.history import Chains, chains_of

OVERRIDDEN = {  # the run decides
    *("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty"),
    *("repetition_penalty", "user", "metadata", "store", "service_tier", "verbosity", "reasoning_effort"),
    *("reasoning", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
    *("parallel_tool_calls", "logprobs", "top_logprobs", "ignore_eos", "skip_special_tokens"),
}
HONOURED = {"model", "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stop"}
HONOURED |= {"stream", "stream_options"}
NEUTRAL: dict[str, Sequence[Any]] = {  # what these fields may say; anything else changes what is sampled
    "n": [1],
    "best_of": [1],
    "logit_bias": [{}],
    "response_format": [{"type": "text"}],
    "modalities": [["text"]],
    "functions": [[]],
    "function_call": ["none", "auto"],
    "chat_template_kwargs": [{}],
}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MOST_STOPS = 4
DEEPEST = 64  # nested values; deeper ones could not be rendered
MOST_VALUES = 200_000


class RefusedError(Exception):
    """A request that is not answered. code, param: of OpenAI's errors. status: of HTTP."""

    def __init__(
        self, message: str, param: str | None = None, code: str = "invalid_request", status: int = 400
    ):
        super().__init__(message)
        self.code = code
        self.param = param
        self.status = status

    @property
    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class ChatRequest:
    """A request that is answered.

    chains: digests of the conversation. shows_usage: True if a stream ends with the usage.
    counts: what was overridden, by the name of a metric.
    """

    model: str
    messages: list[dict[str, Any]]
    chains: Chains
    tools: list[dict] | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    streams: bool = False
    shows_usage: bool = False
    counts: Counter[str] = field(default_factory=Counter)


def read_request(raw: bytes, refuses_forced_calls: bool = False) -> ChatRequest:
    """Returns the request in a body. Raises RefusedError."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError(f"the body is no JSON: {error}", code="bad_request") from error
    if not isinstance(body, dict):
        raise RefusedError("the body is no JSON object", code="bad_request")
    _check_size(body)
    given = {name: value for name, value in body.items() if value is not None}
    counts: Counter[str] = Counter()
    for name, value in given.items():
        if name in OVERRIDDEN:
            counts[f"overridden_{name}"] += 1
        elif name not in HONOURED and value not in NEUTRAL.get(name, ()):
            raise _unsupported(name, f"{name} would change what is sampled, which only the run decides")
    tools = _tools(given, counts, refuses_forced_calls)
    messages = _messages(given.get("messages"))
    options = given.get("stream_options")
    return ChatRequest(
        str(given.get("model", "policy")),
        messages,
        chains_of(messages, tools),
        tools,
        _max_tokens(given),
        _stop(given.get("stop")),
        given.get("stream") is True,
        isinstance(options, Mapping) and options.get("include_usage") is True,
        counts,
    )


def _unsupported(param: str, message: str) -> RefusedError:
    return RefusedError(message, param, "unsupported_parameter")


def _tools(given: Mapping[str, Any], counts: Counter[str], refuses_forced: bool) -> list[dict] | None:
    tools = given.get("tools")
    if tools is not None and not _are_tools(tools):
        raise RefusedError('tools must be a list of {"type": "function", "function": {"name", ...}}', "tools")
    choice = given.get("tool_choice", "auto")
    if choice == "none":
        return None
    if choice != "auto":
        if refuses_forced:
            raise _unsupported("tool_choice", "a forced call has the probabilities of another distribution")
        counts["forced_calls"] += 1
    return tools or None


def _are_tools(tools: Any) -> bool:
    return isinstance(tools, list) and all(
        isinstance(tool, dict)
        and tool.get("type") == "function"
        and isinstance(tool.get("function"), dict)
        and isinstance(tool["function"].get("name"), str)
        for tool in tools
    )


def _max_tokens(given: Mapping[str, Any]) -> int | None:
    limits = [given[name] for name in ("max_completion_tokens", "max_tokens") if name in given]
    if any(not isinstance(limit, int) or isinstance(limit, bool) or limit < 1 for limit in limits):
        raise RefusedError("max_tokens must be a positive whole number", "max_tokens")
    return min(limits, default=None)


def _stop(stop: Any) -> tuple[str, ...]:
    texts = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(texts, list) or len(texts) > MOST_STOPS or not all(_is_text(text) for text in texts):
        raise RefusedError(f"stop must be a text, or at most {MOST_STOPS} texts, none of them empty", "stop")
    return tuple(texts)


def _is_text(text: Any) -> bool:
    return isinstance(text, str) and text != ""


def _messages(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise RefusedError("messages must be a list of at least one message", "messages")
    read = [_message(message, place) for place, message in enumerate(messages)]
    if read[-1]["role"] == "assistant":
        raise _unsupported("messages", "the last message is the assistant's; the model does not continue it")
    return read


def _message(message: Any, place: int) -> dict[str, Any]:
    """Returns the message with what a chat template reads: role, content, calls, ids and names."""
    param = f"messages[{place}]"
    given = message.get("role") if isinstance(message, dict) else None
    role = ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise RefusedError(f"{param} needs a role: one of {', '.join(ROLES)}", param)
    read = {"role": role, "content": _text(message.get("content"), param)}
    calls = message.get("tool_calls")
    if role == "assistant" and calls:
        if not _are_calls(calls):
            raise RefusedError(f"{param}.tool_calls must be calls of functions, as they were given", param)
        read["tool_calls"] = calls
    for name in ("tool_call_id", "name", "reasoning_content"):  # some templates show earlier thoughts
        if isinstance(message.get(name), str):
            read[name] = message[name]
    return read


def _text(content: Any, param: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RefusedError(f"{param}.content must be a text, or a list of parts", param)
    texts = [part.get("text", part.get("refusal")) if isinstance(part, dict) else part for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise _unsupported(param, f"{param} has parts that are no text, which this run does not train on")
    return "\n".join(texts)


def _are_calls(calls: Any) -> bool:
    return isinstance(calls, list) and all(
        isinstance(call, dict)
        and isinstance(call.get("id"), str)
        and isinstance(call.get("function"), dict)
        and isinstance(call["function"].get("name"), str)
        and isinstance(call["function"].get("arguments"), str)
        for call in calls
    )


def _check_size(value: Any) -> None:
    """Raises RefusedError if values are nested too deep, or are too many."""
    level = [value]
    seen = 0
    for _ in range(DEEPEST):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        seen += len(level)
        if not level:
            return
        if seen > MOST_VALUES:
            break
    raise RefusedError(
        f"the body has more than {MOST_VALUES} values, or more than {DEEPEST} nested ones", code="bad_request"
    )
