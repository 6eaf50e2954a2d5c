"""The kit's own source is wrong exactly where it is told, which a correct server would not show."""

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
from contracts.store.layout import object_path
from tests.limits import HANG_S


async def got(source: Source, path: str, within_s: float) -> tuple[int, bytes | None]:
    """Returns status and body. The body is None if it breaks off, or does not come in time."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HANG_S)) as http,
        http.get(f"{source.url}/{path}", allow_redirects=False) as answer,
    ):
        try:
            async with asyncio.timeout(within_s):
                return answer.status, await answer.read()
        except (aiohttp.ClientPayloadError, TimeoutError):
            return answer.status, None


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
async def test_a_source_has_the_fault_that_it_is_told(tmp_path, fault, status, right):
    store = KitStore(tmp_path, "run", {})
    offer = store.offer(1, {"a": torch.arange(12.0), "b": torch.ones(5)}, files=1)
    path = object_path(offer.full[0])
    data = store.path(path).read_bytes()
    async with Source(store.directory, "127.0.0.1").serving() as source:
        source.fault = fault
        found, body = await got(source, path, within_s=0.5 if fault is SILENT else HANG_S)
        assert found == status
        if status != 302:
            assert body == (right(data) if right else None)
