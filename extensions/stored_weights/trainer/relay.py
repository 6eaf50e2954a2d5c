"""Publishes by a store from which servers pull by themselves (`weights=relay`).

Training waits only until the weights are written. One thread packs them, another one watches the servers. The
first publication of a session waits until a server serves it, to detect a broken transport early.
"""

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from contracts.records import WeightsPublished
from extensions.stored_weights.store_location import StoreLocation
from extensions.stored_weights.trainer.followers import FollowedChannel, Followers
from extensions.stored_weights.trainer.packer import Packer, is_passing
from extensions.stored_weights.trainer.standstill import Standstill
from extensions.stored_weights.trainer.stored import VersionStore
from pipelinerl.config import RunConfig
from pipelinerl.training.membership.candidates import NoServersError
from pipelinerl.training.phases import Phases
from pipelinerl.training.publishing.base import PublisherContext, WeightPublisher, errors_of

if TYPE_CHECKING:
    from extensions.stored_weights.transport import Relay

log = logging.getLogger(__name__)
POLL_S = 0.05
FIRST_PAUSE_S = 0.5  # first pause before a version is written again after a full disk; doubles
LONGEST_PAUSE_S = 30.0


def relay_publisher(
    config: RunConfig, options: "Relay.Options", context: PublisherContext, place: StoreLocation
) -> "RelayPublisher":
    """Creates the publisher of a run, with its store, packer and followers."""
    store = VersionStore(place, config.model.path, context.manifest, context.buffers, options.deltas)
    packer = Packer(store, options.keep)
    sources = [place.origin, *options.relays]
    channel = FollowedChannel(store.run, store.public_key, sources, options.poll_s)
    return RelayPublisher(config, store, packer, Followers(config, context, channel, packer.digests))


class RelayPublisher(WeightPublisher):
    """Publishes by writing versions to a store. `close` also closes `packer` and `followers`."""

    def __init__(self, config: RunConfig, store: VersionStore, packer: Packer, followers: Followers):
        self.run = store.run
        self._config = config
        self._store = store
        self._packer = packer
        self._followers = followers
        self._phases = Phases()
        self._version = -1  # version that is being published
        self._published: set[int] = set()  # numbers of the server instances in the last publication
        self._standstill = Standstill(config.weights.live_timeout_s)
        self._is_live = False  # True if a server has served a version of this session
        self._pause_s = FIRST_PAUSE_S
        self._again_at = 0.0  # monotonic time at which a lacking version may be written again

    def pin(self, url: str) -> None:
        self._followers.pinned.add(url)

    def release(self, url: str) -> None:
        self._followers.pinned.discard(url)

    @property
    def figures(self) -> dict[str, float]:
        """Metrics of the packer, and the largest lag of the servers."""
        served = [follower.version(self.run) for follower in self._followers.joined]
        return {
            "pack_s": self._packer.seconds,
            "pack_failures": self._packer.failures,
            "servers_behind": max(self._version - min(served, default=self._version), 0),
        }

    def wait_for_servers(self) -> None:
        """Waits until every server follows the channel, or the time is over.

        After the first server, it waits at most as long again for the others, which may also join later.
        """
        began = time.monotonic()
        grace_ends = None
        while self._followers.missing or not self._followers.joined:
            self._check()
            now = time.monotonic()
            if self._followers.joined and grace_ends is None:
                grace_ends = now + max(now - began, self._config.world.server_grace_s)
            if (grace_ends and now > grace_ends) or self._has_waited_long(began):
                urls = ", ".join(self._followers.missing) or "any server"
                log.warning("the run begins without %s, not ready yet", urls)
                return
            self._wait()

    def is_stranded(self) -> bool:
        """Returns True if a server has joined that is not in the last publication, or the version is lacking.

        Without a new publication there would be no rollouts if all published servers have left.
        """
        self._check()
        if self._is_lacking:
            return time.monotonic() >= self._again_at
        return any(follower.joining.number not in self._published for follower in self._followers.joined)

    @property
    def _is_lacking(self) -> bool:
        """True if the newest version is neither in the store nor in the packer, because the disk was full."""
        return not self._packer.is_busy and not self._packer.has(self._version)

    def rollouts_come(self) -> None:
        self._check()

    def must_repeat(self) -> bool:
        while self._packer.is_busy:
            self._wait()
        self._check()
        if not self._is_lacking:
            return False
        self._pause()
        return True

    # --- one publication: open, send, confirm -------------------------------------------------

    def open(self, version: int) -> None:
        self._check()
        self._phases = Phases()
        self._phases.begin("open")
        again = version == self._version
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) if again else FIRST_PAUSE_S
        self._again_at = time.monotonic() + self._pause_s
        self._version = version

    def send(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Writes the weights, unless they are written already. After a full disk they are written later."""
        self._phases.begin("send")
        if self._packer.has(self._version):
            return
        gathered = self._phases.inside("gather", weights)
        errors: list[Exception] = []
        try:
            written = self._store.write(self._version, errors_of(gathered, errors))
        except OSError as error:
            if errors or not is_passing(error):
                raise
            self._packer.note_full(self._version, error)
            return
        self._packer.put(written, self._followers.targets)

    def confirm(self, version: int) -> WeightsPublished | None:
        """Returns the publication without waiting for servers, except for the first one of a session."""
        self._phases.begin("confirm")
        self._check()
        if not self._is_live:
            self._is_live = self._becomes_live(version)
            if not self._is_live:
                self._pause()
                return None
        return self._publication(version)

    def _publication(self, version: int) -> WeightsPublished:
        self._followers.refresh()
        named = self._followers.joined
        self._published = {follower.joining.number for follower in named}
        phases = self._phases.seconds()
        return WeightsPublished(
            run=self.run,
            version=version,
            servers=[follower.joining.url for follower in named],
            joinings=[follower.joining.number for follower in named],
            live=[follower.version(self.run) for follower in named],
            seconds=sum(phases.values()),
            bytes=self._store.total_bytes,
            paused_s=0.0,
            phases=phases,
        )

    def close(self) -> None:
        """Waits until all written versions are packed, and ends the threads."""
        while self._packer.is_busy:
            self._wait()
        self._packer.close()
        self._followers.close()
        self._store.close()
        self._check_threads()

    # --- waits --------------------------------------------------------------------------------

    def _check(self) -> None:
        self._check_threads()
        if self._is_live:
            self._check_standstill()

    def _check_threads(self) -> None:
        self._packer.check()
        self._followers.check()

    def _check_standstill(self) -> None:
        """Raises NoServersError if no server has been able to load the newest version for a long time."""
        joined = self._followers.joined
        newest = self._packer.newest
        served = max((f.version(self.run) for f in joined), default=-1)
        lasts = self._standstill.lasts(served, newest, time.monotonic())
        self._followers.awaited = newest if lasts else None
        if lasts and joined and all(f.cannot_load(self.run, newest) for f in joined):
            raise NoServersError(f"no server can load version {newest}: {self._reasons()}")

    def _wait(self) -> None:
        """Sleeps for `POLL_S`, and shows that this process is alive."""
        self._followers.refresh()
        time.sleep(POLL_S)

    def _has_waited_long(self, began: float) -> bool:
        since = max(began, self._followers.changed_at)
        return time.monotonic() > since + self._config.world.server_start_timeout_s

    def _pause(self) -> None:
        while time.monotonic() < self._again_at:
            self._wait()

    def _becomes_live(self, version: int) -> bool:
        """Waits until a server serves the version. Returns False if the version is lacking.

        Raises NoServersError if no server makes progress.
        """
        self._followers.awaited = version
        began = time.monotonic()
        while not any(f.version(self.run) == version for f in self._followers.joined):
            self._check()
            if self._is_lacking:
                return False
            joined = self._followers.joined
            if joined and all(f.has_given_up for f in joined):
                raise NoServersError(f"no server could load version {version}: {self._reasons()}")
            if not joined and self._has_waited_long(began):
                raise NoServersError(f"no inference server follows the weights; {self._followers.troubles}")
            if joined and not self._packer.is_busy and self._is_still(began):
                raise NoServersError(
                    f"no server has loaded version {version} within weights.live_timeout_s="
                    f"{self._config.weights.live_timeout_s:g} s: {self._reasons()}"
                )
            self._wait()
        self._followers.awaited = None
        return True

    def _is_still(self, began: float) -> bool:
        """Returns True if no server has made progress for `weights.live_timeout_s`."""
        moved_at = max((f.moved_at for f in self._followers.joined), default=began)
        since = max(began, moved_at, self._packer.ended_at)
        return time.monotonic() - since > self._config.weights.live_timeout_s

    def _reasons(self) -> str:
        return "; ".join(f"{f.joining.url}: {f.reason}" for f in self._followers.joined)
