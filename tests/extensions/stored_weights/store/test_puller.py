"""Pulling versions from real servers: what is fetched, and what is accepted."""

import asyncio
import os
import shutil
from dataclasses import replace

import pytest

from extensions.stored_weights.conformance.faults import MUTE, Fault
from extensions.stored_weights.store.assembly import version_name
from extensions.stored_weights.store.errors import (
    BadManifestError,
    GoneError,
    NoSourceError,
    StoreError,
)
from extensions.stored_weights.store.layout import manifest_path, object_path
from extensions.stored_weights.store.model_check import MANIFEST_NAME
from extensions.stored_weights.store.puller import PullProgress
from tests.extensions.stored_weights.store.builders import new_writer, publish, some_weights, stepped
from tests.extensions.stored_weights.store.conftest import FILE_BYTES
from tests.extensions.stored_weights.store.http_source import HttpSource
from tests.extensions.stored_weights.store.pulling import (
    RULES,
    as_bytes,
    content,
    one_bit,
    pull,
    pulling,
    total_bytes,
)

pytestmark = pytest.mark.asyncio

# --- versions, whole


async def test_a_version_is_found_and_fetched_and_is_a_checkpoint(tmp_path, writer):
    weights = some_weights()
    published = publish(writer, 3, weights)
    progress = PullProgress()
    async with HttpSource(tmp_path / "store") as source, pulling(tmp_path, source) as puller:
        latest = await puller.poll()
        assert (latest.version, latest.manifest_sha256) == (3, published.manifest_sha256)
        assembled = await pull(puller, published, progress)
        assert content(assembled) == as_bytes(weights)
        names = {path.name for path in assembled.directory.iterdir()}
        info = puller.sources_info()[0]
    assert {"config.json", "model.safetensors.index.json"} <= names
    assert sum(name.endswith(".safetensors") for name in names) == len(published.manifest.full.files)
    assert progress.bytes_done == progress.bytes_total == progress.bytes_fetched == total_bytes(published)
    assert (info.failures, info.success) == (0, 1.0)
    assert info.bytes > total_bytes(published)  # with the manifest
    assert info.bytes_per_s > 0


async def test_after_a_restart_what_is_here_is_used_and_what_was_altered_is_fetched_again(tmp_path, writer):
    published = publish(writer, 1, some_weights())
    async with HttpSource(tmp_path / "store") as source:
        async with pulling(tmp_path, source) as puller:
            await pull(puller, published)
        before = source.sent_bytes
        async with pulling(tmp_path, source) as puller:
            await pull(puller, published)
            assert source.sent_bytes == before
        altered = published.manifest.full.files[0]
        path = tmp_path / "weights" / "objects" / altered.sha256  # also linked in the assembled version
        path.write_bytes(one_bit(path.read_bytes()))
        async with pulling(tmp_path, source) as puller:
            assert content(await pull(puller, published)) == as_bytes(some_weights())
        assert source.sent_bytes - before == altered.bytes


async def test_whatever_lies_in_the_directory_makes_way(tmp_path, writer):
    """Pipes, devices, links and directories where files of an earlier process should be."""
    first = publish(writer, 1, some_weights())
    second = publish(writer, 2, some_weights(2))
    weights = tmp_path / "weights"
    async with HttpSource(tmp_path / "store") as source:
        async with pulling(tmp_path, source) as puller:
            assembled = await pull(puller, first)
        shutil.copytree(assembled.directory, weights / "versions" / "2-renamed")
        manifest = assembled.directory / MANIFEST_NAME
        manifest.unlink()
        os.mkfifo(manifest)
        (weights / "versions" / "x").write_text("a file")
        (weights / "versions" / f".{assembled.directory.name}.abandoned").mkdir()
        (weights / "versions" / "y").symlink_to("/dev")
        endless = weights / "versions" / "z"
        endless.mkdir()
        (endless / MANIFEST_NAME).symlink_to("/dev/zero")
        (weights / "objects" / ("0" * 64)).mkdir()
        for file in second.manifest.full.files:
            os.mkfifo(weights / "objects" / file.sha256)
        async with pulling(tmp_path, source) as puller:
            assert not list((weights / "versions").iterdir())
            assert content(await pull(puller, second)) == as_bytes(some_weights(2))
            puller.keep([2])
    assert [path.name for path in (weights / "versions").iterdir()] == [version_name(second.manifest)]


async def test_a_file_that_is_altered_while_the_process_runs_is_fetched_again(tmp_path, writer):
    first = publish(writer, 1, some_weights())
    second = publish(writer, 2, stepped(some_weights(), 1, names=["head"]))
    async with HttpSource(tmp_path / "store") as source, pulling(tmp_path, source) as puller:
        await pull(puller, first)
        for file in first.manifest.full.files:
            path = tmp_path / "weights" / "objects" / file.sha256
            path.write_bytes(path.read_bytes()[:-1])
        assert content(await pull(puller, second)) == as_bytes(stepped(some_weights(), 1, names=["head"]))


async def test_a_version_is_not_bad_because_a_file_was_altered_while_others_were_fetched(tmp_path, writer):
    published = publish(writer, 1, some_weights())
    first, *_, last = sorted(published.manifest.full.files, key=lambda file: (file.bytes, file.sha256))

    def altering(data: bytes) -> bytes:
        path = tmp_path / "weights" / "objects" / first.sha256
        path.write_bytes(one_bit(path.read_bytes()))
        return data

    rules = replace(RULES, parallel=1)
    async with HttpSource(tmp_path / "store") as source, pulling(tmp_path, source, rules=rules) as puller:
        source.faults[object_path(last.sha256)] = Fault("a file is altered meanwhile", altering)
        with pytest.raises(StoreError, match="^store: .* altered"):
            await pull(puller, published)
        source.faults.clear()
        before = source.sent_bytes
        assert content(await pull(puller, published)) == as_bytes(some_weights())
        assert source.sent_bytes - before == first.bytes


async def test_after_a_restart_the_files_beside_the_weights_are_right_as_well(tmp_path, writer):
    published = publish(writer, 1, some_weights())
    async with HttpSource(tmp_path / "store") as source:
        async with pulling(tmp_path, source) as puller:
            directory = (await pull(puller, published)).directory
        index = (directory / "model.safetensors.index.json").read_text()
        (directory / "model.safetensors.index.json").write_text("")
        (directory / "config.json").unlink()
        (directory / "config.json").write_text("[]")
        async with pulling(tmp_path, source) as puller:
            assert (await pull(puller, published)).directory == directory
    assert (directory / "model.safetensors.index.json").read_text() == index
    assert (directory / "config.json").read_text() == "{}"


# --- deltas


@pytest.mark.parametrize("damaged", [[1], [0, 1]], ids=["the base", "all that is here"])
async def test_a_base_that_was_damaged_on_the_disk_is_not_used(tmp_path, delta_writer, damaged):
    """The delta then begins with the version before, which is here, or with its full files."""
    weights = some_weights()
    published = []
    for version in range(3):
        published.append(publish(delta_writer, version, weights))
        weights = stepped(weights, version)
    async with HttpSource(tmp_path / "store") as source, pulling(tmp_path, source) as puller:
        here = [await pull(puller, each) for each in published[:2]]
        for path in {path for version in damaged for path in here[version].files}:
            path.write_bytes(one_bit(path.read_bytes()))
        assert content(await pull(puller, published[2])) == as_bytes(stepped(stepped(some_weights(), 0), 1))


async def test_where_the_delta_is_gone_the_full_files_are_fetched(tmp_path):
    writer = new_writer(tmp_path / "store", file_bytes=FILE_BYTES, deltas=True, full_every=1)
    weights = some_weights()
    first = publish(writer, 0, weights)
    second = publish(writer, 1, stepped(weights, 1))
    for file in second.manifest.delta.files:
        (tmp_path / "store" / object_path(file.sha256)).unlink()
    async with HttpSource(tmp_path / "store") as source, pulling(tmp_path, source) as puller:
        await pull(puller, first)
        assert content(await pull(puller, second)) == as_bytes(stepped(weights, 1))
    writer.close()


# --- manifests


async def test_a_manifest_is_proven_bad_only_by_the_run_itself(tmp_path, writer):
    published = publish(writer, 1, some_weights())
    path = tmp_path / "store" / manifest_path("run", 1)
    right = path.read_bytes()
    async with HttpSource(tmp_path / "store") as source, pulling(tmp_path, source) as puller:
        path.write_bytes(b"<html>Back in a minute</html>")
        with pytest.raises(NoSourceError, match="something else than the manifest"):
            await pull(puller, published)
        path.write_bytes(right + b" ")
        with pytest.raises(BadManifestError, match="another manifest"):
            await pull(puller, published)
        path.unlink()
        with pytest.raises(GoneError):
            await pull(puller, published)
        path.write_bytes(right)
        await pull(puller, published)


# --- the directory, and the end


async def test_closing_ends_what_waits(tmp_path, writer):
    published = publish(writer, 1, some_weights())
    async with HttpSource(tmp_path / "store") as source:
        source.fault = MUTE
        async with pulling(tmp_path, source, rules=RULES) as puller:
            task = asyncio.create_task(pull(puller, published))
            await source.met.wait()
            await puller.close()
            with pytest.raises(StoreError, match="closed"):
                await task
            with pytest.raises(StoreError, match="closed"):
                await puller.poll()


async def test_two_pullers_of_a_process_share_a_directory(tmp_path, writer):
    first = publish(writer, 1, some_weights())
    second = publish(writer, 2, some_weights(2))
    async with HttpSource(tmp_path / "store") as source:
        async with pulling(tmp_path, source) as one, pulling(tmp_path, source) as two:
            at_once = await asyncio.gather(pull(one, first), pull(two, first))
            assert source.sent_bytes == total_bytes(first)
            await pull(two, second)
            two.keep([2])
            assert content(at_once[0]) == as_bytes(some_weights())
            await one.close()
            two.keep([2])
        assert [path.name[:2] for path in (tmp_path / "weights" / "versions").iterdir()] == ["2-"]
