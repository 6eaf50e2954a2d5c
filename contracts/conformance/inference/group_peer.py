"""The trainer's side of joining: a run with its epochs, and rank 0 of the weight group of all servers."""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from contracts.conformance.inference.http_client import Answer
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.settings import Settings
from contracts.conformance.verdicts import GuaranteeError
from contracts.inference import ContractInfo, GroupInfo
from contracts.weights import RendezvousStore, WeightGroup, nccl_version


class GroupPeer:
    """One run of a trainer, which joins one group after the other."""

    def __init__(self, servers: Sequence[Server], settings: Settings):
        self.servers = servers
        self.settings = settings
        self.run = uuid.uuid4().hex
        self.epoch = 0
        self.kv_cache = "keep"  # unless a server offers only `recompute`
        self.backend: str | None = None  # chosen by `backend_of`
        self.group: WeightGroup | None = None
        self.joined: list[dict[str, Any]] = []  # each server's request to join the group

    async def join_requests(self, port: int, extra_ranks: int = 0, **changes: object) -> list[dict[str, Any]]:
        """Returns each server's request to join. extra_ranks: number of ranks after the servers' ranks."""
        contracts = [await server.contract() for server in self.servers]
        world_size = 1 + sum(contract.ranks for contract in contracts) + extra_ranks
        backend = self.backend or backend_of(contracts)
        self.kv_cache = "keep" if all("keep" in contract.kv_cache for contract in contracts) else "recompute"
        common = {
            "run": self.run,
            "epoch": self.epoch,
            "group_name": f"weights-{uuid.uuid4().hex}",
            "backend": backend,
            "nccl_version": nccl_version() if backend == "nccl" else None,
            "master_address": self.settings.address,
            "master_port": port,
            "world_size": world_size,
            "timeout_s": self.settings.timeout_s,
        }
        requests = []
        offset = 1
        for contract in contracts:
            own = {"takeover": self._takes_over(contract), "rank_offset": offset}
            requests.append(common | own | changes)
            offset += contract.ranks
        return requests

    def _takes_over(self, contract: ContractInfo) -> bool:
        """Returns True if joining needs `takeover`, because the server belongs to another run."""
        fresh = contract.run is None and contract.weights.version == 0
        return not fresh and contract.run != self.run

    async def join(self) -> None:
        """Forms the group of the next epoch. Raises GuaranteeError if a server does not join."""
        self.leave()
        self.epoch += 1
        patience_s = self.settings.patience_s
        store = RendezvousStore(self.settings.address, 0, patience_s)
        requests = await self.join_requests(store.port, timeout_s=patience_s)
        first = requests[0]
        probe = all([(await server.contract()).contract >= 2 for server in self.servers])
        if probe:
            requests = [request | {"probe": True} for request in requests]
        form = asyncio.to_thread(
            store.group,
            first["group_name"],
            first["world_size"],
            first["backend"],
            patience_s,
            probe,
        )
        answers, formed = await asyncio.gather(self._post_joins(requests), form, return_exceptions=True)
        if isinstance(answers, BaseException):
            raise answers
        for server, (status, body), request in zip(self.servers, answers, requests, strict=True):
            contract = await server.contract()
            offset = request["rank_offset"]
            group = GroupInfo(epoch=self.epoch, rank_offset=offset, world_size=request["world_size"])
            ranks = list(range(offset, offset + contract.ranks))
            joined = status == 200 and body.get("ranks") == ranks
            if not joined or (contract.run, contract.group) != (self.run, group):
                raise GuaranteeError(
                    f"{server}: POST /init_process_group: {status} {body}; /contract: {contract.group}",
                    f"200, {contract.ranks} rank(s) from {offset} on, and {group} in /contract",
                    f"POST /init_process_group {request}",
                )
        if isinstance(formed, BaseException):
            raise GuaranteeError(
                f"200 was answered, but the group of epoch {self.epoch} never formed: {formed}",
                "200 only once the server's ranks have joined",
                f"POST /init_process_group {first}",
            )
        self.group = formed
        self.joined = requests

    async def _post_joins(self, requests: Sequence[dict[str, Any]]) -> list[Answer]:
        # The server may first wait for an update to end.
        limit = 2 * self.settings.patience_s + self.settings.grace_s
        try:
            async with asyncio.timeout(limit):
                return await self.post_each("/init_process_group", requests)
        except TimeoutError as error:
            raise GuaranteeError(
                f"no answer to POST /init_process_group within {limit:g} s",
                f"an answer within timeout_s + {self.settings.grace_s:g} s",
                f"POST /init_process_group {requests[0]}",
            ) from error

    def leave(self) -> None:
        """Leaves the weight group, if there is one."""
        if self.group:
            self.group.close()
            self.group = None

    async def post_each(self, path: str, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
        """Posts one body to each server, in order, and returns their responses."""
        return await asyncio.gather(
            *(server.post(path, body) for server, body in zip(self.servers, bodies, strict=True))
        )


def backend_of(contracts: Sequence[Any]) -> str:
    """Returns gloo if every server offers it, because it needs no GPU here; otherwise nccl."""
    return "gloo" if all("gloo" in contract.backends for contract in contracts) else "nccl"
