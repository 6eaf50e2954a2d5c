"""The kit's own store and source: what they offer is right, and wrong exactly where they are told."""

import asyncio

import aiohttp
import pytest
import torch

from contracts.conformance.inference.stores.faults import (
    CUT_OFF,
    LONGER,
    MISSING,
    ONE_BIT,
    SILENT,
    TRUNCATED,
    WRONG_LENGTH,
    redirect,
)
from contracts.conformance.inference.stores.source import Source
from contracts.conformance.inference.stores.store import KitStore
from contracts.store.layout import latest_path, manifest_path, object_path
from contracts.store.manifest import LatestVersion, VersionManifest
from contracts.store.signing import LATEST_TYPE, MANIFEST_TYPE, Verifier
from tests.limits import HANG_S

WEIGHTS = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5), "c": torch.tensor(2.0)}
ADDRESS = "127.0.0.1"


@pytest.fixture
def store(tmp_path) -> KitStore:
    return KitStore(tmp_path, "run", {"d": "a"})


def test_a_version_is_what_the_contract_reads(store):
    offer = store.offer(3, WEIGHTS)
    verifier = Verifier([store.key.public])
    envelope = store.path(manifest_path("run", 3)).read_bytes()
    manifest = VersionManifest.model_validate_json(verifier.open(envelope, MANIFEST_TYPE))
    assert (manifest.version, manifest.digest, manifest.tied) == (3, offer.digest, {"d": "a"})
    assert {file.sha256 for file in manifest.full.files} == set(offer.full)
    latest = LatestVersion.model_validate_json(verifier.open(store.announce(offer), LATEST_TYPE))
    assert (latest.version, latest.manifest_sha256) == (3, offer.sha256)


def test_a_delta_needs_no_full_files(store):
    weights = {name: tensor.bfloat16() for name, tensor in WEIGHTS.items()}
    base = store.offer(1, weights)
    changed = store.offer(2, {**weights, "b": weights["b"] + 1}, base=base, full=False)
    manifest = VersionManifest.model_validate(dict(changed.manifest))
    assert manifest.full is None and manifest.delta.base_digest == base.digest
    assert manifest.delta.files[0].names == ["b"]


async def got(
    source: Source, path: str, start: int = 0, within_s: float = HANG_S
) -> tuple[int, bytes | None, dict[str, str]]:
    """Returns status, body and headers. The body is None if it breaks off, or does not come in time."""
    headers = {"Range": f"bytes={start}-"} if start else {}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HANG_S)) as http,
        http.get(f"{source.url}/{path}", headers=headers, allow_redirects=False) as answer,
    ):
        try:
            async with asyncio.timeout(within_s):
                return answer.status, await answer.read(), dict(answer.headers)
        except (aiohttp.ClientPayloadError, TimeoutError):
            return answer.status, None, dict(answer.headers)


@pytest.mark.asyncio
async def test_a_source_serves_the_store_and_notes_what_it_sent(store):
    offer = store.offer(1, WEIGHTS, files=1)
    store.announce(offer)
    path = object_path(offer.full[0])
    data = store.path(path).read_bytes()
    async with Source(store.directory, ADDRESS).serving() as source:
        assert (await got(source, path))[:2] == (200, data)
        status, rest, headers = await got(source, path, 10)
        assert (status, rest, headers["Content-Range"]) == (
            206,
            data[10:],
            f"bytes 10-{len(data) - 1}/{len(data)}",
        )
        assert (await got(source, path, len(data)))[0] == 416
        assert (await got(source, "proofs/x"))[0] == 404
        assert source.sent(offer.full) == 2 * len(data) - 10
        assert (await got(source, latest_path("run")))[0] == 200


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fault", "status", "right"),
    [
        (ONE_BIT, 200, lambda data: data[:-1] + bytes([data[-1] ^ 1])),
        (TRUNCATED, 200, lambda data: data[: len(data) - 1 - len(data) // 8]),
        (CUT_OFF, 200, None),
        (WRONG_LENGTH, 200, None),
        (LONGER, 200, lambda data: data + bytes(1024)),
        (SILENT, 200, None),
        (MISSING, 404, lambda data: b""),
        (redirect("http://elsewhere"), 302, None),
    ],
)
async def test_a_source_has_the_fault_that_it_is_told(store, fault, status, right):
    offer = store.offer(1, WEIGHTS, files=1)
    path = object_path(offer.full[0])
    data = store.path(path).read_bytes()
    async with Source(store.directory, ADDRESS).serving() as source:
        source.fault = fault
        found, body, _ = await got(source, path, within_s=0.5 if fault is SILENT else HANG_S)
        assert found == status
        if status != 302:
            assert body == (right(data) if right else None)


@pytest.mark.asyncio
async def test_a_source_dies_after_so_many_bytes_and_comes_back(store):
    offer = store.offer(1, WEIGHTS, files=1)
    path = object_path(offer.full[0])
    size = store.object_bytes(offer.full)
    source = Source(store.directory, ADDRESS)
    async with source.serving():
        source.pace = 10.0 * size
        source.dies_after = size / 2
        assert (await got(source, path))[1] is None
        assert source.died.is_set() and abs(source.sent(offer.full) - size / 2) <= 1
        await source.stop()
        with pytest.raises(aiohttp.ClientConnectionError):
            await got(source, path)
        await source.start()
        assert (await got(source, path))[0] == 200
