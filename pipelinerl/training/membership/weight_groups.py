"""Forms the process groups for weights, one per epoch. The current one is `group`."""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager

from contracts.inference import ContractInfo, InitProcessGroupRequest, LeaveProcessGroupRequest
from contracts.weights import RendezvousStore, WeightGroup, nccl_version
from pipelinerl.clients.server_control import ServerControl
from pipelinerl.training.meanwhile import meanwhile
from pipelinerl.training.membership.blame import waited_for_others
from pipelinerl.training.membership.servers import POLL_S, Failures, Servers

log = logging.getLogger(__name__)
LEAVE_GROUP = "leave_group"  # the capability


class WeightGroups:
    def __init__(self, run: str, servers: Servers, address: str, backend: str):
        """`address`: this machine's address, by which the servers reach it."""
        self._run = run
        self._servers = servers
        self._address = address
        self._backend = backend
        self._store: RendezvousStore | None = None
        self._taken: set[ServerControl] = set()  # servers that have joined a group of this run
        self.epoch = 0
        self.group: WeightGroup | None = None
        self.members: list[ServerControl] = []  # members of the last group, even if it has ended
        self._leave_when_asked: list[ServerControl] = []  # those that offer to leave before the trainer

    def form(self, infos: Mapping[ServerControl, ContractInfo], timeout_s: float) -> Failures:
        """Forms the next epoch's group of these servers.

        Returns the failures to join. If there are any, no group is formed.
        """
        self.leave()
        self.epoch += 1
        self.members = list(infos)
        self._leave_when_asked = [s for s, info in infos.items() if LEAVE_GROUP in info.capabilities]
        self._store = RendezvousStore(self._address, 0, timeout_s)
        requests = self._requests(infos, timeout_s)
        first = next(iter(requests.values()))

        async def join() -> tuple[object, tuple[dict[ServerControl, None], Failures]]:
            rank_0 = asyncio.to_thread(
                self._store.group,
                first.group_name,
                first.world_size,
                self._backend,
                timeout_s,
                first.probe,
            )
            others = self._servers.answers(
                requests, lambda server: server.init_process_group(requests[server]), together=True
            )
            group, answers = await asyncio.gather(rank_0, others, return_exceptions=True)
            return group, answers

        with self.broken_if_one_leaves():
            group, (_, failures) = self._servers.run(join())
        self._taken |= requests.keys() - failures.keys()
        if failures or isinstance(group, Exception):
            log.warning("epoch %d did not form: %s %s", self.epoch, group, failures)
            if isinstance(group, WeightGroup):
                self.group = group
            self.leave()
            joined = requests.keys() - failures.keys()
            if isinstance(group, Exception) and all(map(waited_for_others, failures.values())):
                # All others timed out, so a server that claims to have joined is the likeliest cause.
                return dict.fromkeys(joined, group) or failures
            return failures
        self.group = group
        log.info("epoch %d: %s", self.epoch, ", ".join(s.url for s in self.members))
        return {}

    def _requests(
        self, infos: Mapping[ServerControl, ContractInfo], timeout_s: float
    ) -> dict[ServerControl, InitProcessGroupRequest]:
        group_name = f"{self._run}-{self.epoch}-{secrets.token_hex(8)}"
        world_size = 1 + sum(info.ranks for info in infos.values())
        # NCCL ranks connect at their first broadcast, so a probe broadcast is needed; gloo ranks connect when
        # they join. Servers of version 1 of the contract expect no probe.
        probe = self._backend == "nccl" and all(info.contract >= 2 for info in infos.values())
        requests = {}
        rank_offset = 1
        for server, info in infos.items():
            requests[server] = InitProcessGroupRequest(
                run=self._run,
                # A server that was silent at the start may still belong to an older run.
                takeover=server not in self._taken,
                epoch=self.epoch,
                group_name=group_name,
                backend=self._backend,
                master_address=self._store.address,
                master_port=self._store.port,
                rank_offset=rank_offset,
                world_size=world_size,
                timeout_s=timeout_s,
                nccl_version=nccl_version() if self._backend == "nccl" else None,
                probe=probe,
            )
            rank_offset += info.ranks
        return requests

    def broken_if_one_leaves(self) -> AbstractContextManager[None]:
        """Breaks the group, or its rendezvous, if a member leaves the run while the block waits.

        Otherwise the block would wait for a silent machine until a timeout.
        """
        store = self._store
        members = self.members

        def abort_if_one_left() -> None:
            if self._servers.has_one_left(members):
                store.abort()

        return meanwhile(POLL_S, abort_if_one_left, "members of the weight group")

    def leave(self) -> None:
        """Leaves the group. With NCCL the members leave first, because a rank's abort may wait for them."""
        if self.group is not None:
            if self._backend == "nccl":
                request = LeaveProcessGroupRequest(run=self._run, epoch=self.epoch)
                _, failures = self._servers.ask(
                    self._leave_when_asked, lambda server: server.leave_process_group(request)
                )
                for server, failure in failures.items():
                    log.info("%s did not leave epoch %d: %r", server.url, self.epoch, failure)
            self.group.close()
        self.group = None
        self._store = None
