"""One server that follows a weight channel: whether it has joined, what it serves, and what is asked of it.

The state of `followers`. No I/O.
"""

import time
from dataclasses import dataclass, field

from contracts.inference import ContractInfo, WeightUpdateStatus
from pipelinerl.clients.server_control import ServerControl
from pipelinerl.clients.server_registry import Joining


@dataclass(eq=False)
class Follower:
    """A server of the run. Times are those of the monotonic clock, in seconds."""

    joining: Joining
    control: ServerControl
    heard_at: float = field(default_factory=time.monotonic)  # when it answered last
    moved_at: float = field(default_factory=time.monotonic)  # when its weights or its download changed last
    info: ContractInfo | None = None  # its last answer
    epoch: int = 0  # of the channel that it was sent to last; 0: of none yet
    follows: bool = True  # whether that channel pulls each newer version
    taken: bool = False  # whether it has joined this run
    condemned: bool = False
    status: WeightUpdateStatus | None = None  # of the version that the trainer waits for
    trouble: str | None = None  # why it has not joined

    def hear(self, info: ContractInfo, now: float) -> None:
        """Takes an answer of the server into account."""
        if self.info is None or _position(info) != _position(self.info):
            self.moved_at = now
        self.info = info
        self.heard_at = now

    def is_joined(self, run: str) -> bool:
        """Returns whether the server is in this run's channel: the one that it was sent to last."""
        if self.info is None or self.info.channel is None or not self.epoch:
            return False
        channel = self.info.channel
        return self.info.run == run and channel.epoch == self.epoch and channel.follow == self.follows

    @property
    def has_given_up(self) -> bool:
        """Whether the server does not try the awaited version any more."""
        return self.status is not None and self.status.state in ("failed", "skipped")

    @property
    def reason(self) -> str:
        """Why the server does not serve the awaited version, in words."""
        error = self.status.error if self.status else None
        return error or self.trouble or "it has said no reason"

    def version(self, run: str) -> int:
        """Returns the version of this run that the server serves, or -1."""
        weights = self.info.weights if self.info else None
        return weights.version if weights and weights.run == run and weights.state != "lost" else -1


def _position(info: ContractInfo) -> tuple[object, ...]:
    """Returns what changes while a server makes progress."""
    channel = info.channel
    progress = (channel.target, channel.bytes_done, channel.newest_seen) if channel else ()
    return (info.weights.run, info.weights.version, info.weights.state, *progress)
