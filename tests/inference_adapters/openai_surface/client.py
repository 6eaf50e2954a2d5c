"""A server accessed through OpenAI's client, and the list of checks.

OpenAI's client builds its objects without checking types. So each response is also parsed strictly.
"""

import json
import urllib.error
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
NAME = "a-name"  # in addition to the model's own: `--served-model-name`
TOKENS = 12


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
        self.strict = self.contract["engine"] != "vllm"  # vLLM has more fields and checks types less strictly

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
        """Returns the chunks of a stream.

        It fills in finish reasons, which the client's type requires in each chunk.
        """
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
        """Returns the client's arguments.

        Most fields go in `extra_body`, because the client accepts only known ones.
        """
        named = {name: fields[name] for name in ("messages", "prompt", "model") if name in fields}
        asked = usual | {"model": self.model} | named
        others = {name: value for name, value in fields.items() if name not in named}
        return asked | {"extra_body": {"max_tokens": TOKENS, "temperature": 0} | others}

    def asked(self, path: str, body: dict | None = None, method: str | None = None):
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        return urllib.request.urlopen(request, timeout=HANG_S)


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
