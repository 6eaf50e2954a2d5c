"""What is checked of a file of answers once the model is known, and which samplers suit one."""

import json

import pytest

import launch
from extensions.demo.tokenizer import byte_tokenizer
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.domains.demonstration_rows import Row
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.problems import Limits, check_answers

USER = {"role": "user", "content": "2+2="}
KEEPS_THE_LAST_ONLY = """\
{%- for message in messages -%}
{{ message.role ~ ': ' ~ (message.content if loop.last else '...') ~ eos_token }}
{%- endfor -%}"""


@pytest.fixture
def template(tmp_path) -> TemplateConversations:
    byte_tokenizer(256).save_pretrained(tmp_path)
    return TemplateConversations(str(tmp_path))


def refusal(
    template: TemplateConversations,
    *rows: Row,
    vocabulary: int = 300,
    context: int = 64,
    line: int | None = None,
) -> str:
    with pytest.raises(PlanError) as error:
        check_answers(rows, template, Limits(vocabulary, context, line))
    return str(error.value)


def text(answer: str) -> Row:
    return Row(messages=[USER, {"role": "assistant", "content": answer}])


def test_a_token_id_that_the_model_does_not_have(template):
    rows = [Row(prompt_token_ids=[1], token_ids=[1]), Row(prompt_token_ids=[1], token_ids=[300])]
    assert refusal(template, *rows) == "domain: row 2 has the token id 300; the model has 300"
    pair = Row(prompt_token_ids=[1], chosen_token_ids=[1], rejected_token_ids=[301])
    assert "row 1 has the token id 301" in refusal(template, pair)


def test_an_answer_in_token_ids_ends_itself(template):
    rows = [Row(prompt_token_ids=[5], token_ids=[7, 1]), Row(prompt_token_ids=[5], token_ids=[1, 7])]
    assert "an answer of row 2 ends with token 7; the last token must be one that ends a turn: 1" in refusal(
        template, *rows
    )


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"messages": [USER, {"role": "assistant", "content": "4"}]}, ["4[<|end|>]"]),
        ({"prompt_token_ids": [5], "token_ids": [57, 1]}, ["U[<|end|>]"]),
        ({"prompt": [USER], "chosen": "4", "rejected": "5"}, ["4[<|end|>]", "5[<|end|>]"]),
    ],
)
def test_a_plan_shows_what_is_learnt(tmp_path, capsys, row, answers):
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps(row))
    recipe = "dpo" if "chosen" in row else "sft"
    assert launch.main([f"+exp={recipe}", f"domain.path={path}", "plan=true"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("  answer: ") for line in lines if line.startswith("  answer: ")] == answers


def test_a_line_that_is_longer_than_the_context(template):
    tokens = Row(prompt_token_ids=[1] * 40, token_ids=[2] * 25)
    assert refusal(template, tokens) == "domain: row 1 has 65 tokens; the model's context is 64"
    short = [text("4")] * 70
    assert "row 71 has" in refusal(template, *short, text("4" * 64))


def test_a_line_that_no_micro_batch_holds(template):
    fits = [2, 2, 2, 2, 1]
    pair = Row(prompt_token_ids=[1], chosen_token_ids=[*fits, *fits], rejected_token_ids=[3] * 8 + [1])
    rows = [Row(prompt_token_ids=[1], token_ids=fits), pair]
    says = "tokens, and a micro-batch at most 20; raise packing.micro_batch_tokens"
    assert refusal(template, *rows, line=20) == f"domain: row 2 has 21 {says}"
    assert says in refusal(template, text("4" * 30), line=20)
    check_answers(rows, template, Limits(300, 64, 21))


def test_a_template_that_cannot_render_an_answer(tmp_path):
    tokenizer = byte_tokenizer(256)
    tokenizer.chat_template = KEEPS_THE_LAST_ONLY
    tokenizer.save_pretrained(tmp_path)
    words = refusal(TemplateConversations(str(tmp_path)), text("4"))
    assert words.startswith("domain: row 1 cannot be rendered: the chat template of")
