"""One server that follows a weight channel: whether it has joined, what it serves, and what is asked of it.

The state of `followers`. No I/O.
"""

import time
from dataclasses import dataclass, field

from contracts.channel import InitWeightChannelRequest
from contracts.inference import ContractInfo, WeightUpdateStatus
from pipelinerl.clients.server_control import ServerControl
from pipelinerl.clients.server_registry import Joining


@dataclass(eq=False)
class Follower:
    """A server of the run. Times are those of the monotonic clock, in seconds."""

    joining: Joining
    control: ServerControl
    heard_at: float = field(default_factory=time.monotonic)  # when it answered last
    moved_at: float = field(default_factory=time.monotonic)  # when it made progress last
    behind_since: float | None = None  # since when it follows and serves an older version than another server
    most_bytes: int = 0  # of one version that were here, since it began to serve its weights
    info: ContractInfo | None = None  # its last answer
    epoch: int = 0  # of the channel that it was sent to last; 0: of none yet
    follows: bool = True  # whether that channel pulls each newer version
    taken: bool = False  # whether it has joined this run
    condemned: bool = False
    status: WeightUpdateStatus | None = None  # of the version that the trainer waits for
    trouble: str | None = None  # why it has not joined

    def hear(self, info: ContractInfo, now: float) -> None:
        """Takes an answer of the server into account.

        Progress is another version that it serves, or more bytes of one that it fetches than of any before.
        So a server that fetches every version, and can load none, makes no progress.
        """
        is_other = self.info is None or _served(info) != _served(self.info)
        done = info.channel.bytes_done if info.channel else 0
        if is_other or done > self.most_bytes:
            self.moved_at = now
            self.most_bytes = done
        self.info = info
        self.heard_at = now

    def compare(self, run: str, newest: int, now: float) -> None:
        """Notes since when the server is behind `newest`, the newest version that any server serves."""
        if not self.follows or self.version(run) >= newest:
            self.behind_since = None
        elif self.behind_since is None:
            self.behind_since = now

    def stands_still_s(self, now: float) -> float:
        """Returns for how many seconds it has been behind without progress."""
        return 0.0 if self.behind_since is None else now - max(self.behind_since, self.moved_at)

    def join(self, request: InitWeightChannelRequest, info: ContractInfo, now: float) -> None:
        """Records that it has joined a channel. `info`: its answer after that."""
        if request.follow and not self.follows:
            self.behind_since = None
        self.epoch = request.epoch
        self.follows = request.follow
        self.hear(info, now)

    def is_joined(self, run: str) -> bool:
        """Returns whether the server is in this run's channel: the one that it was sent to last."""
        if self.info is None or self.info.channel is None or not self.epoch:
            return False
        channel = self.info.channel
        return self.info.run == run and channel.epoch == self.epoch and channel.follow == self.follows

    @property
    def has_given_up(self) -> bool:
        """Whether the server never tries the awaited version again. It repeats one that has failed."""
        return self.status is not None and self.status.state == "skipped"

    def cannot_load(self, run: str, version: int) -> bool:
        """Returns whether the server's last word on the awaited version is that it is bad, or has failed."""
        status = self.status
        if status is None or (status.run, status.version) != (run, version):
            return False
        return status.state in ("skipped", "failed")

    @property
    def reason(self) -> str:
        """Why the server does not serve the awaited version, in words."""
        error = self.status.error if self.status else None
        return error or self.trouble or "it has said no reason"

    def version(self, run: str) -> int:
        """Returns the version of this run that the server serves, or -1."""
        weights = self.info.weights if self.info else None
        return weights.version if weights and weights.run == run and weights.state != "lost" else -1


def _served(info: ContractInfo) -> tuple[str | None, int]:
    return info.weights.run, info.weights.version
