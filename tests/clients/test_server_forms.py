"""Answers in arrays: who is asked for them, and which of them are taken."""

import asyncio
import base64
import struct

import numpy as np
import pytest

from contracts.records import VersionSpan
from pipelinerl.clients.completions import Sampling
from pipelinerl.clients.faults import (
    InvalidResponseError,
    RequestRefusedError,
    ServerUnavailableError,
)
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.server_forms import ServerForms
from pipelinerl.domains.base import Answer
from tests.clients.fake_servers import FakeServer, good_answer, served

MESSAGES = [{"role": "user", "content": "x"}]
SAMPLING = Sampling("m", 1.0, 8, vocabulary=50)
NUMBER = -0.30000001192092896  # a float32


def written(form: str, values: list) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}{form}", *values)).decode()


def in_arrays(**changes: object) -> dict:
    """A good answer of three tokens in arrays, with changes to its choice."""
    answer = good_answer(3)
    del answer["prompt_token_ids"]
    (choice,) = answer["choices"]
    del choice["token_ids"], choice["logprobs"]
    choice |= {"token_ids_base64": written("i", [3, 4, 5]), "logprobs_base64": written("f", [NUMBER] * 3)}
    choice |= changes
    return answer | {"prompt_token_ids_base64": written("i", [1, 2])}


def ask(*steps, **options) -> tuple[FakeServer, list[Answer | Exception]]:
    """Returns the server, and what each request gives; before it the server becomes what a step says."""

    async def scenario():
        async with served(server), open_session(token=None) as session:
            answers = ServerForms(session)
            for step in steps or ({},):
                for name, value in step.items():
                    setattr(server, name, value)
                try:
                    found.append(await answers.complete(server.url, MESSAGES, SAMPLING))
                except Exception as error:
                    found.append(error)

    server = FakeServer(**options)
    found: list[Answer | Exception] = []
    asyncio.run(scenario())
    return server, found


def test_a_server_that_declares_them_is_asked_for_arrays():
    server, (first, again) = ask({}, {}, capabilities=["seed", "arrays"], array_answer=in_arrays())
    assert [request["arrays"] for request in server.requests] == [True, True]
    assert server.contracts == 1
    for answer in (first, again):
        completion = answer.completion
        assert completion.prompt_token_ids.tolist() == [1, 2] and completion.token_ids.tolist() == [3, 4, 5]
        assert completion.token_ids.dtype == np.int32 and completion.logprobs.dtype == np.float32
        assert completion.logprobs.tolist() == [NUMBER] * 3
        assert completion.spans == [VersionSpan(0, 0, 3)] and answer.text == "hi"


@pytest.mark.parametrize("capabilities", [["seed"], None])
def test_another_server_is_sent_the_request_as_it_always_was(capabilities):
    server, (first, again) = ask({}, {}, capabilities=capabilities)
    assert [sorted(request) for request in server.requests] == [
        ["logprobs", "max_tokens", "messages", "model", "temperature"]
    ] * 2
    assert server.contracts == 1
    assert first.completion.token_ids.tolist() == again.completion.token_ids.tolist() == [3, 4]


def test_a_server_that_was_not_available_is_asked_anew():
    away = {"fault": "unhealthy"}
    other = {"fault": None, "capabilities": ["seed"]}
    server, found = ask({}, away, other, capabilities=["arrays"], array_answer=in_arrays())
    assert isinstance(found[1], ServerUnavailableError)
    assert server.contracts == 2 and "arrays" not in server.requests[-1]
    assert found[2].completion.token_ids.tolist() == [3, 4]


def test_a_server_that_refuses_arrays_is_asked_for_lists_from_then_on():
    other = {"array_answer": None}
    server, found = ask({}, other, {}, capabilities=["arrays"], array_answer=in_arrays())
    assert [request.get("arrays") for request in server.requests] == [True, True, None, None]
    assert [answer.completion.token_ids.tolist() for answer in found] == [[3, 4, 5], [3, 4], [3, 4]]


def test_what_is_refused_for_another_reason_is_not_asked_again():
    fault = "refused as invalid"
    server, (error,) = ask(capabilities=["arrays"], fault=fault)
    assert isinstance(error, RequestRefusedError) and len(server.requests) == 1


WRONG = {
    "no base64": {"token_ids_base64": "???="},
    "half a number": {"token_ids_base64": written("i", [3, 4, 5])[:-4]},
    "doubles": {"logprobs_base64": written("d", [NUMBER] * 3)},
    "a list": {"token_ids_base64": [3, 4, 5]},
    "an id below 0": {"token_ids_base64": written("i", [3, -4, 5])},
    "an id beyond the vocabulary": {"token_ids_base64": written("i", [3, 4, 50])},
    "a log-probability that is not finite": {"logprobs_base64": written("f", [NUMBER, float("nan"), -1])},
    "a log-probability that is none": {"logprobs_base64": written("f", [NUMBER, 1.0, -1])},
    "no log-probabilities": {"logprobs_base64": ""},
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_arrays_are_an_answer_outside_the_contract(fault):
    _, (error,) = ask(capabilities=["arrays"], array_answer=in_arrays(**WRONG[fault]))
    assert isinstance(error, InvalidResponseError), error


def test_lists_are_no_answer_in_arrays():
    _, (error,) = ask(capabilities=["arrays"], array_answer=good_answer(3))
    assert isinstance(error, InvalidResponseError) and "token_ids_base64" in str(error)


@pytest.mark.parametrize("prompt", [[], [7, 7]])
def test_an_answer_to_another_prompt_is_outside_the_contract(prompt):
    async def scenario():
        async with served(server), open_session(token=None) as session:
            await ServerForms(session).complete(server.url, [1, 2], SAMPLING)

    answer = in_arrays() | {"prompt_token_ids_base64": written("i", prompt)}
    server = FakeServer(capabilities=["arrays"], array_answer=answer)
    with pytest.raises(InvalidResponseError, match="prompt"):
        asyncio.run(scenario())
