"""Checks of what OpenAI's own client needs and the kit does not ask; `CHECKS` runs them on each engine.

OpenAI's client builds its objects without checking types. So each response is also parsed strictly.
"""

import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.inference_adapters.servers import contract
from tests.limits import HANG_S

MESSAGES = [{"role": "user", "content": "1 + 1 ="}]
USUAL = {"chat/completions": {"messages": MESSAGES}, "completions": {"prompt": "1 + 1 ="}}
NAME = "a-name"  # in addition to the model's own: `--served-model-name`
TOKENS = 12
SIGN = {"type": "object", "properties": {"sign": {"type": "boolean"}}, "required": ["sign"]}
SIGN["additionalProperties"] = False  # with `strict`, the model's choice is short
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": SIGN, "strict": True}}
    for name in ("add", "negate")
]


@dataclass
class Surface:
    """A server, accessed through OpenAI's client."""

    url: str
    token: str | None = None

    def __post_init__(self) -> None:
        self.client = openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=self.token or "none", max_retries=0, timeout=HANG_S
        )
        self.contract = contract(self.url, self.token)
        self.model = self.contract["model"]

    def chat(self, **fields: Any) -> ChatCompletion:
        body = self._body("chat/completions", fields)
        asked = {"model": body.pop("model"), "messages": body.pop("messages"), "extra_body": body}
        return ChatCompletion.model_validate_json(
            self.client.chat.completions.with_raw_response.create(**asked).text
        )

    def text(self, **fields: Any) -> Completion:
        body = self._body("completions", fields)
        asked = {"model": body.pop("model"), "prompt": body.pop("prompt"), "extra_body": body}
        return Completion.model_validate_json(self.client.completions.with_raw_response.create(**asked).text)

    def events(self, route: str, **fields: Any) -> Iterator[dict]:
        """Yields the chunks of a stream."""
        body = self._body(route, fields) | {"stream": True}
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/{route}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            for line in answer:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    yield json.loads(line[6:])

    def _body(self, route: str, fields: dict) -> dict:
        return {"model": self.model, "max_tokens": TOKENS, "temperature": 0} | USUAL[route] | fields


CHECKS: list[Callable[[Surface], None]] = []


def check(function: Callable[[Surface], None]) -> Callable[[Surface], None]:
    CHECKS.append(function)
    return function


def refused(ask: Callable[..., Any], **fields: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as raised:
        ask(**fields)
    error = raised.value
    assert error.type == "invalid_request_error" and error.status_code == 400, error
    assert error.code in ("invalid_request", "unsupported_parameter", "context_length_exceeded"), error
    return error


@check
def the_model_has_its_names(server: Surface) -> None:
    names = [model.id for model in server.client.models.list()]
    assert names == [server.model, NAME]
    for name in names:
        assert server.client.models.retrieve(name).id == name
        assert server.chat(model=name).model == server.text(model=name).model == name
    for ask in (server.client.models.retrieve, lambda name: server.chat(model=name)):
        with pytest.raises(openai.NotFoundError) as unknown:
            ask("no-such-model")
        assert (unknown.value.param, unknown.value.type) == ("model", "invalid_request_error")


@check
def the_likeliest_tokens_are_streamed_too_and_the_sampled_one_is_among_them(server: Surface) -> None:
    asked = {"logprobs": True, "top_logprobs": 3}
    chunks = [ChatCompletionChunk.model_validate(c) for c in server.events("chat/completions", **asked)]
    parts = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs]
    streamed = [token for part in parts for token in part.content or ()]
    whole = server.chat(**asked).choices[0].logprobs.content
    assert [token.token for token in streamed] == [token.token for token in whole]
    assert all(len(one.top_logprobs) == 3 and one.top_logprobs[0].token == one.token for one in streamed)
    assert refused(server.chat, top_logprobs=2).param == "top_logprobs"


@check
def the_classic_form_gives_the_text_and_is_streamed_in_parts(server: Surface) -> None:
    choice = server.text(logprobs=2).choices[0]
    form = choice.logprobs
    assert "".join(form.tokens) == choice.text
    assert form.text_offset == [len("".join(form.tokens[:i])) for i in range(len(form.tokens))]
    for token, logprob, tops in zip(form.tokens, form.token_logprobs, form.top_logprobs, strict=True):
        assert tops[token] == pytest.approx(logprob, abs=1e-4) and 2 <= len(tops) <= 3
    choices = [choice for chunk in server.events("completions", logprobs=2) for choice in chunk["choices"]]
    parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    for name in ("tokens", "text_offset"):
        assert [value for part in parts for value in part[name]] == getattr(form, name)


@check
def other_parts_are_refused_by_name(server: Surface) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    for part in (image, {"type": "input_audio", "input_audio": {}}, {"type": "file", "file": {}}):
        content = [{"type": "text", "text": "1"}, part]
        error = refused(server.chat, messages=[{"role": "user", "content": content}])
        assert (error.code, error.param) == ("unsupported_parameter", "messages[0].content[1]")
        assert part["type"] in error.message
    for part in ({"type": "text"}, {"text": "1"}, {"type": "text", "text": 1}):
        error = refused(server.chat, messages=[{"role": "user", "content": [part]}])
        assert (error.code, error.param) == ("invalid_request", "messages[0].content[0]")


@check
def a_refusal_names_the_field(server: Surface) -> None:
    for asked in ({"store": True}, {"metadata": {"a": "b"}}, {"modalities": ["audio"]}):
        (name,) = asked
        error = refused(server.chat, **asked)
        assert (error.code, error.param) == ("unsupported_parameter", name) and name in error.message
    for asked in (
        {"temperature": -1}, {"stream_options": {"include_usage": True}}, {"stop": [""]},
        {"stream_options": {"include_usage": True, "more": 1}, "stream": True},
    ):  # fmt: skip
        assert refused(server.chat, **asked).param == next(iter(asked))
    for prompt in ([], [[]], ["1", ""], ["1", [5]], ["1"] * 1025, [[5], [-1]]):
        assert refused(server.text, prompt=prompt).param == "prompt"
    if server.token:
        with pytest.raises(openai.AuthenticationError) as stranger:
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="no", max_retries=0).models.list()
        assert stranger.value.code == "unauthorized"


@check
def the_clients_own_stream_takes_several_choices_and_the_usage(server: Surface) -> None:
    """The client requires the first chunks in the order of the choices."""
    asked = {"max_tokens": TOKENS, "temperature": 1, "n": 4, "stream_options": {"include_usage": True}}
    with server.client.chat.completions.stream(model=server.model, messages=MESSAGES, **asked) as stream:
        for _ in stream:
            pass
        whole = stream.current_completion_snapshot
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert all(choice.finish_reason for choice in whole.choices)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens > 4


@check
def a_call_is_forced_or_refused_by_name(server: Surface) -> None:
    declared = server.contract["capabilities"]
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        asked = {"tools": TOOLS, "tool_choice": choice, "temperature": 1, "max_tokens": 600}
        if "forced_calls" in declared:
            _is_a_call(server, asked, {"add", "negate"} if choice == "required" else {"add"})
        else:
            error = refused(server.chat, **asked)
            assert error.code == "unsupported_parameter", error
            assert error.param == ("tool_choice" if "tools" in declared else "tools")
    assert refused(server.chat, tool_choice="required").param == "tool_choice"


def _is_a_call(server: Surface, asked: dict, names: set[str]) -> None:
    """Samples at temperature 1, at which a random model would otherwise almost never call."""
    answer = server.chat(**asked, n=16, logprobs=True)
    ended = [one for one in answer.choices if one.finish_reason != "length"]
    assert ended  # the others filled their tokens with white space and further calls
    for one in ended:
        assert {call.function.name for call in one.message.tool_calls} <= names
        assert one.finish_reason == ("stop" if names == {"add"} else "tool_calls")
        for call in one.message.tool_calls:
            assert set(json.loads(call.function.arguments)) == {"sign"}, call
    for one in answer.choices:
        assert len(one.token_ids) == len(one.logprobs.content) == one.weight_versions[-1]["end"]
