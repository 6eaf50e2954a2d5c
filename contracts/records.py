"""Records are the messages that streams carry between actor, preprocessor and trainer.

They are typed structs, encoded as MessagePack. Per-token arrays travel as raw little-endian bytes, so
decoding creates no Python object per token. Pickle is not used. Every record carries its schema number.
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
    """Base class of everything that a stream carries."""

    schema: int = 1


# --- rollouts ---------------------------------------------------------------------------------


class VersionSpan(msgspec.Struct, frozen=True, array_like=True):
    """Half-open span of sampled tokens that one weight version sampled."""

    version: int
    start: int
    end: int


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One response of an inference server, token for token as it was sampled.

    An answer that no server sampled, such as one of a data set, has no `logprobs` and no `spans`.
    """

    prompt_token_ids: Array  # [P] int32
    token_ids: Array  # [T] int32, end-of-sequence included
    logprobs: Array  # [T] float32 nats, under the distribution sampled from; [0] if not sampled
    spans: list[VersionSpan]  # they cover [0, T) exactly once; versions do not decrease within a segment
    temperature: float
    finish_reason: Literal["stop", "length", "abort", "repetition"]
    segments: list[int] = []  # token indices at which each further request continued the completion
    server: str = ""  # URL of the server that answered the last request
    token_fields: dict[str, Array] = {}  # [T] each, by the name that `contracts.token_fields` declares
    began: float = 0.0  # unix seconds of the first request. 0 in records of earlier code
    ended: float = 0.0  # unix seconds at which the last response was complete
    reference_prompt: Array | None = None  # [Q] int32 token ids after which the reference scores it; None: P


def unsampled(prompt_token_ids: Sequence[int], token_ids: Sequence[int]) -> Completion:
    """Returns the completion of an answer that no server sampled. It is scored at temperature 1."""
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

    SERVER = "server"  # a server failed, was not there, or refused the request
    TIMEOUT = "timeout"
    BAD_ANSWER = "bad_answer"  # a server's answer breaks the contract
    JUDGE = "judge"  # the judging service gave no judgement
    TOO_LONG = "too_long"  # a server refused a request because of its length
    DOMAIN = "domain"  # the domain raised an error, or gave a reward or token fields that are not allowed

    @property
    def is_infrastructure(self) -> bool:
        """Whether the rollout may succeed elsewhere or later."""
        return self not in (Failure.TOO_LONG, Failure.DOMAIN)


def _recorded_failure(status: str) -> Failure:
    """Returns the kind of failure of a run that was recorded before there was the field."""
    reason = status.partition(":")[2]
    if reason in ("server_context_length_exceeded", "server_too_large"):
        return Failure.TOO_LONG
    kind = reason.partition("_")[0] if reason.startswith(("server_", "judge_")) else reason
    return Failure(kind) if kind in ("server", "judge", "timeout", "bad_answer") else Failure.DOMAIN


class Rollout(Record, frozen=True, kw_only=True):
    """One trajectory: a member of a group of attempts at the same problem."""

    run: str
    rollout_id: str
    group_id: int  # increases in the order in which groups start; evaluation has its own numbering
    problem_id: str
    domain: str
    draw: int = -1  # index of the group's draw (see `Started`); -1 in evaluation
    completions: list[Completion] = []
    reward: float = 0.0
    reward_components: dict[str, float] = {}  # parts of `reward` by name, which add up to it; may be empty
    turn_rewards: list[float] = []  # the part of `reward` that each completion earned
    success: float | None = None  # 1 if the problem was solved, else 0; None if the rollout failed
    metrics: dict[str, float] = {}
    started_at: float = 0.0  # unix seconds
    finished_at: float = 0.0
    status: str = "ok"  # ok | truncated | failed:<why>
    failure: Failure | None = None  # the kind of error; None if it is not known, or the rollout did not fail

    def __post_init__(self) -> None:
        """Fills in the fields that runs of before recorded in other fields."""
        if self.success is None and "success" in self.metrics:
            msgspec.structs.force_setattr(self, "success", self.metrics["success"])
        if self.failure is None and self.failed:
            msgspec.structs.force_setattr(self, "failure", _recorded_failure(self.status))

    @property
    def failed(self) -> bool:
        """Whether the rollout ended in an error and has no reward."""
        return self.status.startswith("failed")

    @property
    def failed_by_infrastructure(self) -> bool:
        """Whether the rollout failed, and its model, problem and domain are not the cause."""
        return self.failure is not None and self.failure.is_infrastructure

    @property
    def sampled_tokens(self) -> int:
        """The number of tokens that servers sampled for this rollout."""
        return sum(len(c.token_ids) for c in self.completions if c.spans)

    @property
    def versions(self) -> list[int]:
        """The distinct weight versions that sampled this rollout, in increasing order."""
        return sorted({s.version for c in self.completions for s in c.spans if s.end > s.start})


# --- training data ----------------------------------------------------------------------------


class ReferencePrompt(msgspec.Struct, frozen=True, array_like=True):
    """Another prompt, after which the reference server scores the tokens [start, end) of a sequence."""

    start: int
    end: int
    token_ids: Array  # [Q] int32


class TrainingSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence with the per-token data that the objective needs. All arrays have length T.

    A token field of one domain travels in `token_fields`. To add a field for every run, add it here, in
    `pipelinerl.batching.sequences`, and in `contracts.trainer.PackedBatch` and its `_ARRAYS`.
    """

    rollout_id: str
    group_id: int
    temperature: float
    loss_weight: float  # weight of each token in the step's loss, which is normalised over the step
    token_ids: Array  # [T] int32
    loss_mask: Array  # [T] bool, true where a token was sampled and is part of the loss
    behaviour_logprobs: Array  # [T] float32, 0 where not sampled
    versions: Array  # [T] int32, -1 where not sampled
    advantages: Array  # [T] float32, 0 where not sampled
    reference_logprobs: Array | None = None  # [T] float32
    reference_prompts: list[ReferencePrompt] = []  # of those completions that have one, in their order
    token_fields: dict[str, Array] = {}  # [T] each, as declared; the declared fill where not sampled

    @property
    def tokens_in_loss(self) -> int:
        """The number of this sequence's tokens that are part of the loss."""
        return int(np.count_nonzero(self.loss_mask))


class MicroBatchRow(Record, frozen=True, kw_only=True):
    """One packed micro-batch per data-parallel rank. The rows of a step are sent as they fill."""

    step: int  # the step that trains on these sequences, and the version of its initial weights
    index: int  # index of the row within the step
    micro_batches: list[list[TrainingSequence]]  # [rank][sequence], possibly empty
    closes_step: bool
    group_ids: list[int] = []  # the groups of the step; only the closing row has them
    masked: dict[str, list[str]] = {}  # filter's reason -> the group's rollouts that it removed from the loss
    masked_tokens: int = 0  # sampled tokens that `on_stale: mask` removed from the loss
    reference_version: int | None = None  # version of the weights that scored the row; None if none did
    rollouts_offset: int = 0  # offset in `rollouts`: all records that no closed step has used lie after it


# --- events -----------------------------------------------------------------------------------


class DropReason(StrEnum):
    """The reason why a group was not trained on.

    Every dropped group has one; a custom filter uses its own word.
    """

    ZERO_ADVANTAGE = "zero_advantage"  # all rewards are equal, so there is no signal
    OVERLONG = "overlong"  # members were truncated: at the token limit, or when their time was over
    ADVANTAGE_RANGE = "advantage_range"  # an advantage is larger than the rewards can explain
    STALE = "stale"  # tokens were sampled by weights older than max_lag allows
    FAILED = "failed"  # fewer members ended without failure than the advantage needs
    NONFINITE = "nonfinite"  # the step's gradient was not finite
    TRAINING_DONE = "training_done"  # the group was in the pipeline when the last step ended
    INTERRUPTED = "interrupted"  # the group was in flight when the run stopped
    ROLLED_BACK = "rolled_back"  # tokens were sampled by weights newer than those the run resumed from
    TOKEN_FIELDS = "token_fields"  # the group was sampled under another declaration of token fields
    TOO_LONG = "too_long"  # a rollout has more tokens than a micro-batch holds


class Dated(Record, frozen=True, kw_only=True):
    """Base class of events that say when they were written."""

    at: float = 0.0  # unix seconds, filled in by the stream's writer. 0 in records of earlier code


class Started(Dated, frozen=True, kw_only=True):
    """Says that a group was admitted. It is written before the group's first request."""

    group_id: int
    rollouts: int
    draw: int  # index in the sampler's order; repeated if the run stops before the group ends
    problem: int  # index of the training problem
    version: int = 0  # weight version that was live at that time


class Settled(Dated, frozen=True, kw_only=True):
    """Names groups that have ended: trained on (`reason` is null) or dropped."""

    group_ids: list[int]
    rollouts: int
    reason: str | None = None  # a DropReason, or a custom filter's own reason
    why: str = ""  # what the reason alone does not say: which rollout, and by how much
    version: int | None = None  # weight version that the groups' step produced, if they were trained on


class PublishWanted(Record, frozen=True, kw_only=True):
    """Says that the trainer waits until the actor has no open request (`schedule: async`)."""

    version: int


class Quiesced(Record, frozen=True, kw_only=True):
    """Says that no request is open and none starts until `version` is live (`schedule: async`)."""

    version: int


class ServerUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements that one server reports of a publication."""

    url: str
    paused_s: float  # seconds for which its generation was paused
    transfer_s: float  # seconds from its 202 response to the last bucket


class WeightsPublished(Dated, frozen=True, kw_only=True):
    """Says that `version` has been published, and which servers may get requests.

    Without `live`, the version is live on `servers`, and on no others. With `live`, servers pull weights by
    themselves: these belong to the run's weight channel, and each may serve an older version for a while.
    Then `servers` may be empty, because the publication waits for no server.
    """

    run: str
    version: int
    servers: list[str]
    joinings: list[int] = []  # `number` of each server's `ServerJoined`. Empty in records of earlier code
    seconds: float
    bytes: int
    paused_s: float  # the longest pause of any server, in seconds
    phases: dict[str, float] = {}  # seconds of open, gather, send and confirm. Empty in earlier records
    updates: list[ServerUpdate] = []  # one per server, in the order of `servers`
    live: list[int] | None = None  # version that each of `servers` served then; -1 if none of this run's


class StepClosed(Dated, frozen=True, kw_only=True):
    """Says that an optimizer step ended and produced `version`."""

    version: int
    rollouts: int
    tokens: int  # unmasked tokens trained on
    lag_histogram: dict[int, int]  # lag in versions -> number of tokens
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
    first_version: int  # oldest version that sampled any of its tokens; `last_version` is the newest
    last_version: int
    failed: int = 0  # attempts that failed, which count as unsolved
    pinned: bool = False  # whether it was sampled by a server outside the weight group
    sets: list[SetResult] = []
    due: int | None = None  # version that was to be evaluated, if servers that pull weights had a later one


class Pinned(Record, frozen=True, kw_only=True):
    """Says that an evaluation needs this server to keep its weights.

    The next publication leaves out the server.
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

    A run that resumes reads the newest one, whichever checkpoint it resumes from: draws are never undone.
    """

    draws: int
    state: dict[str, Any]


class Resumed(Dated, frozen=True, kw_only=True):
    """Says that the run resumes from `version`, and that training after that version is undone.

    The launcher writes it before any process starts. It contains everything that the processes need to know
    in order to resume.
    """

    version: int
    ends: dict[str, int]  # stream -> offset at which the records of earlier launches end
    rollouts_offset: int  # offset from which `rollouts` is replayed
    kept_offset: int | None  # offset in `rollouts` that the oldest kept checkpoint needs; None without one
    replayed: list[int]  # complete groups of earlier launches that are used as if they had just been sampled
    interrupted: list[int]  # groups dropped as `DropReason.INTERRUPTED`
    rolled_back: list[int]
    next_group: int
    draws: int  # draws of the sampler so far
    redraws: list[tuple[int, int]]  # (draw, problem) of each group that was lost when the run stopped
    sampler: SamplerState | None = None  # the last recorded state


# --- servers, which the launcher starts, ends and replaces ------------------------------------


class ServerJoined(Dated, frozen=True, kw_only=True):
    """Says that the launcher has started a server, which is loading and has no weights of the run yet.

    The launcher is the only writer of `launcher_events`. These records define the run's servers, whichever
    servers respond.
    """

    number: int = 0  # counts the joinings of this launch of the run, from 1. 0 in records of earlier code
    name: str  # name of the job; a replacement server has the name of the server it replaces
    url: str
    node: str  # name of the server's node
    engine: str  # the adapter's module


class ServerLeft(Dated, frozen=True, kw_only=True):
    """Says that a server no longer belongs to the run, whether or not it still responds."""

    name: str
    url: str
    why: Literal["ended", "lost", "draining", "condemned", "asked"]


class SaveWanted(Dated, frozen=True, kw_only=True):
    """Says that the launcher is about to restart the workers: the trainer saves its state and ends."""


class Restarted(Dated, frozen=True, kw_only=True):
    """Says that the launcher restarts processes of the run.

    Workers are restarted together, and resume from the `Resumed` that precedes this record.
    """

    kind: Literal["workers", "services"]
    names: list[str]  # names of the jobs
    why: str  # how the job ended that caused the restart


class ServerCondemned(Dated, frozen=True, kw_only=True):
    """Says that the trainer cannot publish to a server. The launcher ends it.

    `replaceable` tells whether a new process may succeed in its place. It is false for a server that refuses
    permanently.
    """

    joining: int = 0  # `number` of its ServerJoined, because a later server may have the same URL
    url: str
    why: str
    replaceable: bool


class ReferenceCondemned(Dated, frozen=True, kw_only=True):
    """Says that the reference server no longer responds. The launcher restarts it."""

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
    """Returns the record as MessagePack bytes.

    Raises NotImplementedError for a value that records cannot carry.
    """
    return _encoder.encode(record)


def encode_into(buffer: bytearray, offset: int, record: Record) -> None:
    """Writes the bytes that `encode` returns into `buffer` at `offset`, and truncates the buffer after it."""
    _encoder.encode_into(record, buffer, offset)


def decode(data: bytes | memoryview) -> Record:
    """Returns the record that `encode` encoded as `data`. Raises msgspec.ValidationError for anything else.

    The record's arrays are views of `data`.
    """
    return _decoder.decode(data)
