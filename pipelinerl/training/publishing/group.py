"""The publisher that broadcasts weights to a process group of the servers, on trainer rank 0.

Each group has an epoch: the number of groups that this trainer process has formed. If a server dies or fails
an update, `membership.strikes` leaves it out, and the others form the group of the next epoch.
"""

import logging
import secrets
from collections.abc import Iterator

import torch

from contracts.bucket_packer import BucketPacker
from contracts.inference import (
    AbortWeightUpdateRequest,
    WeightUpdateRequest,
    WeightUpdateStatus,
)
from contracts.records import WeightsPublished
from contracts.weights import PeerLostError, send_weights
from pipelinerl.clients.server_control import ServerControl
from pipelinerl.config import RunConfig
from pipelinerl.training.bucket_size import usual_bucket_bytes
from pipelinerl.training.membership.blame import Blame, Ending, blame, blame_for_joining
from pipelinerl.training.membership.servers import Failures
from pipelinerl.training.membership.weight_groups import WeightGroups
from pipelinerl.training.publishing.base import PublisherContext
from pipelinerl.training.publishing.confirming import ConfirmingPublisher
from pipelinerl.training.update_times import broken_end_s, rendezvous_s

log = logging.getLogger(__name__)
FIRST_S = 1.0  # after a broken broadcast, time for the reports of members that failed before


class GroupPublisher(ConfirmingPublisher):
    """Publishes through a weight group that the trainer hosts. backend: None chooses gloo or NCCL."""

    def __init__(self, config: RunConfig, context: PublisherContext, backend: str | None = None):
        super().__init__(config, context)
        self.run = secrets.token_hex(8)
        self._weights = config.weights
        self._manifest = context.manifest
        backend = backend or ("nccl" if config.device == "cuda" else "gloo")
        self._weight_groups = WeightGroups(
            self.run, self.servers, config.weights.master_address or context.address, backend
        )
        self._broken = False  # True if the last broadcast failed
        self._timed_out = False  # True if it failed by a timeout
        size = usual_bucket_bytes(self._manifest.total_bytes, backend)
        self._bucket_bytes = config.weights.bucket_bytes or size
        # On a GPU, no memory is kept for it.
        self._packer = BucketPacker() if backend == "gloo" else None

    # --- one publication: open, send, confirm -------------------------------------------------

    def open(self, version: int) -> None:
        """Requests the update until every member of the group has answered 202. Raises NoServersError."""
        self.begin(version)
        while True:
            self._ensure_group()
            failures = self._request_update(version)
            if not failures:
                return
            self._abort(version, [s for s in self._weight_groups.members if s not in failures])
            if to_blame := self._faulty(failures):
                self._leave_out(Blame(frozenset(to_blame), certain=True))

    def _request_update(self, version: int) -> Failures:
        request = WeightUpdateRequest(
            run=self.run,
            epoch=self._weight_groups.epoch,
            version=version,
            parameters=list(self._manifest.parameters),
            tied=self._manifest.tied,
            bucket_bytes=self._bucket_bytes,
            kv_cache=self._config.inference.kv_cache,
            receive=self._config.inference.receive,
            timeout_s=self._weights.bucket_timeout_s,
        )
        _, failures = self.servers.ask(
            self._weight_groups.members, lambda s: s.request_weight_update(request)
        )
        return failures

    def send(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Broadcasts the weights. `confirm` handles the loss of a member, which raises nothing here.

        An error of `weights` itself is raised. The trainer then leaves the group, so that no server waits.
        """
        self.phases.begin("send")
        self._broken = False
        timeout_s = self._weights.bucket_timeout_s
        try:
            with self._weight_groups.broken_if_one_leaves():
                gathered = self.phases.inside("gather", weights)
                send_weights(
                    self._weight_groups.group,
                    self._manifest,
                    gathered,
                    self._bucket_bytes,
                    timeout_s,
                    self._packer,
                )
        except PeerLostError as error:
            # Logged as text, because a kept error object would keep the group alive and the others waiting.
            log.warning("broadcast in epoch %d failed: %s", self._weight_groups.epoch, str(error))
            self._broken = True
            self._timed_out = error.timed_out
        except BaseException:
            self._weight_groups.leave()
            raise

    def confirm(self, version: int) -> WeightsPublished | None:
        """Waits until every member serves the version. Returns None if it must be published again."""
        self.phases.begin("confirm")
        statuses, first = self._statuses(version)
        gone = self._departed()
        endings = {s: self._ending(statuses.get(s), s in first) for s in self._weight_groups.members}
        live = [s for s, ending in endings.items() if ending.state == "live" and s not in gone]
        self.strikes.succeeded(live)
        if len(live) < len(endings):
            self._weight_groups.leave()
            out = gone or self._blamed(version, endings, statuses)
            innocent = endings.keys() - live - out
            if innocent or not live:  # they get the version again, together with the members that have it
                return None
        self.stranded.published(live)
        size = self._manifest.total_bytes
        return self.publication(version, size, {server: statuses[server] for server in live})

    def _blamed(
        self,
        version: int,
        endings: dict[ServerControl, Ending],
        statuses: dict[ServerControl, WeightUpdateStatus],
    ) -> frozenset[ServerControl]:
        """Returns the members that caused the failed update, and gives each a strike."""
        for server, ending in endings.items():
            if ending.state != "live":
                self._note(version, server, statuses.get(server))
        timed_out = self._broken and self._timed_out
        return self._leave_out(blame(endings, self._manifest.total_bytes, timed_out))

    def _statuses(self, version: int) -> tuple[dict[ServerControl, WeightUpdateStatus], set[ServerControl]]:
        """Returns the statuses, and the members whose end was reported before the trainer left the group."""
        members = self._weight_groups.members
        early_s = FIRST_S if self._broken else self._weights.live_timeout_s
        early, _ = self.servers.ask(members, lambda s: s.weight_update(version, early_s), together=True)
        gone = self._departed()
        if not self._broken and not gone:
            return early, set(early)
        if gone:  # other members may wait for it, or for each other
            self._abort(version, [s for s in members if s not in gone])
        self._weight_groups.leave()  # ends the wait of members that wait for the trainer
        end_s = broken_end_s(self._weights)
        statuses, _ = self.servers.ask(members, lambda s: s.weight_update(version, end_s))
        return statuses, {s for s, status in early.items() if status.state == "failed"}

    def _departed(self) -> set[ServerControl]:
        """Returns the members of the group that have left the run."""
        self.servers.refresh()
        gone = set(self._weight_groups.members) - set(self.servers.all)
        if gone:
            log.warning("left the run: %s", ", ".join(sorted(s.url for s in gone)))
        return gone

    def _note(self, version: int, server: ServerControl, status: WeightUpdateStatus | None) -> None:
        log.warning("version %d at %s: %s", version, server.url, status or "no answer")
        if status and status.error:
            self.candidates.last_failure = f"{server.url}: {' '.join(status.error.split())}"

    def _ending(self, status: WeightUpdateStatus | None, first: bool) -> Ending:
        if status is None or (status.run, status.epoch) != (self.run, self._weight_groups.epoch):
            return Ending("silent")
        return Ending(status.state, status.bytes, first)

    def close(self) -> None:
        self._weight_groups.leave()
        self.servers.close()

    # --- the weight group ---------------------------------------------------------------------

    def _ensure_group(self) -> None:
        """Forms a group of the chosen candidates, or keeps the current one if they are its members."""
        while True:
            infos = self.candidates.choose(self._weight_groups.members)
            if self._weight_groups.group is not None and set(infos) == set(self._weight_groups.members):
                return
            failures = self._weight_groups.form(infos, rendezvous_s(self._weights, self.strikes.troubled))
            if not failures:
                return
            if to_blame := self._faulty(failures):
                self._leave_out(blame_for_joining(to_blame))

    def _leave_out(self, to_blame: Blame[ServerControl]) -> frozenset[ServerControl]:
        servers = self.strikes.failed(to_blame)
        log.warning("left out of the next weight group: %s", ", ".join(sorted(s.url for s in servers)))
        self.candidates.condemn_failing(servers)
        return servers

    def _faulty(self, failures: Failures) -> Failures:
        """Returns the failures for which servers get strikes: none if a member has left the run."""
        return {} if self._departed() else self.candidates.condemn(failures)

    def _abort(self, version: int, accepted: list[ServerControl]) -> None:
        request = AbortWeightUpdateRequest(run=self.run, epoch=self._weight_groups.epoch, version=version)
        self.servers.ask(accepted, lambda server: server.abort_weight_update(request))
        self._weight_groups.leave()
