"""Conversations as token ids, of which short ones are kept."""

import asyncio

import pytest

from contracts.inference import ChatCompletionRequest
from inference_adapters.prompts import MOST_KEPT, ChatPrompts
from inference_adapters.text_checks import SHORT


class Engine:
    """Counts what it encodes: the ids are the numbers of the characters."""

    def __init__(self):
        self.encoded = 0

    def max_context(self) -> int:
        return 10_000

    def encode_chat(self, messages, tools, *options) -> list[int]:
        self.encoded += 1
        return [ord(character) for character in f"{messages}{tools}{options}"]


@pytest.fixture
def engine() -> Engine:
    return Engine()


def asked(text: str, **fields) -> ChatCompletionRequest:
    return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": text}], **fields)


def ids(prompts: ChatPrompts, body: ChatCompletionRequest) -> list[int]:
    return asyncio.run(prompts.of(body))


def test_a_conversation_is_encoded_once_and_nobody_can_change_what_is_kept(engine):
    prompts = ChatPrompts(engine)
    first = ids(prompts, asked("2 + 3 ="))
    whole = list(first)
    first.append(0)
    assert ids(prompts, asked("2 + 3 =", temperature=0.5)) == whole
    assert engine.encoded == 1


def test_conversations_that_differ_in_anything_have_their_own_ids(engine):
    prompts = ChatPrompts(engine)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    bodies = [asked("2"), asked("3"), asked("2", tools=[tool])]
    bodies += [asked("2", chat_template_kwargs={"loud": value}) for value in (True, 1, 1.0, "true")]
    found = [ids(prompts, body) for body in bodies + bodies]
    assert found[:7] == found[7:] and len(set(map(tuple, found))) == 7
    assert engine.encoded == 7


def test_an_engine_without_options_is_given_none(engine):
    engine.encode_chat = lambda messages, tools: [len(messages)]
    prompts = ChatPrompts(engine)
    assert ids(prompts, asked("2")) == ids(prompts, asked("3", chat_template_kwargs={})) == [1]


def test_no_more_than_so_many_are_kept_and_no_long_one(engine):
    prompts = ChatPrompts(engine)
    for number in range(MOST_KEPT + 1):
        ids(prompts, asked(str(number)))
    ids(prompts, asked(str(MOST_KEPT)))
    assert engine.encoded == MOST_KEPT + 1
    ids(prompts, asked("0"))
    assert engine.encoded == MOST_KEPT + 2
    for _ in range(2):
        ids(prompts, asked("x" * SHORT))
    assert engine.encoded == MOST_KEPT + 4
