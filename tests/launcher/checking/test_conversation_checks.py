"""A model whose conversations cannot be converted to tokens and back as the run needs it is refused first."""

import pytest

from extensions.demo.tokenizer import CHAT_TEMPLATE
from pipelinerl.clients.conversations import build_conversations
from pipelinerl.components import build_domain
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.domains.base import Problem
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.components import check_components
from pipelinerl.launcher.checking.conversations import check_conversations, check_names, check_options
from pipelinerl.launcher.composing.compose import compose_config
from tests.conversations.families import CHAT_ML, family_tokenizer
from tests.tool_model import TEMPLATE as HERMES

NO_RESULTS = HERMES.replace("\\n' ~ message.content ~ '", "")
CLOCK = "{{ strftime_now('%Y') }}" + CHAT_TEMPLATE
PINNED = "{{ day if day is defined else strftime_now('%Y') }}" + CHAT_TEMPLATE
THINKING = CHAT_TEMPLATE + "{% if enable_thinking is defined and enable_thinking is false %} {% endif %}"
PROBLEM = Problem("p/1", [{"role": "user", "content": "2+2="}])


def check(tmp_path, template: str, *options: str, problem: Problem = PROBLEM) -> None:
    config = compose_config(list(options))
    tokenizer = family_tokenizer(template)
    own = TemplateConversations(str(tmp_path), tokenizer)
    domain = build_domain(config)
    conversations = build_conversations(config.model, "tools" in domain.needs, str(tmp_path), tokenizer)
    check_names(own, config.model.template or {})
    check_conversations(config, conversations, own, domain)
    check_options(config, own, [problem])


@pytest.mark.parametrize(
    ("template", "options", "words"),
    [
        (CHAT_TEMPLATE, ["domain=calculator"], "does not write calls as <tool_call>"),
        (NO_RESULTS, ["domain=calculator"], "cannot continue from sampled tokens"),
        (HERMES, ["model.renderer=qwen9"], "model.renderer=qwen9 is none of auto, template, "),
        (HERMES, ["model.renderer=default"], "model.renderer=default is none of auto, template, "),
        (HERMES, ["model.renderer=gemma4"], "model.renderer=gemma4: the renderer gemma4 refuses: Special"),
        (CHAT_ML, ["model.renderer=qwen3.5"], "renders a conversation differently from the model's chat"),
        (CLOCK, [], "set model.template={strftime_now: YYYY-MM-DD}"),
        (PINNED, [], "writes today's date into prompts"),
        (CLOCK, ["model.template={strftime_now: now}"], "strftime_now=now is no date; write YYYY-MM-DD"),
        (THINKING, ["model.template={thinking: false}"], "reads no such option; it reads enable_thinking"),
        (THINKING, ["model.template={tools: false}"], "reads no such option; it reads enable_thinking"),
        (
            THINKING,
            ["model.template={enable_thinking: 'false'}"],
            '="false" changes no prompt',
        ),
        (THINKING, ["model.template={enable_thinking: null}"], "must be true, false, a number or a text"),
        (THINKING, ["model.template={enable_thinkin: false}"], "did you mean enable_thinking?"),
        (HERMES, ["model.renderer=qwen3", "model.renderers=null"], "needs model.renderers, which is null"),
        (THINKING, ["model.template={enable_thinking: true}"], "changes no prompt: the model's"),
    ],
)
def test_refused(tmp_path, template, options, words):
    with pytest.raises((PlanError, ValueError)) as error:
        check(tmp_path, template, *options)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("template", "options"),
    [
        (HERMES, ["domain=calculator"]),
        (CLOCK, ["model.template={strftime_now: 2026-11-29}"]),
        (PINNED, ["model.template={day: today}"]),
        (THINKING, ["model.template={enable_thinking: false}"]),
    ],
)
def test_taken(tmp_path, template, options):
    check(tmp_path, template, *options)


def test_a_problem_names_an_option_that_changes_its_prompt(tmp_path):
    check(tmp_path, THINKING, problem=Problem("p/1", PROBLEM.messages, template={"enable_thinking": False}))
    with pytest.raises(PlanError, match="problem p/1: template option thinking=false: the model's chat"):
        check(tmp_path, THINKING, problem=Problem("p/1", PROBLEM.messages, template={"thinking": False}))


@pytest.mark.parametrize("option", ["model.template={enable_thinking: false}", "model.renderer=qwen3"])
def test_servers_that_render_prompts_leave_nothing_to_choose(option):
    with pytest.raises(PlanError, match="with inference.model=scripted the servers render prompts"):
        check_components(compose_config(["inference=scripted", "trainer=scripted", option]))
