"""The base classes of all request and response models. Requests are validated strictly, responses leniently.

So a response may gain fields, and a request may gain fields with defaults: `wire` does not send a default.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

MAX_FIELDS = 64  # in one object of a request; each unknown field costs the server a validation error


class Request(BaseModel):
    """Base class of the bodies that a client sends. An unknown field is refused, never ignored."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_number_of_fields(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > MAX_FIELDS:
            raise ValueError(f"{len(given)} fields in one object; at most {MAX_FIELDS}")
        return given

    def wire(self) -> dict[str, Any]:
        """Returns the JSON object to send, without the fields that have their default value.

        So a strict server with an older version of the contract accepts it.
        """
        return self.model_dump(mode="json", exclude_defaults=True)


class Answer(BaseModel):
    """Base class of the bodies that a server sends. A reader ignores unknown fields.

    A field whose set of values may grow is a plain string. Its description says how a reader handles an
    unknown value.
    """

    model_config = ConfigDict(extra="ignore")
