"""Request bodies that FastAPI cannot parse by the contract's models alone.

Bodies of the OpenAI routes are parsed after fields without effect have been removed. The contract's models
stay strict, because clients build their requests with them.
"""

from typing import Annotated, Any

from fastapi import Body
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError, model_validator

from contracts.channel import ChannelUpdateRequest
from contracts.inference import ChatCompletionRequest, CompletionRequest, WeightUpdateRequest
from inference_adapters.neutral_values import without_neutral


class _WithoutNeutral(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, given: Any) -> Any:
        return without_neutral(given) if isinstance(given, dict) else given


class ChatBody(ChatCompletionRequest, _WithoutNeutral):
    """The body of a chat completion, without neutral fields."""


class TextBody(CompletionRequest, _WithoutNeutral):
    """The body of a text completion, without neutral fields."""


async def update_body(body: Annotated[dict[str, Any], Body()]) -> WeightUpdateRequest | ChannelUpdateRequest:
    """Returns the request of a weight update, which is one over a channel if it names a manifest.

    Raises RequestValidationError as FastAPI does. With a union, FastAPI would report errors of both models.
    """
    model = ChannelUpdateRequest if "manifest_sha256" in body else WeightUpdateRequest
    try:
        return model.model_validate(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        raise RequestValidationError([each | {"loc": ("body", *each["loc"])} for each in problems]) from error
