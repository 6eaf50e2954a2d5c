"""Pulling from sources that lie, fail or hang."""

import asyncio

import pytest

from extensions.stored_weights.conformance.faults import MISSING, MUTE, ONE_BIT, STALLED, Fault
from extensions.stored_weights.store import source_client
from extensions.stored_weights.store.errors import GoneError, NoSourceError
from extensions.stored_weights.store.layout import object_path
from extensions.stored_weights.store.puller import PullProgress
from tests.extensions.stored_weights.store.builders import publish, some_weights
from tests.extensions.stored_weights.store.http_source import HttpSource
from tests.extensions.stored_weights.store.pulling import NO_SERVER, as_bytes, content, one_bit, pull, pulling
from tests.moved_loop import let_pass, on_moved_loop


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", [MUTE, STALLED])
async def test_a_silent_source_is_left_for_another_one_long_before_the_idle_timeout(
    tmp_path, writer, monkeypatch, fault
):
    monkeypatch.setattr(source_client, "HURRY_S", 0.2)
    published = publish(writer, 1, some_weights())
    async with (
        HttpSource(tmp_path / "store") as bad,
        HttpSource(tmp_path / "store") as good,
        pulling(tmp_path, bad, good) as puller,
    ):
        bad.fault = fault
        assert content(await pull(puller, published)) == as_bytes(some_weights())


@on_moved_loop
async def test_wrong_bytes_of_the_only_source_may_be_an_accident_once(tmp_path, writer):
    """It is asked again only after a while, because what damages bytes may last for moments."""
    published = publish(writer, 1, some_weights())
    async with HttpSource(tmp_path / "store") as source, pulling(tmp_path, source) as puller:
        met = {}

        def wrong_at_first(data: bytes) -> bytes:
            now = asyncio.get_running_loop().time()
            is_first = data not in met
            assert now - met.setdefault(data, now) > source_client.WRONG_BACKOFF_S or is_first
            return one_bit(data) if is_first else data

        source.fault = Fault("one bit differs at first", wrong_at_first)
        task = asyncio.create_task(pull(puller, published))
        while not task.done():
            let_pass(0.01 * source_client.WRONG_BACKOFF_S)
            await asyncio.sleep(0.001)
        assert content(await task) == as_bytes(some_weights())
        assert puller.sources_info()[0].failures == len(met) > 0


@pytest.mark.asyncio
@pytest.mark.parametrize("other", [NO_SERVER, "missing"])
async def test_one_source_lies_and_the_other_fails_which_may_pass(tmp_path, writer, other):
    published = publish(writer, 1, some_weights())
    async with HttpSource(tmp_path / "store") as liar, HttpSource(tmp_path / "store") as second:
        liar.fault = ONE_BIT
        second.fault = MISSING
        async with pulling(tmp_path, liar, NO_SERVER if other == NO_SERVER else second) as puller:
            manifest = await puller.manifest(1, published.manifest_sha256)
            with pytest.raises(NoSourceError):
                await puller.fetch(manifest, PullProgress())
            liar.fault = None
            assert content(await puller.fetch(manifest, PullProgress())) == as_bytes(some_weights())


@pytest.mark.asyncio
async def test_a_file_is_gone_only_if_every_source_says_so(tmp_path, writer):
    published = publish(writer, 1, some_weights())
    (tmp_path / "store" / object_path(published.manifest.full.files[0].sha256)).unlink()
    async with HttpSource(tmp_path / "store") as one, HttpSource(tmp_path / "store") as two:
        async with pulling(tmp_path, one, two) as puller:
            with pytest.raises(GoneError):
                await pull(puller, published)
        async with pulling(tmp_path, one, two, NO_SERVER) as puller:
            with pytest.raises(NoSourceError):
                await pull(puller, published)
