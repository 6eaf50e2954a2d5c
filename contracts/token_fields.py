"""Token fields: per-token arrays that a domain returns and an objective reads, declared in the configuration.

`token_fields: {NAME: {dtype, fill}}` declares them. Arrays are checked when a domain returns them, when a
record is read, and when a batch is packed. This module must not import torch, servers or streams.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from contracts.records import Array


class TokenFieldError(ValueError):
    """Raised if token fields differ from their declaration."""


class TokenField(BaseModel):
    """The declaration of one token field."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: Literal["float32", "int32", "bool", "uint8", "uint16"] = Field(description="Of its arrays.")
    fill: bool | int | float = Field(description="Its value where no token was sampled.")

    @field_validator("fill", mode="plain")
    @classmethod
    def _fits(cls, fill: object, info: ValidationInfo) -> object:
        dtype = info.data.get("dtype")
        if dtype is not None and not _holds(np.dtype(dtype), fill):
            raise ValueError(f"{fill!r} is not {_values_of(np.dtype(dtype))}, as dtype={dtype} needs")
        return fill

    @property
    def array_dtype(self) -> np.dtype:
        return np.dtype(self.dtype)


def _values_of(dtype: np.dtype) -> str:
    if dtype.kind == "b":
        return "true or false"
    if dtype.kind == "f":
        return "a finite number"
    return f"a whole number from {np.iinfo(dtype).min} to {np.iinfo(dtype).max}"


def _holds(dtype: np.dtype, fill: object) -> bool:
    if dtype.kind == "b" or isinstance(fill, bool):
        return dtype.kind == "b" and isinstance(fill, bool)
    if dtype.kind == "f":
        return isinstance(fill, int | float) and abs(fill) <= float(np.finfo(dtype).max)
    return isinstance(fill, int) and np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max


def check_token_fields(declared: Mapping[str, TokenField], given: Any, tokens: int) -> None:
    """Raises TokenFieldError unless `given` has exactly the declared fields, each with `tokens` values.

    The message is one line, written for the author of the domain.
    """
    if not isinstance(given, Mapping):
        raise TokenFieldError(f"token_fields is a {type(given).__name__}, not a dict of arrays by name")
    for name, array in given.items():
        if name not in declared:
            dtype = getattr(array, "dtype", "float32")
            raise TokenFieldError(
                f"the token field {name} is not declared: add token_fields.{name} to the configuration, with "
                f"its dtype ({dtype}) and its fill"
            )
    for name, field in declared.items():
        if name not in given:
            raise TokenFieldError(
                f"the token field {name} is declared and missing: every completion of every attempt needs it"
            )
        _check_array(name, field, given[name], tokens)


def _check_array(name: str, field: TokenField, array: Array, tokens: int) -> None:
    if type(array) is not np.ndarray:  # also refuses subclasses: a masked array hides values from the checks
        raise TokenFieldError(
            f"the token field {name} is a {type(array).__name__}, not a NumPy array: give "
            f"np.array(values, dtype={field.dtype!r})"
        )
    if array.dtype != field.array_dtype:
        raise TokenFieldError(
            f"the token field {name} has dtype {array.dtype}, and {field.dtype} is declared: give "
            f"{name}.astype({field.dtype!r})"
        )
    if array.shape != (tokens,):
        raise TokenFieldError(
            f"the token field {name} has shape {array.shape} for {tokens} tokens: give one value for each, "
            f"in shape ({tokens},)"
        )
    if field.array_dtype.kind == "f" and not np.isfinite(array).all():
        raise TokenFieldError(f"the token field {name} has a value that is not finite")
