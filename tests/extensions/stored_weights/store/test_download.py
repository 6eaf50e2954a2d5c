"""One transfer: what it resumes, and which promises of a source it insists on."""

import asyncio
import hashlib
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from contracts.channel import PullProgress
from extensions.stored_weights.conformance.faults import (
    CUT_OFF,
    FAILING,
    LONGER,
    MISSING,
    MUTE,
    ONE_BIT,
    SILENT,
    STALLED,
    TRUNCATED,
    WRONG_LENGTH,
    Fault,
    redirect,
    trickle,
)
from extensions.stored_weights.store.download import (
    MissingError,
    MixedBytesError,
    SlowError,
    Transfer,
    TransferError,
    WrongBytesError,
    download,
    read_if_changed,
    read_small,
)
from extensions.stored_weights.store.part_file import PartFile, Wanted
from extensions.stored_weights.store.rules import PullRules
from tests.clients import fake_servers
from tests.extensions.stored_weights.store.http_source import HttpSource
from tests.limits import HANG_S
from tests.moved_loop import let_pass, on_moved_loop

CONTENT = bytes(range(256)) * 400
WANTED = Wanted(hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
PATH = f"objects/{WANTED.sha256}"
NO_LIMIT = aiohttp.ClientTimeout(total=None)
RULES = PullRules(idle_timeout_s=HANG_S, min_bytes_per_s=1000)


@asynccontextmanager
async def serving(tmp_path, fault=None):
    """Yields a source of one file, and a function that transfers it into a part."""
    (tmp_path / "objects").mkdir()
    (tmp_path / PATH).write_bytes(CONTENT)
    async with (
        HttpSource(tmp_path) as source,
        aiohttp.ClientSession(auto_decompress=False, timeout=NO_LIMIT) as http,
    ):
        source.fault = fault

        async def transfer(part, rules=RULES, base_url=source.url):
            await download(Transfer(http, base_url, rules, rules.idle_timeout_s), PATH, part)

        yield source, transfer


@asynccontextmanager
async def sending(status: int = 200, headers=None):
    """Yields a function that transfers a file from a server that sends all of it with other headers."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=CONTENT, status=status, headers=headers)

    async with (
        fake_servers.serving(web.get(f"/{PATH}", answer)) as url,
        aiohttp.ClientSession(auto_decompress=False, timeout=NO_LIMIT) as http,
    ):
        yield lambda part: download(Transfer(http, url, RULES, HANG_S), PATH, part)


def new_part(tmp_path, progress=None, content=b""):
    path = tmp_path / "part"
    path.write_bytes(content)
    return PartFile(path, WANTED, progress or PullProgress())


@pytest.mark.asyncio
async def test_a_transfer_resumes_after_the_bytes_that_are_here(tmp_path):
    progress = PullProgress()
    async with serving(tmp_path) as (source, transfer):
        part = new_part(tmp_path, progress, CONTENT[:60_000])
        await part.hash_existing()
        await transfer(part)
    assert part.is_right
    assert [(asked.start, asked.sent) for asked in source.asked] == [(60_000, len(CONTENT) - 60_000)]
    assert progress.bytes_fetched == len(CONTENT) - 60_000


@pytest.mark.asyncio
async def test_a_source_without_ranges_sends_the_file_from_its_beginning(tmp_path):
    async with sending() as transfer:
        part = new_part(tmp_path, content=b"other bytes")
        await part.hash_existing()
        await transfer(part)
    assert part.is_right


@pytest.mark.asyncio
async def test_too_many_or_wrong_bytes_on_the_disk_are_dropped(tmp_path):
    for content in (bytes(len(CONTENT) + 1), bytes(len(CONTENT))):
        part = new_part(tmp_path, content=content)
        await part.hash_existing()
        assert part.size == 0
        assert part.path.stat().st_size == 0


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


REFUSED = {
    "redirect": (redirect("http://127.0.0.1:1"), TransferError, "status 302"),
    "error": (FAILING, TransferError, "status 500"),
    "missing": (MISSING, MissingError, "does not have"),
    "gone": (Fault("gone", status=410), MissingError, "does not have"),
    "not modified": (Fault("not modified", status=304), TransferError, "status 304"),
    "one bit": (ONE_BIT, WrongBytesError, "other bytes"),
    "shorter": (TRUNCATED, TransferError, "would give"),
    "longer": (Fault("longer", lambda data: data + b"\0"), TransferError, "would give"),
    "longer without a length": (LONGER, TransferError, "more than"),
    "shorter without a length": (Fault("shorter", half, lambda data: None), TransferError, "ended after"),
    "cut off": (Fault("cut off", half, lambda data: len(CONTENT)), TransferError, "ClientPayloadError"),
    "cut off, of another length": (CUT_OFF, TransferError, "would give"),
    "another length": (WRONG_LENGTH, TransferError, "would give"),
}
COMPRESSED = {"Content-Encoding": "gzip"}
A_RANGE = {"Content-Range": f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}"}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", REFUSED)
async def test_a_source_that_breaks_a_promise_is_given_up(tmp_path, name):
    fault, error, message = REFUSED[name]
    async with serving(tmp_path, fault) as (_, transfer):
        part = new_part(tmp_path)
        with pytest.raises(error, match=message) as raised:
            await transfer(part)
        assert type(raised.value) is error
    assert not part.is_right


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "headers", "says"), [(200, COMPRESSED, "compressed"), (206, A_RANGE, "status 206")]
)
async def test_a_form_that_was_not_asked_for_is_refused(tmp_path, status, headers, says):
    async with sending(status, headers) as transfer:
        with pytest.raises(TransferError, match=says):
            await transfer(new_part(tmp_path))


@pytest.mark.parametrize("fault", [MUTE, SILENT, STALLED])
@on_moved_loop
async def test_a_source_that_is_silent_is_given_up_after_the_idle_timeout(tmp_path, fault):
    async with serving(tmp_path, fault) as (source, transfer):
        task = asyncio.create_task(transfer(new_part(tmp_path)))
        await source.met.wait()
        for _ in range(19):  # less than the longest time of a transfer, which is twice that
            let_pass(HANG_S / 10)
            await asyncio.sleep(0.01)
        assert task.done()
        with pytest.raises(SlowError, match="silent"):
            await task


@on_moved_loop
async def test_a_source_that_is_too_slow_is_given_up(tmp_path):
    async with serving(tmp_path, trickle(20)) as (source, transfer):
        task = asyncio.create_task(transfer(new_part(tmp_path)))
        await source.met.wait()
        while not task.done():
            let_pass(1.0)
            await asyncio.sleep(0.001)
        with pytest.raises(SlowError, match="slower than 1000 bytes"):
            await task
    assert source.sent_bytes < len(CONTENT)


@pytest.mark.asyncio
@pytest.mark.parametrize("stated", ["bytes 0-999/1000", "bytes 5001-102399/102400", "bytes */102400", "x"])
async def test_another_range_than_the_missing_one_is_refused_and_what_is_here_stays(tmp_path, stated):
    async with sending(206, {"Content-Range": stated}) as transfer:
        part = new_part(tmp_path, content=CONTENT[:5000])
        await part.hash_existing()
        with pytest.raises(TransferError, match="another range"):
            await transfer(part)
    assert part.size == 5000


@on_moved_loop
async def test_the_first_byte_may_come_late_and_the_rate_counts_from_it(tmp_path):
    def late(data: bytes) -> bytes:
        let_pass(HANG_S / 2)
        return data

    async with serving(tmp_path, Fault("late", late)) as (_, transfer):
        part = new_part(tmp_path)
        await transfer(part, PullRules(idle_timeout_s=HANG_S, min_bytes_per_s=5 * 10**5))
    assert part.is_right


@pytest.mark.asyncio
async def test_bytes_of_two_sources_that_do_not_fit_together_prove_nothing(tmp_path):
    async with serving(tmp_path) as (source, transfer):
        part = new_part(tmp_path)
        part.append(bytes(1000), "http://liar")
        with pytest.raises(MixedBytesError):
            await transfer(part)
        part.append(bytes(1000), "http://liar")
        await transfer(part)
    assert part.is_right
    assert [asked.start for asked in source.asked] == [1000, 0]


@pytest.mark.asyncio
async def test_a_source_that_is_not_there_or_has_an_impossible_address_is_a_failed_transfer(tmp_path):
    async with serving(tmp_path) as (_, transfer):
        for url in ("http://127.0.0.1:1", "http://a..b", "http://[::1"):
            with pytest.raises(TransferError):
                await transfer(new_part(tmp_path), base_url=url)


@pytest.mark.asyncio
async def test_small_files_are_bounded_and_sent_again_only_if_changed(tmp_path):
    async with serving(tmp_path) as (source, _), aiohttp.ClientSession(timeout=NO_LIMIT) as http:

        def transfer():
            return Transfer(http, source.url, RULES, HANG_S)

        assert await read_small(transfer(), PATH, len(CONTENT)) == CONTENT
        with pytest.raises(WrongBytesError, match="larger than 1000"):
            await read_small(transfer(), PATH, 1000)
        body, etag = await read_if_changed(transfer(), PATH, len(CONTENT), None)
        assert body == CONTENT
        assert await read_if_changed(transfer(), PATH, len(CONTENT), etag) is None
        source.fault = Fault("ten times", lambda data: data * 10, lambda data: None)
        with pytest.raises(WrongBytesError, match="larger"):
            await read_small(transfer(), PATH, len(CONTENT))
        source.fault = Fault("not modified", status=304)
        with pytest.raises(TransferError, match="status 304"):
            await read_small(transfer(), PATH, len(CONTENT))
