"""The interface between messages and tokens, `Conversations`, and the types that it exchanges."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from contracts.records import Completion
from contracts.tool_calls import ToolCall

Messages = Sequence[dict[str, Any]]
Tools = list[dict] | None
Option = bool | int | float | str  # value of an option of a chat template


@dataclass(frozen=True)
class Parsed:
    """A sampled answer, parsed.

    text: as servers decode it, up to the first call; a thought is in it if the model writes it as text.
    content: the text without the thought.
    thinks: True if the tokens end within a thought.
    malformed: number of calls that could not be parsed; the answer then has no calls, and they are text.
    """

    text: str
    content: str
    thought: str = ""
    thinks: bool = False
    calls: Sequence[ToolCall] = ()
    malformed: int = 0

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message of OpenAI's API, with the thought in `reasoning_content`."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.thought:
            message["reasoning_content"] = self.thought
        if self.calls:
            message["tool_calls"] = [call.model_dump() for call in self.calls]
        return message


@dataclass(frozen=True)
class Conversation:
    """A conversation that the model is to answer.

    messages: in the format of OpenAI's API, with the model's earlier answers. They are copied, and parts that
    are text become one text. tools: tools that the model may call. options: options of the chat template,
    such as `enable_thinking`.
    """

    messages: Messages
    tools: Tools = None
    options: Mapping[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", [_plain(message) for message in self.messages])

    def then(self, answer: Parsed, messages: Messages) -> Conversation:
        """Returns the conversation after an answer and the messages that follow it."""
        return replace(self, messages=[*self.messages, answer.message, *messages])

    @property
    def is_text(self) -> bool:
        """False if a message has parts other than text, or there is no message."""
        return bool(self.messages) and all(isinstance(m["content"], str) for m in self.messages)

    @property
    def thoughts_of_this_turn(self) -> bool:
        """True if an answer after the last message of a user has a thought."""
        for message in reversed(self.messages):
            if message["role"] == "user":
                return False
            if message.get("reasoning_content"):
                return True
        return False


class Conversations(Protocol):
    """Converts the messages of one model to token ids, and its sampled ids to messages. Thread-safe.

    The methods raise ValueError if they cannot render the messages exactly.
    """

    @property
    def stops(self) -> Sequence[int]:
        """The tokens that end an answer."""
        ...

    def render(self, conversation: Conversation) -> list[int]:
        """Returns the prompt of a conversation, including the beginning of the answer."""
        ...

    def parse(self, asked: Conversation, completion: Completion, text: str | None = None) -> Parsed:
        """Returns the parsed answer to a conversation. Calls are parsed if it has tools.

        text: the decoded tokens, if they are known.
        """
        ...

    def extend(
        self, asked: Conversation, completion: Completion, answer: Parsed, messages: Messages
    ) -> list[int] | None:
        """Returns the prompt of the next turn: prompt and tokens of the completion, then new tokens.

        Returns None if the next turn must begin a sequence of its own, which is rendered as a whole.

        asked: the conversation that the completion answers. answer: the parsed completion. messages: those
        that follow it.
        """
        ...

    def answered(self, asked: Conversation, answer: str) -> Completion:
        """Returns a given answer as a completion, including the token that ends it, without
        log-probabilities."""
        ...


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of a message whose content is text, if it has no other parts."""
    copied = copy.deepcopy(dict(message))
    content = copied.get("content") or ""
    if isinstance(content, list):
        texts = [part if isinstance(part, str) else part.get("text") for part in content]
        content = content if None in texts else "\n".join(texts)
    return copied | {"content": content}
