"""Looking at latest.json at several sources."""

import time

import pytest

from extensions.stored_weights.conformance.faults import MUTE, trickle
from extensions.stored_weights.store import latest
from extensions.stored_weights.store.layout import latest_path
from extensions.stored_weights.store.signing import SigningKey
from tests.extensions.stored_weights.store.builders import new_writer, publish, some_weights
from tests.extensions.stored_weights.store.conftest import FILE_BYTES
from tests.extensions.stored_weights.store.http_source import HttpSource
from tests.extensions.stored_weights.store.pulling import pulling
from tests.limits import HANG_S

pytestmark = pytest.mark.asyncio


async def test_a_newer_signature_of_the_same_version_shows_that_the_run_goes_on(
    tmp_path, writer, monkeypatch
):
    publish(writer, 1, some_weights())
    async with HttpSource(tmp_path / "store") as source, pulling(tmp_path, source) as puller:
        assert (await puller.poll()).version == 1
        seen, later = puller.seen_at, time.time() + 2
        monkeypatch.setattr(time, "time", lambda: later)
        writer.renew_latest()
        assert await puller.poll() is None
        assert puller.seen_at > seen


async def test_a_replayed_latest_is_ignored_and_counted(tmp_path, writer):
    path = tmp_path / "store" / latest_path("run")
    publish(writer, 1, some_weights())
    old = path.read_bytes()
    publish(writer, 2, some_weights(2))
    async with HttpSource(tmp_path / "store") as source, pulling(tmp_path, source) as puller:
        assert (await puller.poll()).version == 2
        path.write_bytes(old)
        seen = puller.seen_at
        assert await puller.poll() is None
        assert puller.sources_info()[0].failures == 1
        assert puller.seen_at == seen


async def test_a_source_that_lags_is_not_accused(tmp_path, writer):
    publish(writer, 1, some_weights())
    old = (tmp_path / "store" / latest_path("run")).read_bytes()
    publish(writer, 2, some_weights(2))
    lagging = tmp_path / "lagging"
    (lagging / latest_path("run")).parent.mkdir(parents=True)
    (lagging / latest_path("run")).write_bytes(old)
    async with (
        HttpSource(tmp_path / "store") as good,
        HttpSource(lagging) as late,
        pulling(tmp_path, late, good) as puller,
    ):
        late.faults[latest_path("run")] = trickle(4000)  # so that the other one has answered
        polled = [await puller.poll() for _ in range(3)]
        assert [each.version for each in polled if each][-1] == 2
        assert [info.failures for info in puller.sources_info()] == [0, 0]
        await good.stop()
        seen = puller.seen_at
        assert await puller.poll() is None
        assert puller.seen_at == seen


async def test_two_manifests_under_one_version_the_first_one_stays(tmp_path, writer):
    first = publish(writer, 1, some_weights())
    other = new_writer(
        tmp_path / "other", key=SigningKey.load_or_create(tmp_path / "run.key"), file_bytes=FILE_BYTES
    )
    async with (
        HttpSource(tmp_path / "store") as one,
        HttpSource(tmp_path / "other") as two,
        pulling(tmp_path, one, two) as puller,
    ):
        assert (await puller.poll()).manifest_sha256 == first.manifest_sha256
        publish(other, 1, some_weights(2))
        assert await puller.poll() is None
        publish(other, 2, some_weights(2))
        assert (await puller.poll()).version == 2
    other.close()


async def test_a_source_that_hangs_does_not_delay_what_another_one_says(tmp_path, writer, monkeypatch):
    monkeypatch.setattr(latest, "POLL_TIMEOUT_S", HANG_S)
    publish(writer, 1, some_weights())
    async with HttpSource(tmp_path / "store") as bad, HttpSource(tmp_path / "store") as good:
        bad.faults[latest_path("run")] = MUTE
        async with pulling(tmp_path, bad, good) as puller:
            assert (await puller.poll()).version == 1
            assert await puller.poll() is None
