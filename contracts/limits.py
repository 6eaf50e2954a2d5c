"""The limits of the inference contract: the largest values of a request, checked before it is processed.

The servers of this project enforce these numbers and report them in `/contract`. Other servers may report
smaller ones.
"""

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from contracts.wire import Answer

# --- sizes and times of HTTP requests

MAX_HEADER_BYTES = 32 * 2**10
MAX_BODY_BYTES = 64 * 2**20  # the body of a weight update's manifest, or of token ids to score
MAX_GENERATION_BYTES = 16 * 2**20  # the body of a generation request: up to eight bytes per character
MAX_CONNECTIONS = 4096
HEADER_TIMEOUT_S = 10.0  # until a request's header is complete
BODY_TIMEOUT_S = 120.0  # until the request's body is complete

START_VARIABLE = "PIPELINERL_START_TIMEOUT_S"  # variable of a server that a run started: when it is given up

# --- generation

MAX_N = 128
MAX_TOKENS_OF_CHOICES = 2**20  # of all choices of a request: a server stores them until the last one ends
MIN_TEMPERATURE = 1e-4  # the smallest besides 0 (greedy); dividing logits by less overflows
MAX_TEMPERATURE = 1e4
MAX_TEXT_CHARACTERS = 2 * 2**20  # in a prompt, or in all messages and tools together
MAX_TOKENS = 2 * 2**20  # in one prompt or sequence
MAX_MESSAGES = 4096
MAX_STOPS = 1024  # stop strings, or stop token ids
MAX_STOP_CHARACTERS = 1024
MAX_PROMPTS = 1024  # in one request
MAX_TOP_LOGPROBS = 20
MAX_SEQUENCES = 1024  # in one request to score

# --- weights

MAX_PARAMETERS = 2**18
MAX_NAME_CHARACTERS = 512
MAX_DIMENSIONS = 16
MAX_ELEMENTS = 2**48  # in one tensor
MAX_RANKS = 2**16
LONGEST_S = 86400.0  # upper bound of every timeout
MAX_INTEGER = 2**53  # upper bound of versions and epochs: a JSON reader may parse numbers as doubles


class Limits(Answer):
    """The limits that a server states in `GET /contract`. Omitted limits have the contract's values."""

    max_header_bytes: int = MAX_HEADER_BYTES
    max_body_bytes: int = Field(MAX_BODY_BYTES, description="size of a body of weight updates and /score")
    max_generation_bytes: int = Field(MAX_GENERATION_BYTES, description="size of any other body")
    max_connections: int = MAX_CONNECTIONS
    header_timeout_s: float = HEADER_TIMEOUT_S
    body_timeout_s: float = BODY_TIMEOUT_S
    max_n: int = MAX_N
    min_temperature: float = Field(MIN_TEMPERATURE, description="0, which is greedy, is allowed as well")
    max_temperature: float = MAX_TEMPERATURE
    max_text_characters: int = MAX_TEXT_CHARACTERS
    max_sequences: int = Field(MAX_SEQUENCES, ge=1)
    max_parameters: int = MAX_PARAMETERS


# --- types of the fields of requests

KvCacheMode = Literal["keep", "recompute"]


def _temperature(value: float) -> float:
    if 0 < value < MIN_TEMPERATURE:
        raise ValueError(f"{value:g} lies between 0, which is greedy, and {MIN_TEMPERATURE:g}, the lowest")
    return value


def _shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    if math.prod(shape) > MAX_ELEMENTS:
        raise ValueError(f"more than {MAX_ELEMENTS} elements")
    return shape


PRINTABLE = r"^[\x20-\x7e]+$"

BETWEEN = {"not": {"exclusiveMinimum": 0, "exclusiveMaximum": MIN_TEMPERATURE}}  # for the JSON Schema
Temperature = Annotated[
    float,
    Field(ge=0, le=MAX_TEMPERATURE, allow_inf_nan=False, json_schema_extra=dict(BETWEEN)),
    AfterValidator(_temperature),
]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=MAX_INTEGER)]  # a version or an epoch
Seconds = Annotated[float, Field(gt=0, lt=LONGEST_S, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=1, le=65535)]
Identifier = Annotated[str, Field(max_length=256, pattern=PRINTABLE)]
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]  # also a directory's name
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]  # never a path
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
DrawKeys = Annotated[list[Sha256], Field(min_length=1, max_length=MAX_N * MAX_PROMPTS, fail_fast=True)]
ModelName = Annotated[str, Field(max_length=4096)]
ParameterName = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS, pattern=PRINTABLE)]
Dimension = Annotated[int, Field(ge=0, le=MAX_ELEMENTS)]
Shape = Annotated[tuple[Dimension, ...], Field(max_length=MAX_DIMENSIONS), AfterValidator(_shape)]
# `fail_fast` stops at a list's first invalid element: millions of errors would cost more than the request.
TokenIds = Annotated[list[TokenId], Field(max_length=MAX_TOKENS, fail_fast=True)]
StopTokenIds = Annotated[list[TokenId], Field(max_length=MAX_STOPS, fail_fast=True)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopStrings = Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)]
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
# Strict mode: a list of strings of digits is not a list of ids.
PromptIds = Annotated[
    list[Annotated[TokenId, Field(strict=True)]], Field(max_length=MAX_TOKENS, fail_fast=True)
]
ListsOfIds = Annotated[list[PromptIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
Prompt = Text | PromptIds | Texts | ListsOfIds
OptionName = Annotated[str, Field(min_length=1, max_length=64)]
OptionText = Annotated[str, Field(max_length=1024)]
Option = bool | int | Annotated[float, Field(allow_inf_nan=False)] | OptionText
TemplateOptions = Annotated[dict[OptionName, Option], Field(max_length=64)]
