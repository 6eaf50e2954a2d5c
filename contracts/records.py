"""Records: the messages in the streams between actor, preprocessor, trainer and launcher.

Records are typed structs, encoded as MessagePack. Per-token arrays are encoded as raw little-endian bytes, so
decoding creates no Python object per token. Pickle is not used. Every record has its schema number.
"""

from collections.abc import Sequence
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
    """Base class of all messages in streams."""

    schema: int = 1


# --- rollouts ---------------------------------------------------------------------------------


class VersionSpan(msgspec.Struct, frozen=True, array_like=True):
    """Half-open span of sampled tokens that one weight version sampled."""

    version: int
    start: int
    end: int


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One response of an inference server, with the token ids that were sampled.

    An answer from a data set, which no server sampled, has no `logprobs` and no `spans`.
    """

    prompt_token_ids: Array  # [P] int32
    token_ids: Array  # [T] int32, end-of-sequence included
    logprobs: Array  # [T] float32 nats, under the distribution sampled from; [0] if not sampled
    spans: list[VersionSpan]  # they cover [0, T) exactly once; versions do not decrease within a segment
    temperature: float
    finish_reason: Literal["stop", "length", "abort", "repetition"]
    segments: list[int] = []  # token indices at which further requests continued the completion
    server: str = ""  # URL of the server of the last request
    token_fields: dict[str, Array] = {}  # [T] each, by the name that `contracts.token_fields` declares
    began: float = 0.0  # unix seconds of the first request. 0 in records of earlier code
    ended: float = 0.0  # unix seconds at which the last response was complete
    reference_prompt: Array | None = None  # [Q] int32 prompt for the reference; None: `prompt_token_ids`


def unsampled(prompt_token_ids: Sequence[int], token_ids: Sequence[int]) -> Completion:
    """Returns the completion of an answer that no server sampled, with temperature 1."""
    return Completion(
        prompt_token_ids=np.array(prompt_token_ids, dtype=np.int32),
        token_ids=np.array(token_ids, dtype=np.int32),
        logprobs=np.empty(0, dtype=np.float32),
        spans=[],
        temperature=1.0,
        finish_reason="stop",
    )


class Failure(StrEnum):
    """The kind of error with which a rollout failed.

    A rollout that reached its time limit with tokens sampled is `truncated`, which is not a failure.
    """

    SERVER = "server"  # a server failed, was not reachable, or refused the request
    TIMEOUT = "timeout"
    BAD_ANSWER = "bad_answer"  # a server's response violates the contract
    JUDGE = "judge"  # the judging service returned no judgement
    TOO_LONG = "too_long"  # a server refused a request because of its length
    DOMAIN = "domain"  # the domain raised an error, or returned an invalid reward or invalid token fields

    @property
    def is_infrastructure(self) -> bool:
        """True if a retry may succeed, because neither the request's length nor the domain is the cause."""
        return self not in (Failure.TOO_LONG, Failure.DOMAIN)


def _recorded_failure(status: str) -> Failure:
    """Returns the kind of failure for a record without the field `failure`, from its `status`."""
    reason = status.partition(":")[2]
    if reason in ("server_context_length_exceeded", "server_too_large"):
        return Failure.TOO_LONG
    kind = reason.partition("_")[0] if reason.startswith(("server_", "judge_")) else reason
    return Failure(kind) if kind in ("server", "judge", "timeout", "bad_answer") else Failure.DOMAIN


class Rollout(Record, frozen=True, kw_only=True):
    """One trajectory: a member of a group of attempts at the same problem."""

    run: str  # random id of the trainer's session
    rollout_id: str
    group_id: int  # increases in the order in which groups start; evaluation has its own numbering
    problem_id: str
    domain: str
    draw: int = -1  # index of the group's draw (see `Started`); -1 in evaluation
    completions: list[Completion] = []
    reward: float = 0.0
    reward_components: dict[str, float] = {}  # parts of `reward` by name, which sum to it; may be empty
    turn_rewards: list[float] = []  # part of `reward` of each completion
    success: float | None = None  # 1 if the problem was solved, else 0; None if the rollout failed
    expected: str | None = None  # the right answer, if the domain names one; printable text
    # Why it has this reward, or why it failed, in printable text. None in records of earlier code.
    reason: str | None = None
    metrics: dict[str, float] = {}
    started_at: float = 0.0  # unix seconds
    finished_at: float = 0.0
    status: str = "ok"  # ok | truncated | failed:<why>
    failure: Failure | None = None  # kind of error; None if the rollout did not fail

    def __post_init__(self) -> None:
        """Fills in fields that earlier versions recorded in other fields."""
        if self.success is None and "success" in self.metrics:
            msgspec.structs.force_setattr(self, "success", self.metrics["success"])
        if self.failure is None and self.failed:
            msgspec.structs.force_setattr(self, "failure", _recorded_failure(self.status))

    @property
    def failed(self) -> bool:
        """True if the rollout ended in an error and has no reward."""
        return self.status.startswith("failed")

    @property
    def failed_by_infrastructure(self) -> bool:
        """True if the rollout failed, and its model, problem and domain are not the cause."""
        return self.failure is not None and self.failure.is_infrastructure

    @property
    def sampled_tokens(self) -> int:
        """The number of tokens that servers sampled for this rollout."""
        return sum(len(c.token_ids) for c in self.completions if c.spans)

    @property
    def versions(self) -> list[int]:
        """The distinct weight versions that sampled this rollout, in ascending order."""
        return sorted({s.version for c in self.completions for s in c.spans if s.end > s.start})


# --- training data ----------------------------------------------------------------------------


class ReferencePrompt(msgspec.Struct, frozen=True, array_like=True):
    """A different prompt for the reference server when it scores the tokens [start, end) of a sequence."""

    start: int
    end: int
    token_ids: Array  # [Q] int32


class TrainingSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence with the per-token data that the objective needs. All arrays have length T.

    `token_fields` has the fields that the configuration declares. To add a field for every run, add it here,
    in `pipelinerl.batching.sequences`, and in `contracts.trainer.PackedBatch` and its `_ARRAYS`.
    """

    rollout_id: str
    group_id: int
    temperature: float
    loss_weight: float  # weight of each token in the step's loss, which is normalised over the step
    token_ids: Array  # [T] int32
    loss_mask: Array  # [T] bool, true where a token is part of the loss
    behaviour_logprobs: Array  # [T] float32, 0 where not sampled
    versions: Array  # [T] int32, -1 where not sampled
    advantages: Array  # [T] float32, 0 where not sampled
    reference_logprobs: Array | None = None  # [T] float32
    reference_prompts: list[ReferencePrompt] = []  # in the order of the completions; not all have one
    token_fields: dict[str, Array] = {}  # [T] each, as declared; the declared fill where not sampled

    @property
    def tokens_in_loss(self) -> int:
        """The number of this sequence's tokens that are part of the loss."""
        return int(np.count_nonzero(self.loss_mask))


class MicroBatchRow(Record, frozen=True, kw_only=True):
    """One packed micro-batch per data-parallel rank. A step has several rows, each sent when it is full."""

    step: int  # the step that trains on these sequences, and the version of its initial weights
    index: int  # index of the row within the step
    micro_batches: list[list[TrainingSequence]]  # [rank][sequence], possibly empty
    closes_step: bool
    group_ids: list[int] = []  # the groups of the step; only the closing row has them
    masked: dict[str, list[str]] = {}  # filter's reason -> rollouts that it removed from the loss
    masked_tokens: int = 0  # sampled tokens that `on_stale: mask` removed from the loss
    reference_version: int | None = None  # weight version of the reference that scored the row, if one did
    rollouts_offset: int = 0  # offset in `rollouts`: every record not yet used by a closed step is after it


# --- events -----------------------------------------------------------------------------------


class DropReason(StrEnum):
    """The reason why a group was dropped, that is, not trained on. A custom filter uses its own word."""

    ZERO_ADVANTAGE = "zero_advantage"  # all rewards are equal, so there is no signal
    OVERLONG = "overlong"  # members were truncated at the token limit or the time limit
    ADVANTAGE_RANGE = "advantage_range"  # an advantage is larger than the rewards can explain
    STALE = "stale"  # tokens were sampled by weights older than max_lag allows
    FAILED = "failed"  # fewer members ended without failure than the advantage needs
    NONFINITE = "nonfinite"  # the step's gradient was not finite
    TRAINING_DONE = "training_done"  # the group was in the pipeline when the last step ended
    INTERRUPTED = "interrupted"  # the group was in flight when the run stopped
    ROLLED_BACK = "rolled_back"  # tokens were sampled by weights newer than those the run resumed from
    TOKEN_FIELDS = "token_fields"  # the group was sampled with another declaration of token fields
    TOO_LONG = "too_long"  # a rollout has more tokens than fit in a micro-batch


class Dated(Record, frozen=True, kw_only=True):
    """Base class of events with a timestamp."""

    at: float = 0.0  # unix seconds, set by the stream's writer. 0 in records of earlier code


class Started(Dated, frozen=True, kw_only=True):
    """A group was admitted. The actor writes this event before the group's first request."""

    group_id: int
    rollouts: int
    draw: int  # index in the sampler's order; repeated if the run stops before the group ends
    problem: int  # index of the training problem
    version: int = 0  # live weight version at that time


class Settled(Dated, frozen=True, kw_only=True):
    """Groups have ended: they were trained on (`reason` is null) or dropped."""

    group_ids: list[int]
    rollouts: int
    reason: str | None = None  # a DropReason, or a custom filter's own reason
    why: str = ""  # details of the reason: which rollout, and by how much
    version: int | None = None  # weight version that the groups' step made, if they were in one


class PublishWanted(Record, frozen=True, kw_only=True):
    """The trainer waits until the actor has answered by `Quiesced`, because it will publish `version`."""

    version: int


class Quiesced(Record, frozen=True, kw_only=True):
    """The actor sends no request until `version` is live.

    No request is open, unless the schedule takes turns and lets requests wait in servers that sleep.
    """

    version: int


class PhaseBegan(Dated, frozen=True, kw_only=True):
    """Servers and trainer take turns, and one of them begins: all servers sleep, or all ranks are offloaded.

    version: the trainer's weights, which the servers sample from, or load next.
    """

    phase: Literal["train", "generate"]
    version: int


class ServerUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The durations that one server reports for a publication."""

    url: str
    paused_s: float  # seconds for which its generation was paused
    transfer_s: float  # seconds from its 202 response to the last bucket


class WeightsPublished(Dated, frozen=True, kw_only=True):
    """The trainer has published `version`. The actor may send requests to `servers`.

    If `live` is None, the version is live on `servers` only. Otherwise servers pull weights by themselves:
    `servers` are those of the run's weight channel, and each may serve an older version for a while. The
    list may then be empty, because the publication does not wait for servers.
    """

    run: str  # random id of the trainer's session
    version: int
    servers: list[str]  # URLs
    joinings: list[int] = []  # `number` of each server's `ServerJoined`. Empty in records of earlier code
    seconds: float
    bytes: int
    paused_s: float  # the longest pause of any server, in seconds
    phases: dict[str, float] = {}  # seconds of open, gather, send and confirm. Empty in earlier records
    updates: list[ServerUpdate] = []  # one per server, in the order of `servers`
    live: list[int] | None = None  # version that each of `servers` served; -1 for weights of another run


class StepClosed(Dated, frozen=True, kw_only=True):
    """A training step ended and produced `version`."""

    version: int
    rollouts: int
    tokens: int  # unmasked tokens trained on
    lag_histogram: dict[int, int]  # lag in versions -> number of tokens
    skipped: bool = False  # True if the update was skipped because the gradient was not finite


class SetResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an evaluation on one held-out set."""

    name: str
    problems: int
    attempts: int  # per problem
    success: float  # mean over the problems of the mean over the attempts: avg@attempts
    failed: int = 0  # number of failed attempts, which count as unsolved


class Evaluated(Dated, frozen=True, kw_only=True):
    """The result of an evaluation on held-out problems, sampled at temperature 1."""

    version: int  # weight version of the servers when the evaluation began
    problems: int
    success: float  # mean over the problems of the mean over the attempts
    first_version: int  # oldest version that sampled any of its tokens
    last_version: int  # newest version that sampled any of its tokens
    failed: int = 0  # number of failed attempts, which count as unsolved
    pinned: bool = False  # True if a server outside the weight group sampled it
    sets: list[SetResult] = []
    due: int | None = None  # version due for evaluation, if servers that pull weights had a newer one


class Pinned(Record, frozen=True, kw_only=True):
    """An evaluation needs this server to keep its weights. The next publication excludes the server."""

    server: str


class Released(Record, frozen=True, kw_only=True):
    """The evaluation on this server has ended. The next publication includes the server again."""

    server: str


class ActorStopped(Record, frozen=True, kw_only=True):
    """The actor's last event. No rollout is written after it."""


class TrainingDone(Record, frozen=True, kw_only=True):
    """The last step has closed, and its weights are published."""

    version: int
    solved: int | None = None  # version whose evaluation met `stop_at`; None if `max_steps` ended the run


class CheckpointSaved(Dated, frozen=True, kw_only=True):
    """The checkpoint of `version` is complete on disk."""

    version: int
    rollouts_offset: int  # offset in `rollouts` that the oldest kept checkpoint needs


class SamplerState(Record, frozen=True, kw_only=True):
    """The `state_dict` of the sampler after `draws` draws.

    A run that resumes reads the newest one, whatever its checkpoint, because draws are not undone.
    """

    draws: int
    state: dict[str, Any]


class Resumed(Dated, frozen=True, kw_only=True):
    """The run resumes from `version`. Training after that version is undone.

    The launcher writes it before it starts the processes, which resume from this event alone. It begins a
    new incarnation of the run.
    """

    version: int
    ends: dict[str, int]  # stream -> offset at which the records of earlier incarnations end
    rollouts_offset: int  # offset from which `rollouts` is replayed
    kept_offset: int | None  # offset in `rollouts` that the oldest kept checkpoint needs, if there is one
    replayed: list[int]  # complete groups of earlier incarnations, which are used as if sampled now
    interrupted: list[int]  # groups dropped as `DropReason.INTERRUPTED`
    rolled_back: list[int]  # groups dropped as `DropReason.ROLLED_BACK`
    next_group: int
    draws: int  # draws of the sampler so far
    redraws: list[tuple[int, int]]  # (draw, problem) of each group that was lost when the run stopped
    sampler: SamplerState | None = None  # last recorded state


# --- servers, which the launcher starts, ends and replaces ------------------------------------


class ServerJoined(Dated, frozen=True, kw_only=True):
    """The launcher has started a server instance, which is loading and has no weights of the run yet.

    The launcher is the only writer of `launcher_events`. These events define the run's servers, whether or
    not the servers respond.
    """

    number: int = (
        0  # number of the server instance, from 1 per launcher process. 0 in records of earlier code
    )
    name: str  # name of the job; a replacement has the name of the server it replaces
    url: str
    node: str  # name of the server's node
    engine: str  # the adapter's module


class ServerLeft(Dated, frozen=True, kw_only=True):
    """A server no longer belongs to the run, whether or not it still responds."""

    name: str
    url: str
    why: Literal["ended", "lost", "draining", "condemned", "asked"]


class SaveWanted(Dated, frozen=True, kw_only=True):
    """The launcher is about to restart the workers. The trainer saves its state and exits."""


class Restarted(Dated, frozen=True, kw_only=True):
    """The launcher restarts processes of the run.

    Workers (actor, preprocessor and trainer) restart together, from the `Resumed` before this event.
    """

    kind: Literal["workers", "services"]
    names: list[str]  # names of the jobs
    why: str  # how the job ended that caused the restart


class ServerCondemned(Dated, frozen=True, kw_only=True):
    """The trainer cannot publish to a server. The launcher ends it.

    `replaceable` is True if a new process may succeed, and False if the server refuses permanently.
    """

    joining: int = 0  # `number` of its ServerJoined, because a later server may have the same URL
    url: str
    why: str
    replaceable: bool


class ReferenceCondemned(Dated, frozen=True, kw_only=True):
    """The reference server does not respond. The launcher restarts it."""

    why: str


Event = (
    Started | Settled | PublishWanted | Quiesced | PhaseBegan | WeightsPublished | StepClosed | Evaluated
    | Pinned | Released | ActorStopped | TrainingDone | CheckpointSaved | SamplerState | Resumed
    | ServerJoined | ServerLeft | ServerCondemned | SaveWanted | Restarted
    | ReferenceCondemned
)  # fmt: skip


# --- encoding ---------------------------------------------------------------------------------


def _encode_array(value: object) -> object:
    if isinstance(value, np.ndarray):
        return msgspec.msgpack.Ext(_CODES[value.dtype], value.tobytes())
    raise NotImplementedError(f"records do not carry {type(value).__name__}")


def decode_array(code: int, data: memoryview) -> np.ndarray:
    """Returns the array of a MessagePack extension, as a decoder's `ext_hook` does."""
    return np.frombuffer(data, dtype=_DTYPES[code])


def _check_array(expected: type, value: object) -> object:
    if isinstance(value, np.ndarray):
        return value
    raise NotImplementedError(f"expected {expected}, got {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(
    Rollout | MicroBatchRow | Event, ext_hook=decode_array, dec_hook=_check_array
)


def encode(record: Record) -> bytes:
    """Returns the record as MessagePack bytes. Raises NotImplementedError for an unsupported value."""
    return _encoder.encode(record)


def encode_into(buffer: bytearray, offset: int, record: Record) -> None:
    """Writes the encoded record into `buffer` at `offset`, and truncates the buffer after it."""
    _encoder.encode_into(record, buffer, offset)


def decode(data: bytes | memoryview) -> Record:
    """Returns the record; its arrays are views of `data`. Raises msgspec.ValidationError for other bytes."""
    return _decoder.decode(data)
