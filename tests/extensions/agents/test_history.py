"""Where a conversation goes on: rules on equality, on the longest history, and on what begins anew."""

import numpy as np
import pytest

from extensions.agents.endpoint.history import History, chains_of
from pipelinerl.domains.base import Answer
from tests.builders import completion

SYSTEM = {"role": "system", "content": "be brief"}
FIRST = {"role": "user", "content": "first"}
SECOND = {"role": "user", "content": "second"}
TOOLS = [{"type": "function", "function": {"name": "add"}}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}


def said(text, **more):
    return {"role": "assistant", "content": text, **more}


class Recorded(History):
    """A history whose answers are named by their texts."""

    def place_of(self, messages, tools=None):
        return self.place(chains_of(messages, tools))

    def answer(self, messages, message, tools=None):
        place = self.place_of(messages, tools)
        return self.add(place, Answer(message["content"] or "", completion([1], [2])), message, 1)


@pytest.fixture
def history():
    return Recorded()


def test_what_repeats_recorded_history_goes_on_after_it(history):
    node = history.answer([SYSTEM, FIRST], said("one"))
    place = history.place_of([SYSTEM, FIRST, said("one"), SECOND])
    assert (place.node, place.known, place.kind) == (node, 3, "")


def test_the_longest_history_wins_and_of_equal_ones_the_latest(history):
    history.answer([FIRST], said("one"))
    history.answer([FIRST], said("other"))
    longest = history.answer([FIRST, said("one"), SECOND], said("two"))
    latest = history.answer([FIRST, said("one"), SECOND], said("two"))
    place = history.place_of([FIRST, said("one"), SECOND, said("two"), FIRST])
    assert place.node is latest and place.node is not longest and place.known == 4
    history.remove(latest)
    assert history.place_of([FIRST, said("one"), SECOND, said("two"), FIRST]).node is longest


@pytest.mark.parametrize(
    "changed",
    [
        said(" one\n"),
        said("one", reasoning_content="why", annotations=[], refusal=None, name="model"),
    ],
)
def test_white_space_at_the_ends_and_what_the_model_does_not_see_are_not_compared(history, changed):
    node = history.answer([FIRST], said("one"))
    assert history.place_of([FIRST, changed, SECOND]).node is node


def test_calls_are_equal_by_id_name_and_parsed_arguments(history):
    node = history.answer([FIRST], said(None, tool_calls=[CALL]), TOOLS)
    result = {"role": "tool", "tool_call_id": "call_1", "content": "3"}

    def place(**changes):
        function = CALL["function"] | {k: v for k, v in changes.items() if k != "id"}
        call = CALL | {"function": function} | {k: v for k, v in changes.items() if k == "id"}
        return history.place_of([FIRST, said("", tool_calls=[call]), result], TOOLS).node

    assert place(arguments='{"b":2,"a":1}') is node
    assert place(arguments='{"a": 1, "b": 3}') is place(name="sub") is place(id="call_2") is None


@pytest.mark.parametrize(
    ("messages", "tools", "kind"),
    [
        ([FIRST], None, "repeated"),
        ([SECOND], None, "edited"),
        ([FIRST, said("another"), SECOND], None, "edited"),
        ([SYSTEM, FIRST, said("one"), SECOND], None, "edited"),
        ([FIRST, said("one"), SECOND], TOOLS, "tools"),
    ],
)
def test_other_history_begins_anew_and_says_why(history, messages, tools, kind):
    assert history.place_of([FIRST]).kind == "first"
    history.answer([FIRST], said("one"))
    place = history.place_of(messages, tools)
    assert (place.node, place.known, place.kind) == (None, 0, kind)


def test_an_answer_of_a_tool_is_compared_by_its_call(history):
    result = {"role": "tool", "tool_call_id": "call_1", "content": "3"}
    node = history.answer([FIRST, said(None, tool_calls=[CALL]), result], said("3"), TOOLS)
    messages = [FIRST, said(None, tool_calls=[CALL]), result, said("3"), SECOND]
    assert history.place_of(messages, TOOLS).node is node
    messages[2] = result | {"tool_call_id": "call_2"}
    assert history.place_of(messages, TOOLS).node is None


def test_the_path_leads_to_the_last_answer(history):
    root = history.answer([FIRST], said("one"))
    history.answer([FIRST, said("one"), SECOND], said("left"))
    right = history.answer([FIRST, said("one"), SECOND], said("right"))
    assert history.path() == [root, right] and len(history.nodes) == 3


def test_the_path_of_nothing_is_empty(history):
    assert history.path() == []
    assert isinstance(completion([1], [2]).token_ids, np.ndarray)
