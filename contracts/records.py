"""Records are what streams carry between actor, preprocessor and trainer.

They are typed structs, encoded as MessagePack. Per-token arrays travel as raw little-endian bytes, so
decoding creates no Python object per token. Pickle is not used. Every record carries its schema number.
"""

from enum import StrEnum
from typing import Any, Literal

import msgspec
import numpy as np

Array = np.ndarray  # one-dimensional; the comment of each field gives its dtype

_DTYPES = {
    1: np.dtype("<i4"),
    2: np.dtype("<f4"),
    3: np.dtype("|b1"),
    4: np.dtype("|u1"),
    5: np.dtype("<u2"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


class Record(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="record"):
    """Base class of everything that a stream carries."""

    schema: int = 1


# --- rollouts ---------------------------------------------------------------------------------


class VersionSpan(msgspec.Struct, frozen=True, array_like=True):
    """Half-open span of sampled tokens that one weight version sampled."""

    version: int
    start: int
    end: int


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One response of an inference server, token for token as it was sampled."""

    prompt_token_ids: Array  # [P] int32
    token_ids: Array  # [T] int32, end-of-sequence included
    logprobs: Array  # [T] float32 nats, under the distribution sampled from
    spans: list[VersionSpan]  # cover [0, T) exactly once; versions non-decreasing within a segment
    temperature: float
    finish_reason: Literal["stop", "length", "abort", "repetition"]
    segments: list[int] = []  # index of the token at which each further request continued
    server: str = ""  # URL of the server that answered the last request
    token_fields: dict[str, Array] = {}  # [T] each, by the name that `contracts.token_fields` declares
    began: float = 0.0  # unix seconds at which it was first requested. 0 in records of earlier code
    ended: float = 0.0  # unix seconds at which the last answer had come


# A server's refusals whose cause is the length of what it was asked.
_TOO_LONG = {"server_context_length_exceeded", "server_too_large"}


def infrastructure(status: str) -> bool:
    """Says whether a rollout of this `status` failed because of what the attempt ran on.

    That is a server, the service that judges, or the time that they took; the attempt may succeed elsewhere
    or later. Otherwise the model, the problem or the domain is the cause. An attempt whose time ended with
    tokens sampled is `truncated`, and no failure.
    """
    kind, _, reason = status.partition(":")
    if kind != "failed" or reason in _TOO_LONG:
        return False
    return reason in ("timeout", "bad_answer", "judge") or reason.startswith(("server_", "judge_"))


class Rollout(Record, frozen=True, kw_only=True):
    """One trajectory: a member of a group of attempts at the same problem."""

    run: str
    rollout_id: str
    group_id: int  # increases in the order of starting; evaluation uses its own count
    problem_id: str
    domain: str
    draw: int = -1  # draw of the group (see `Started`); -1 in evaluation
    completions: list[Completion] = []
    reward: float = 0.0
    reward_components: dict[str, float] = {}  # parts of `reward` by name, which add up to it; may be empty
    turn_rewards: list[float] = []  # the part of `reward` that each completion earned by itself
    metrics: dict[str, float] = {}
    started_at: float = 0.0  # unix seconds
    finished_at: float = 0.0
    status: str = "ok"  # ok | truncated | failed:<why>

    @property
    def failed(self) -> bool:
        """Whether the rollout ended in an error and has no reward."""
        return self.status.startswith("failed")

    @property
    def sampled_tokens(self) -> int:
        """The number of tokens that servers sampled for this rollout."""
        return sum(len(c.token_ids) for c in self.completions)

    @property
    def versions(self) -> list[int]:
        """The distinct weight versions that sampled this rollout, in increasing order."""
        return sorted({s.version for c in self.completions for s in c.spans if s.end > s.start})


# --- training data ----------------------------------------------------------------------------


class TrainingSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence with the per-token data that the objective needs. All arrays have length T.

    A token field of one domain travels in `token_fields`. A field for every run is added here, in
    `pipelinerl.batching.sequences`, and in `contracts.trainer.PackedBatch` and its `_ARRAYS`.
    """

    rollout_id: str
    group_id: int
    temperature: float
    loss_weight: float  # weight of each of its tokens in the step's loss, which normalises over the step
    token_ids: Array  # [T] int32
    loss_mask: Array  # [T] bool, true where a token was sampled and is part of the loss
    behaviour_logprobs: Array  # [T] float32, 0 where not sampled
    versions: Array  # [T] int32, -1 where not sampled
    advantages: Array  # [T] float32, 0 where not sampled
    reference_logprobs: Array | None = None  # [T] float32
    token_fields: dict[str, Array] = {}  # [T] each, as declared; the declared fill where not sampled

    @property
    def tokens_in_loss(self) -> int:
        """The number of tokens that the loss has of this sequence."""
        return int(np.count_nonzero(self.loss_mask))


class MicroBatchRow(Record, frozen=True, kw_only=True):
    """One packed micro-batch per data-parallel rank. The rows of a step are sent as they fill."""

    step: int  # the step that these sequences train, and the version of its initial weights
    index: int  # index of the row within the step
    micro_batches: list[list[TrainingSequence]]  # [rank][sequence], possibly empty
    closes_step: bool
    group_ids: list[int] = []  # the groups of the step; only the closing row has them
    masked: dict[str, list[str]] = {}  # filter's reason -> rollouts of theirs that it took out of the loss
    masked_tokens: int = 0  # sampled tokens that `on_stale: mask` removed from the loss
    rollouts_offset: int = 0  # offset in `rollouts`; what the closed steps have not used lies after it


# --- events -----------------------------------------------------------------------------------


class DropReason(StrEnum):
    """The reason why a group was not trained on.

    Every dropped group has one; a custom filter uses its own word.
    """

    ZERO_ADVANTAGE = "zero_advantage"  # all rewards are equal, so there is no signal
    OVERLONG = "overlong"  # members were truncated: at the token limit, or when their time was over
    ADVANTAGE_RANGE = "advantage_range"  # an advantage is larger than the rewards can explain
    STALE = "stale"  # tokens were sampled by weights older than max_lag allows
    FAILED = "failed"  # fewer than two members ended without failure
    NONFINITE = "nonfinite"  # the step's gradient was not finite
    TRAINING_DONE = "training_done"  # the group was in the pipeline when the last step closed
    INTERRUPTED = "interrupted"  # the group was in flight when the run stopped
    ROLLED_BACK = "rolled_back"  # tokens were sampled by weights newer than the run was resumed with
    TOKEN_FIELDS = "token_fields"  # the group was sampled under another declaration of token fields


class Dated(Record, frozen=True, kw_only=True):
    """Base class of events that say when they were written."""

    at: float = 0.0  # unix seconds; a stream's writer fills it in. 0 in records of earlier code


class Started(Dated, frozen=True, kw_only=True):
    """Says that a group was admitted. It is appended before the group's first request."""

    group_id: int
    rollouts: int
    draw: int  # index in the sampler's order; drawn again if the run stops before the group ends
    problem: int  # index of the training problem
    version: int = 0  # weight version that was live at that time


class Settled(Dated, frozen=True, kw_only=True):
    """Names groups that are finished: trained (`reason` is null) or dropped."""

    group_ids: list[int]
    rollouts: int
    reason: str | None = None  # a DropReason, or the word of a custom filter
    version: int | None = None  # weight version that their step produced, if they were trained


class PublishWanted(Record, frozen=True, kw_only=True):
    """Says that the trainer waits until the actor has no open request (`schedule: async`)."""

    version: int


class Quiesced(Record, frozen=True, kw_only=True):
    """Says that no request is open and none starts until `version` is live (`schedule: async`)."""

    version: int


class ServerUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What one server says of its part in a publication."""

    url: str
    paused_s: float  # seconds for which its generation stood still
    transfer_s: float  # seconds from its 202 to the last bucket


class WeightsPublished(Dated, frozen=True, kw_only=True):
    """Says that `version` is live on `servers`, and on no others."""

    run: str
    version: int
    servers: list[str]
    joinings: list[int] = []  # numbers of their `ServerJoined`. Empty in records of earlier code
    seconds: float
    bytes: int
    paused_s: float  # the longest pause of a server, in seconds
    phases: dict[str, float] = {}  # seconds of open, gather, send and confirm. Empty in earlier records
    updates: list[ServerUpdate] = []  # one a server, in the order of `servers`


class StepClosed(Dated, frozen=True, kw_only=True):
    """Says that an optimizer step ended; `version` counts it."""

    version: int
    rollouts: int
    tokens: int  # unmasked tokens trained on
    lag_histogram: dict[int, int]  # number of tokens by lag
    skipped: bool = False  # whether the update was skipped because the gradient was not finite


class SetResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an evaluation on one held-out set."""

    name: str
    problems: int
    attempts: int  # attempts at each problem
    success: float  # mean over the problems of the mean over the attempts: avg@attempts
    failed: int = 0  # attempts that failed, which count as unsolved


class Evaluated(Dated, frozen=True, kw_only=True):
    """The result of attempts at held-out problems, sampled at temperature 1."""

    version: int  # weight version of the servers when the evaluation began
    problems: int
    success: float  # mean over all problems of the mean over the attempts at each
    first_version: int  # oldest version that sampled a token of it; `last_version` is the newest
    last_version: int
    failed: int = 0  # attempts that failed, which count as unsolved
    pinned: bool = False  # whether a server outside the weight group sampled it
    sets: list[SetResult] = []


class Pinned(Record, frozen=True, kw_only=True):
    """Says that an evaluation needs this server to keep its weights.

    The next publication leaves the server out.
    """

    server: str


class Released(Record, frozen=True, kw_only=True):
    """Says that the evaluation has ended. The next publication includes the server again."""

    server: str


class ActorStopped(Record, frozen=True, kw_only=True):
    """The actor's last event: nothing is written to `rollouts` after it."""


class TrainingDone(Record, frozen=True, kw_only=True):
    """Says that the last step has closed and its weights are published."""

    version: int
    solved: int | None = None  # version whose evaluation met `stop_at`; None where `max_steps` ended the run


class CheckpointSaved(Dated, frozen=True, kw_only=True):
    """Says that the checkpoint of `version` is complete on disk."""

    version: int
    rollouts_offset: int  # offset in `rollouts` that the oldest kept checkpoint needs


class SamplerState(Record, frozen=True, kw_only=True):
    """The state of the sampler after `draws` draws, as its `state_dict` returns it.

    A run that resumes reads the newest, whichever checkpoint it resumes from: its draws are never undone.
    """

    draws: int
    state: dict[str, Any]


class Resumed(Dated, frozen=True, kw_only=True):
    """Says that the run resumes from `version`: what it trained after that version is undone.

    The launcher writes it before any process starts. It contains everything that the processes need to know
    in order to resume.
    """

    version: int
    ends: dict[str, int]  # offset at which the earlier launches' records end, by stream
    rollouts_offset: int  # offset from which `rollouts` is replayed
    kept_offset: int | None  # offset in `rollouts` that the oldest kept checkpoint needs; None without one
    replayed: list[int]  # earlier complete groups that count as if they had just been sampled
    interrupted: list[int]  # groups dropped as `DropReason.INTERRUPTED`
    rolled_back: list[int]
    next_group: int
    draws: int  # draws of the sampler so far
    redraws: list[tuple[int, int]]  # (draw, problem) of each group lost in a stop
    sampler: SamplerState | None = None  # the last recorded state


# --- servers, which the launcher starts, ends and replaces ------------------------------------


class ServerJoined(Dated, frozen=True, kw_only=True):
    """Says that the launcher has started a server, which loads and has no weights of the run yet.

    The launcher is the only writer of `launcher_events`. What it says of servers counts, never who answers.
    """

    number: int = 0  # of this joining in this launch of the run, from 1. 0 in records of earlier code
    name: str  # of the job; a server that replaces another has the same name
    url: str
    node: str  # name of the node that it is on
    engine: str  # the adapter's module


class ServerLeft(Dated, frozen=True, kw_only=True):
    """Says that a server is no server of the run any more, whether or not it still answers."""

    name: str
    url: str
    why: Literal["ended", "lost", "draining", "condemned", "asked"]


class SaveWanted(Dated, frozen=True, kw_only=True):
    """Says that the launcher is about to begin the workers again: the trainer saves its state and ends."""


class Restarted(Dated, frozen=True, kw_only=True):
    """Says that the launcher starts processes of the run again.

    The workers begin again together, from the `Resumed` that comes before this record.
    """

    kind: Literal["workers", "services"]
    names: list[str]  # of the jobs
    why: str  # how the one ended whose end is the cause


class ServerCondemned(Dated, frozen=True, kw_only=True):
    """Says that the trainer cannot publish to a server. The launcher ends it.

    `replaceable` tells whether a new process in its place may do better: one that refuses for good would
    refuse again.
    """

    joining: int = 0  # number of its ServerJoined: another server may have the same URL after it
    url: str
    why: str
    replaceable: bool


class ReferenceCondemned(Dated, frozen=True, kw_only=True):
    """Says that the reference server answers no more. The launcher ends it, and starts it again."""

    why: str


Event = (
    Started | Settled | PublishWanted | Quiesced | WeightsPublished | StepClosed | Evaluated
    | Pinned | Released | ActorStopped | TrainingDone | CheckpointSaved | SamplerState | Resumed
    | ServerJoined | ServerLeft | ServerCondemned | SaveWanted | Restarted
    | ReferenceCondemned
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
    """Returns the record as MessagePack bytes.

    Raises NotImplementedError for a value that records cannot carry.
    """
    return _encoder.encode(record)


def encode_into(buffer: bytearray, offset: int, record: Record) -> None:
    """Writes what `encode` returns into `buffer` from `offset` on, and ends the buffer there."""
    _encoder.encode_into(record, buffer, offset)


def decode(data: bytes | memoryview) -> Record:
    """Returns the record that `encode` made `data` from. Raises msgspec.ValidationError for anything else.

    Its arrays are views of `data`.
    """
    return _decoder.decode(data)
