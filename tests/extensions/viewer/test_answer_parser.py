"""Answers are parsed as their run did it, or the viewer says why it cannot."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from extensions.viewer.runs.answer_parser import AnswerParser
from tests.builders import completion
from tests.conversations.families import family_tokenizer, published
from tests.tool_model import TEMPLATE as HERMES

RENDERERS = {"_target_": "extensions.renderers.of_model.renderer_of_model"}
OF_HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": "1"}}\n</tool_call>'
OF_QWEN = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"


def parsed(directory: Path, template: str, answer: str, with_tools: bool = True, **model):
    tokenizer = family_tokenizer(template)
    tokenizer.save_pretrained(directory)
    parser = AnswerParser(model, str(directory), Tokenizer.from_file(str(directory / "tokenizer.json")))
    return parser.parse(completion([1], tokenizer(answer)["input_ids"]), with_tools)


@pytest.mark.parametrize(
    ("template", "call", "model"),
    [
        (HERMES, OF_HERMES, {}),  # a run before there were renderers
        (HERMES, OF_HERMES, {"renderers": RENDERERS}),
        (published("qwen3_5_think"), OF_QWEN, {"renderers": RENDERERS, "renderer": "qwen3.5"}),
    ],
)
def test_calls_are_parsed_as_the_run_did(tmp_path, template, call, model):
    found = parsed(tmp_path, template, f"<think>\nI add.\n</think>\n\nSo:\n{call}", **model)
    assert (found.thought, found.content.strip()) == ("I add.", "So:")
    assert [(each.function.name, each.function.arguments[:5]) for each in found.calls] == [("add", '{"a":')]


def test_calls_of_a_problem_without_tools_are_text(tmp_path):
    found = parsed(tmp_path, HERMES, OF_HERMES, with_tools=False, renderers=RENDERERS)
    assert (found.content, found.calls) == (OF_HERMES, [])


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"renderers": RENDERERS, "renderer": "of_nobody"}, "renderer=of_nobody is none of auto, template, "),
        ({"renderers": {"_target_": "os.getcwd"}}, "the viewer does not import model.renderers=os.getcwd"),
        ({"renderers": RENDERERS | {"x": {"_target_": "os.getcwd"}}}, "the viewer does not import model"),
    ],
)
def test_a_run_whose_answers_cannot_be_parsed_here_says_so(tmp_path, model, words):
    with pytest.raises(ValueError, match=words):
        parsed(tmp_path, HERMES, OF_HERMES, **model)
