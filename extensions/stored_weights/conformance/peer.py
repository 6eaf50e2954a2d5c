"""The trainer's side of a weight channel. Methods without a server argument send to all servers."""

import asyncio
from collections.abc import Sequence
from typing import Any

from contracts.conformance.inference.http_client import Answer
from contracts.conformance.inference.server import Server, poll
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError
from contracts.inference import WeightUpdateStatus
from extensions.stored_weights.conformance.source import Source
from extensions.stored_weights.conformance.store import KitStore, Offer

JOIN = "/init_weight_channel"
UPDATE = "/request_weight_update"
POLL_S = 0.1
IDLE_TIMEOUT_S = 1.0
LIVE_WITHIN_S = 30.0  # limit until a valid version is live; a source may hang, and the machine be busy
RETRIES_S = 1.0  # timeout_s of a request for a version that cannot become live


class ChannelPeer(TrainerPeer):
    """One session of a trainer. It joins channels and groups, with growing epochs."""

    async def join_request(
        self, store: KitStore, sources: Sequence[str], **changes: object
    ) -> dict[str, Any]:
        """Returns a request to join a channel in the current epoch. `changes` replace its fields."""
        contracts = [await server.contract() for server in self.servers]
        keeps = all("keep" in contract.kv_cache for contract in contracts)
        self.kv_cache = "keep" if keeps else "recompute"
        request = {
            "run": self.run,
            "takeover": any(self._takes_over(contract) for contract in contracts),
            "epoch": self.epoch,
            "kind": "relay",
            "sources": list(sources),
            "public_keys": [store.key.public.model_dump()],
            "follow": False,
            "poll_s": POLL_S,
            "idle_timeout_s": IDLE_TIMEOUT_S,
            "min_bytes_per_s": 0,
            "kv_cache": self.kv_cache,
        }
        return request | changes

    async def join_channel(
        self, store: KitStore, sources: Sequence[Source], **changes: object
    ) -> list[dict[str, Any]]:
        """Joins a channel of the next epoch. Returns the responses.

        Raises GuaranteeError if a server does not join.
        """
        self.leave()
        self.epoch += 1
        urls = [source.url for source in sources]
        return await self._joined(await self.join_request(store, urls, **changes))

    async def join_shared(self, store: KitStore, **changes: object) -> list[dict[str, Any]]:
        """Joins a channel of the next epoch that reads the store's directory. Returns the responses."""
        self.leave()
        self.epoch += 1
        url = store.directory.as_uri() + "/"
        return await self._joined(await self.join_request(store, [url], kind="shared", **changes))

    async def _joined(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        answers = await self.post_each(JOIN, [request] * len(self.servers))
        for server, (status, body) in zip(self.servers, answers, strict=True):
            contract = await server.contract()
            channel = contract.channel and (contract.channel.kind, contract.channel.epoch)
            if status != 200 or contract.run != self.run or channel != (request["kind"], self.epoch):
                raise GuaranteeError(
                    f"{server}: POST {JOIN}: {status} {body}; /contract: {contract.channel}",
                    f"200, and a {request['kind']} channel of epoch {self.epoch} in /contract",
                    f"POST {JOIN} {request}",
                )
        return [body for _, body in answers]

    # --- versions

    @property
    def live_within_s(self) -> float:
        """The `timeout_s` of a version that becomes live."""
        return max(LIVE_WITHIN_S, self.settings.patience_s)

    def channel_request(self, offer: Offer, **changes: object) -> dict[str, Any]:
        """Returns a request to pull a version. `changes` replace its fields."""
        request = {
            "run": self.run,
            "epoch": self.epoch,
            "version": offer.version,
            "manifest_sha256": offer.sha256,
            "kv_cache": self.kv_cache,
            "timeout_s": self.live_within_s,
        }
        return request | changes

    async def pull(self, offer: Offer, what: str, **changes: object) -> list[WeightUpdateStatus]:
        """Makes every server pull a version. Raises GuaranteeError unless it becomes live on all."""
        await self.request_update(self.channel_request(offer, **changes))
        return await self.is_live(offer, what)

    async def is_live(self, offer: Offer, what: str) -> list[WeightUpdateStatus]:
        """Waits until every server reports that the version is live. Returns the statuses."""
        statuses = await self.ends(offer)
        for server, status in zip(self.servers, statuses, strict=True):
            weights = (await server.contract()).weights
            ended = (status.state, status.error, weights.version, weights.digest, weights.run)
            if ended != ("live", None, offer.version, offer.digest, self.run):
                raise GuaranteeError(
                    f"{server}: {what}: it ended as {status.model_dump()}; /contract: {weights.model_dump()}",
                    f"live, with the digest {offer.digest} and the run in /contract",
                    what,
                )
        self.version = offer.version
        return statuses

    async def ends(self, offer: Offer) -> list[WeightUpdateStatus]:
        """Waits for the end of the update on every server. Returns the statuses."""
        return await asyncio.gather(*(self.end_of(server, offer.version) for server in self.servers))

    async def end_of(self, server: Server, version: int) -> WeightUpdateStatus:
        """Waits for the end of the update on a server. Raises GuaranteeError at the timeout."""
        limit = self.live_within_s + self.settings.grace_s
        found: Answer = (0, {})

        async def ended() -> bool:
            nonlocal found
            found = await server.get(f"/weight_update/{version}?wait_s=1")
            of_this_epoch = (found[1].get("run"), found[1].get("epoch")) == (self.run, self.epoch)
            return found[0] == 200 and of_this_epoch and found[1].get("state") != "receiving"

        if await poll(ended, limit) is None:
            raise GuaranteeError(
                f"{server}: GET /weight_update/{version}: {found[0]} {found[1]} after {limit:g} s",
                f"how version {version} of run {self.run} ended in epoch {self.epoch}",
                f"offer version {version} to a server in a channel",
            )
        return WeightUpdateStatus.model_validate(found[1])
