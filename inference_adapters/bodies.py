"""The bodies of the OpenAI routes, parsed after fields without effect have been removed.

The contract's own models stay strict, because clients build their requests with them.
"""

from typing import Any

from pydantic import BaseModel, model_validator

from contracts.inference import ChatCompletionRequest, CompletionRequest
from inference_adapters.neutral_values import asked_for


class _Asked(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, given: Any) -> Any:
        return asked_for(given) if isinstance(given, dict) else given


class ChatBody(ChatCompletionRequest, _Asked):
    """The body of a chat completion."""


class TextBody(CompletionRequest, _Asked):
    """The body of a text completion."""
