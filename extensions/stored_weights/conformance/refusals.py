"""Requests about channels that every server must refuse without side effects, for G16."""

import hashlib
import os
from collections.abc import Sequence
from typing import Any

from contracts.channel import ChannelUpdateRequest, InitWeightChannelRequest
from contracts.conformance.inference.bad_fields import control_fields
from contracts.conformance.inference.bad_requests import BadRequest, check_all_refused, check_refused
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.unchanged import check_same_state, state_of
from contracts.conformance.verdicts import GuaranteeError
from extensions.stored_weights.conformance.bench import KINDS, StoreBench, new_store
from extensions.stored_weights.conformance.peer import JOIN, UPDATE

NOWHERE = "203.0.113.7"  # an address reserved for documentation, RFC 5737
NO_KEYS = (  # not canonical points of the curve; zeros would verify forged signatures
    "02" + 31 * "00",
    64 * "f",
    64 * "0",
)
CLOSED_PORT = 9  # the discard port, which is closed on today's machines
PROOF = "proof"
PROOF_BYTES = 1000


async def check_refusals(bench: Bench, kinds: Sequence[str]) -> int:
    """Sends invalid requests to servers in a channel of each kind. Returns their number."""
    tried = 0
    for kind in kinds:
        async with new_store(bench) as at, at.sources(1) as (source,):
            url = source.url if kind == "relay" else f"{at.store.directory.as_uri()}/"
            await at.run.join_request(at.store, [url])
            for path in (JOIN, UPDATE):
                tried += await _refused_before(at, path, kind, url)
            if kind == "relay":
                await at.run.join_channel(at.store, [source])
            else:
                await at.run.join_shared(at.store)
            await at.run.pull(at.offer(1), "pull version 1")
            await at.run.pull(at.offer(2), "pull version 2")
            tried += await _refused_in_a_channel(at, kind, url)
            await _answers_repeat(at, kind, url)
            if kind == "shared":
                tried += await _proofs(at, url)
            await at.run.pull(at.offer(3), "refuse bad requests, then pull version 3")
            await at.serves(at.offer(3), "refuse bad requests, then pull version 3")
    return tried


async def _refused_before(at: StoreBench, path: str, kind: str, url: str) -> int:
    join = await at.run.join_request(at.store, [url], kind=kind, epoch=1, takeover=False)
    update = at.run.channel_request(at.offer(1))
    body = join if path == JOIN else update
    for server in at.bench.servers:
        if (await server.contract()).run is not None:
            await check_refused(server, BadRequest(path, body, 409, "other_run"))
    return len(at.bench.servers)


async def _refused_in_a_channel(at: StoreBench, kind: str, url: str) -> int:
    tried = 0
    for server in at.bench.servers:
        contract = await server.contract()
        join = await at.run.join_request(at.store, [url], kind=kind, epoch=at.run.epoch + 1)
        update = at.run.channel_request(at.offer(3))
        bad = [*_bad_joins(at, join, contract.capabilities), *_bad_updates(at, update)]
        bad += [
            BadRequest(path, body | {"kv_cache": mode}, 422, "unsupported_kv_cache")
            for path, body in ((JOIN, join), (UPDATE, update))
            for mode in ("keep", "recompute")
            if mode not in contract.kv_cache
        ]
        before = await state_of(server)
        for request in bad:
            await check_refused(server, request)
            await check_same_state(server, before, f"POST {request.path} {request.body}")
        fields = control_fields(at.bench, contract, JOIN, InitWeightChannelRequest, join)
        fields += control_fields(at.bench, contract, UPDATE, ChannelUpdateRequest, update)
        await check_all_refused(server, fields)
        await check_same_state(server, before, f"{len(fields)} requests with a wrong field")
        tried += len(bad) + len(fields)
    return tried


def _bad_joins(at: StoreBench, join: dict[str, Any], capabilities: Sequence[str]) -> list[BadRequest]:
    def bad(status: int, code: str, *or_codes: str, **changes: object) -> BadRequest:
        return BadRequest(JOIN, join | changes, status, code, or_codes=frozenset(or_codes))

    found = [
        bad(409, "other_run", run="another", takeover=False),
        bad(409, "stale_epoch", epoch=at.run.epoch, poll_s=5.0),
        bad(409, "stale_epoch", epoch=0),
        *(bad(422, "bad_key", public_keys=[{"id": "key", "ed25519": key}]) for key in NO_KEYS),
        *(
            # Sources of the one kind are wrong ones of the other.
            bad(422, "unsupported_channel", "source_refused", "invalid_request", kind=kind, follow=False)
            for kind in KINDS
            if kind not in capabilities
        ),
    ]
    if join["kind"] == "shared":
        directory = at.store.directory
        return [
            *found,
            bad(422, "invalid_request", follow=True),
            bad(422, "invalid_request", sources=join["sources"] * 2),
            bad(422, "source_refused", "invalid_request", sources=[f"http://{NOWHERE}/"]),
            bad(422, "not_shared", proof="no-such-file"),
            bad(422, "not_shared", "source_refused", sources=[f"{directory.as_uri()}/nothing/"], proof=PROOF),
        ]
    own = join["sources"][0]
    outside = [
        f"http://{NOWHERE}:8000/",
        f"http://127.0.0.1@{NOWHERE}/",
        f"http://127.0.0.1.{NOWHERE}.example/",
        f"{own}@{NOWHERE}/",
        f"{at.store.directory.as_uri()}/",
    ]
    return [
        *found,
        *(bad(422, "source_refused", "invalid_request", sources=[url]) for url in outside),
        bad(422, "source_refused", sources=[own, outside[0]]),
        bad(422, "invalid_request", proof=PROOF),
        bad(502, "no_source", sources=[f"http://{at.bench.settings.address}:{CLOSED_PORT}/"]),
    ]


def _bad_updates(at: StoreBench, update: dict[str, Any]) -> list[BadRequest]:
    group_update = at.run.update_request(at.run.version + 1, at.fresh(3))
    live = at.run.version
    return [
        BadRequest(UPDATE, update | {"run": "another"}, 409, "other_run"),
        BadRequest(UPDATE, update | {"epoch": at.run.epoch + 1}, 409, "stale_epoch"),
        BadRequest(UPDATE, update | {"epoch": at.run.epoch - 1}, 409, "stale_epoch"),
        BadRequest(UPDATE, update | {"version": live - 1}, 409, "stale_version"),
        BadRequest(UPDATE, group_update, 409, "no_group"),
    ]


async def _answers_repeat(at: StoreBench, kind: str, url: str) -> None:
    """Repeats the join of the current channel, as after a lost response."""
    join = await at.run.join_request(at.store, [url], kind=kind)
    first = await at.run.post_each(JOIN, [join | {"epoch": at.run.epoch + 1}] * len(at.run.servers))
    again = await at.run.post_each(JOIN, [join | {"epoch": at.run.epoch + 1}] * len(at.run.servers))
    if first != again or any(status != 200 for status, _ in first):
        raise GuaranteeError(
            f"{first}, and the repetition {again}",
            "200, twice the same: a retry repeats its response",
            f"POST {JOIN} {join} twice",
        )
    at.run.epoch += 1


async def _proofs(at: StoreBench, url: str) -> int:
    """Joins with a proof. The response must have the SHA-256 of the file."""
    data = os.urandom(PROOF_BYTES)
    at.store.put(f"proofs/{PROOF}", data)
    bodies = await at.run.join_shared(at.store, proof=PROOF)
    expected = hashlib.sha256(data).hexdigest()
    for body in bodies:
        if body.get("proof") != expected:
            raise GuaranteeError(
                f"the response to a join has the proof {body.get('proof')}",
                f"{expected}, the SHA-256 of the file",
                f"join the shared store {url} with proof {PROOF}",
            )
    return len(bodies)
