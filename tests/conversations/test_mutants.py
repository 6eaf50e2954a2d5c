"""Faults of conversations, each of which random conversations find."""

from dataclasses import replace

import pytest

from contracts.tool_calls import parse_tool_calls
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.conversations.thoughts import CLOSING
from tests.conversations.families import template_of
from tests.conversations.random_conversations import FORMATS, Trial

ENOUGH = 40  # conversations


class KeepsStrippedThoughts(TemplateConversations):
    def must_begin_again(self, asked, answer, messages):
        return False


class BeginsAlwaysAgain(TemplateConversations):
    def extend(self, asked, completion, answer, messages):
        return None


class ReTokenizes(TemplateConversations):
    def extend(self, asked, completion, answer, messages):
        ids = super().extend(asked, completion, answer, messages)
        return ids and self.renderer.tokenizer(self.renderer.tokenizer.decode(ids))["input_ids"]


class LosesAResult(TemplateConversations):
    def extend(self, asked, completion, answer, messages):
        return super().extend(asked, completion, answer, messages[-1:])


class ReadsTextAsStructure(TemplateConversations):
    def extend(self, asked, completion, answer, messages):
        ids = super().extend(asked, completion, answer, messages)
        before = len(completion.prompt_token_ids) + len(completion.token_ids)
        tokenizer = self.renderer.tokenizer
        return ids and [*ids[:before], *tokenizer(tokenizer.decode(ids[before:]))["input_ids"]]


class DoublesTheEnd(TemplateConversations):
    def extend(self, asked, completion, answer, messages):
        ids = super().extend(asked, completion, answer, messages)
        before = len(completion.prompt_token_ids) + len(completion.token_ids)
        return ids and [*ids[:before], self.renderer.end, *ids[before:]]


class LeavesAThoughtOpen(TemplateConversations):
    def extend(self, asked, completion, answer, messages):
        ids = super().extend(asked, completion, answer, messages)
        closing = self.renderer.tokenizer(CLOSING)["input_ids"]
        before = len(completion.prompt_token_ids) + len(completion.token_ids)
        if ids and ids[before:][: len(closing)] == closing:
            return [*ids[:before], *ids[before + len(closing) :]]
        return ids


class CallsInAThought(TemplateConversations):
    def parse(self, asked, completion, text=None):
        found = super().parse(asked, completion, text)
        decoded = self.renderer.text_of(completion.token_ids.tolist())
        _, calls = parse_tool_calls(decoded.replace("<think>", "").replace("</think>", ""))
        return type(found)(found.text, found.content, found.thought, found.thinks, calls)


class EndsNoCutAnswer(TemplateConversations):
    def extend(self, asked, completion, answer, messages):
        ids = super().extend(asked, completion, answer, messages)
        before = len(completion.prompt_token_ids) + len(completion.token_ids)
        return ids and [*ids[:before], *(i for i in ids[before:] if i != self.renderer.end)]


class ForgetsTheOpening(TemplateConversations):
    def render(self, conversation):
        return super().render(replace(conversation, messages=conversation.messages[-1:]))


MUTANTS = [
    KeepsStrippedThoughts,
    BeginsAlwaysAgain,
    ReTokenizes,
    LosesAResult,
    ReadsTextAsStructure,
    DoublesTheEnd,
    LeavesAThoughtOpen,
    CallsInAThought,
    EndsNoCutAnswer,
    ForgetsTheOpening,
]


def faults_of(kind: type[TemplateConversations], tmp_path) -> list[str]:
    own = template_of("qwen3", tmp_path)
    tokenizer = own.renderer.tokenizer
    both = [kind(own.path, tokenizer, keeps_thoughts=keeps) for keeps in (False, True)]
    return Trial(FORMATS["Qwen3"], both, None, own).run(ENOUGH, "0", {})


def test_correct_conversations_have_no_fault(tmp_path):
    assert faults_of(TemplateConversations, tmp_path) == []


@pytest.mark.parametrize("kind", MUTANTS)
def test_caught(tmp_path, kind):
    assert faults_of(kind, tmp_path)
