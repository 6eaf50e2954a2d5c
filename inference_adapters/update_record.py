"""The record of one weight update: what was accepted, how it stands, and how it ended.

`update_ledger` keeps one for each version of a run. It knows no engine and no HTTP.
"""

import asyncio
import contextlib
import hashlib
import time
from dataclasses import dataclass, field

from contracts.channel import ChannelUpdateRequest, PullProgress
from contracts.inference import UpdateProgress, WeightUpdateRequest, WeightUpdateStatus

AnyUpdateRequest = WeightUpdateRequest | ChannelUpdateRequest
LONGEST_REASON = 1000  # characters, because a source may have sent part of it


class UpdateError(Exception):
    """A version that a channel cannot give. The message says it all, so no traceback is logged.

    skipped: the version is proven bad, or a newer one makes it unnecessary.
    """

    def __init__(self, why: str, skipped: bool = False):
        super().__init__(why)
        self.skipped = skipped


@dataclass
class UpdateRecord:
    """An accepted weight update, or a version that a channel pulls unasked, and its state."""

    outcome: WeightUpdateStatus
    timeout_s: float
    fingerprint: str = ""  # of the request; empty if there was none
    parameters: int = 0  # their number in the request
    manifest_sha256: str | None = None  # of a stored version; None: it comes over the weight group
    digest: str | None = None  # of a stored version, once its manifest has been verified
    transfer: PullProgress = field(default_factory=PullProgress)  # of a stored version
    followed: bool = False  # whether it is pulled unasked
    applying: bool = False  # whether a stored version is being given to the engine
    hopeless: bool = False  # whether the same weights would fail again
    progress: UpdateProgress = field(default_factory=UpdateProgress)
    accepted_at: float = field(default_factory=time.monotonic)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    # Only while receiving, because the traceback of a failed task would keep its buffers alive.
    task: asyncio.Task[None] | None = None
    called_off: str | None = None  # why the update was cancelled
    superseded: bool = False  # whether a newer version was the reason

    @classmethod
    def of(cls, request: AnyUpdateRequest) -> "UpdateRecord":
        """Returns the record of a request that is accepted."""
        outcome = WeightUpdateStatus(run=request.run, epoch=request.epoch, version=request.version)
        record = cls(outcome, request.timeout_s, fingerprint(request), parameters_in(request))
        if isinstance(request, ChannelUpdateRequest):
            record.manifest_sha256 = request.manifest_sha256
        return record

    @property
    def receiving(self) -> bool:
        return self.outcome.state == "receiving"

    @property
    def occupies(self) -> bool:
        """Whether no other update may begin. A version that is pulled unasked does so once it is applied."""
        return self.receiving and (self.applying or not self.followed)

    def is_repeated_by(self, request: AnyUpdateRequest) -> bool:
        """Returns whether `request` repeats the accepted one. It hashes no manifest of another length."""
        return parameters_in(request) == self.parameters and fingerprint(request) == self.fingerprint

    async def wait(self, timeout_s: float | None = None) -> None:
        """Waits until the update has ended, at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), timeout_s)

    def status(self) -> WeightUpdateStatus:
        p = self.progress
        nbytes = p.bytes if self.manifest_sha256 is None else self.transfer.bytes_fetched
        figures = {"bytes": nbytes, "transfer_s": p.transfer_s, "paused_s": p.paused_s, "touched": p.touched}
        return self.outcome.model_copy(update=figures)

    def call_off(self, why: str, superseded: bool = False) -> None:
        """Cancels an update, unless it is being applied."""
        if self.receiving and not self.progress.touched and self.task is not None:
            self.called_off = why
            self.superseded = superseded
            self.progress.cancelled = True
            self.task.cancel()


def parameters_in(request: AnyUpdateRequest) -> int:
    return len(request.parameters) if isinstance(request, WeightUpdateRequest) else 0


def fingerprint(request: AnyUpdateRequest) -> str:
    """Returns a hash of the request, by which retries are detected without keeping manifests."""
    return hashlib.sha256(request.model_dump_json().encode()).hexdigest()


def reason_of(error: BaseException) -> str:
    """Returns what a status says of an error."""
    reason = str(error) if isinstance(error, UpdateError) else f"{type(error).__name__}: {error}"
    return reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}..."
