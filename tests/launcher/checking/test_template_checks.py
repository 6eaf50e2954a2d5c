"""What a chat template refuses or leaves out is told before a run, and a plan shows what it writes."""

import pytest

from contracts.conformance.tiny_model import make_tiny_model
from extensions.demo.tokenizer import CHAT_TEMPLATE, byte_tokenizer
from pipelinerl.components import build_domain
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.domains.base import Problem
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.template import check_template, describe_template, prompt_of
from pipelinerl.launcher.composing.compose import compose_config

USER = {"role": "user", "content": "x"}
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
WITHOUT = CHAT_TEMPLATE.replace("for message in messages", "for message in messages if message.role != ROLE")
ALTERNATING = (
    "{% if messages[1:] and messages[0].role == messages[1].role %}{{ raise_exception('turns') }}{% endif %}"
)
NO_PROMPT = CHAT_TEMPLATE.replace("if add_generation_prompt", "if false")


@pytest.mark.parametrize(
    ("domain", "template", "words"),
    [
        ("math", "", "has no chat template"),
        (
            "math",
            NO_SYSTEM + CHAT_TEMPLATE,
            "message (no system role); set domain.system_prompt=null",
        ),
        ("math", WITHOUT.replace("ROLE", "'system'"), "leaves out the system message of problem"),
        ("math", NO_PROMPT, "itself would have to begin its turn with '<|assistant|>'"),
        ("math", "{{ raise_exception('no') }}", "refuses: no"),
        ("reasoning_gym", WITHOUT.replace("ROLE", "'user'"), "leaves out the user message"),
    ],
)
def test_a_template_that_does_not_suit_the_domain(tmp_path, domain, template, words):
    config = compose_config([f"domain={domain}"])
    tokenizer = byte_tokenizer(64)
    tokenizer.chat_template = template
    with pytest.raises(PlanError) as error:
        check_template(config, TemplateConversations(str(tmp_path), tokenizer), build_domain(config))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_template_without_a_system_role_suits_a_domain_without_one(tmp_path):
    config = compose_config(["domain=reasoning_gym"])
    tokenizer = byte_tokenizer(64)
    tokenizer.chat_template = NO_SYSTEM + CHAT_TEMPLATE
    check_template(config, TemplateConversations(str(tmp_path), tokenizer), build_domain(config))


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (
            WITHOUT.replace("ROLE", "'assistant'"),
            [USER, USER | {"role": "assistant"}, USER],
            "leaves out the assistant",
        ),
        (ALTERNATING + CHAT_TEMPLATE, [USER, USER], "refuses problem p/1 (turns)"),
        (CHAT_TEMPLATE, [{"role": "critic", "content": "x"}], "(the demo model knows no role critic)"),
    ],
)
def test_a_problem_that_a_template_does_not_show(tmp_path, template, messages, words):
    tokenizer = byte_tokenizer(64)
    tokenizer.chat_template = template
    with pytest.raises(PlanError) as error:
        prompt_of(
            compose_config([]), TemplateConversations(str(tmp_path), tokenizer), Problem("p/1", messages)
        )
    assert words in str(error.value)


def test_a_plan_shows_what_the_template_writes_and_where_answers_end(tmp_path):
    path = make_tiny_model(tmp_path)
    byte_tokenizer(64).save_pretrained(path)
    prompt, answered, following, ends = describe_template(compose_config([]), path)
    assert prompt == "chat template: [<|user|>]the problem[<|assistant|>]"
    assert answered == "  answered: the answer[<|end|>]"
    assert following == "  next turn: [<|user|>]the next message[<|assistant|>]"
    assert ends == "  servers end an answer at [<|end|>] 1, [<|pad|>] 0"  # the model's config names 0
