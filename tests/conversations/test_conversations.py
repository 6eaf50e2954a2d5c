"""Both implementations, with published templates: what is sampled stays, and each fault of a turn shows."""

import pytest

from contracts.records import Completion
from extensions.demo.domains.calculator import TOOL
from extensions.renderers.conversations import RendererConversations
from pipelinerl.conversations.base import Conversation, Parsed
from pipelinerl.conversations.template import TemplateConversations
from tests.builders import completion
from tests.conversations.families import family_tokenizer, published, template_of

USER = {"role": "user", "content": "What is 2 + 3?"}
NEXT = {"role": "user", "content": "And <|im_end|> 4?"}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "5"}
THOUGHT = "<think>\nlet me see\n</think>\n\n"
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2 + 3"}}\n</tool_call>'
END = "<|im_end|>"
ASSISTANT = "<|im_start|>assistant\n"


@pytest.fixture(params=["template", "renderer"])
def qwen(request, tmp_path):
    """Returns a function that makes Qwen3's conversations, by the template and by a renderer."""

    def make(keeps_thoughts: bool = False):
        own = template_of("qwen3", tmp_path, keeps_thoughts=keeps_thoughts)
        return own if request.param == "template" else RendererConversations("qwen3", own, keeps_thoughts)

    make.text = lambda ids: family_tokenizer(published("qwen3")).decode(ids)
    make.ids = lambda text: family_tokenizer(published("qwen3"))(text)["input_ids"]
    return make


def sampled(qwen, conversations, text: str, asked: Conversation, reason: str = "stop") -> Completion:
    return completion(conversations.render(asked), qwen.ids(text), finish_reason=reason)


def next_turn(
    qwen, text: str, messages: list[dict], reason: str = "stop", tools=None, **options
) -> str | None:
    """Returns the text that follows the sampled one; None if the next turn begins a sequence of its own."""
    conversations = qwen(**options)
    asked = Conversation([USER], tools)
    turn = sampled(qwen, conversations, text, asked, reason)
    answer = conversations.parse(asked, turn)
    prompt = conversations.extend(asked, turn, answer, messages)
    if prompt is None:
        return None
    so_far = [*turn.prompt_token_ids.tolist(), *turn.token_ids.tolist()]
    assert prompt[: len(so_far)] == so_far
    return qwen.text(prompt[len(so_far) :])


FOLLOWED = f"\n<|im_start|>user\nAnd <|im_end|> 4?{END}\n{ASSISTANT}"


def test_a_user_turn_that_strips_a_thought_begins_a_sequence(qwen):
    assert next_turn(qwen, f"{THOUGHT}5{END}", [NEXT]) is None
    assert next_turn(qwen, f"{THOUGHT}5{END}", [NEXT], keeps_thoughts=True) == FOLLOWED
    assert next_turn(qwen, f"5{END}", [NEXT]) == FOLLOWED


def test_a_thought_before_a_call_is_kept_for_the_result_and_stripped_after_the_next_question(qwen):
    after_call = next_turn(qwen, f"{THOUGHT}{CALL}{END}", [RESULT], tools=[TOOL])
    assert after_call == f"\n<|im_start|>user\n<tool_response>\n5\n</tool_response>{END}\n{ASSISTANT}"
    conversations = qwen()
    asked = Conversation([USER], [TOOL])
    called = conversations.parse(asked, sampled(qwen, conversations, f"{THOUGHT}{CALL}{END}", asked))
    later = asked.then(called, [RESULT])
    final = sampled(qwen, conversations, f"5{END}", later)
    answer = conversations.parse(later, final)
    assert conversations.extend(later, final, answer, [NEXT]) is None
    text = qwen.text(conversations.render(later.then(answer, [NEXT])))
    assert "let me see" not in text and '"expression": "2 + 3"' in text and "\n5\n</tool_response>" in text


def test_a_thought_that_is_cut_is_closed_and_makes_no_call(qwen):
    cut = f"<think>\nlet me {CALL}"
    new = next_turn(qwen, cut, [NEXT], "length", [TOOL], keeps_thoughts=True)
    assert new.count("</think>") == 1 and new.index("</think>") < new.index(END)
    conversations = qwen()
    asked = Conversation([USER], [TOOL])
    answer = conversations.parse(asked, sampled(qwen, conversations, cut, asked, "length"))
    assert answer.thinks and not answer.calls and answer.content == ""


@pytest.mark.parametrize("end", [END, "<|endoftext|>"])
def test_an_end_is_not_doubled(qwen, end):
    assert next_turn(qwen, f"5{end}", [NEXT]) == FOLLOWED


def test_a_cut_answer_is_ended(qwen):
    assert next_turn(qwen, "5", [NEXT], "length") == END + FOLLOWED


@pytest.mark.parametrize(
    ("answer", "calls", "malformed"),
    [
        (f"So: {CALL}{END}", ["calculator"], 0),
        (f"{THOUGHT}{CALL}\n{CALL}{END}", ["calculator", "calculator"], 0),
        (f"{CALL.replace('}}', '}')}{END}", [], 1),
        (f"{CALL}\n{CALL.replace('}}', '}')}{END}", [], 1),
        (f"no call{END}", [], 0),
    ],
)
def test_calls_are_parsed_whole_or_are_text(qwen, answer, calls, malformed):
    conversations = qwen()
    turn = sampled(qwen, conversations, answer, Conversation([USER], [TOOL]))
    found = conversations.parse(Conversation([USER], [TOOL]), turn)
    assert [call.function.name for call in found.calls] == calls
    assert bool(found.malformed) is bool(malformed)
    assert ("<tool_call>" in found.text) is bool(malformed)
    assert ("<tool_call>" in found.content) is bool(malformed)
    assert all(call.function.arguments == '{"expression": "2 + 3"}' for call in found.calls)


def test_a_call_without_tools_is_text(qwen):
    conversations = qwen()
    asked = Conversation([USER])
    found = conversations.parse(asked, sampled(qwen, conversations, f"So: {CALL}{END}", asked))
    assert found.content == found.text == f"So: {CALL}"


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{{ message.thinking }}|{{ message.content }};", "None|2;see|4;"),
        ("{{ message.reasoning_content }}|{{ message.content }};", "None|2;see|4;"),
        ("{{ message.content }};", "2;<think>\nsee\n</think>\n\n4;"),
    ],
)
def test_a_thought_is_shown_where_the_template_reads_it(tmp_path, template, shown):
    tokenizer = family_tokenizer(f"{{% for message in messages %}}{template}{{% endfor %}}")
    own = TemplateConversations(str(tmp_path), tokenizer)
    asked = Conversation([{"role": "user", "content": "2"}]).then(Parsed("", "4", "see"), [])
    assert tokenizer.decode(own.render(asked)) == shown.replace("None", "")


def test_a_prompt_that_begins_a_thought_is_told_from_a_text_that_ends_in_its_tag(tmp_path):
    own = template_of("qwen3", tmp_path)
    asked = Conversation([{"role": "user", "content": "Write <think>"}])
    turn = completion(own.render(asked), own.renderer.tokenizer(f"5{END}")["input_ids"])
    assert own.parse(asked, turn).content == "5"


def test_options_reach_the_prompt_and_the_turns_after_it(tmp_path):
    own = template_of("qwen3", tmp_path)
    asked = Conversation([USER], options={"enable_thinking": False})
    tokenizer = own.renderer.tokenizer
    turn = completion(own.render(asked), tokenizer(f"5{END}")["input_ids"])
    following = own.extend(asked, turn, own.parse(asked, turn), [NEXT])
    assert tokenizer.decode(following).count("<think>\n\n</think>") == 2
    assert "<think>" not in tokenizer.decode(own.render(Conversation([USER])))


def test_parts_that_are_text_are_one_text_and_messages_are_copied(tmp_path):
    own = template_of("qwen3", tmp_path)
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "2 + 3?"}]
    messages = [{"role": "user", "content": parts}]
    asked = Conversation(messages)
    messages.append(NEXT)
    prompt = own.renderer.tokenizer.decode(own.render(asked))
    assert prompt == f"<|im_start|>user\nWhat is\n2 + 3?{END}\n{ASSISTANT}" and asked.is_text
    assert not Conversation([{"role": "user", "content": [{"type": "image_url"}, *parts]}]).is_text


@pytest.mark.parametrize(
    "text", ["Write it between <think> and 5.", "Intro. <think>hm</think> 5", "The tag </think> ends it."]
)
def test_tags_after_the_beginning_of_an_answer_are_text(qwen, text):
    conversations = qwen()
    asked = Conversation([USER])
    answer = conversations.parse(asked, sampled(qwen, conversations, text + END, asked))
    assert (answer.content, answer.thought, answer.thinks) == (text, "", False)


def test_a_call_that_a_thought_quotes_is_made_once_by_the_answer(qwen):
    conversations = qwen()
    asked = Conversation([USER], [TOOL])
    text = f"<think>\nI write {CALL}\n</think>\n\n{CALL}{END}"
    answer = conversations.parse(asked, sampled(qwen, conversations, text, asked))
    assert len(answer.calls) == 1 and answer.malformed == 0


def test_tags_that_are_special_tokens_are_parsed(tmp_path):
    own = template_of("qwen3", tmp_path)
    tokenizer = own.renderer.tokenizer
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>", "<tool_call>"]})
    asked = Conversation([USER], [TOOL])
    turn = completion(own.render(asked), tokenizer(f"{THOUGHT}{CALL}{END}")["input_ids"])
    answer = own.parse(asked, turn, "let me see")
    assert (answer.thought, len(answer.calls)) == ("let me see", 1)


@pytest.mark.parametrize("end", ["<|endoftext|>", "<|observation|>"])
def test_another_end_does_not_stand_for_the_header_of_the_next_message(tmp_path, end):
    own = template_of("glm4moe", tmp_path)
    tokenizer = own.renderer.tokenizer
    asked = Conversation([USER])
    turn = completion(own.render(asked), tokenizer(f"5{end}")["input_ids"])
    prompt = own.extend(asked, turn, own.parse(asked, turn), [NEXT])
    assert f"5{end}<|user|>\nAnd" in tokenizer.decode(prompt)


def test_of_several_templates_results_are_rendered_by_that_for_tools(tmp_path):
    own = template_of("qwen3", tmp_path)
    tokenizer = own.renderer.tokenizer
    tokenizer.chat_template = {"default": published("qwen2_5"), "tool_use": published("qwen3")}
    asked = Conversation([USER], [TOOL])
    turn = completion(own.render(asked), tokenizer(f"{CALL}{END}")["input_ids"])
    answer = own.parse(asked, turn)
    following = own.extend(asked, turn, answer, [RESULT])
    assert following == own.render(asked.then(answer, [RESULT]))
