"""The weight publisher: puts the trainer's weights into the running servers, on trainer rank 0.

Owns the run id, the epochs and the weight group. A server that dies, refuses or fails an update is
left out; a new epoch is opened with the rest, and one that answers again is taken back in. A pinned one
is left out because the actor asked for it, until it releases it.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

import aiohttp
import torch

from contracts.inference import (
    AbortWeightUpdateRequest,
    ContractInfo,
    InitProcessGroupRequest,
    WeightUpdateRequest,
    WeightUpdateStatus,
)
from contracts.records import WeightsPublished
from contracts.trainer import TrainerWorker
from contracts.weights import WeightGroup, WeightManifest, WeightStore, nccl_version, send_weights
from pipelinerl.addresses import LOOPBACK
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.server_control import ANSWER_TIMEOUT_S, ContractRefusalError, ServerControl
from pipelinerl.config import RunConfig
from pipelinerl.training.ranks import Ranks

log = logging.getLogger(__name__)
Infos = dict[ServerControl, ContractInfo]
OUTSIDER_TIMEOUT_S = 1.0  # for a server outside the group to say that it is there
MAX_ATTEMPTS = 5  # weight groups formed for one version before the run gives up


class NoServersError(Exception):
    """No inference server is left to publish to."""


class WeightPublisher:
    def __init__(
        self,
        config: RunConfig,
        urls: list[str],
        token: str | None,
        manifest: WeightManifest,
        needs: Mapping[str, str] | None = None,
        address: str = LOOPBACK,
    ):
        """`needs`: capabilities that every server must have, and what asks for each.
        `address`: of this machine, where the servers reach it."""
        self.run = secrets.token_hex(8)
        self._needs = needs or {}
        self._config = config
        self._weights = config.weights
        self._manifest = manifest
        self._address = config.weights.master_address or address
        self._backend = "nccl" if config.device == "cuda" else "gloo"
        self._loop = asyncio.Runner()
        self._session = self._loop.run(_open_session(token))
        self._servers = [ServerControl(self._session, url) for url in urls]
        self._epoch = 0
        self._store: WeightStore | None = None
        self._group: WeightGroup | None = None
        self._members: list[ServerControl] = []
        self._attempts = 0  # groups formed for the version that is being published
        self._excluded: set[ServerControl] = set()  # from that version's further attempts
        self._pinned: set[str] = set()  # URLs of servers that are to keep what they serve

    def pin(self, url: str) -> None:
        """Leaves the server out of the weight group, for as long as another one answers."""
        self._pinned.add(url)

    def release(self, url: str) -> None:
        self._pinned.discard(url)

    # --- one publication: open, send, confirm -------------------------------------------------

    def wait_for_servers(self) -> None:
        """Waits until every server answers, or `server_start_timeout_s` have passed and some do."""
        deadline = time.monotonic() + self._config.world.server_start_timeout_s
        while len(reached := self._reachable(self._servers)) < len(self._servers):
            if time.monotonic() > deadline:
                missing = [s.url for s in self._servers if s not in reached]
                log.warning("no answer within server_start_timeout_s from %s", ", ".join(missing))
                return
            time.sleep(0.2)

    def open(self, version: int) -> None:
        """Requests the update until every member of the weight group answered 202. Raises NoServersError."""
        self._started = time.monotonic()
        while True:
            self._ensure_group()
            failures = self._request_update(version)
            if not failures:
                return
            self._refuse_hopeless(failures)
            self._exclude(failures)
            self._call_off(version, [s for s in self._members if s not in failures])

    def _request_update(self, version: int) -> dict[ServerControl, Exception]:
        request = WeightUpdateRequest(
            run=self.run,
            epoch=self._epoch,
            version=version,
            parameters=list(self._manifest.parameters),
            tied=self._manifest.tied,
            bucket_bytes=self._weights.bucket_bytes,
            kv_cache=self._config.inference.kv_cache,
            receive=self._config.inference.receive,
            timeout_s=self._weights.bucket_timeout_s,
        )
        return self._ask(self._members, lambda server: server.request_weight_update(request))

    def send(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Broadcast; a failure is kept for `confirm`, so that the caller can exhaust the iterator."""
        try:
            timeout_s = self._weights.bucket_timeout_s
            send_weights(self._group, self._manifest, weights, self._weights.bucket_bytes, timeout_s)
        except RuntimeError as error:  # what torch raises when a peer is gone or silent
            # Logged as text: the error object keeps the group alive, and with it the others waiting.
            log.warning("broadcast in epoch %d failed: %s", self._epoch, str(error))
            self._leave_group()

    def confirm(self, version: int) -> WeightsPublished | None:
        """Waits until every member serves the version. Returns None when it must be published again."""
        statuses: dict[ServerControl, WeightUpdateStatus] = {}

        async def ended(server: ServerControl) -> None:
            statuses[server] = await server.weight_update(version, self._weights.live_timeout_s)
            if statuses[server].state != "live":
                raise RuntimeError(f"the update ended as {statuses[server]}")

        failures = {} if self._group is None else self._ask(self._members, ended)
        if self._group is None or failures:
            self._leave_group()
            # A broken broadcast fails for all, and the weights of some may be lost in it, until the next
            # comes. But who does not answer, or failed where another succeeded, has failed by itself.
            for_all = len(failures) == len(self._members)
            self._exclude(failures.keys() - statuses.keys() if for_all else failures)
            return None
        self._attempts = 0
        self._excluded = set()
        return WeightsPublished(
            run=self.run,
            version=version,
            servers=[server.url for server in self._members],
            seconds=time.monotonic() - self._started,
            bytes=self._manifest.total_bytes,
            paused_s=max(status.paused_s for status in statuses.values()),
        )

    def close(self) -> None:
        self._leave_group()
        self._loop.run(self._session.close())
        self._loop.close()

    # --- the weight group ---------------------------------------------------------------------

    def _ensure_group(self) -> None:
        """A group of every server that answers, the same one as long as those are the same."""
        while True:
            infos = self._candidates()
            if not infos:
                raise NoServersError("no inference server answers")
            self._check_capabilities(infos)
            if self._group is not None and set(infos) == set(self._members):
                return
            if self._attempts == MAX_ATTEMPTS:
                raise NoServersError(f"{MAX_ATTEMPTS} weight groups in a row failed; see the servers' logs")
            self._attempts += 1
            self._leave_group()
            self._form_group(infos)

    def _candidates(self) -> Infos:
        """Those that answer. A pinned one is among them only when there is no other."""
        others = self._reachable([s for s in self._servers if s.url not in self._pinned])
        if others or not self._pinned:
            return others
        log.warning("no other server answers: %s is taken back in", ", ".join(self._pinned))
        return self._reachable([s for s in self._servers if s.url in self._pinned])

    def _check_capabilities(self, infos: Infos) -> None:
        for server, info in infos.items():
            for capability, why in self._needs.items():
                if capability not in info.capabilities:
                    raise ValueError(
                        f"{why}: {server.url} ({info.engine}) does not declare the capability {capability}"
                    )

    def _form_group(self, infos: Infos) -> None:
        self._epoch += 1
        timeout_s = self._weights.rendezvous_timeout_s
        if self._attempts > 1:  # a server may wait its bucket timeout out before it leaves the broken group
            timeout_s += self._weights.bucket_timeout_s
        self._store = WeightStore(self._address, 0, timeout_s)
        group_name = f"{self.run}-{self._epoch}-{secrets.token_hex(8)}"
        world_size = 1 + sum(info.ranks for info in infos.values())
        requests = {}
        rank_offset = 1
        for server, info in infos.items():
            requests[server] = InitProcessGroupRequest(
                run=self.run,
                takeover=self._epoch == 1,
                epoch=self._epoch,
                group_name=group_name,
                backend=self._backend,
                master_address=self._store.address,
                master_port=self._store.port,
                rank_offset=rank_offset,
                world_size=world_size,
                timeout_s=timeout_s,
                nccl_version=nccl_version() if self._backend == "nccl" else None,
            )
            rank_offset += info.ranks

        async def join() -> list[object]:
            rank_0 = asyncio.to_thread(self._store.group, group_name, world_size, self._backend, timeout_s)
            others = (server.init_process_group(request) for server, request in requests.items())
            return await asyncio.gather(rank_0, *others, return_exceptions=True)

        group, *answers = self._loop.run(join())
        failures = {s: a for s, a in zip(requests, answers, strict=True) if isinstance(a, Exception)}
        self._refuse_hopeless(failures)
        # When one does not come, the others' rendezvous times out through no fault of theirs.
        self._exclude(
            s for s, f in failures.items() if not (isinstance(f, ContractRefusalError) and f.status == 504)
        )
        if failures or isinstance(group, Exception):
            log.warning("epoch %d did not form: %s %s", self._epoch, group, failures)
            return
        self._group = group
        self._members = list(requests)
        log.info("epoch %d: %s", self._epoch, ", ".join(s.url for s in self._members))

    def _refuse_hopeless(self, failures: dict[ServerControl, Exception]) -> None:
        """Raise what no new epoch can mend: weights that do not fit, a server that another run took."""
        for failure in failures.values():
            if isinstance(failure, ContractRefusalError) and (
                failure.status == 422 or failure.code == "other_run"
            ):
                raise failure

    def _exclude(self, servers: Iterable[ServerControl]) -> None:
        """Leave these out until the version is published; then they are asked again."""
        self._excluded |= set(servers)

    def _leave_group(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = self._store = None

    def _call_off(self, version: int, accepted: list[ServerControl]) -> None:
        request = AbortWeightUpdateRequest(run=self.run, epoch=self._epoch, version=version)
        self._ask(accepted, lambda server: server.abort_weight_update(request))
        self._leave_group()

    # --- asking all servers at once -----------------------------------------------------------

    def _reachable(self, servers: list[ServerControl]) -> Infos:
        infos: Infos = {}

        async def poll(server: ServerControl) -> None:
            # One that is out already, and hangs, must not hold up every publication.
            outside = server not in self._members and server.url not in self._pinned
            infos[server] = await server.contract(OUTSIDER_TIMEOUT_S if outside else ANSWER_TIMEOUT_S)

        self._ask([s for s in servers if s not in self._excluded], poll, quiet=True)
        return {server: infos[server] for server in servers if server in infos}

    def _ask(
        self,
        servers: list[ServerControl],
        question: Callable[[ServerControl], Awaitable[object]],
        quiet: bool = False,
    ) -> dict[ServerControl, Exception]:
        """Ask all at once; the failures by server."""

        async def ask() -> list[object]:
            return await asyncio.gather(*map(question, servers), return_exceptions=True)

        answers = self._loop.run(ask())
        failures = {s: a for s, a in zip(servers, answers, strict=True) if isinstance(a, Exception)}
        for server, failure in failures.items() if not quiet else ():
            log.warning("%s: %r", server.url, failure)
        return failures


async def _open_session(token: str | None) -> aiohttp.ClientSession:
    return open_session(token)


def publish(
    worker: TrainerWorker, ranks: Ranks, publisher: WeightPublisher | None, version: int
) -> WeightsPublished | None:
    """Every rank calls this; the publisher, and what was published, exist on rank 0 alone.

    Every rank exhausts `gather_weights`, whether or not rank 0 is still sending, and rank 0 decides
    for all whether to publish again: no rank can wait in a collective that another has left.
    """
    published = None

    def confirmed() -> bool:
        nonlocal published
        published = publisher.confirm(version)
        return published is not None

    while True:
        ranks.wait_for_rank_0(lambda: publisher.open(version))  # here, not inside a gather
        weights = worker.gather_weights()
        if publisher:
            publisher.send(weights)
        for _ in weights:
            pass
        if ranks.agree(confirmed):
            return published
