"""The record of one weight update: its request, state and result.

`update_ledger` keeps the last one of each version of a run.
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
    """Raised if a channel cannot fetch a version. It is logged without a traceback.

    skipped: True if the version is invalid, or a newer one makes it unnecessary.
    """

    def __init__(self, why: str, skipped: bool = False):
        super().__init__(why)
        self.skipped = skipped


@dataclass
class UpdateRecord:
    """The state of a weight update that was requested, or that a channel pulls by itself."""

    outcome: WeightUpdateStatus
    timeout_s: float
    fingerprint: str = ""  # hash of the request; empty if there was none
    parameters: int = 0  # number of parameters in the request
    manifest_sha256: str | None = None  # for a stored version; None for an update over the weight group
    digest: str | None = None  # for a stored version whose manifest has been verified
    transfer: PullProgress = field(default_factory=PullProgress)  # for a stored version
    is_unrequested: bool = False  # True if a channel pulls it by itself
    applying: bool = False  # True if the engine loads a stored version
    is_permanent: bool = False  # True if it failed and a retry would fail too
    progress: UpdateProgress = field(default_factory=UpdateProgress)
    accepted_at: float = field(default_factory=time.monotonic)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    # None after the end, because the traceback of a failed task would keep its buffers alive.
    task: asyncio.Task[None] | None = None
    cancel_reason: str | None = None
    superseded: bool = False  # True if it was cancelled for a newer version

    @classmethod
    def of(cls, request: AnyUpdateRequest) -> "UpdateRecord":
        """Returns the record of an accepted request."""
        outcome = WeightUpdateStatus(run=request.run, epoch=request.epoch, version=request.version)
        record = cls(outcome, request.timeout_s, fingerprint(request), parameters_in(request))
        if isinstance(request, ChannelUpdateRequest):
            record.manifest_sha256 = request.manifest_sha256
        return record

    @property
    def receiving(self) -> bool:
        return self.outcome.state == "receiving"

    @property
    def is_exclusive(self) -> bool:
        """True if no other update may begin: it is requested, or being applied."""
        return self.receiving and (self.applying or not self.is_unrequested)

    def is_repeated_by(self, request: AnyUpdateRequest) -> bool:
        """Returns True if `request` repeats the accepted one. Compares lengths first, as hashing is slow."""
        return parameters_in(request) == self.parameters and fingerprint(request) == self.fingerprint

    async def wait(self, timeout_s: float | None = None) -> None:
        """Waits until the update has ended, or for `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), timeout_s)

    def status(self) -> WeightUpdateStatus:
        p = self.progress
        nbytes = p.bytes if self.manifest_sha256 is None else self.transfer.bytes_fetched
        figures = {"bytes": nbytes, "transfer_s": p.transfer_s, "paused_s": p.paused_s, "touched": p.touched}
        return self.outcome.model_copy(update=figures)

    def cancel(self, why: str, superseded: bool = False) -> None:
        """Cancels the update, unless it is being applied."""
        if self.receiving and not self.progress.touched and self.task is not None:
            self.cancel_reason = why
            self.superseded = superseded
            self.progress.cancelled = True
            self.task.cancel()


def parameters_in(request: AnyUpdateRequest) -> int:
    return len(request.parameters) if isinstance(request, WeightUpdateRequest) else 0


def fingerprint(request: AnyUpdateRequest) -> str:
    """Returns a hash of the request, to detect retries without keeping manifests."""
    return hashlib.sha256(request.model_dump_json().encode()).hexdigest()


def reason_of(error: BaseException) -> str:
    """Returns the text of an error for a status."""
    reason = str(error) if isinstance(error, UpdateError) else f"{type(error).__name__}: {error}"
    return reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}..."
