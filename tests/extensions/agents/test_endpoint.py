"""The endpoint, asked over HTTP: what reaches the server, what is recorded, and what is refused."""

import asyncio
import gzip
import json
from contextlib import suppress

import aiohttp
import numpy as np
import pytest
from openai import AsyncOpenAI, PermissionDeniedError

from extensions.agents.endpoint import server as server_module
from extensions.agents.endpoint import session as session_module
from extensions.agents.endpoint.requests import read_request
from extensions.agents.options import EndpointOptions
from pipelinerl.clients.faults import ServerFailedError
from pipelinerl.conversations.base import Conversation
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.domains.base import AttemptFailedError
from tests.extensions.agents.served_sessions import HELD, MOST_TOKENS, sessions_at

FIRST = {"role": "user", "content": "first"}
SECOND = {"role": "user", "content": "second"}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


class Asking:
    """Asks as one session. asked: the requests that the server was sent."""

    def __init__(self, sessions, http, name="attempt", **options):
        self._http = http
        self._sessions = sessions
        self.session, self.key = sessions.begin(name, **options)
        self.base = f"{sessions.endpoint.url}/s/{self.key}/v1"
        self.asked = sessions.proxy.requests

    async def __call__(self, *messages, **fields):
        """Returns the status and the body."""
        body = {"model": "any", "messages": list(messages), "max_tokens": 4, **fields}
        async with self._http.post(f"{self.base}/chat/completions", json=body) as answer:
            return answer.status, await answer.json()

    async def said(self, *messages, **fields):
        status, body = await self(*messages, **fields)
        assert status == 200, body
        return body["choices"][0]["message"]

    async def end(self):
        await self._sessions.endpoint.end([self.key])


def run(url, model, scenario, options=None, **of_session):
    async def ran():
        async with sessions_at(url, model, options) as sessions, aiohttp.ClientSession() as http:
            return await scenario(Asking(sessions, http, **of_session), sessions, http)

    return asyncio.run(ran())


def ids_of(completion):
    return [*completion.prompt_token_ids.tolist(), *completion.token_ids.tolist()]


def test_what_goes_on_goes_on_by_ids_and_rendered_history_is_rendered(url, model):
    async def scenario(ask, *_):
        said = await ask.said(FIRST)
        await ask.said(FIRST, said | {"content": said["content"] + "  \n"}, SECOND)
        one, two = ask.session.trained(path_only=False)
        return ids_of(one), two.prompt_token_ids.tolist(), ask.asked

    before, after, asked = run(url, model, scenario)
    encode = TemplateConversations(model).renderer.tokenizer.encode
    new = encode("\nuser: second\nassistant: ", add_special_tokens=False)
    assert after == before + new  # without what the agent made of the answer
    assert [each["prompt"] for each in asked[1:]] == [after]
    _, rendered, _ = run(url, model, scenario, renders=True)
    conversations = TemplateConversations(model)
    answer = conversations.renderer.tokenizer.decode(before[-4:], skip_special_tokens=True)
    said = {"role": "assistant", "content": answer + "  \n"}
    assert rendered == conversations.render(Conversation([FIRST, said, SECOND]))


def test_the_run_decides_how_is_sampled(url, model):
    async def scenario(ask, *_):
        await ask.said(FIRST, temperature=0.1, seed=1, top_p=0.5, max_tokens=1000, stop=["x", "y"])
        return ask.asked[0], ask.session.counts

    asked, counts = run(url, model, scenario)
    assert (asked["temperature"], asked["max_tokens"], asked["stop"]) == (1.0, MOST_TOKENS, ["x", "y"])
    assert asked["seed"] != 1 and "top_p" not in asked
    assert {name for name in counts if name.startswith("overridden")} == {
        "overridden_temperature",
        "overridden_seed",
        "overridden_top_p",
    }


def test_a_seed_depends_on_what_is_asked_and_how_often_and_not_on_the_order(url, model):
    async def scenario(ask, *_):
        await asyncio.gather(ask.said(FIRST), ask.said(SECOND))
        await ask.said(FIRST)
        return [(tuple(each["prompt"]), each["seed"]) for each in ask.asked]

    async def backwards(ask, *_):
        for message in (SECOND, FIRST, FIRST):
            await ask.said(message)
        return [(tuple(each["prompt"]), each["seed"]) for each in ask.asked]

    seeds = run(url, model, scenario)
    assert len({seed for _, seed in seeds}) == 3
    assert {*seeds} == {*run(url, model, backwards)}
    assert {*seeds} != {*run(url, model, backwards, name="another attempt")}


def test_an_answer_that_nobody_reads_is_not_recorded(url, model):
    async def scenario(ask, sessions, http):
        stop = f"{HELD}read"
        asking = asyncio.create_task(ask(FIRST, stop=stop))
        await sessions.proxy.held[stop].wait()
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        while not ask.session.counts["called_off"]:
            await asyncio.sleep(0)
        return ask.session

    session = run(url, model, scenario)
    assert session.trained(path_only=False) == [] and session.counts["answers"] == 0


def test_an_answer_whose_last_bytes_are_not_sent_is_not_recorded(url, model):
    async def scenario(ask, *_):
        await ask.said(FIRST)
        session = ask.session
        asked = read_request(json.dumps({"messages": [SECOND], "max_tokens": 3}).encode())
        reply = await session.reply(asked)

        async def fails():
            assert len(session.history.nodes) == 2  # so that the next request finds it
            raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            await session.deliver(reply, fails)
        return session

    session = run(url, model, scenario)
    assert len(session.trained(path_only=False)) == session.counts["answers"] == 1
    assert session.counts["unread"] == 3


def test_a_session_ends_once_and_calls_off_what_is_in_flight(url, model):
    async def scenario(ask, sessions, http):
        stop = f"{HELD}end"
        asking = asyncio.create_task(ask(FIRST, stop=stop))
        await sessions.proxy.held[stop].wait()
        await ask.end()
        with pytest.raises(aiohttp.ClientError):
            await asking
        return [await ask(FIRST), ask.session.counts["called_off"]]

    (status, body), called_off = run(url, model, scenario)
    assert (status, body["error"]["code"], called_off) == (403, "forbidden", 0)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/s/wrong/v1/chat/completions", "/"])
def test_without_a_key_every_path_is_forbidden(url, model, path):
    async def scenario(ask, sessions, http):
        async with http.post(sessions.endpoint.url + path, json={}) as answer:
            return answer.status

    assert run(url, model, scenario) == 403


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/responses", 404), ("/v1/messages", 404), ("/v1/embeddings", 404), ("/any/chat/completions/", 200)],
)
def test_paths(url, model, path, status):
    async def scenario(ask, sessions, http):
        headers = {"Authorization": f"Bearer {ask.key}"}
        body = {"messages": [FIRST], "max_tokens": 2}
        async with http.post(sessions.endpoint.url + path, json=body, headers=headers) as answer:
            return answer.status, await answer.text()

    found, text = run(url, model, scenario)
    assert found == status and ("chat completions" in text or status == 200)


def test_compressed_bodies_are_read(url, model):
    async def scenario(ask, sessions, http):
        body = gzip.compress(json.dumps({"messages": [FIRST], "max_tokens": 2}).encode())
        headers = {"Content-Encoding": "gzip"}
        path = f"{ask.base}/chat/completions"
        async with http.post(path, data=body, headers=headers) as answer:
            good = answer.status
        async with http.post(path, data=b"no gzip", headers=headers) as answer:
            return good, answer.status

    assert run(url, model, scenario) == (200, 400)


def test_only_the_way_to_the_last_answer_can_be_trained(url, model):
    async def scenario(ask, *_):
        one = await ask.said(FIRST)
        for _ in range(3):
            await ask.said(FIRST, one, SECOND)
        return ask.session

    session = run(url, model, scenario)
    every = session.trained(path_only=False)
    path = session.trained(path_only=True)
    assert len(every) == 4 and [np.array_equal(a, b) for a, b in zip(path, (every[0], every[3]), strict=True)]
    assert path[0] is every[0] and path[1] is every[3]


def test_a_session_that_holds_too_much_ends(url, model, monkeypatch):
    monkeypatch.setattr(session_module, "MOST_ANSWERS", 1)

    async def scenario(ask, *_):
        return [await ask(FIRST), await ask(SECOND), ask.session]

    (good, _), (bad, body), session = run(url, model, scenario)
    assert (good, bad, body["error"]["code"]) == (200, 413, "too_large")
    assert isinstance(session.failure, AttemptFailedError) and session.failure.name == "session_too_long"
    assert session.stopped.is_set()


def test_a_fault_of_a_server_is_the_attempts_whatever_the_agent_says(url, model):
    async def scenario(ask, sessions, http):
        async def fails(*_, **__):
            raise ServerFailedError("engine_failed")

        ask.session._asked = fails
        return await ask(FIRST), ask.session

    (status, body), session = run(url, model, scenario)
    assert (status, body["error"]["type"]) == (503, "server_error")
    assert isinstance(session.failure, ServerFailedError) and session.stopped.is_set()


@pytest.mark.parametrize(
    ("fields", "options", "param"),
    [
        ({"tools": TOOLS}, {"tools": False}, "tools"),
        ({"n": 2}, {}, "n"),
        ({"max_tokens": 5000}, {}, None),
    ],
)
def test_refusals(url, model, fields, options, param):
    async def scenario(ask, *_):
        said = await ask(FIRST | {"content": "x" * (3000 if param is None else 1)}, **fields)
        return *said, ask.session.counts

    status, body, counts = run(url, model, scenario, **options)
    assert (status, body["error"]["param"]) == (400, param)
    assert counts["unsupported"] == (param is not None)
    if param is None:
        assert body["error"]["code"] == "context_length_exceeded"


def test_connections_are_bounded_and_refused_fields_are_told_in_one_short_line(
    url, model, monkeypatch, caplog
):
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 4)
    monkeypatch.setattr(server_module, "MOST_TOLD", 2)

    async def scenario(ask, sessions, http):
        answers = [await ask(FIRST, **{f"{name}\n{name * 9000}": 1}) for name in "abc"]
        port = int(sessions.endpoint.url.rpartition(":")[2])
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        with suppress(ConnectionResetError):
            await streams[-1][0].read()  # ends, since it is one too many
        for _, writer in streams:
            writer.close()
        return answers

    answers = run(url, model, scenario)
    assert [status for status, _ in answers] == [400] * 3
    told = [line for line in caplog.messages if "request was refused" in line]
    assert len(told) == 2 and not any("\n" in line or len(line) > 1000 for line in told)


def test_forced_calls_can_be_refused(url, model):
    async def scenario(ask, *_):
        return await ask(FIRST, tools=TOOLS, tool_choice="required")

    assert run(url, model, scenario)[0] == 200
    assert run(url, model, scenario, EndpointOptions(forced_calls="refuse"))[0] == 400


def test_plain_openai_whole_and_streamed(url, model):
    async def scenario(ask, sessions, http):
        async with AsyncOpenAI(base_url=ask.base, api_key="any", max_retries=0) as client:
            models = [each.id async for each in client.models.list()]
            request = {"model": "policy", "messages": [FIRST], "max_tokens": 5}
            whole = await client.chat.completions.create(**request)
            options = {"include_usage": True}
            chunks = [
                chunk
                async for chunk in await client.chat.completions.create(
                    **request, stream=True, stream_options=options
                )
            ]
            await ask.end()
            with pytest.raises(PermissionDeniedError):
                await client.chat.completions.create(**request)
        return models, whole, chunks, ask.session.trained(path_only=False)

    models, whole, chunks, (one, two) = run(url, model, scenario)
    decode = TemplateConversations(model).renderer.tokenizer.decode
    assert models == ["policy"] and whole.choices[0].finish_reason == "length"
    assert whole.choices[0].message.content == decode(one.token_ids, skip_special_tokens=True)
    assert whole.usage.completion_tokens == len(one.token_ids) == 5
    streamed = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert streamed == decode(two.token_ids, skip_special_tokens=True)
    assert chunks[-1].usage.completion_tokens == 5
