"""Wire models of weight channels, by which a server obtains weights from a store instead of a weight group.

`StoredUpdate` and `PullProgress` are passed to the engine and do not cross the wire. This module must not
import torch or the packages of the extra `weights`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from contracts.limits import LONGEST_S, MAX_INTEGER, Count, FileName, KvCacheMode, RunName, Seconds, Sha256
from contracts.wire import Answer, Request

MAX_SOURCES = 64
MAX_KEYS = 8
Url = Annotated[str, Field(max_length=2048, pattern=r"^(https?|file)://[\x21-\x7e]+$")]
ChannelKind = Literal["relay", "shared"]


class PublicKey(Request):
    """A public key of a run: the raw 32 bytes of an Ed25519 key as hex, and its name."""

    id: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    ed25519: str = Field(pattern=r"^[0-9a-f]{64}$")


class InitWeightChannelRequest(Request):
    """The body of `POST /init_weight_channel`: join a channel, whose store has the versions of a run.

    A server is in a weight group or in a channel; joining one leaves the other. `run`, `takeover` and `epoch`
    mean the same as in `InitProcessGroupRequest`.
    """

    run: RunName
    takeover: bool = Field(False, description="accept another run; its requests end with `abort`")
    epoch: Count = Field(description="grows with every new group or channel within a run")
    kind: ChannelKind = Field(description="needs the capability of that name")
    sources: list[Url] = Field(
        min_length=1,
        max_length=MAX_SOURCES,
        description="relay: the URLs below which the store is served; shared: a file:// URL of its directory",
    )
    public_keys: list[PublicKey] = Field(min_length=1, max_length=MAX_KEYS)
    follow: bool = Field(
        False,
        description="relay: pull each newer version; otherwise wait for /request_weight_update",
    )
    poll_s: float = Field(
        1.0, ge=0.01, lt=LONGEST_S, allow_inf_nan=False, description="interval between polls of latest.json"
    )
    idle_timeout_s: Seconds = Field(30.0, description="a transfer is cancelled after so long without a byte")
    min_bytes_per_s: int = Field(
        65536, ge=0, lt=MAX_INTEGER, description="a transfer slower than this is cancelled"
    )
    kv_cache: KvCacheMode = Field("keep", description="mode of the versions that `follow` pulls")
    proof: FileName | None = Field(
        None, description="shared: a file in proofs/ of the store, whose SHA-256 the response states"
    )


class InitWeightChannelResponse(Answer):
    """The response to `POST /init_weight_channel`, with the weights that the server serves after joining."""

    version: int
    digest: str | None = None
    proof: str | None = Field(None, description="the SHA-256 of the file that `proof` names")


class ChannelUpdateRequest(Request):
    """The body of `POST /request_weight_update` on a channel: pull this version, and serve it.

    It has no `parameters`: the signed manifest lists them.
    """

    run: RunName
    epoch: Count
    version: Count
    manifest_sha256: Sha256 = Field(description="of the envelope in the store")
    kv_cache: KvCacheMode = "keep"
    timeout_s: Seconds = Field(description="from the 202 until the version is live")


class SourceInfo(Answer):
    """Transfer statistics of one source of a channel."""

    url: str
    success: float = Field(description="success rate, 0 to 1: a moving average over its transfers")
    bytes_per_s: float = Field(description="a moving average; 0 before its first transfer")
    bytes: int = Field(0, description="all bytes received from it")
    failures: int = 0


class ChannelInfo(Answer):
    """The weight channel that the server follows, as `/contract` reports it."""

    kind: str = Field(description="relay or shared")
    epoch: int
    follow: bool
    newest_seen: int | None = Field(None, description="the newest version whose signature was verified")
    target: int | None = Field(None, description="the version that is being fetched or applied")
    bytes_done: int = Field(0, description="bytes of the target's files that are complete locally")
    bytes_total: int = 0
    stale_s: float | None = Field(
        None, description="seconds since a newer signed `latest.json` was last seen"
    )
    sources: list[SourceInfo] = Field(default_factory=list)


@dataclass(frozen=True)
class StoredUpdate:
    """A version in verified local files: the argument of `InferenceEngine.load_weights`."""

    version: int
    shapes: Mapping[str, tuple[int, ...]]  # shape of every parameter, by Hugging Face name
    tied: Mapping[str, str]  # tied name -> name under which the weight is stored
    files: tuple[Path, ...]  # safetensors files that together have every parameter once
    directory: Path | None  # with config.json and an index, if the version was assembled as a checkpoint
    kv_cache: KvCacheMode
    manifest_sha256: str | None = None  # of the signed manifest, by which others can request the version


@dataclass
class PullProgress:
    """Progress of a fetch. The fetching thread writes it; other threads may read it."""

    bytes_done: int = 0  # bytes of the version's files that are available locally
    bytes_total: int = 0
    bytes_fetched: int = 0  # bytes received over the network, repeated transfers included
