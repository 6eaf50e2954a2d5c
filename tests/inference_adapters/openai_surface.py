"""What clients of OpenAI's API get, the same from every engine: run on each by `CHECKS`.

OpenAI's client builds its objects without a look at their types. So each answer is read again, strictly.
"""

import json
import math
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
        """The client's type wants the finish reason of a whole answer, which a chunk does not have."""
        chunks = list(self._events("completions", PROMPT_FIELDS, fields))
        for choice in [choice for chunk in chunks for choice in chunk["choices"]]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        return [Completion.model_validate(chunk) for chunk in chunks]

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


# --- streams -----------------------------------------------------------------------------------------


@check
def a_stream_tells_its_usage_if_asked(server: Surface) -> None:
    asked = {"stream_options": {"include_usage": True}}
    for n in (1, 2):
        fields = {"n": n, "temperature": 1, "max_tokens": 5, "logprobs": True}
        chunks = server.raw_chat_stream(**fields, **asked)
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        sampled = sum(len(choice.get("token_ids") or ()) for choice in choices)
        last = ChatCompletionChunk.model_validate(chunks[-1])
        assert last.choices == [] and last.usage.total_tokens == sampled + last.usage.prompt_tokens
        assert last.usage.completion_tokens == sampled
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    texts = server.text_stream(**asked)
    assert texts[-1].usage == server.text().usage and texts[-1].choices == []
    assert not any(chunk.get("usage") for chunk in server.raw_chat_stream())
    assert refused(server.chat, **asked).param == "stream_options"
    wrong = {"stream": True, "stream_options": {"include_usage": True, "more": 1}}
    assert refused(server.chat, **wrong).param == "stream_options"


@check
def the_clients_own_stream_takes_several_choices(server: Surface) -> None:
    """It wants the first chunks in the order of the choices."""
    with server.client.chat.completions.stream(
        model=server.model, messages=MESSAGES, max_tokens=TOKENS, temperature=1, n=4
    ) as stream:
        for _ in stream:
            pass
        whole = stream.current_completion_snapshot
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert all(choice.finish_reason for choice in whole.choices)


# --- stop strings ------------------------------------------------------------------------------------


@check
def a_stop_string_ends_the_completion(server: Surface) -> None:
    """At the token that completes it, which is in the ids; the text ends before it."""
    free = server.chat(logprobs=True).choices[0]
    text = free.message.content
    pieces = [token.token for token in free.logprobs.content]
    for stop in {text[3:5], text[0], text[-1], text[2:9]}:
        answer = server.chat(logprobs=True, stop=[stop, "never said"])
        choice = answer.choices[0]
        kept = next(i for i in range(1, len(pieces) + 1) if stop in "".join(pieces[:i]))
        assert choice.message.content == text[: text.index(stop)], (stop, text)
        assert choice.token_ids == free.token_ids[:kept] and choice.finish_reason == "stop"
        assert len(choice.logprobs.content) == kept == answer.usage.completion_tokens
        assert choice.weight_versions[-1]["end"] == kept
        chunks = [c for chunk in server.chat_stream(logprobs=True, stop=stop) for c in chunk.choices]
        assert "".join(chunk.delta.content or "" for chunk in chunks) == choice.message.content
        assert [i for chunk in chunks for i in getattr(chunk, "token_ids", None) or ()] == choice.token_ids
        assert chunks[-1].finish_reason == "stop" and chunks[-1].weight_versions == choice.weight_versions
        assert (
            server.text(prompt=answer.prompt_token_ids, stop=stop).choices[0].text == text[: text.index(stop)]
        )
    unstopped = server.chat(logprobs=True, stop=["never said"]).choices[0]
    assert (unstopped.token_ids, unstopped.message.content) == (free.token_ids, text)
    assert unstopped.finish_reason == free.finish_reason


@check
def of_several_stop_strings_the_first_one_counts(server: Surface) -> None:
    text = server.text().choices[0].text
    stops = [text[6:8], text[2:4], "never said", "nor this", "nor that"]
    first = min(text.index(stop) + 2 for stop in stops[:2])
    assert server.text(stop=stops).choices[0].text == text[: first - 2]


# --- log-probabilities -------------------------------------------------------------------------------


@check
def the_likeliest_tokens_come_with_each(server: Surface) -> None:
    for fields in ({}, {"temperature": 1.7, "max_tokens": 40}):
        content = server.chat(logprobs=True, top_logprobs=3, **fields).choices[0].logprobs.content
        for token in content:
            tops = [top.logprob for top in token.top_logprobs]
            assert len(tops) == 3 and tops == sorted(tops, reverse=True) and tops[0] <= 1e-4
            assert token.logprob <= tops[0] + 1e-4
            if token.token in [top.token for top in token.top_logprobs]:
                (same,) = [top.logprob for top in token.top_logprobs if top.token == token.token]
                assert same == pytest.approx(token.logprob, abs=1e-4)
            else:
                assert token.logprob <= tops[-1] + 1e-4
            assert fields or token.token == token.top_logprobs[0].token
    streamed = [c for chunk in server.chat_stream(logprobs=True, top_logprobs=3) for c in chunk.choices]
    tokens = [token for chunk in streamed if chunk.logprobs for token in chunk.logprobs.content or ()]
    assert all(len(token.top_logprobs) == 3 for token in tokens) and len(tokens) > 3
    none = server.chat(logprobs=True, top_logprobs=0).choices[0].logprobs.content
    assert all(token.top_logprobs == [] for token in none)
    assert refused(server.chat, logprobs=True, top_logprobs=21).param == "top_logprobs"
    assert refused(server.chat, top_logprobs=2).param == "top_logprobs"


@check
def what_truncation_cuts_is_not_among_the_likeliest(server: Surface) -> None:
    if "truncation" in server.contract["capabilities"]:
        asked = {"logprobs": True, "top_logprobs": 5, "top_k": 2, "temperature": 1}
        for token in server.chat(**asked).choices[0].logprobs.content:
            masses = [math.exp(top.logprob) for top in token.top_logprobs]
            assert len(masses) == 2 and sum(masses) == pytest.approx(1, abs=1e-4)


@check
def the_text_route_has_the_classic_form_too(server: Surface) -> None:
    for asked in (0, 2):
        choice = server.text(logprobs=asked).choices[0]
        form = choice.logprobs
        assert "".join(form.tokens) == choice.text
        assert form.text_offset == [len("".join(form.tokens[:i])) for i in range(len(form.tokens))]
        for token, logprob, tops in zip(form.tokens, form.token_logprobs, form.top_logprobs, strict=True):
            assert tops[token] == pytest.approx(logprob, abs=1e-4)
            assert max(1, asked) <= len(tops) <= asked + 1
        chunks = [
            c.logprobs for chunk in server.text_stream(logprobs=asked) for c in chunk.choices if c.logprobs
        ]
        for name in ("tokens", "text_offset"):
            assert [value for chunk in chunks for value in getattr(chunk, name)] == getattr(form, name)
    assert refused(server.text, logprobs=21).param == "logprobs"
    ours = server.raw_text(logprobs=True)["choices"][0]
    assert len(ours["logprobs"]["content"]) == len(ours["token_ids"])


# --- several prompts ---------------------------------------------------------------------------------


@check
def several_prompts_are_answered_like_each_alone(server: Surface) -> None:
    ids = [[5, 6, 7], [20, 21], [40, 41, 42, 43]]
    for prompts in (ids, ["1 + 1", "2 * 3 =", "7"]):
        alone = [server.raw_text(prompt=prompt, logprobs=True) for prompt in prompts]
        answer = server.raw_text(prompt=prompts, logprobs=True)
        Completion.model_validate(server.raw_text(prompt=prompts))
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        for choice, one in zip(answer["choices"], alone, strict=True):
            assert choice["prompt_token_ids"] == one["prompt_token_ids"]
            assert choice["token_ids"] == one["choices"][0]["token_ids"]
            assert choice["text"] == one["choices"][0]["text"]
        assert "prompt_token_ids" not in answer
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert answer["usage"][name] == sum(one["usage"][name] for one in alone)
        streamed = [choice for chunk in server.text_stream(prompt=prompts) for choice in chunk.choices]
        for index, one in enumerate(alone):
            text = "".join(choice.text for choice in streamed if choice.index == index)
            assert text == one["choices"][0]["text"]
    many = server.raw_text(prompt=ids, n=2, temperature=1, logprobs=True)
    prompts = [choice["prompt_token_ids"] for choice in many["choices"]]
    assert prompts == [prompt for prompt in ids for _ in range(2)]
    assert many["usage"]["prompt_tokens"] == sum(map(len, ids))
    for wrong in ([], [[]], ["1", ""], ["1", [5]], ["1"] * 1025, [[5], [-1]]):
        assert refused(server.text, prompt=wrong).code == "invalid_request", wrong
