"""Records: what streams carry between actor, preprocessor and trainer.

Typed structs, encoded as MessagePack; per-token arrays travel as raw little-endian bytes and decode
without a Python object per token. No pickle. Every record carries its schema number.
"""

from enum import StrEnum
from typing import Any, Literal

import msgspec
import numpy as np

Array = np.ndarray  # one-dimensional; dtype stated beside each field

_DTYPES = {1: np.dtype("<i4"), 2: np.dtype("<f4"), 3: np.dtype("|b1")}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


class Record(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="record"):
    schema: int = 1


# --- rollouts ---------------------------------------------------------------------------------


class VersionSpan(msgspec.Struct, frozen=True, array_like=True):
    """Half-open span of sampled tokens that one weight version sampled."""

    version: int
    start: int
    end: int


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of an inference server, token for token as it was sampled."""

    prompt_token_ids: Array  # [P] int32
    token_ids: Array  # [T] int32, end-of-sequence included
    logprobs: Array  # [T] float32, under the distribution sampled from
    spans: list[VersionSpan]  # cover [0, T) exactly once; versions non-decreasing within a segment
    temperature: float
    finish_reason: Literal["stop", "length", "abort", "repetition"]
    segments: list[int] = []  # token at which each further request took up what the one before left
    server: str = ""  # of the last request


class Rollout(Record, frozen=True, kw_only=True):
    """One trajectory: a member of a group of attempts at the same problem."""

    run: str
    rollout_id: str
    group_id: int  # grows in the order of starting; evaluation uses its own count
    problem_id: str
    domain: str
    draw: int = -1  # of its group (see `Started`); evaluation has none
    completions: list[Completion] = []
    reward: float = 0.0
    reward_components: dict[str, float] = {}  # by name; where there are any, they add up to `reward`
    turn_rewards: list[float] = []  # what each completion has earned by itself, part of `reward`
    metrics: dict[str, float] = {}
    started_at: float = 0.0  # unix seconds
    finished_at: float = 0.0
    status: str = "ok"  # ok | truncated | failed:<why>

    @property
    def failed(self) -> bool:
        return self.status.startswith("failed")

    @property
    def sampled_tokens(self) -> int:
        return sum(len(c.token_ids) for c in self.completions)

    @property
    def versions(self) -> list[int]:
        """Distinct weight versions that sampled this rollout, in order."""
        return sorted({s.version for c in self.completions for s in c.spans if s.end > s.start})


# --- training data ----------------------------------------------------------------------------


class TrainingSequence(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens with what the objective needs to know of each. All arrays have length T.

    Adding a per-token field: add it here and in `contracts.trainer.PackedBatch`.
    """

    rollout_id: str
    group_id: int
    temperature: float
    loss_weight: float  # of each of its tokens in the step's loss: the normalisation, over the whole step
    token_ids: Array  # [T] int32
    loss_mask: Array  # [T] bool: sampled, and part of the loss
    behaviour_logprobs: Array  # [T] float32, 0 where not sampled
    versions: Array  # [T] int32, -1 where not sampled
    advantages: Array  # [T] float32, 0 where not sampled
    reference_logprobs: Array | None = None  # [T] float32


class MicroBatchRow(Record, frozen=True, kw_only=True):
    """One packed micro-batch per data-parallel rank; rows of a step arrive as they fill."""

    step: int  # the step these sequences train; the weights it starts from have this version
    index: int  # within the step
    micro_batches: list[list[TrainingSequence]]  # [rank][sequence], possibly empty
    closes_step: bool
    group_ids: list[int] = []  # on the closing row: the groups of the step
    masked_tokens: int = 0  # sampled tokens that `on_stale: mask` took out of the loss
    rollouts_offset: int = 0  # `rollouts` from here on holds all that closed no step up to this row


# --- events -----------------------------------------------------------------------------------


class DropReason(StrEnum):
    """Why a group was not trained on. Every dropped group is named; a filter of yours has its own word."""

    ZERO_ADVANTAGE = "zero_advantage"  # all rewards equal: no signal
    OVERLONG = "overlong"  # truncated at the token limit
    ADVANTAGE_RANGE = "advantage_range"  # an advantage beyond what the rewards can mean
    STALE = "stale"  # sampled by weights older than max_lag allows
    FAILED = "failed"  # fewer than two members without failure
    NONFINITE = "nonfinite"  # the step's gradient was not finite
    TRAINING_DONE = "training_done"  # still in the pipeline when the last step closed
    INTERRUPTED = "interrupted"  # in flight when the run stopped, before it was resumed
    ROLLED_BACK = "rolled_back"  # sampled by weights above those that the run was resumed with


class Started(Record, frozen=True, kw_only=True):
    """A group was admitted; appended before its first request."""

    group_id: int
    rollouts: int
    draw: int  # which problem of the sampler's order; drawn again if the group is lost in a stop
    problem: int  # index of the training problem
    version: int = 0  # live at that time


class Settled(Record, frozen=True, kw_only=True):
    """Groups that are done with: trained (`reason` null) or dropped."""

    group_ids: list[int]
    rollouts: int
    reason: str | None = None  # a DropReason, or the word of a filter of one's own
    version: int | None = None  # that their step made, if they were in one


class PublishWanted(Record, frozen=True, kw_only=True):
    """`schedule: async`: the trainer waits for the actor to have no request open."""

    version: int


class Quiesced(Record, frozen=True, kw_only=True):
    """`schedule: async`: no request is open, none starts until `version` is live."""

    version: int


class WeightsPublished(Record, frozen=True, kw_only=True):
    """`version` is live on `servers`, and on no others."""

    run: str
    version: int
    servers: list[str]
    seconds: float
    bytes: int
    paused_s: float  # the longest pause among the servers


class StepClosed(Record, frozen=True, kw_only=True):
    """An optimizer step ended; `version` counts it."""

    version: int
    rollouts: int
    tokens: int  # unmasked tokens trained on
    lag_histogram: dict[int, int]  # lag -> tokens
    skipped: bool = False  # the gradient was not finite


class SetResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluation found on one held-out set."""

    name: str
    problems: int
    attempts: int  # at each problem
    success: float  # the mean over the problems of the mean over the attempts: avg@attempts
    failed: int = 0  # attempts without an end: they count as unsolved


class Evaluated(Record, frozen=True, kw_only=True):
    """Attempts at held-out problems, at temperature 1."""

    version: int  # that the servers held when the evaluation began
    problems: int
    success: float  # the mean over all problems of the mean over the attempts at each
    first_version: int  # oldest and newest version that sampled a token of it
    last_version: int
    failed: int = 0  # attempts without an end: they count as unsolved
    pinned: bool = False  # by a server out of the weight group
    sets: list[SetResult] = []


class Pinned(Record, frozen=True, kw_only=True):
    """An evaluation wants this server to keep its weights: the next publication is to leave it out."""

    server: str


class Released(Record, frozen=True, kw_only=True):
    """The evaluation has ended: the next publication takes the server back in."""

    server: str


class ActorStopped(Record, frozen=True, kw_only=True):
    """The actor's last event: `rollouts` holds everything it will ever write."""


class TrainingDone(Record, frozen=True, kw_only=True):
    """The last step has closed and its weights are published."""

    version: int


class CheckpointSaved(Record, frozen=True, kw_only=True):
    """The checkpoint of `version` is whole on disk."""

    version: int
    rollouts_offset: int  # what the oldest kept checkpoint needs of `rollouts`


class SamplerState(Record, frozen=True, kw_only=True):
    """The sampler after so many draws, as its `state_dict` says it."""

    draws: int
    state: dict[str, Any]


class Resumed(Record, frozen=True, kw_only=True):
    """The run goes on from `version`: what it trained above that is undone. Written by the launcher, the
    only writer of `launcher_events`, before any process starts; all that they need to know is in it."""

    version: int
    ends: dict[str, int]  # stream -> where what was written before ends
    rollouts_offset: int  # whence to replay `rollouts`
    kept_offset: int | None  # what the oldest kept checkpoint needs of `rollouts`; None without any
    replayed: list[int]  # whole groups from before that count as if they had just been sampled
    interrupted: list[int]  # groups dropped, as DropReason says
    rolled_back: list[int]
    next_group: int
    draws: int  # of the sampler, so far
    redraws: list[tuple[int, int]]  # (draw, problem) of groups lost in this stop or an earlier one
    sampler: SamplerState | None = None  # the last one recorded


Event = (
    Started | Settled | PublishWanted | Quiesced | WeightsPublished | StepClosed | Evaluated
    | Pinned | Released | ActorStopped | TrainingDone | CheckpointSaved | SamplerState | Resumed
)  # fmt: skip


# --- encoding ---------------------------------------------------------------------------------


def _encode_array(value: object) -> object:
    if isinstance(value, np.ndarray):
        return msgspec.msgpack.Ext(_CODES[value.dtype], value.tobytes())
    raise NotImplementedError(f"records do not carry {type(value).__name__}")


def _decode_array(code: int, data: memoryview) -> np.ndarray:
    return np.frombuffer(data, dtype=_DTYPES[code])


def _check_array(expected: type, value: object) -> object:
    if isinstance(value, np.ndarray):
        return value
    raise NotImplementedError(f"expected {expected}, got {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(
    Rollout | MicroBatchRow | Event, ext_hook=_decode_array, dec_hook=_check_array
)


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


def decode(data: bytes | memoryview) -> Record:
    """Raises msgspec.ValidationError on anything that is not a known record."""
    return _decoder.decode(data)
