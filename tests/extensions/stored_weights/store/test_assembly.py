"""The directory of a puller: assembling versions, and what happens when that fails or is cancelled."""

import asyncio
import fcntl
import os
import threading

import pytest

from extensions.stored_weights.conformance.faults import Fault
from extensions.stored_weights.store.assembly import AssembledVersions
from extensions.stored_weights.store.directory import DirectoryInUseError, WeightDirectory
from extensions.stored_weights.store.errors import BadDigestError, NoSpaceError, StoreError
from extensions.stored_weights.store.object_files import ObjectFiles
from extensions.stored_weights.store.plan import Plan
from extensions.stored_weights.store.worker_thread import Stop, StoppedError, in_thread
from extensions.stored_weights.store.writer import Published
from tests.extensions.stored_weights.store.builders import new_writer, publish, some_weights, stepped
from tests.extensions.stored_weights.store.http_source import HttpSource
from tests.extensions.stored_weights.store.pulling import as_bytes, content, pull, pulling
from tests.small_disk import fill, make_room


def assembling(tmp_path) -> AssembledVersions:
    """Returns the versions of a directory whose objects are those of the store."""
    directory = tmp_path / "weights"
    objects = ObjectFiles(directory)
    for path in (tmp_path / "store" / "objects").iterdir():
        if not objects.path(path.name).exists():
            os.link(path, objects.path(path.name))
    return AssembledVersions(directory, objects)


def full(published) -> Plan:
    return Plan(published.manifest, published.manifest, False, ())


def by_delta(base, *deltas) -> Plan:
    manifests = tuple(each.manifest for each in deltas)
    return Plan(manifests[-1], base.manifest, True, manifests)


def entries(tmp_path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "weights" / "versions").iterdir())


def test_a_delta_leaves_the_base_as_it_is(tmp_path, delta_writer):
    weights = some_weights()
    first = publish(delta_writer, 0, weights)
    second = publish(delta_writer, 1, stepped(weights, 1, names=["norm"]))
    versions = assembling(tmp_path)
    base = versions.assemble(full(first), Stop())
    new = versions.assemble(by_delta(first, second), Stop())
    assert content(base) == as_bytes(weights)
    assert content(new) == as_bytes(stepped(weights, 1, names=["norm"]))
    same = [a for a, b in zip(base.files, new.files, strict=True) if a.samefile(b)]
    assert len(same) == len(base.files) - 1


def test_a_delta_that_leads_elsewhere_is_refused_and_leaves_nothing(tmp_path, delta_writer):
    weights = some_weights()
    first = publish(delta_writer, 0, weights)
    second = publish(delta_writer, 1, stepped(weights, 1))
    third = publish(delta_writer, 2, stepped(stepped(weights, 1), 2))
    versions = assembling(tmp_path)
    versions.assemble(full(first), Stop())
    with pytest.raises(BadDigestError, match="does not have the bytes"):
        versions.assemble(by_delta(first, third), Stop())
    with pytest.raises(BadDigestError):
        versions.assemble(by_delta(first, second, second, third), Stop())
    assert entries(tmp_path) == [f"0-{first.manifest.digest[:12]}"]


def test_work_that_is_told_to_stop_leaves_nothing(tmp_path, writer):
    published = publish(writer, 1, some_weights())
    stop = Stop()
    stop.set()
    with pytest.raises(StoppedError):
        assembling(tmp_path).assemble(full(published), stop)
    assert entries(tmp_path) == []


@pytest.mark.asyncio
async def test_a_cancelled_caller_waits_for_its_thread():
    begun = threading.Event()
    ended = threading.Event()

    def work(stop: Stop) -> None:
        begun.set()
        with pytest.raises(StoppedError):
            while True:
                stop.check()
        ended.set()

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


def test_where_there_are_no_links_files_are_copied(tmp_path, writer, monkeypatch):
    published = publish(writer, 1, some_weights())
    versions = assembling(tmp_path)

    def refuse(source, target):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert content(versions.assemble(full(published), Stop())) == as_bytes(some_weights())


# --- one process


def test_a_directory_that_another_process_uses_is_refused_in_one_line(tmp_path):
    (tmp_path / "weights").mkdir()
    with (tmp_path / "weights" / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DirectoryInUseError, match="used by another process: name another directory$"):
            WeightDirectory.open(tmp_path / "weights")
    directory = WeightDirectory.open(tmp_path / "weights")
    again = WeightDirectory.open(tmp_path / "weights")
    assert again is directory
    directory.close(1)
    again.close(2)
    with (tmp_path / "weights" / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- a full disk


@pytest.fixture
def two_versions(tmp_path) -> list[Published]:
    """Returns two versions that are in a store, each in one file."""
    writer = new_writer(tmp_path / "store")
    published = [publish(writer, version, some_weights(version)) for version in (1, 2)]
    writer.close()
    return published


@pytest.mark.asyncio
async def test_a_disk_without_space_is_said_before_anything_is_fetched(tmp_path, small_disk, two_versions):
    async with (
        HttpSource(tmp_path / "store") as source,
        pulling(tmp_path, source, directory=small_disk / "weights") as puller,
    ):
        fill(small_disk, leaving=8 * 2**10)
        with pytest.raises(NoSpaceError, match="^no_space: .* bytes free, and"):
            await pull(puller, two_versions[0])
        assert source.sent_bytes == 0
        make_room(small_disk)
        assert content(await pull(puller, two_versions[0])) == as_bytes(some_weights(1))


@pytest.mark.asyncio
async def test_what_earlier_processes_left_makes_way_on_a_full_disk(tmp_path, small_disk, two_versions):
    first, second = two_versions
    weights = small_disk / "weights"
    async with HttpSource(tmp_path / "store") as source:
        async with pulling(tmp_path, source, directory=weights) as puller:
            await pull(puller, first)
        fill(small_disk, leaving=8 * 2**10)
        async with pulling(tmp_path, source, directory=weights) as puller:
            puller.keep([])
            assert len(list((weights / "versions").iterdir())) == 1
            assert content(await pull(puller, second)) == as_bytes(some_weights(2))


@pytest.mark.asyncio
async def test_a_disk_that_fills_while_bytes_arrive_is_said_and_the_version_comes_later(
    tmp_path, small_disk, two_versions
):
    def fills(data: bytes) -> bytes:
        fill(small_disk, leaving=4096)
        return data

    async with (
        HttpSource(tmp_path / "store") as source,
        pulling(tmp_path, source, directory=small_disk / "weights") as puller,
    ):
        source.fault = Fault("the disk fills meanwhile", fills)
        with pytest.raises(NoSpaceError, match="No space left on device"):
            await pull(puller, two_versions[0])
        assert list((small_disk / "weights" / "parts").iterdir()) == []
        source.fault = None
        make_room(small_disk)
        assert content(await pull(puller, two_versions[0])) == as_bytes(some_weights(1))


@pytest.mark.asyncio
async def test_what_is_here_is_not_fetched_again_after_a_version_could_not_be_assembled(tmp_path, writer):
    published = publish(writer, 1, some_weights())
    versions = tmp_path / "weights" / "versions"
    async with HttpSource(tmp_path / "store") as source, pulling(tmp_path, source) as puller:
        versions.rmdir()
        versions.write_text("in the way")
        with pytest.raises(StoreError, match="^store: "):
            await pull(puller, published)
        before = source.sent_bytes
        versions.unlink()
        versions.mkdir()
        assert content(await pull(puller, published)) == as_bytes(some_weights())
        assert source.sent_bytes == before
