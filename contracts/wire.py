"""Base classes of all request and response models. Requests are validated strictly, responses leniently.

So a response may gain fields, and a request may gain fields with defaults, because `wire` omits defaults.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

MAX_FIELDS = 64  # in one object of a request; each unknown field costs the server a validation error


class Request(BaseModel):
    """Base class of the bodies that a client sends. An unknown field is a validation error."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_number_of_fields(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > MAX_FIELDS:
            raise ValueError(f"{len(given)} fields in one object; at most {MAX_FIELDS}")
        return given

    def wire(self) -> dict[str, Any]:
        """Returns the JSON object to send, without defaults, so that an older server accepts it."""
        return self.model_dump(mode="json", exclude_defaults=True)


class Answer(BaseModel):
    """Base class of the bodies that a server sends. Clients ignore unknown fields.

    A field whose set of values may grow is a plain string. Its description says how clients treat an unknown
    value.
    """

    model_config = ConfigDict(extra="ignore")
