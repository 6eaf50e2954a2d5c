"""Converts between messages and tokens by a renderer of the library `renderers`."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openai_harmony import HarmonyError
from pydantic import TypeAdapter, ValidationError
from renderers import RendererConfig, create_renderer
from renderers.base import ParsedResponse, ParsedToolCall, Renderer, ToolCallParseStatus

from contracts.records import Completion
from contracts.support.messages import one_line, problem_line
from contracts.tool_calls import FunctionCall, ToolCall, for_template
from extensions.renderers.marked_tokenizer import MarkedTokenizer
from pipelinerl.conversations.base import Conversation, Messages, Option, Parsed
from pipelinerl.conversations.options import CLOCK
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.conversations.thoughts import BEGIN, CLOSING, END

PARSED = {ToolCallParseStatus.OK, ToolCallParseStatus.UNKNOWN_TOOL}
DATE = "conversation_start_date"  # gpt-oss' option for what its template's clock tells
GPT_OSS = "gpt-oss"  # encodes messages by an encoder of its own, to which texts are text
VOCABULARY = "put o200k_base.tiktoken into a directory, and set TIKTOKEN_ENCODINGS_BASE to that directory"


class RendererConversations:
    """A renderer of the library `renderers`, by its name, such as `qwen3.5`. Thread-safe.

    The methods raise ValueError if the renderer refuses the messages or the options.

    template: the model's own chat template. keeps_thoughts: as for `TemplateConversations`.
    """

    def __init__(self, name: str, template: TemplateConversations, keeps_thoughts: bool = False):
        self.name = name
        self._template = template
        self._keeps_thoughts = keeps_thoughts
        self._one_at_a_time = threading.RLock()
        self._tokenizer = MarkedTokenizer(template.renderer)
        self._renderers: dict[str, Renderer] = {}  # by their options

    @property
    def stops(self) -> Sequence[int]:
        return self._renderer({}).get_stop_token_ids()

    def render(self, conversation: Conversation) -> list[int]:
        with self._one_at_a_time:
            messages = self._checked(lambda: self._shown(conversation.messages))
            renderer = self._renderer(conversation.options)
            return self._checked(
                lambda: renderer.render_ids(messages, tools=conversation.tools, add_generation_prompt=True)
            )

    def parse(self, asked: Conversation, completion: Completion, text: str | None = None) -> Parsed:
        """Returns the parsed answer. A call that is malformed, or made without tools, is text."""
        with self._one_at_a_time:
            tokens = completion.token_ids.tolist()
            prompt = completion.prompt_token_ids.tolist()
            renderer = self._renderer(asked.options)
            found = self._checked(
                lambda: renderer.parse_response(tokens, tools=asked.tools, prompt_ids=prompt)
            )
            if not self._writes_thoughts:
                return _parsed(found, None, bool(asked.tools))
            own = self._template.parse(replace(asked, tools=None), completion, text)
            begin = self._end_of_thought(tokens, own)
            calls = [c for c in found.tool_calls if c.token_span is None or c.token_span[0] >= begin]
            return _parsed(replace(found, tool_calls=calls), own, bool(asked.tools))

    def extend(
        self, asked: Conversation, completion: Completion, answer: Parsed, messages: Messages
    ) -> list[int] | None:
        """Returns the prompt of the next turn, or None where the template strips a thought from it."""
        with self._one_at_a_time:
            if not self._keeps_thoughts and self._template.must_begin_again(asked, answer, messages):
                return None
            thought = answer.thought or answer.thinks or asked.thoughts_of_this_turn
            renderer = self._renderer(asked.options, keeps=self._keeps_thoughts or not thought)
            prompt = completion.prompt_token_ids.tolist()
            sampled = completion.token_ids.tolist()
            if answer.thinks and completion.finish_reason != "stop" and self._writes_thoughts:
                sampled += self._tokenizer.encode(CLOSING)
            new = self._checked(lambda: self._shown(messages, answer))
            bridge = self._checked(
                lambda: renderer.bridge_to_next_turn(prompt, sampled, new, tools=asked.tools)
            )
            ids = list(bridge.token_ids) if bridge else []
            before = prompt + sampled
            return ids if ids[: len(before)] == before else None

    def answered(self, asked: Conversation, answer: str) -> Completion:
        return self._template.answered(asked, answer)

    def _renderer(self, options: Mapping[str, Option], keeps: bool = False) -> Renderer:
        key = json.dumps([dict(options), keeps], sort_keys=True)
        if key not in self._renderers:
            self._renderers[key] = self._checked(lambda: self._made(options, keeps))
        return self._renderers[key]

    def _made(self, options: Mapping[str, Option], keeps: bool) -> Renderer:
        given = {DATE if name == CLOCK else name: value for name, value in options.items()}
        retention = {"thinking_retention": "all"} if keeps else {}
        for more in (retention, {}):  # some renderers keep thoughts by an option of their own
            try:
                config = TypeAdapter(RendererConfig).validate_python({"name": self.name, **given, **more})
                break
            except ValidationError as error:
                why = problem_line(error.errors()[0])
                if not more or self._keeps_thoughts:
                    raise ValueError(f"model.renderer={self.name}: {why}") from error
        try:
            return create_renderer(self._tokenizer, config)
        except HarmonyError as error:
            raise ValueError(f"model.renderer={self.name}: {one_line(error)}; {VOCABULARY}") from error

    def _shown(self, messages: Messages, answer: Parsed | None = None) -> list[dict[str, Any]]:
        """Returns the messages with the names of the tools that results are from, and marked texts."""
        earlier = [answer.message] if answer else []
        names = {
            call.get("id"): call["function"]["name"]
            for message in [*earlier, *messages]
            for call in message.get("tool_calls") or []
        }
        named = []
        for message in for_template([self._template.with_thought(each) for each in messages]):
            name = names.get(message.get("tool_call_id"))
            named.append(message | {"name": name} if name and "name" not in message else message)
        self._template.spells_special(named)  # warns
        return named if self.name == GPT_OSS else self._tokenizer.marked(named)

    def _end_of_thought(self, tokens: list[int], own: Parsed) -> int:
        """Returns the index of the first token after the thought; calls before it are text."""
        if own.thinks:
            return len(tokens)
        end = self._tokenizer.convert_tokens_to_ids(END)
        return tokens.index(end) if own.thought and end in tokens else 0

    @property
    def _writes_thoughts(self) -> bool:
        """True if thoughts are text in tags, and not in channels of their own."""
        return BEGIN in str(self._template.renderer.tokenizer.chat_template)

    def _checked(self, call: Any) -> Any:
        try:
            return call()
        except ValueError:
            raise
        except Exception as error:  # the library raises errors of any class
            raise ValueError(f"the renderer {self.name} refuses: {one_line(error)}") from error


def _parsed(found: ParsedResponse, own: Parsed | None, with_calls: bool) -> Parsed:
    """Returns the parsed answer. own: the answer without its calls parsed, if thoughts are text."""
    attempts = found.tool_calls if with_calls else []
    malformed = sum(attempt.status not in PARSED for attempt in attempts)
    calls = [] if malformed else [_call(attempt) for attempt in attempts]
    if own and not calls:  # what looks like a call is text
        return replace(own, malformed=malformed)
    content = found.content
    if not calls:
        content += "".join(attempt.raw for attempt in found.tool_calls)
    thought = own.thought if own else (found.reasoning_content or "").strip("\n")
    text = _up_to(own.text, content) if own else content
    return Parsed(text, content, thought, found.reasoning_complete is False, calls, malformed)


def _up_to(decoded: str, content: str) -> str:
    """Returns the decoded text up to the end of the content, with the thought before it."""
    thought, end, rest = decoded.partition(END)
    if not end:
        thought = ""
        rest = decoded
    return thought + end + (rest[: rest.index(content) + len(content)] if content in rest else content)


def _call(attempt: ParsedToolCall) -> ToolCall:
    arguments = attempt.arguments if attempt.arguments is not None else {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = attempt.id or f"call_{uuid.uuid4().hex}"
    return ToolCall(id=name, function=FunctionCall(name=attempt.name, arguments=text))
