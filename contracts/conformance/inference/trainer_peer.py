"""The trainer's side of the contract: a run with its epochs, rank 0 of the group, and HTTP requests.

Every method that names no server sends to all of them, because they are one weight group.
"""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import ValidationError

from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.server import Answer, Server
from contracts.conformance.inference.settings import Settings
from contracts.conformance.verdicts import GuaranteeError
from contracts.inference import ContractInfo, GroupInfo, Parameter, WeightUpdateStatus
from contracts.weights import WeightGroup, WeightStore, dtype_name, nccl_version, pack_bucket, plan_buckets


def parameters(weights: Weights) -> list[Parameter]:
    """Returns the parameters of a weight update, in the order of `weights`."""
    return [
        Parameter(name=name, dtype=dtype_name(tensor.dtype), shape=tuple(tensor.shape))
        for name, tensor in weights.items()
    ]


def packed(weights: Weights, bucket_bytes: int) -> list[torch.Tensor]:
    """Returns the buckets in which `weights` are sent, each a `[bytes]` uint8 tensor."""
    plan = plan_buckets(parameters(weights), bucket_bytes)
    return [pack_bucket(weights[p.name] for p in bucket) for bucket in plan]


def bucket_bytes_for(weights: Weights, count: int) -> int:
    """Returns a bucket size that cuts `weights` into `count` buckets or more, if it has the tensors."""
    size = max(1, sum(tensor.nbytes for tensor in weights.values()) // count)
    order = parameters(weights)
    while size > 1 and len(plan_buckets(order, size)) < min(count, len(order)):
        size //= 2
    return size


class TrainerPeer:
    """One run of a trainer."""

    def __init__(self, servers: Sequence[Server], tied: dict[str, str], settings: Settings):
        self.servers = servers
        self.tied = tied
        self.settings = settings
        self.run = uuid.uuid4().hex
        self.epoch = 0
        self.version = 0
        self.kv_cache = "keep"  # unless a server offers only the other
        self.group: WeightGroup | None = None
        self.joined: list[dict[str, Any]] = []  # the request by which each server joined the group

    # --- the weight group -------------------------------------------------------------------------

    async def join_requests(self, port: int, extra_ranks: int = 0, **changes: object) -> list[dict[str, Any]]:
        """Returns each server's request to join. `extra_ranks` ranks follow those of the servers."""
        contracts = [await server.contract() for server in self.servers]
        world_size = 1 + sum(contract.ranks for contract in contracts) + extra_ranks
        backend = backend_of(contracts)
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
        """Returns whether the server has to be taken over: from another run, or from a higher version."""
        fresh = contract.run is None and contract.weights.version == 0
        return not fresh and contract.run != self.run

    async def join(self) -> None:
        """Opens the next epoch with every server. Raises GuaranteeError if one of them does not join."""
        self.leave()
        self.epoch += 1
        patience_s = self.settings.patience_s
        store = WeightStore(self.settings.address, 0, patience_s)
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
        # The server may first wait until an update ends.
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

    # --- weight updates ---------------------------------------------------------------------------

    def update_request(self, version: int, weights: Weights, **changes: object) -> dict[str, Any]:
        """Returns a request to update to `weights` as `version`; `changes` replace its fields."""
        request = {
            "run": self.run,
            "epoch": self.epoch,
            "version": version,
            "parameters": [parameter.model_dump() for parameter in parameters(weights)],
            "tied": self.tied,
            "bucket_bytes": bucket_bytes_for(weights, 3),
            "kv_cache": self.kv_cache,
            "receive": "paused",
            "timeout_s": self.settings.patience_s,
        }
        return request | changes

    async def publish(self, version: int, weights: Weights, **changes: object) -> None:
        """Makes a complete update. Raises GuaranteeError unless it becomes live on all servers."""
        request = self.update_request(version, weights, **changes)
        buckets = packed(weights, request["bucket_bytes"])
        await self.request_update(request)
        try:
            await self.send(buckets)
        except RuntimeError as error:
            raise GuaranteeError(
                f"the broadcast of version {version} did not end: {error}",
                "a server that answered 202 takes part in the broadcast, whatever version it holds",
                f"publish version {version} {describe_changes(changes)}",
            ) from error
        await self.wait_until_live(
            version, sum(bucket.nbytes for bucket in buckets), f"publish {describe_changes(changes)}"
        )

    async def wait_until_live(self, version: int, size: int, reproduce: str) -> None:
        """Waits until every server reports that `version` is live, with `size` bytes.

        Raises GuaranteeError if a server reports anything else.
        """
        for server, status in zip(self.servers, await self.outcomes(version), strict=True):
            if (status.state, status.bytes) != ("live", size) or min(status.paused_s, status.transfer_s) < 0:
                raise GuaranteeError(
                    f"{server}: version {version} ended as {status.model_dump()}",
                    f"live, with {size} bytes, after every bucket was sent",
                    f"{reproduce}, version {version}",
                )
        self.version = version

    async def request_update(self, request: dict[str, Any]) -> None:
        """Requests the update from every server. Raises GuaranteeError unless each responds with 202."""
        for server, answer in zip(
            self.servers,
            await self.post_each("/request_weight_update", [request] * len(self.servers)),
            strict=True,
        ):
            if answer[0] != 202 or answer[1].get("state") != "receiving":
                raise GuaranteeError(
                    f"{server}: POST /request_weight_update: {answer[0]} {answer[1]}",
                    '202 {"state": "receiving"}',
                    f"request version {request['version']} with every parameter of the model",
                )

    async def send(self, buckets: Sequence[torch.Tensor]) -> None:
        """Broadcasts the buckets to all servers."""
        assert self.group is not None, "join() opens the group"
        for bucket in buckets:
            await asyncio.to_thread(self.group.broadcast, bucket, self.settings.patience_s)

    async def outcomes(self, version: int) -> list[WeightUpdateStatus]:
        """Returns how the update ended on each server.

        Raises GuaranteeError if one does not report it in time.
        """
        return await asyncio.gather(*(self.outcome(server, version) for server in self.servers))

    async def outcome(self, server: Server, version: int) -> WeightUpdateStatus:
        """Returns how the update ended on one server. Raises GuaranteeError if it does not say so in time."""
        limit = self.settings.timeout_s + self.settings.grace_s
        try:
            async with asyncio.timeout(limit + 1):
                status, body = await server.get(f"/weight_update/{version}?wait_s={limit}")
        except TimeoutError:
            status = 0
            body = {"state": f"no answer within {limit + 1:g} s"}
        try:
            found = WeightUpdateStatus.model_validate(body)
        except ValidationError:
            found = None
        named = found and (found.run, found.epoch, found.version) == (self.run, self.epoch, version)
        if status != 200 or found is None or not named or found.state == "receiving":
            raise GuaranteeError(
                f"{server}: GET /weight_update/{version}?wait_s={limit:g}: {status} {body}",
                f"how version {version} of run {self.run}, epoch {self.epoch} ended, within timeout_s + "
                f"{self.settings.grace_s:g} s",
                f"request version {version} with timeout_s {self.settings.timeout_s:g}, and send no more",
            )
        return found


def backend_of(contracts: Sequence[Any]) -> str:
    """Returns gloo if every server offers it, because it needs no GPU on this side; else nccl."""
    return "gloo" if all("gloo" in contract.backends for contract in contracts) else "nccl"


def describe_changes(changes: dict[str, Any]) -> str:
    """Returns the options of an update as text, without its manifest."""
    return str({name: value for name, value in changes.items() if name != "parameters"} or "")
