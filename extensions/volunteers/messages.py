"""The messages between gateway and volunteers: JSON in signed DSSE envelopes, in both directions.

A request names the start of the gateway that it is for (`life`) and a counter that grows, so that nobody can
send it again. A volunteer's address is the id of its public key.
"""

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from contracts.channel import MAX_KEYS, MAX_SOURCES, PublicKey
from contracts.support.messages import printable
from extensions.stored_weights.store.errors import BadSignatureError, StoreError
from extensions.stored_weights.store.signing import SigningKey, Verifier

VOLUNTEER_TYPE = "application/vnd.pipelinerl.volunteer+json"  # what volunteers sign
GATEWAY_TYPE = "application/vnd.pipelinerl.gateway+json"  # what the gateway signs
MAX_ROOM = 1024

Hex = Annotated[str, Meta(pattern=r"^[0-9a-f]{16,64}\Z")]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Source = Annotated[
    str, Meta(max_length=2048, pattern=r"^https?://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~/-]*)?\Z")
]
Name = Annotated[str, Meta(max_length=200)]


class Head(Struct):
    """The fields of every request, which are read before its signature is verified."""

    action: str
    volunteer: Hex  # address
    gateway: Hex
    life: Hex
    task: str = ""


class Message(Struct, forbid_unknown_fields=True, tag_field="action"):
    """A request of a volunteer. gateway: public key of the one that it is for."""

    volunteer: Hex
    gateway: Hex
    life: Hex
    counter: Count


class Register(Message, tag="register"):
    """`POST /v1/volunteers`: joins with an invite. The message is signed with `public_key`."""

    public_key: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    invite: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    software: Name = ""
    device: Name = ""


class Ask(Message, tag="ask"):
    """`POST /v1/tasks`: asks for a task. It waits for one, and shows that the volunteer is there.

    run, version: of the weights that it samples with. room: the most completions. A volunteer that has a task
    gets the same one again, unless it has uploaded it.
    """

    run: Name
    version: Count
    room: Annotated[int, Meta(ge=1, le=MAX_ROOM)]


class Return(Message, tag="return"):
    """`DELETE /v1/tasks/TASK`: gives a task back."""

    task: Hex


class Me(Message, tag="me"):
    """`POST /v1/me`: asks what the gateway knows about the volunteer."""


class Made(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One completion. logprobs: of its tokens, in nats, divided by the task's temperature before.

    proofs: its commitments, in base64, if the run asks for them.
    """

    token_ids: list[TokenId]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]
    proofs: bytes = b""


class Upload(Message, tag="upload"):
    """`PUT /v1/tasks/TASK`: the completions of a task, in the order of its members."""

    task: Hex
    members: list[Made]


class Member(Struct):
    """A completion to make. key: of its draws, 64 hex digits; null if the temperature is 0."""

    prompt: list[int]
    key: str | None


class Task(Struct):
    """Some completions for one volunteer. expires_s: in so many seconds it goes to another one."""

    task: str
    run: str
    version: int
    temperature: float
    max_tokens: int
    stop_token_ids: list[int]
    members: list[Member]
    expires_s: float


class Weights(Struct):
    """A version of the run's weights, and the SHA-256 of its signed manifest in the store."""

    version: Count
    manifest_sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Granted(Struct):
    """The answer to `Ask`. task: null if there was none in time. weights: the newest, to sample with next."""

    task: Task | None
    weights: Weights | None


class Accepted(Struct):
    """The answer to `Upload`: this many completions were accepted."""

    accepted: int


class Standing(Struct):
    """The answer to `Register`, `Me` and `Return`. state: active, paused, slashed or evicted; reason: why."""

    volunteer: str
    label: str
    state: str
    reason: str
    tasks: int
    completions: int
    strikes: int


class Run(Struct):
    """The answer to `GET /v1/run`: what a volunteer needs to serve the run's weights.

    life: of this start of the gateway. run: the trainer's session; "" before the trainer has come. weights:
    the newest that the gateway has; null before the first ones. dtype: with which volunteers compute.
    end_token_ids: at which every completion ends, with those of its task. commitments: whether completions
    come with them.
    """

    life: Hex
    run: Annotated[str, Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,127})?\Z")]
    sources: Annotated[list[Source], Meta(max_length=MAX_SOURCES)]
    public_keys: Annotated[list[PublicKey], Meta(max_length=MAX_KEYS)]
    weights: Weights | None
    dtype: Literal["float32", "bfloat16"]
    model: Hex  # SHA-256 of its config.json
    end_token_ids: list[int]
    commitments: bool = False


class LedgerHead(Struct):
    """The first part of the answer to `GET /v1/ledger`: number and hash of the last entry."""

    seq: int
    hash: str


class MessageError(ValueError):
    """A message that is not signed by the expected key, or does not say what it must."""


T = TypeVar("T")


def signed(key: SigningKey, message: Struct, payload_type: str) -> bytes:
    """Returns the envelope of a message."""
    return key.sign(msgspec.json.encode(message, enc_hook=PublicKey.model_dump), payload_type)


def opened(envelope: bytes, key: PublicKey, payload_type: str, kind: type[T]) -> T:
    """Returns the message in an envelope that `key` has signed. Raises MessageError."""
    return decoded(payload_of(envelope, key, payload_type), kind)


def payload_of(envelope: bytes, key: PublicKey, payload_type: str) -> bytes:
    """Returns the payload of an envelope that `key` has signed. Raises MessageError."""
    try:
        return Verifier([key]).open(envelope, payload_type)
    except BadSignatureError:
        why = f"it is not signed as {payload_type} with the key {key.ed25519[:16]}..."
        raise MessageError(why) from None
    except (StoreError, ValueError) as error:
        raise MessageError(error.reason if isinstance(error, StoreError) else str(error)) from None


def decoded(payload: bytes, kind: type[T]) -> T:
    """Returns the message in a payload. Raises MessageError, which names the field that is wrong."""
    try:
        return msgspec.json.decode(payload, type=kind, dec_hook=_public_key)
    except (ValueError, RecursionError) as error:
        raise MessageError(printable(str(error))[:500]) from None


def _public_key(kind: type, value: object) -> PublicKey:
    return PublicKey.model_validate(value)
