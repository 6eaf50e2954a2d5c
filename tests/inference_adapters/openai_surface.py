"""What clients of OpenAI's API get, the same from every engine: run on each by `CHECKS`.

OpenAI's client builds its objects without a look at their types. So each answer is read again, strictly.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from inference_adapters.neutral_values import LABELS, NEUTRAL
from tests.inference_adapters.servers import contract

MESSAGES = [{"role": "user", "content": "1 + 1 ="}]
NAME = "a-name"  # besides the model's own: `--served-model-name`
TOKENS = 12


@dataclass
class Surface:
    """A server, seen by OpenAI's client."""

    url: str
    token: str | None = None

    def __post_init__(self) -> None:
        self.client = openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=self.token or "none", max_retries=0, timeout=60
        )
        self.contract = contract(self.url, self.token)
        self.model = self.contract["model"]
        self.strict = self.contract["engine"] != "vllm"  # vLLM honours more, and reads types more loosely

    def chat(self, **fields: Any) -> ChatCompletion:
        return ChatCompletion.model_validate(
            self._whole(self.client.chat.completions, MESSAGE_FIELDS, fields)
        )

    def text(self, **fields: Any) -> Completion:
        return Completion.model_validate(self._whole(self.client.completions, PROMPT_FIELDS, fields))

    def raw_text(self, **fields: Any) -> dict:
        return self._whole(self.client.completions, PROMPT_FIELDS, fields)

    def _whole(self, route: Any, usual: dict, fields: dict) -> dict:
        raw = route.with_raw_response.create(**self._asked(usual, fields))
        return json.loads(raw.text)

    def chat_stream(self, **fields: Any) -> list[ChatCompletionChunk]:
        chunks = self._events("chat/completions", MESSAGE_FIELDS, fields)
        return [ChatCompletionChunk.model_validate(chunk) for chunk in chunks]

    def text_stream(self, **fields: Any) -> list[Completion]:
        return [Completion.model_validate(c) for c in self._events("completions", PROMPT_FIELDS, fields)]

    def raw_chat_stream(self, **fields: Any) -> list[dict]:
        return list(self._events("chat/completions", MESSAGE_FIELDS, fields))

    def _events(self, route: str, usual: dict, fields: dict) -> Iterator[dict]:
        asked = self._asked(usual, fields)
        body = asked | asked.pop("extra_body") | {"stream": True}
        with self.asked(f"/v1/{route}", body) as answer:
            for line in answer:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    yield json.loads(line[6:])

    def _asked(self, usual: dict, fields: dict) -> dict:
        """The client itself takes only fields that it knows, so all of them go as its `extra_body`."""
        named = {name: fields[name] for name in ("messages", "prompt", "model") if name in fields}
        asked = usual | {"model": self.model} | named
        others = {name: value for name, value in fields.items() if name not in named}
        return asked | {"extra_body": {"max_tokens": TOKENS, "temperature": 0} | others}

    def asked(self, path: str, body: dict | None = None, method: str | None = None):
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        return urllib.request.urlopen(request, timeout=60)


MESSAGE_FIELDS = {"messages": MESSAGES}
PROMPT_FIELDS = {"prompt": "1 + 1 ="}
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


# --- what asks for nothing ---------------------------------------------------------------------------


@check
def neutral_values_change_nothing(server: Surface) -> None:
    every = {name: values[0] for name, values in NEUTRAL.items()} | dict.fromkeys(LABELS, "x")
    every |= {"best_of": 1, "n": 1, "tool_choice": "auto", "seed": None, "top_p": None, "logprobs": None}
    others = {name: values[-1] for name, values in NEUTRAL.items()}
    plain = server.chat()
    for fields in (every, others, dict.fromkeys([*every, "no_such_field"], None)):
        answer = server.chat(**fields)
        assert answer.choices[0].message == plain.choices[0].message, fields
        assert answer.usage == plain.usage
    plain_text = server.text()
    for fields in (every, others):
        assert server.text(**fields).choices[0].text == plain_text.choices[0].text


@check
def what_is_asked_and_not_done_is_refused_by_name(server: Surface) -> None:
    asked: dict[str, Any] = {"store": True, "metadata": {"a": "b"}, "modalities": ["audio"]}
    if server.strict:  # vLLM does some of these
        asked |= {"presence_penalty": 0.5, "frequency_penalty": -1, "logit_bias": {"5": 1}, "min_p": 0.1}
        asked |= {"response_format": {"type": "json_object"}, "parallel_tool_calls": False}
        asked |= {"repetition_penalty": 1.1, "ignore_eos": True, "echo": True, "best_of": 3}
    for name, value in asked.items():
        error = refused(server.chat, **{name: value})
        assert (error.code, error.param) == ("unsupported_parameter", name), error
        assert name in error.message


@check
def a_value_of_another_type_is_not_neutral(server: Surface) -> None:
    if server.strict:
        wrong = {
            "presence_penalty": False,
            "store": 0,
            "logit_bias": [],
            "response_format": "text",
            "user": 5,
        }
        for name, value in wrong.items():
            assert refused(server.chat, **{name: value}).param == name


# --- messages ----------------------------------------------------------------------------------------


@check
def text_parts_are_one_text(server: Surface) -> None:
    for role in ("user", "system"):
        parts = [{"type": "text", "text": "1 +"}, {"type": "text", "text": "1 =", "cache_control": {}}]
        in_parts = server.chat(messages=[{"role": role, "content": parts}, *MESSAGES], logprobs=True)
        as_text = server.chat(messages=[{"role": role, "content": "1 +\n1 ="}, *MESSAGES], logprobs=True)
        assert in_parts.prompt_token_ids == as_text.prompt_token_ids
        assert in_parts.choices[0].token_ids == as_text.choices[0].token_ids


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


# --- errors ------------------------------------------------------------------------------------------


@check
def errors_are_openais(server: Surface) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        server.chat(model="no-such-model")
    assert (unknown.value.param, unknown.value.type) == ("model", "invalid_request_error")
    assert refused(server.chat, temperature=-1).param == "temperature"
    assert refused(server.chat, max_tokens=10**7).code == "context_length_exceeded"
    assert refused(server.text, prompt="").param == "prompt"
    assert refused(server.text, stop=[""]).param == "stop"
    if server.token:
        with pytest.raises(openai.AuthenticationError) as stranger:
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="no", max_retries=0).models.list()
        assert stranger.value.code == "unauthorized"


# --- the server --------------------------------------------------------------------------------------


@check
def the_model_has_its_names(server: Surface) -> None:
    listed = server.client.models.list()
    names = [model.id for model in listed]
    assert names == [server.model, NAME]
    for name in names:
        one = server.client.models.with_raw_response.retrieve(name)
        assert Model.model_validate(json.loads(one.text)).id == name
        assert server.chat(model=name).model == name
        assert server.text(model=name).model == name
        assert {chunk.model for chunk in server.chat_stream(model=name)} == {name}
    with pytest.raises(openai.NotFoundError) as unknown:
        server.client.models.retrieve("no-such-model")
    assert unknown.value.param == "model"


@check
def health_and_version_are_told(server: Surface) -> None:
    with server.asked("/health", method="HEAD") as answer:
        assert answer.status == 200 and answer.read() == b""
    with server.asked("/version") as answer:
        assert json.load(answer)["version"] == server.contract["engine_version"]
