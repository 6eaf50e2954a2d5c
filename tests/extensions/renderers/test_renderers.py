"""Renderers of the library: which one is found, and what they parse, with published templates."""

import pytest

from extensions.demo.domains.calculator import TOOL
from extensions.renderers.conversations import RendererConversations
from extensions.renderers.of_model import renderer_of_model
from pipelinerl.conversations.base import Conversation
from pipelinerl.conversations.template import TemplateConversations
from tests.builders import completion
from tests.conversations.families import family_tokenizer, published, template_of

USER = {"role": "user", "content": "What is 2 + 3?"}
NEXT = {"role": "user", "content": "And 4?"}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "5"}
TYPED = "<function=calculator>\n<parameter=expression>\n2 + 3\n</parameter>\n</function>"
PAIRS = "<tool_call>calculator\n<arg_key>expression</arg_key>\n<arg_value>2 + 3</arg_value>\n</tool_call>"
END = "<|im_end|>"


@pytest.mark.parametrize(
    ("name", "renderer", "call", "end"),
    [
        ("qwen3_5_think", "qwen3.6", f"see\n</think>\n\n<tool_call>\n{TYPED}\n</tool_call>", END),
        ("qwen3_8", "qwen3.8", f"see\n</think>\n\n<tool_call>\n{TYPED}\n</tool_call>", END),
        ("nemotron_3_nano", "nemotron-3", f"see\n</think>\n<tool_call>\n{TYPED}\n</tool_call>", END),
        ("glm4moe", "glm-4.5", f"\n<think>see</think>\n{PAIRS}", "<|observation|>"),
    ],
)
def test_the_renderer_that_writes_as_the_template_does_is_found_and_reads_calls(
    tmp_path, name, renderer, call, end
):
    own = template_of(name, tmp_path)
    found = renderer_of_model(None, own, {}, with_tools=True, keeps_thoughts=False)
    assert found.name == renderer
    asked = Conversation([USER], [TOOL])
    tokenizer = own.renderer.tokenizer
    turn = completion(found.render(asked), tokenizer(call + end)["input_ids"])
    answer = found.parse(asked, turn)
    assert [each.function.arguments for each in answer.calls] == ['{"expression": "2 + 3"}']
    assert answer.thought == "see"
    prompt = found.extend(asked, turn, answer, [RESULT])
    new = tokenizer.decode(prompt[len(turn.prompt_token_ids) + len(turn.token_ids) :])
    assert new.count("5") == 1 and end not in new.partition("5")[0]


GEMMA = [
    "<|turn>",
    "<turn|>",
    "<|channel>",
    "<channel|>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
]
GEMMA += ["<|tool_response>", "<tool_response|>", "<|think|>", "<|image>", "<|image|>", "<image|>"]
GEMMA += ["<bos>", "<eos>", '<|"|>', "<|audio>", "<|audio|>", "<audio|>", "<|video|>"]


def test_a_thought_that_the_template_strips_is_stripped_though_the_renderer_would_keep_it(tmp_path):
    tokenizer = family_tokenizer(published("gemma4_v5"), "<turn|>")
    tokenizer.add_tokens(GEMMA, special_tokens=True)
    own = TemplateConversations(str(tmp_path), tokenizer)
    asked = Conversation([USER])
    turn = completion(own.render(asked), tokenizer("<|channel>thought\nsee<channel|>5<turn|>")["input_ids"])
    for keeps in (False, True):
        conversations = RendererConversations("gemma4", own, keeps)
        answer = conversations.parse(asked, turn)
        assert answer.thought == "see"
        assert bool(conversations.extend(asked, turn, answer, [NEXT])) is keeps


def test_gpt_oss_says_which_vocabulary_it_wants_and_is_tried_only_where_its_tokens_are(tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path))
    own = template_of("glm4moe", tmp_path)
    with pytest.raises(ValueError, match="^model.renderer=gpt-oss: .*; put o200k_base.tiktoken into a dir"):
        RendererConversations("gpt-oss", own).render(Conversation([USER]))
    made = []

    def make(name: str, *rest):
        made.append(name)
        return RendererConversations(name, *rest)

    monkeypatch.setattr("extensions.renderers.conversations.RendererConversations", make)
    assert renderer_of_model(None, own, {}, True, False).name == "glm-4.5" and "gpt-oss" not in made


def test_an_answer_is_parsed_by_the_options_of_its_prompt(tmp_path):
    own = template_of("glm4moe", tmp_path)
    conversations = RendererConversations("glm-4.5", own)
    asked = Conversation([USER], options={"enable_thinking": False})
    turn = completion(conversations.render(asked), own.renderer.tokenizer("\n5<|user|>")["input_ids"])
    answer = conversations.parse(asked, turn)
    assert (answer.content.strip(), answer.thought, answer.thinks) == ("5", "", False)


def test_calls_in_a_problem_need_no_ids(tmp_path):
    own = template_of("qwen3", tmp_path)
    function = {"name": "calculator", "arguments": {"expression": "2"}}
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": function}],
    }
    asked = Conversation([USER, called, RESULT], [TOOL])
    assert RendererConversations("qwen3", own).render(asked) == own.render(asked)
