"""The trainer's side of the contract: a run that joins groups and makes weight updates on all servers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import ValidationError

from contracts.conformance.inference.buckets import bucket_bytes_for, packed, parameters
from contracts.conformance.inference.group_peer import GroupPeer
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.settings import Settings
from contracts.conformance.verdicts import GuaranteeError
from contracts.inference import WeightUpdateStatus


class TrainerPeer(GroupPeer):
    """One run of a trainer. tied: maps each tied name to the name under which its weight is sent."""

    def __init__(self, servers: Sequence[Server], tied: dict[str, str], settings: Settings):
        super().__init__(servers, settings)
        self.tied = tied
        self.version = 0

    def update_request(self, version: int, weights: Weights, **changes: object) -> dict[str, Any]:
        """Returns a request for an update to `weights` as `version`. changes: replace fields."""
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
        """Waits until the update has ended. Raises GuaranteeError unless it is live, with `size` bytes."""
        statuses = await self.outcomes(version, self.settings.patience_s)
        for server, status in zip(self.servers, statuses, strict=True):
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

    async def outcomes(self, version: int, timeout_s: float | None = None) -> list[WeightUpdateStatus]:
        """Waits for the outcome of the update on each server, as `outcome` does."""
        return await asyncio.gather(*(self.outcome(server, version, timeout_s) for server in self.servers))

    async def outcome(
        self, server: Server, version: int, timeout_s: float | None = None
    ) -> WeightUpdateStatus:
        """Waits for the outcome of the update on one server. Raises GuaranteeError if it is late.

        timeout_s: that of the update's request; by default the settings' `timeout_s`.
        """
        timeout_s = timeout_s or self.settings.timeout_s
        limit = timeout_s + self.settings.grace_s
        path = f"/weight_update/{version}?wait_s="
        asked = asyncio.create_task(server.get(f"{path}{limit}"))
        try:
            in_time, _ = await asyncio.wait([asked], timeout=limit)
            # If the response is late, another request tells whether the update has ended.
            status, body = asked.result() if in_time else await server.get(f"{path}0")
        except TimeoutError:
            status = 0
            body = {"state": "no answer"}
        finally:
            asked.cancel()
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
                f"request version {version} with timeout_s {timeout_s:g}, and send no more",
            )
        return found


def describe_changes(changes: dict[str, Any]) -> str:
    """Returns the options of an update as text, without its manifest."""
    return str({name: value for name, value in changes.items() if name != "parameters"} or "")
