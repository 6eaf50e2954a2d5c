"""Publishes by a directory that the servers share with the trainer (`weights=shared`).

Each version is requested of every server, and the publication waits until they serve it, as with a group. A
server that fails is left out by `membership.strikes`, and the others are not disturbed.
"""

import hashlib
import itertools
import logging
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping

import torch

from contracts.channel import ChannelUpdateRequest, InitWeightChannelRequest
from contracts.inference import SleepRequest, WeightUpdateStatus
from contracts.records import WeightsPublished
from extensions.stored_weights.store.layout import proofs_path
from extensions.stored_weights.store.retention import remove_unnamed
from extensions.stored_weights.store.writer import Published
from extensions.stored_weights.store.written import Written
from extensions.stored_weights.store_location import StoreLocation
from extensions.stored_weights.trainer.digests import check_digest
from extensions.stored_weights.trainer.packer import is_passing
from extensions.stored_weights.trainer.stored import EPOCH, VersionStore
from pipelinerl.clients.server_control import ServerControl
from pipelinerl.config import RunConfig
from pipelinerl.errors import GaveUpError
from pipelinerl.training.disk_space import wait_for_space
from pipelinerl.training.membership.blame import Blame
from pipelinerl.training.membership.candidates import OUTSIDER_TIMEOUT_S
from pipelinerl.training.membership.servers import Failures
from pipelinerl.training.publishing.base import PublisherContext, errors_of
from pipelinerl.training.publishing.confirming import ConfirmingPublisher

log = logging.getLogger(__name__)
PROOF_BYTES = 32
GONE_S = 0.2
AGAIN_S = 1.0  # pause before a version is gathered again after a full disk


class NotTheSameStoreError(ValueError):
    """Raised if a server reads another directory under the store's path."""


class SharedPublisher(ConfirmingPublisher):
    """Publishes by writing versions to a directory, and requesting every server to load them."""

    def __init__(self, config: RunConfig, context: PublisherContext, place: StoreLocation):
        super().__init__(config, context)
        self._store = VersionStore(place, config.model.path, context.manifest, context.buffers)
        remove_unnamed(place.directory)  # left by a trainer that was killed
        self.run = self._store.run
        self._epochs = itertools.count(1)
        self._joined: dict[ServerControl, int] = {}  # server in the channel -> epoch
        self._taken: set[ServerControl] = set()  # servers that have joined this run
        self._members: list[ServerControl] = []
        self._version = -1  # version that is being published
        self._written: Written | None = None
        self._published: dict[int, Published] = {}  # the last published version, by its number
        self._proof = self._new_proof()

    def _new_proof(self) -> tuple[str, str]:
        """Writes a random file by which servers prove that they read the store. Returns name and SHA-256."""
        name = secrets.token_hex(8)
        content = secrets.token_bytes(PROOF_BYTES)
        path = self._store.directory / proofs_path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return name, hashlib.sha256(content).hexdigest()

    # --- one publication: open, send, confirm -------------------------------------------------

    def open(self, version: int) -> None:
        """Waits for disk space for the version."""
        self.begin(version)
        self._version = version
        if version not in self._published:
            self._make_space()

    def _make_space(self) -> None:
        """Waits for disk space for a version. Raises GaveUpError if the disk is too small for two."""
        directory = self._store.directory
        size = self._store.total_bytes
        total = shutil.disk_usage(directory).total
        if 2 * size > total:
            raise GaveUpError(
                f"weights=shared keeps two versions of {size} bytes, and {directory} is on a file "
                f"system of {total}; set weights.directory to a larger one"
            )
        self._remove_old()
        wait_for_space(directory, size, self._wait_for_space)

    def _wait_for_space(self) -> None:
        """Shows that this process is alive, and removes old versions."""
        self.servers.refresh()
        self._remove_old()

    def _remove_old(self) -> None:
        self._store.retain(1, 0.0)  # every member has copied the previous version

    def _choose(self) -> None:
        while True:
            self._members = list(self.candidates.choose(self._members))
            failures = self._join([s for s in self._members if s not in self._joined])
            failures = self.candidates.condemn(failures)
            if not failures:
                return
            self._leave_out(failures)

    def _join(self, servers: list[ServerControl]) -> Failures:
        requests = {server: self._request(server) for server in servers}

        async def join(server: ServerControl) -> None:
            answer = await server.init_weight_channel(requests[server])
            if answer.proof != self._proof[1]:
                raise NotTheSameStoreError(f"{server.url} does not see {self._store.directory}")

        joined, failures = self.servers.ask(servers, join)
        self._taken.update(joined)
        self._joined |= {server: requests[server].epoch for server in joined}
        return failures

    def _request(self, server: ServerControl) -> InitWeightChannelRequest:
        return InitWeightChannelRequest(
            run=self.run,
            takeover=server not in self._taken,  # it may still belong to an older run
            epoch=next(self._epochs),
            kind="shared",
            sources=[f"file://{self._store.directory}"],
            public_keys=[self._store.public_key],
            kv_cache=self._config.inference.kv_cache,
            proof=self._proof[0],
        )

    def send(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Writes the weights, unless they are in the store already."""
        self.phases.begin("send")
        if self._version in self._published:
            return
        errors: list[Exception] = []
        try:
            gathered = errors_of(self.phases.inside("gather", weights), errors)
            self._written = self._store.write(self._version, gathered)
        except OSError as error:
            self._note(error, errors)

    def _note(self, error: OSError, errors: list[Exception]) -> None:
        """Logs a temporary error of the disk, and sleeps. Raises any other error."""
        if errors or not is_passing(error):
            raise error
        log.warning("version %d cannot be written now, and is tried again: %s", self._version, error)
        time.sleep(AGAIN_S)

    def confirm(self, version: int) -> WeightsPublished | None:
        """Chooses the servers and joins them. Waits until every member serves the version, or has failed."""
        self.phases.begin("confirm")
        if not self._is_in_store():
            return None
        self._choose()
        asked, refused = self._ask_for(self._published[version])
        statuses, silent = self.servers.ask(asked, self._status)
        live = {server: status for server, status in statuses.items() if status.state == "live"}
        self._check_digests(live)
        self.strikes.succeeded(live)
        self._note_failures(version, statuses, refused | silent)
        if out := [server for server in self._members if server not in live]:
            self._leave_out(out)
        self.stranded.published(live)
        return self.publication(version, self._store.total_bytes, live) if live else None

    def _is_in_store(self) -> bool:
        """Publishes the written version. Returns False if the disk is full."""
        if self._version in self._published:
            return True
        written = self._written
        self._written = None
        if written is None:
            return False
        try:
            self._published = {self._version: self._store.writer.publish(written, EPOCH)}
        except OSError as error:
            self._note(error, [])
            return False
        return True

    def _ask_for(self, published: Published) -> tuple[list[ServerControl], Failures]:
        """Requests every member to load the version. Returns the members that accept, and the failures."""

        async def ask(server: ServerControl) -> None:
            await server.request_weight_update(
                ChannelUpdateRequest(
                    run=self.run,
                    epoch=self._joined[server],
                    version=self._version,
                    manifest_sha256=published.manifest_sha256,
                    kv_cache=self._config.inference.kv_cache,
                    timeout_s=self._config.weights.live_timeout_s,
                )
            )

        accepted, failures = self.servers.ask(self._members, ask)
        self.candidates.condemn(failures)
        return list(accepted), failures

    async def _status(self, server: ServerControl) -> WeightUpdateStatus:
        return await server.weight_update(self._version, self._config.weights.live_timeout_s)

    def _check_digests(self, live: Mapping[ServerControl, WeightUpdateStatus]) -> None:
        digests = {version: published.manifest.digest for version, published in self._published.items()}
        infos, _ = self.servers.ask(live, lambda server: server.contract())
        for server, info in infos.items():
            check_digest(server.url, info.weights, self.run, digests)

    def _note_failures(
        self, version: int, statuses: Mapping[ServerControl, WeightUpdateStatus], failures: Failures
    ) -> None:
        """Logs why members do not serve the version. `failures`: errors of those without a status."""
        whys = {server: _in_words(failure) for server, failure in failures.items()}
        for server, status in statuses.items():
            if status.state != "live":
                whys[server] = status.error or f"it says only that the update is {status.state}"
        for server, why in whys.items():
            log.warning("version %d at %s: %s", version, server.url, why)
            self.candidates.last_failure = f"{server.url}: {' '.join(why.split())}"

    def put_to_sleep(self, timeout_s: float) -> None:
        """Also joins servers that are ready and no members yet, because they have memory too."""
        present = self.candidates.current()
        others = [server for server in present if server not in self._joined]
        self._join([*self.servers.poll(dict.fromkeys(others, OUTSIDER_TIMEOUT_S)).ready])
        members = [server for server in present if server in self._joined]

        async def sleep(server: ServerControl) -> None:
            epoch = self._joined[server]
            await server.sleep(SleepRequest(run=self.run, epoch=epoch, keep="nothing", timeout_s=timeout_s))

        _, failures = self.servers.ask(members, sleep)
        for server in failures:
            self._joined.pop(server)
        self.candidates.condemn_awake(failures)
        self._wait_until_gone(set(failures), timeout_s)

    def _wait_until_gone(self, servers: set[ServerControl], longest_s: float) -> None:
        """Waits until the launcher has ended these servers."""
        deadline = time.monotonic() + longest_s
        while servers and (servers := self.servers.listening(servers)) and time.monotonic() < deadline:
            time.sleep(GONE_S)
        for server in servers:
            log.warning("%s is still there: its memory may be in the way", server.url)

    def _leave_out(self, servers: list[ServerControl] | Failures) -> None:
        """Counts a failure of these servers, unless they have left the run. They join again on return."""
        self.servers.refresh()
        for server in servers:
            self._joined.pop(server, None)
        present = frozenset(server for server in servers if server in self.servers.all)
        if present:
            self.candidates.condemn_failing(self.strikes.failed(Blame(present, certain=True)))

    def close(self) -> None:
        """Removes the run's versions, which servers do not need, because they have copied the weights."""
        self.servers.close()
        self._store.close()
        self._store.remove()


def _in_words(failure: Exception) -> str:
    return str(failure) or f"no answer ({type(failure).__name__})"
