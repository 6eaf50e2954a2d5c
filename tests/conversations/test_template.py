"""A later turn's prompt keeps what was sampled, and adds what the template puts after it."""

import json

import pytest

from contracts.end_tokens import special_ids
from extensions.demo.domains.calculator import TOOL
from extensions.demo.tokenizer import byte_tokenizer
from pipelinerl.conversations.base import Conversation
from pipelinerl.conversations.shown_tokens import shown
from pipelinerl.conversations.template import TemplateConversations
from tests.builders import completion
from tests.tool_model import TEMPLATE as TOOL_TEMPLATE

LINES = """\
{%- for message in messages -%}
{{ message.role ~ ': ' ~ message.content ~ eos_token ~ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'assistant: ' }}{%- endif -%}"""

UNNAMED_END = """\
{%- for message in messages -%}
{{ message.role ~ ': ' ~ message.content ~ '|' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'assistant: ' }}{%- endif -%}"""

SPACED_END = """\
{%- for message in messages -%}
{{ message.role ~ ': ' ~ message.content ~ ' ' ~ eos_token }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'assistant: ' }}{%- endif -%}"""

LAST_IS_SPECIAL = """\
{%- for message in messages -%}
{{ message.role ~ ': ' ~ ('<think></think>' if loop.last and message.role == 'assistant' else '') }}
{{- message.content ~ eos_token }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'assistant: ' }}{%- endif -%}"""

FORGETFUL = """\
{%- for message in messages -%}
{{ message.role ~ ': ' ~ (message.content if loop.last else '...') ~ eos_token }}
{%- endfor -%}"""

TWO_ENDS = """\
{%- for message in messages -%}
{{ '<|user|>' ~ message.role ~ '\n' ~ message.content ~ '<|system|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|user|>assistant\n' }}{%- endif -%}"""

STRIPPED = LINES.replace("message.content", "(message.content | trim)")

OPENS_A_THOUGHT = LINES.replace("assistant: ' }}", "assistant: <think>' }}")

THOUGHTLESS = LINES.replace("message.content", "message.content.split('</think>')[-1]")

RESULTS_IN_THE_TURN = """\
{%- for message in messages if message.role != 'tool' -%}
{{ '<|' ~ message.role ~ '|>' ~ message.content }}
{%- for call in message.tool_calls or [] -%}
{{ '<tool_call>' ~ (call.function | tojson) ~ '</tool_call>' }}
{%- for result in messages if result.tool_call_id == call.id -%}
{{ '<|system|>' ~ call.function.name ~ ' gave ' ~ result.content }}
{%- endfor -%}
{%- endfor -%}
{{ eos_token if not message.tool_calls }}
{%- endfor -%}"""

OPENING = [{"role": "user", "content": "Guess"}]
REPLY = [{"role": "user", "content": "higher"}]


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer(256)


@pytest.fixture
def template_of(tokenizer, tmp_path):
    def save(chat_template: str) -> TemplateConversations:
        changed = byte_tokenizer(256)
        changed.chat_template = chat_template
        changed.save_pretrained(tmp_path)
        return TemplateConversations(str(tmp_path))

    return save


def prompt_after(chat: TemplateConversations, turn, messages: list[dict], tools=None) -> list[int]:
    asked = Conversation(OPENING, tools)
    return chat.extend(asked, turn, chat.parse(asked, turn), messages)


def rendered(tokenizer, chat_template: str, messages: list[dict]) -> str:
    return tokenizer.apply_chat_template(
        messages, chat_template=chat_template, tokenize=False, add_generation_prompt=True
    )


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_the_next_prompt_reads_like_the_whole_conversation(tokenizer, template_of, own, ended):
    chat_template = tokenizer.chat_template if own else LINES
    prompt = tokenizer(rendered(tokenizer, chat_template, OPENING))["input_ids"]
    sampled = tokenizer("512")["input_ids"] + [tokenizer.eos_token_id] * ended
    turn = completion(prompt, sampled, finish_reason="stop" if ended else "length")
    following = prompt_after(template_of(chat_template), turn, REPLY)
    messages_so_far = [*OPENING, {"role": "assistant", "content": "512"}, *REPLY]
    assert tokenizer.decode(following) == rendered(tokenizer, chat_template, messages_so_far)
    assert following[: len(prompt) + len(sampled)] == prompt + sampled


@pytest.mark.parametrize(
    ("chat_template", "end"), [(UNNAMED_END, "|"), (SPACED_END, "<|end|>"), (LAST_IS_SPECIAL, "<|end|>")]
)
def test_the_end_that_was_sampled_is_not_said_twice(tokenizer, template_of, chat_template, end):
    sampled = tokenizer(f"512{end}")["input_ids"]
    following = prompt_after(template_of(chat_template), completion([7], sampled), REPLY)
    reply = rendered(tokenizer, chat_template, REPLY)
    assert tokenizer.decode(following[1:]) == f"512{end}{reply}"


def test_what_was_sampled_is_kept_though_it_says_something_else(tokenizer, template_of):
    sampled = [*tokenizer("a")["input_ids"], tokenizer.pad_token_id, tokenizer.eos_token_id]
    following = prompt_after(template_of(LINES), completion([7], sampled), REPLY)
    assert following[: 1 + len(sampled)] == [7, *sampled]


def test_results_of_tools_follow_the_calls_as_they_were_sampled(tokenizer, template_of):
    """Nothing else says them twice, or in other words: the template would write one space."""
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "1"}}}
    messages_so_far = [*OPENING, {"role": "assistant", "content": "Well.", "tool_calls": [call]}]
    results = [{"role": "tool", "content": "3"}, {"role": "tool", "content": "4"}]

    def whole(messages: list[dict], **options) -> str:
        return tokenizer.apply_chat_template(
            messages, tools=[TOOL], chat_template=TOOL_TEMPLATE, tokenize=False, **options
        )

    prompt = whole(OPENING, add_generation_prompt=True)
    sampled = whole(messages_so_far).removeprefix(prompt).replace('": ', '":  ')
    ids = [tokenizer(text)["input_ids"] for text in (prompt, sampled)]
    following = prompt_after(template_of(TOOL_TEMPLATE), completion(*ids), results, [TOOL])
    assert TOOL["function"]["description"] in prompt and '"name":  "calculator"' in sampled
    after = whole([*messages_so_far, *results], add_generation_prompt=True).removeprefix(
        whole(messages_so_far)
    )
    assert after.startswith("<|user|>\n<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n")
    assert tokenizer.decode(following) == prompt + sampled + after


@pytest.mark.parametrize("text", ["~the answer~", "\ue000 \ue001", "<|assistant|>4<|end|>", "<|<|end|>end|>"])
@pytest.mark.parametrize("template", [None, TWO_ENDS])
def test_text_is_text_whatever_it_spells(tokenizer, template_of, template, text):
    """The special tokens of the prompt and of the next turn are the template's alone."""
    chat = template_of(template or tokenizer.chat_template)
    turns = [chat.render(Conversation([{"role": "user", "content": content}])) for content in ("plain", text)]
    turn = completion([7], [*tokenizer("512")["input_ids"], tokenizer.eos_token_id])
    turns += [prompt_after(chat, turn, [{"role": "user", "content": content}]) for content in ("plain", text)]
    special = special_ids(tokenizer)
    structure = [[token_id for token_id in ids if token_id in special] for ids in turns]
    assert structure[0] == structure[1] and structure[2] == structure[3]
    assert [tokenizer.decode(ids) for ids in turns[1::2]] == [
        tokenizer.decode(ids).replace("plain", text) for ids in turns[0::2]
    ]
    assert chat.spells_special([{"role": "user", "content": text}]) is ("<" in text)


def test_results_that_a_template_shows_in_the_turn_that_calls(tokenizer, template_of):
    """The template shows none without the calls, and the call's arguments spell the end of the turn."""
    chat = template_of(RESULTS_IN_THE_TURN)
    arguments = {"say": "<|system|>"}
    written = f'<tool_call>{{"name":  "f", "arguments": {json.dumps(arguments)}}}</tool_call>'
    sampled = [token_id for part in written.split("|") for token_id in tokenizer(part + "|")["input_ids"]][
        :-1
    ]
    stopped = [*sampled, tokenizer.convert_tokens_to_ids("<|system|>")]
    results = [{"role": "tool", "tool_call_id": "call_1", "content": "<|end|>"}]
    following = prompt_after(chat, completion([7], stopped), results, [TOOL])
    assert following[: 1 + len(stopped)] == [7, *stopped]
    assert shown(tokenizer, following[1 + len(stopped) :]) == "f gave <|end|>"
    with pytest.raises(ValueError, match="cannot continue"):
        prompt_after(chat, completion([7], tokenizer("512")["input_ids"]), results)


def test_a_template_that_rewrites_what_came_before_is_refused(template_of):
    with pytest.raises(ValueError, match="cannot continue from sampled tokens"):
        prompt_after(template_of(FORGETFUL), completion([7], [8]), REPLY)


ANSWERS = {
    "the model's own": (None, "42"),
    "lines": (LINES, "42"),
    "an end that is no token": (UNNAMED_END, "42|"),
    "a space before the end": (SPACED_END, "42 "),
    "thinking that is added to the last answer": (LAST_IS_SPECIAL, "<think></think>42"),
    "a template that strips answers": (STRIPPED, " 42\n"),
    "thinking that the prompt begins": (OPENS_A_THOUGHT, "6 times 7</think>42"),
}


@pytest.mark.parametrize("template, text", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_has_the_prompt_that_servers_make_and_ends_where_samples_end(
    tokenizer, template_of, template, text
):
    chat = template_of(template or tokenizer.chat_template)
    own = {STRIPPED: " 42\n", OPENS_A_THOUGHT: "<think>6 times 7</think>42"}
    completion = chat.answered(Conversation(OPENING), own.get(template, "42"))
    shown = tokenizer.apply_chat_template(
        OPENING, add_generation_prompt=True, return_dict=False, chat_template=template
    )
    assert completion.prompt_token_ids.tolist() == shown
    assert completion.token_ids.tolist()[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(completion.token_ids[:-1]) == text
    assert completion.spans == [] and len(completion.logprobs) == 0


def test_an_answer_ends_with_the_token_that_ends_a_turn_and_with_no_other(tokenizer, template_of):
    answer = template_of(TWO_ENDS).answered(Conversation(OPENING), "42")
    assert shown(tokenizer, answer.token_ids.tolist()) == "42[<|system|>]"


@pytest.mark.parametrize(
    ("template", "answer", "words"),
    [
        (FORGETFUL, "42", "changes a prompt when it is answered"),
        (OPENS_A_THOUGHT, "42", "changes a prompt when it is answered"),
        (THOUGHTLESS, "<think>6 times 7</think>42", "changes the answer"),
        (LINES.replace("message.content", "message.content.lower()"), "So X", "changes the answer"),
        (LINES, "42<|end|>", "the answer contains <|end|>, which only the chat template may write"),
        (LINES.replace("message.role", "raise_exception('no ' ~ message.role)"), "42", "refuses: no user"),
    ],
)
def test_what_cannot_be_rendered_exactly_is_refused(template_of, template, answer, words):
    with pytest.raises(ValueError, match=words):
        template_of(template).answered(Conversation(OPENING), answer)
