"""The base classes of every model that crosses the wire: requests are read strictly, answers tolerantly.

So a field may be added to an answer, and a request may have a new field with a default that is not sent.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

MAX_FIELDS = 64  # of one object of a request; each unknown one costs a server an error of its own


class Request(BaseModel):
    """Base class of what a client sends. An unknown field is refused, never ignored."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_number_of_fields(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > MAX_FIELDS:
            raise ValueError(f"{len(given)} fields in one object; at most {MAX_FIELDS}")
        return given

    def wire(self) -> dict[str, Any]:
        """Returns the JSON object to send, without the fields that have their default value.

        So a strict server of an older version of the contract accepts it.
        """
        return self.model_dump(mode="json", exclude_defaults=True)


class Answer(BaseModel):
    """Base class of what a server answers. A reader ignores fields that it does not know.

    A word that may get company is a plain string here. Its field says what a reader does with an unknown one.
    """

    model_config = ConfigDict(extra="ignore")
