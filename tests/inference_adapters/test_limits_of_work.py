"""What is checked before work is done, and that reading a text holds up nobody."""

import asyncio
from collections.abc import Iterator

import pytest

from contracts.errors import ContractError
from contracts.inference import ChatCompletionRequest, GenerationRequest
from inference_adapters.completion_slots import CompletionSlots
from inference_adapters.request_checks import sampling_parameters
from inference_adapters.text_checks import check_text, conversation_text
from tests.inference_adapters.held_engine import HELD
from tests.inference_adapters.servers import Server, serving, wait_ready
from tests.inference_adapters.slow_tokenizer import LONG, SLOTS
from tests.inference_adapters.trainer_peer import trainer_of

CHAT = {"model": "scripted", "max_tokens": 5}


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    with serving("tests.inference_adapters.slow_tokenizer") as server:
        wait_ready(server.url)
        yield server


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_others_are_answered_while_a_long_text_is_read(slow, path):
    text = "x" * LONG
    asked = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
    async with trainer_of(slow.url) as trainer:
        reading = asyncio.create_task(trainer.post(path, CHAT | asked))
        while not reading.done():
            assert (await trainer.get("/contract"))[0] == 200
            await asyncio.sleep(0.01)
        status, body = await reading
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded"), body


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
async def test_who_finds_no_place_is_told_to_come_again(slow, stream):
    async with trainer_of(slow.url) as trainer:
        taken = {"model": "scripted", "prompt": HELD, "max_tokens": 3000}
        held = [
            asyncio.create_task(
                trainer.http.post(slow.url + "/v1/completions", json=taken | {"stream": stream})
            )
            for _ in range(SLOTS)
        ]
        await trainer.wait_running(SLOTS)
        status, body = await trainer.post("/v1/completions", CHAT | {"prompt": "hi"})
        assert (status, body["error"]["code"]) == (503, "overloaded")
        for task in held:
            (await task).close() if stream else task.cancel()
        await trainer.wait_running(0)
        assert (await trainer.post("/v1/completions", CHAT | {"prompt": "hi", "n": SLOTS}))[0] == 200
        assert (await trainer.post("/v1/completions", CHAT | {"prompt": "hi", "n": SLOTS + 1}))[0] == 503


def test_places_are_given_back_where_a_request_fails():
    slots = CompletionSlots(3)
    with pytest.raises(KeyError), slots.acquired(3):
        raise KeyError
    with (
        slots.acquired(3),
        pytest.raises(ContractError, match="3 completions are under way"),
        slots.acquired(1),
    ):
        pass
    assert slots.taken == 0


def test_prompts_that_never_find_places_are_refused_for_good():
    slots = CompletionSlots(6)
    slots.check_prompts(3, 2)
    slots.check_prompts(1, 7)  # its n is within the limits of every server
    with pytest.raises(ContractError, match="3 prompts of 3 choices; 6 may be under way") as refused:
        slots.check_prompts(3, 3)
    assert (refused.value.code.code, refused.value.param) == ("invalid_request", "prompt")


def test_a_text_that_cannot_fit_is_refused_before_it_is_read():
    assert check_text("prompt", "x" * 60_000, max_context=100) == 60_000
    for characters, context in [(70_000, 100), (129 * 2000, 2000), (2**21 + 1, 10**6)]:
        with pytest.raises(ContractError, match=f"prompt: {characters} characters cannot fit") as refused:
            check_text("prompt", "x" * characters, context)
        assert refused.value.code.code == "context_length_exceeded"
    with pytest.raises(ContractError, match="half of a surrogate pair at character 1"):
        check_text("prompt", "a\ud800", 100)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (["hello"], "messages.0: it has no role"),
        ([{"role": "user", "content": "x"}, {"content": "x"}], "messages.1: it has no role"),
        ([{"role": ["user"], "content": "x"}], "it has no role, which is text"),
        ([{"role": "user", "content": 7}], "content: text, parts or null"),
        ([{"role": "user", "content": ["x"]}], "a part of content is no object"),
        ([{"role": "user", "content": "\udc00"}], "half of a surrogate pair"),
        ([{"role": "user", "content": "x" * 70_000}], "cannot fit into the context of 100 tokens"),
        ([{"role": "user", "content": "x", "tool_calls": {"\ud800": 1}}], "half of a surrogate pair"),
    ],
)
def test_a_conversation_that_no_template_can_show_is_refused(messages, says):
    with pytest.raises(ContractError, match=says):
        conversation_text(messages, None, max_context=100)


def test_the_choices_of_one_request_are_bounded_together():
    for n, max_tokens in [(128, 8193), (9, None)]:
        request = GenerationRequest(model="m", n=n, max_tokens=max_tokens)
        with pytest.raises(ContractError, match="choices of up to"):
            sampling_parameters(request, max_tokens, 1, 2**17)
    request = ChatCompletionRequest(model="m", n=128, messages=[{}])
    assert len(sampling_parameters(request, 8192, 1, 2**17)) == 128
