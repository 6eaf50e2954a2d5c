"""The trainer's end of the contract: a run with its epochs, rank 0 of the weight group, HTTP.

Every method that names no server speaks to all of them: they are one weight group.
"""

import asyncio
import uuid
from collections.abc import Sequence

import torch

from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.server import Answer, Server
from contracts.conformance.verdicts import Broken
from contracts.inference import Parameter
from contracts.weights import WeightGroup, WeightStore, dtype_name, nccl_version, pack_bucket, plan_buckets

ADDRESS = "127.0.0.1"


def parameters(weights: Weights) -> list[Parameter]:
    return [
        Parameter(name=name, dtype=dtype_name(tensor.dtype), shape=tuple(tensor.shape))
        for name, tensor in weights.items()
    ]


def packed(weights: Weights, bucket_bytes: int) -> list[torch.Tensor]:
    """The buckets in which `weights` are sent."""
    plan = plan_buckets(parameters(weights), bucket_bytes)
    return [pack_bucket(weights[p.name] for p in bucket) for bucket in plan]


def bucket_bytes_for(weights: Weights, count: int) -> int:
    """A bucket size that cuts `weights` into about `count` buckets."""
    return max(1, sum(tensor.nbytes for tensor in weights.values()) // count)


class TrainerEnd:
    """One run of a trainer. `timeout_s` is the longest silence that it allows, `grace_s` what a server
    may take beyond its timeouts."""

    def __init__(self, servers: Sequence[Server], tied: dict[str, str], timeout_s: float, grace_s: float):
        self.servers, self.tied = servers, tied
        self.timeout_s, self.grace_s = timeout_s, grace_s
        self.run = uuid.uuid4().hex
        self.epoch = 0
        self.version = 0
        self.group: WeightGroup | None = None

    # --- the weight group -------------------------------------------------------------------------

    async def join_requests(self, port: int, fellows: int = 0, **changes: object) -> list[dict]:
        """What each server is asked to join. `fellows` ranks come after the servers'."""
        contracts = [await server.contract() for server in self.servers]
        world_size = 1 + sum(contract.ranks for contract in contracts) + fellows
        backend = backend_of(contracts)
        common = {
            "run": self.run,
            "takeover": True,
            "epoch": self.epoch,
            "group_name": f"weights-{uuid.uuid4().hex}",
            "backend": backend,
            "nccl_version": nccl_version() if backend == "nccl" else None,
            "master_address": ADDRESS,
            "master_port": port,
            "world_size": world_size,
            "timeout_s": self.timeout_s,
        }
        requests, offset = [], 1
        for contract in contracts:
            requests.append(common | {"rank_offset": offset} | changes)
            offset += contract.ranks
        return requests

    async def join(self) -> None:
        """Open the next epoch with every server."""
        self.leave()
        self.epoch += 1
        store = WeightStore(ADDRESS, 0, self.timeout_s)
        requests = await self.join_requests(store.port)
        first = requests[0]
        form = asyncio.to_thread(
            store.group, first["group_name"], first["world_size"], first["backend"], self.timeout_s
        )
        answers, group = await asyncio.gather(self._asked_to_join(requests), form, return_exceptions=True)
        if isinstance(answers, BaseException):
            raise answers
        for server, (status, body), request in zip(self.servers, answers, requests, strict=True):
            ranks = (await server.contract()).ranks
            offset = request["rank_offset"]
            if (status, body) != (200, {"ranks": list(range(offset, offset + ranks))}):
                raise Broken(
                    f"{server}: POST /init_process_group: {status} {body}",
                    f"200 and {ranks} rank(s) from {offset} on",
                    "a new run takes the server over",
                )
        if isinstance(group, BaseException):
            raise Broken(
                f"200 was answered, but the group of epoch {self.epoch} never formed: {group}",
                "200 only once the server's ranks have joined",
                f"POST /init_process_group {first}",
            )
        self.group = group

    async def _asked_to_join(self, requests: Sequence[dict]) -> list[Answer]:
        limit = 2 * self.timeout_s + self.grace_s  # it may wait for an update's end first
        try:
            async with asyncio.timeout(limit):
                return await self.post_each("/init_process_group", requests)
        except TimeoutError as error:
            raise Broken(
                f"no answer to POST /init_process_group within {limit:g} s",
                f"an answer within timeout_s + {self.grace_s:g} s",
                f"POST /init_process_group {requests[0]}",
            ) from error

    def leave(self) -> None:
        if self.group:
            self.group.close()
            self.group = None

    async def post_each(self, path: str, bodies: Sequence[dict]) -> list[Answer]:
        return await asyncio.gather(
            *(server.post(path, body) for server, body in zip(self.servers, bodies, strict=True))
        )

    # --- weight updates ---------------------------------------------------------------------------

    def update_request(self, version: int, weights: Weights, **changes: object) -> dict:
        request = {
            "run": self.run,
            "epoch": self.epoch,
            "version": version,
            "parameters": [parameter.model_dump() for parameter in parameters(weights)],
            "tied": self.tied,
            "bucket_bytes": bucket_bytes_for(weights, 3),
            "kv_cache": "keep",
            "receive": "paused",
            "timeout_s": self.timeout_s,
        }
        return request | changes

    async def publish(self, version: int, weights: Weights, **changes: object) -> list[dict]:
        """A complete update; each server's final status. Broken unless all are `live`."""
        request = self.update_request(version, weights, **changes)
        await self.request_update(request)
        try:
            await self.send(packed(weights, request["bucket_bytes"]))
        except RuntimeError as error:
            raise Broken(
                f"the broadcast of version {version} did not end: {error}",
                "a server that answered 202 takes part in the broadcast, whatever version it holds",
                f"publish version {version} {shown(changes)}",
            ) from error
        statuses = await self.ended(version)
        for server, status in zip(self.servers, statuses, strict=True):
            if status["state"] != "live":
                raise Broken(
                    f"{server}: version {version} ended as {status}",
                    "live, after every bucket was sent",
                    f"publish version {version} {shown(changes)}",
                )
        self.version = version
        return statuses

    async def request_update(self, request: dict) -> None:
        """Ask every server; Broken unless each says 202."""
        for server, answer in zip(
            self.servers,
            await self.post_each("/request_weight_update", [request] * len(self.servers)),
            strict=True,
        ):
            if answer != (202, {"state": "receiving"}):
                raise Broken(
                    f"{server}: POST /request_weight_update: {answer[0]} {answer[1]}",
                    '202 {"state": "receiving"}',
                    f"request version {request['version']} with every parameter of the model",
                )

    async def send(self, buckets: Sequence[torch.Tensor]) -> None:
        for bucket in buckets:
            await asyncio.to_thread(self.group.broadcast, bucket, self.timeout_s)

    async def ended(self, version: int) -> list[dict]:
        """How the update ended on each server, which says so within its timeout and the grace."""
        return await asyncio.gather(*(self._ended(server, version) for server in self.servers))

    async def _ended(self, server: Server, version: int) -> dict:
        limit = self.timeout_s + self.grace_s
        try:
            async with asyncio.timeout(limit + 1):
                status, body = await server.get(f"/weight_update/{version}?wait_s={limit}")
        except TimeoutError:
            status, body = 0, {"state": f"no answer within {limit + 1:g} s"}
        if status != 200 or body["state"] == "receiving":
            raise Broken(
                f"{server}: GET /weight_update/{version}?wait_s={limit:g}: {status} {body}",
                f"live or failed within timeout_s + {self.grace_s:g} s",
                f"request version {version} with timeout_s {self.timeout_s:g}, and send no more",
            )
        return body


def backend_of(contracts: Sequence) -> str:
    """gloo where every server offers it: it needs no GPU at this end."""
    return "gloo" if all("gloo" in contract.backends for contract in contracts) else "nccl"


def shown(changes: dict) -> str:
    """Options of an update without its manifest."""
    return str({name: value for name, value in changes.items() if name != "parameters"} or "")
