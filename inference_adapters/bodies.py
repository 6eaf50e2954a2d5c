"""The bodies that routes parse in a way of their own.

Those of the OpenAI routes are parsed after fields without effect have been removed. The contract's own models
stay strict, because clients build their requests with them.
"""

from typing import Annotated, Any

from fastapi import Body
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError, model_validator

from contracts.channel import ChannelUpdateRequest
from contracts.inference import ChatCompletionRequest, CompletionRequest, WeightUpdateRequest
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


async def update_body(body: Annotated[dict[str, Any], Body()]) -> WeightUpdateRequest | ChannelUpdateRequest:
    """Returns the request of a weight update, which is one over a channel if it names a manifest.

    Raises RequestValidationError as FastAPI does. It would tell the errors of both models for a union.
    """
    model = ChannelUpdateRequest if "manifest_sha256" in body else WeightUpdateRequest
    try:
        return model.model_validate(body)
    except ValidationError as error:
        told = error.errors(include_url=False, include_context=False)
        raise RequestValidationError([each | {"loc": ("body", *each["loc"])} for each in told]) from error
