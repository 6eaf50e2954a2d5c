"""The state of one server that follows a weight channel, for `followers`. No I/O."""

import time
from dataclasses import dataclass, field

from contracts.channel import InitWeightChannelRequest
from contracts.inference import ContractInfo, WeightUpdateStatus
from pipelinerl.clients.server_control import ServerControl
from pipelinerl.clients.server_registry import Joining


@dataclass(eq=False)
class Follower:
    """A server of the run. Times are monotonic, in seconds."""

    joining: Joining
    control: ServerControl
    heard_at: float = field(default_factory=time.monotonic)  # time of its last response
    moved_at: float = field(default_factory=time.monotonic)  # time of its last progress
    behind_since: float | None = None  # time since which it serves an older version than another server
    most_bytes: int = 0  # most local bytes of a version since it serves its current weights
    info: ContractInfo | None = None  # its last response
    epoch: int = 0  # epoch of the channel that it was last told to join; 0 if none
    follows: bool = True  # True if that channel pulls each newer version
    taken: bool = False  # True if it has joined this run
    condemned: bool = False
    status: WeightUpdateStatus | None = None  # status of the awaited version
    trouble: str | None = None  # reason why it has not joined

    def hear(self, info: ContractInfo, now: float) -> None:
        """Records a response of the server.

        Progress is a new served version, or more fetched bytes of a version than before. So a server that
        fetches every version but cannot load any makes no progress.
        """
        is_other = self.info is None or _served(info) != _served(self.info)
        done = info.channel.bytes_done if info.channel else 0
        if is_other or done > self.most_bytes:
            self.moved_at = now
            self.most_bytes = done
        self.info = info
        self.heard_at = now

    def compare(self, run: str, newest: int, now: float) -> None:
        """Updates `behind_since`. `newest`: the newest version that any server serves."""
        if not self.follows or self.version(run) >= newest:
            self.behind_since = None
        elif self.behind_since is None:
            self.behind_since = now

    def stands_still_s(self, now: float) -> float:
        """Returns the seconds for which it has been behind without progress."""
        return 0.0 if self.behind_since is None else now - max(self.behind_since, self.moved_at)

    def join(self, request: InitWeightChannelRequest, info: ContractInfo, now: float) -> None:
        """Records that it has joined a channel. `info`: its first response after that."""
        if request.follow and not self.follows:
            self.behind_since = None
        self.epoch = request.epoch
        self.follows = request.follow
        self.hear(info, now)

    def is_joined(self, run: str) -> bool:
        """Returns True if the server is in the channel of this run that it was last told to join."""
        if self.info is None or self.info.channel is None or not self.epoch:
            return False
        channel = self.info.channel
        return self.info.run == run and channel.epoch == self.epoch and channel.follow == self.follows

    @property
    def has_given_up(self) -> bool:
        """True if the server does not retry the awaited version."""
        return self.status is not None and self.status.state == "skipped"

    def cannot_load(self, run: str, version: int) -> bool:
        """Returns True if the server's last status of this version is skipped or failed."""
        status = self.status
        if status is None or (status.run, status.version) != (run, version):
            return False
        return status.state in ("skipped", "failed")

    @property
    def reason(self) -> str:
        """The reason why the server does not serve the awaited version, as text."""
        error = self.status.error if self.status else None
        return error or self.trouble or "it has said no reason"

    def version(self, run: str) -> int:
        """Returns the version of this run that the server serves, or -1."""
        weights = self.info.weights if self.info else None
        return weights.version if weights and weights.run == run and weights.state != "lost" else -1


def _served(info: ContractInfo) -> tuple[str | None, int]:
    return info.weights.run, info.weights.version
