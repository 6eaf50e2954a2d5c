"""Invalid `latest.json`, and versions that a following server must skip, for G14."""

from collections.abc import Callable

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.server import poll
from contracts.conformance.verdicts import GuaranteeError
from extensions.stored_weights.conformance.attacked import expect_refused, expect_still
from extensions.stored_weights.conformance.attacks import attacks
from extensions.stored_weights.conformance.bench import StoreBench, new_store
from extensions.stored_weights.conformance.faults import ONE_BIT
from extensions.stored_weights.conformance.source import RIGHT, Source
from extensions.stored_weights.conformance.store import Offer, new_key
from extensions.stored_weights.store.layout import latest_path, manifest_path, object_path
from extensions.stored_weights.store.manifest import canonical
from extensions.stored_weights.store.signing import LATEST_TYPE

LOOKS = 3  # requests for latest.json per server after which it has certainly been read
HUGE = 2**20  # bytes of a latest.json
ALTERED = "files of which one bit differs at every source"
Maker = Callable[[StoreBench, int], Offer]
Bad = Callable[[StoreBench, Offer, Offer], bytes]


async def check_latest(bench: Bench) -> int:
    """Serves each invalid `latest.json` to following servers, then a valid one. Returns their number."""
    async with new_store(bench) as at, at.sources(1) as (source,):
        await at.run.join_channel(at.store, [source], follow=True)
        live = await _announced(at, "follow, and sign version 1 as the latest")
        for what, bad in BAD_LATEST.items():
            older = live
            live = await _announced(at, f"sign the next version as the latest, before {what}")
            await _ignored(at, source, what, bad(at, older, live), live)
        await _announced(at, "sign a version as the latest after wrong ones")
        await _given_up(at, source, ALTERED, lambda at, version: at.offer(version))
        for attack in attacks():
            if attack.relay_only:
                await _given_up(at, source, attack.what, attack.make)
    return len(BAD_LATEST)


async def _announced(at: StoreBench, what: str) -> Offer:
    """Signs the next version as the latest, which must become live, and returns it."""
    offer = at.offer(at.run.version + 1)
    at.store.announce(offer)
    await at.run.is_live(offer, what)
    return offer


async def _ignored(at: StoreBench, source: Source, what: str, latest: bytes, live: Offer) -> None:
    """Serves an invalid `latest.json`, and checks that the servers ignore it."""
    path = latest_path(at.store.run)
    at.store.put(path, latest)
    await _looks(at, source, what)
    await poll(lambda: _idle(at), at.run.live_within_s)
    await expect_still(at, live, what)
    for server in at.bench.servers:
        channel = (await server.contract()).channel
        if channel is None or channel.newest_seen != live.version:
            raise GuaranteeError(
                f"{server}: /contract.channel is {channel} after {what}",
                f"a channel whose newest verified version is {live.version}",
                f"follow, then serve {what}",
            )


async def _looks(at: StoreBench, source: Source, what: str) -> None:
    """Waits until every server has read the current `latest.json`."""
    path = latest_path(at.store.run)
    count = source.times(path) + LOOKS * len(at.bench.servers)

    async def asked() -> bool:
        return source.times(path) >= count

    if await poll(asked, at.run.live_within_s) is None:
        raise GuaranteeError(
            f"{LOOKS} looks at latest.json did not come after {what}",
            "a server that follows goes on looking, whatever it found",
            f"follow, then serve {what}",
        )


async def _idle(at: StoreBench) -> bool:
    channels = [(await server.contract()).channel for server in at.bench.servers]
    return all(channel is None or channel.target is None for channel in channels)


async def _given_up(at: StoreBench, source: Source, what: str, make: Maker) -> None:
    """Announces an invalid version, and checks that it is reported as skipped and not retried."""
    live = await _announced(at, f"sign a version as the latest, before {what}")
    bad = make(at, live.version + 1)
    for name in bad.full:
        source.faults[object_path(name)] = ONE_BIT if what == ALTERED else RIGHT
    at.store.announce(bad)
    reproduce = f"follow, and sign a version as the latest: {what}"
    await expect_refused(at, bad, reproduce, {"skipped"})
    fetched = source.object_requests(bad.full)
    await _looks(at, source, what)
    await _looks(at, source, what)
    again = source.object_requests(bad.full) - fetched
    statuses = [await server.get(f"/weight_update/{bad.version}") for server in at.bench.servers]
    states = {body.get("state") for _, body in statuses}
    if again or states != {"skipped"}:
        raise GuaranteeError(
            f"{again} more requests for files of a version that is bad, which is {states}",
            "none, and skipped: a version that is proven bad is not tried again",
            reproduce,
        )
    await expect_still(at, live, reproduce)
    at.run.version = bad.version
    await _announced(at, f"{reproduce}, then a good version")


# --- invalid content of latest.json


def _replayed(at: StoreBench, older: Offer, live: Offer) -> bytes:
    return at.store.announce(older)


def _of_another_key(at: StoreBench, older: Offer, live: Offer) -> bytes:
    return at.store.announce(at.offer(live.version + 1), key=new_key())


def _of_another_run(at: StoreBench, older: Offer, live: Offer) -> bytes:
    return at.store.announce(at.offer(live.version + 1), run="another-run")


def _manifest(at: StoreBench, older: Offer, live: Offer) -> bytes:
    at.offer(live.version + 1)
    return at.store.path(manifest_path(at.store.run, live.version + 1)).read_bytes()


def _unsigned(at: StoreBench, older: Offer, live: Offer) -> bytes:
    signed = at.store.announce(at.offer(live.version + 1))
    return signed[: signed.index(b'"signatures"')] + b'"signatures": []}'


def _huge(at: StoreBench, older: Offer, live: Offer) -> bytes:
    return at.store.announce(at.offer(live.version + 1)) + b" " * HUGE


def _of_another_format(at: StoreBench, older: Offer, live: Offer) -> bytes:
    newer = at.offer(live.version + 1)
    fields = {"format": 2, "run": at.store.run, "version": newer.version, "manifest_sha256": newer.sha256}
    return at.store.key.sign(canonical(fields), LATEST_TYPE)


BAD_LATEST: dict[str, Bad] = {
    "a latest.json of an older version": _replayed,
    "a latest.json that another key signed": _of_another_key,
    "a latest.json of another run": _of_another_run,
    "a manifest as latest.json": _manifest,
    "a latest.json without a signature": _unsigned,
    "a latest.json of a mebibyte": _huge,
    "a latest.json of another format": _of_another_format,
    "a latest.json that is no JSON": lambda at, older, live: b"no JSON",
}
