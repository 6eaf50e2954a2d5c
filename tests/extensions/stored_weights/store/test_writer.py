import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from extensions.stored_weights.store import version_files
from extensions.stored_weights.store import writer as writer_module
from extensions.stored_weights.store.delta import apply_delta
from extensions.stored_weights.store.errors import BadManifestError, BadSignatureError
from extensions.stored_weights.store.layout import latest_path, manifest_path, object_path, stored_versions
from extensions.stored_weights.store.manifest import LatestVersion, VersionManifest
from extensions.stored_weights.store.signing import LATEST_TYPE, MANIFEST_TYPE, SigningKey, Verifier
from extensions.stored_weights.store.tensor_file import TensorFile
from extensions.stored_weights.store.version_files import sha256_of
from pipelinerl.paths import ROOT
from tests.extensions.stored_weights.store.builders import items, new_writer, publish, some_weights, stepped
from tests.small_disk import fill, make_room


@pytest.fixture
def store(tmp_path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def key(tmp_path) -> SigningKey:
    return SigningKey.load_or_create(tmp_path / "run.key")


@pytest.fixture
def writer(store):
    """Yields a writer of small files without deltas."""
    opened = new_writer(store, file_bytes=3000)
    yield opened
    opened.close()


@pytest.fixture
def delta_writer(store):
    opened = new_writer(store, file_bytes=3000, deltas=True, full_every=4)
    yield opened
    opened.close()


def latest(store: Path, key: SigningKey, run: str = "run") -> LatestVersion:
    envelope = (store / latest_path(run)).read_bytes()
    return LatestVersion.model_validate_json(Verifier([key.public]).open(envelope, LATEST_TYPE))


def manifest(store: Path, key: SigningKey, version: int, sha256: str) -> VersionManifest:
    envelope = (store / manifest_path("run", version)).read_bytes()
    assert hashlib.sha256(envelope).hexdigest() == sha256
    return VersionManifest.model_validate_json(Verifier([key.public]).open(envelope, MANIFEST_TYPE))


def objects(store: Path) -> set[str]:
    return {path.name for path in (store / "objects").iterdir()}


def unfinished(store: Path) -> list[Path]:
    return [path for path in (store / "writing" / "run").glob("[!.m]*")]


def assert_full(store: Path, found: VersionManifest, weights) -> None:
    """Asserts that the full files hold these weights, and that every file is what its name says."""
    held = {}
    for stored in found.full.files:
        path = store / object_path(stored.sha256)
        assert sha256_of(path) == stored.sha256 and path.stat().st_size == stored.bytes
        with TensorFile.open(path) as file:
            assert list(file.entries) == stored.names
            held |= {name: file.raw(name).tobytes() for name in stored.names}
    assert held == {name: raw.tobytes() for name, raw in weights.items()}


def test_a_version_is_files_a_manifest_and_the_newest(store, key, writer):
    weights = some_weights()
    published = publish(writer, 3, weights, epoch=7)
    read = manifest(store, key, 3, published.manifest_sha256)
    assert read == published.manifest
    assert (read.run, read.version, read.epoch, read.delta) == ("run", 3, 7, None)
    assert_full(store, read, weights)
    newest = latest(store, key)
    assert (newest.version, newest.epoch) == (3, 7)
    assert newest.manifest_sha256 == published.manifest_sha256
    assert not unfinished(store)
    assert not list(store.rglob("*.part"))
    envelope = json.loads((store / manifest_path("run", 3)).read_bytes())
    assert envelope.keys() == {"payload", "payloadType", "signatures"}


def test_a_file_holds_no_more_than_asked_but_for_one_large_tensor(store, key, writer):
    published = publish(writer, 0, some_weights())
    assert [file.names for file in published.manifest.full.files] == [
        ["embed"], ["norm", "layer.q"], ["layer.k"], ["head"]
    ]  # fmt: skip


def test_the_digest_is_the_same_however_the_weights_are_spread(tmp_path):
    digests = set()
    for number, size in enumerate((1, 3000, 10**6)):
        opened = new_writer(tmp_path / str(number), file_bytes=size)
        weights = some_weights()
        order = reversed(items(weights)) if number else items(weights)
        digests.add(opened.publish(opened.write_full_files(0, order), 0).manifest.digest)
        opened.close()
    assert len(digests) == 1


def test_an_unchanged_file_is_neither_hashed_nor_written_again(store, writer, monkeypatch):
    weights = some_weights()
    first = publish(writer, 0, weights).manifest.full.files
    status = {file.sha256: (store / object_path(file.sha256)).stat() for file in first}
    hashed = []
    monkeypatch.setattr(version_files, "sha256_of", lambda path: hashed.append(path) or sha256_of(path))
    second = publish(writer, 1, stepped(weights, 1, names=["head"])).manifest.full.files
    assert len(hashed) == 1
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, True, True, False]
    for file in first:
        assert (store / object_path(file.sha256)).stat().st_ino == status[file.sha256].st_ino


def test_files_beside_the_weights_are_as_they_were_at_the_start(tmp_path, store, key):
    (tmp_path / "config.json").write_text("{}")
    opened = new_writer(store, model_files=[tmp_path / "config.json"])
    (tmp_path / "config.json").write_text("other")
    for version in range(2):
        [file] = publish(opened, version, some_weights(version)).manifest.model_files
        assert (file.name, file.bytes) == ("config.json", 2)
        assert (store / object_path(file.sha256)).read_text() == "{}"
    opened.close()


def test_a_version_may_be_published_again_after_a_restart(store, key, writer):
    first = publish(writer, 4, some_weights())
    writer.close()
    opened = new_writer(store, file_bytes=3000)
    assert publish(opened, 4, some_weights(), epoch=2) == first
    assert latest(store, key).epoch == 2 and not unfinished(store)
    with pytest.raises(ValueError, match="already published with other weights"):
        publish(opened, 4, some_weights(1))
    with pytest.raises(ValueError, match="older than the newest, 4"):
        publish(opened, 3, some_weights())
    assert publish(opened, 5, some_weights(1)).manifest.version == 5
    opened.close()


def test_an_old_version_again_does_not_become_the_newest(store, key, delta_writer):
    versions = [some_weights()]
    for version in range(3):
        publish(delta_writer, version, versions[version])
        versions.append(stepped(versions[version], version))
    publish(delta_writer, 1, versions[1])
    assert latest(store, key).version == 2
    found = publish(delta_writer, 3, versions[3]).manifest
    assert found.delta.base_version == 2
    follow(store, found, versions[2])


def test_a_run_that_another_key_signed_is_refused(tmp_path, store, writer):
    publish(writer, 0, some_weights())
    writer.close()
    with pytest.raises(BadSignatureError):
        new_writer(store, key=SigningKey.load_or_create(tmp_path / "other.key"))


BAD = {
    "stored twice": lambda weights: items(weights)[1:2] * 2,
    "listed twice": lambda weights: items(weights) + items(weights)[1:2],
    "int64": lambda weights: [("a", "int64", (1,), bytes(8))],
    "at least 1": lambda weights: [],
}


@pytest.mark.parametrize("message", BAD)
def test_weights_that_cannot_be_stored_leave_nothing(store, key, writer, message):
    publish(writer, 0, some_weights())
    before = objects(store)
    with pytest.raises(ValueError, match=message):
        writer.publish(writer.write_full_files(1, BAD[message](some_weights(1))), 0)
    assert (objects(store), stored_versions(store, "run"), unfinished(store)) == (before, [0], [])
    assert latest(store, key).version == 0


def test_weights_that_end_early_or_are_discarded_leave_nothing(store, writer):
    def broken():
        yield from items(some_weights())
        raise ConnectionError("a rank is lost")

    with pytest.raises(ConnectionError):
        writer.write_full_files(0, broken())
    assert not unfinished(store)
    written = writer.write_full_files(0, items(some_weights()))
    assert unfinished(store)
    written.discard()
    assert not unfinished(store) and not stored_versions(store, "run")


def follow(store: Path, found: VersionManifest, weights) -> dict[str, np.ndarray]:
    """Returns the weights after the delta of a manifest, and asserts that they are those it describes."""
    after = {name: raw.copy() for name, raw in weights.items()}
    parameters = {parameter.name: parameter for parameter in found.parameters}
    for file in found.delta.files:
        assert sha256_of(store / object_path(file.sha256)) == file.sha256
        apply_delta(store / object_path(file.sha256), parameters, file.names, after.__getitem__)
    for name, raw in after.items():
        assert hashlib.sha256(raw).hexdigest() == parameters[name].sha256
    return after


def test_deltas_lead_from_one_full_version_to_the_next(store, delta_writer):
    weights = some_weights()
    held = weights
    digests = []
    full = []
    for version in range(10):
        found = publish(delta_writer, version, weights).manifest
        full.append(found.full is not None)
        if version:
            assert found.delta.base_version == version - 1
            assert found.delta.base_digest == digests[-1]
            held = follow(store, found, held)
        if found.full:
            assert_full(store, found, weights)
        digests.append(found.digest)
        weights = stepped(weights, version)
    assert full == [version % 4 == 0 for version in range(10)]


def test_a_delta_that_saves_too_little_is_not_offered(store, delta_writer):
    """What counts is the size of the files that changed. The others would not be fetched again."""
    weights = some_weights()
    publish(delta_writer, 0, weights)
    found = publish(delta_writer, 1, stepped(weights, 1, share=0.5, names=["norm"])).manifest
    assert found.delta.files[0].names == ["norm"]  # small beside the file in which it is
    found = publish(delta_writer, 2, stepped(weights, 2, share=0.5, names=["head"])).manifest
    assert found.delta is None and found.full is not None


def others_of(weights):
    return [("embed", "bfloat16", (32, 64), weights["embed"]), *items(weights)[1:]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (items(some_weights()), items(some_weights())),  # nothing changes
        (items(some_weights(dtype="float32"), "float32"), items(some_weights(1, "float32"), "float32")),
        (items(some_weights()), others_of(stepped(some_weights(), 1))),
    ],
)
def test_what_no_delta_can_say_is_full(store, delta_writer, first, second):
    for version, stored in enumerate((first, second)):
        found = delta_writer.publish(delta_writer.write_full_files(version, stored), 0).manifest
        assert found.delta is None and found.full is not None


def test_a_deleted_object_does_not_stop_the_next_delta(store, delta_writer):
    weights = some_weights()
    for file in publish(delta_writer, 0, weights).manifest.full.files:
        (store / object_path(file.sha256)).unlink()
    after = stepped(weights, 1, names=["head"])
    follow(store, publish(delta_writer, 1, after).manifest, weights)
    for version in range(2, 5):
        found = publish(delta_writer, version, after).manifest
    assert_full(store, found, after)  # also the files that did not change are here again


def test_an_object_that_another_run_deleted_is_stored_again(store, writer):
    weights = some_weights()
    for file in publish(writer, 0, weights).manifest.full.files:
        (store / object_path(file.sha256)).unlink()
    assert_full(store, publish(writer, 1, weights).manifest, weights)


def test_another_run_shares_the_objects_and_mends_damaged_ones(tmp_path, store, key, writer):
    weights = some_weights()
    first = publish(writer, 0, weights).manifest
    damaged = store / object_path(first.full.files[0].sha256)
    damaged.write_bytes(bytes(damaged.stat().st_size))
    cut = store / object_path(first.full.files[1].sha256)
    os.truncate(cut, 100)
    other = new_writer(store, "other", file_bytes=3000)
    second = publish(other, 0, weights).manifest
    assert second.full == first.full
    assert_full(store, second, weights)
    other.close()


def test_a_second_writer_of_the_run_is_refused(store, writer):
    with pytest.raises(ValueError, match="another process writes versions of run"):
        new_writer(store)
    other = new_writer(store, "other")
    publish(other, 0, some_weights())
    publish(writer, 0, some_weights())
    other.close()
    writer.close()
    new_writer(store).close()


KILLED = """
import signal, sys
from pathlib import Path
from tests.extensions.stored_weights.store.builders import items, new_writer, some_weights
writer = new_writer(Path(sys.argv[1]), "killed")
writer.write_full_files(0, items(some_weights()))
print("written", flush=True)
signal.pause()
"""


def test_what_a_killed_writer_left_is_removed(store, tmp_path):
    other = new_writer(store, "other")
    kept = other.write_full_files(0, items(some_weights()))
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(store)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "written\n"
    left = store / "writing" / "killed"
    new_writer(store).close()
    assert len(list(left.glob("0-*/*"))) == 1  # it may still be publishing
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    new_writer(store).close()
    assert not left.exists()
    assert other.publish(kept, 0).manifest.version == 0
    other.close()


def test_a_full_disk_leaves_the_store_as_it_was(small_disk, tmp_path):
    """Space ends at each point in turn. The same writer then publishes as before."""
    store = small_disk / "store"
    (tmp_path / "tokenizer.json").write_bytes(bytes(40_000))
    opened = new_writer(
        store, deltas=True, file_bytes=30_000, model_files=[tmp_path / "tokenizer.json"],
        key=SigningKey.load_or_create(tmp_path / "key"),
    )  # fmt: skip
    weights = some_weights()
    publish(opened, 0, weights)
    failures = set()
    for version, space in enumerate(range(0, 400_000, 12_000), start=1):
        before = objects(store)
        fill(small_disk, leaving=space)
        failed_in = "nothing"
        try:
            written = opened.write_full_files(version, items(stepped(weights, version, share=0.2)))
            failed_in = "publish"
            opened.publish(written, 0)
            failed_in = "nothing"
        except OSError:
            failed_in = "write" if failed_in == "nothing" else failed_in
            assert objects(store) == before and version not in stored_versions(store, "run")
        assert not unfinished(store)
        failures.add(failed_in)
        make_room(small_disk)
    assert failures == {"write", "publish", "nothing"}
    publish(opened, 1000, weights)
    opened.close()


def test_the_newest_is_signed_again(store, key, writer, monkeypatch):
    writer.renew_latest()
    assert not (store / latest_path("run")).exists()
    published = publish(writer, 0, some_weights())
    before = latest(store, key)
    monkeypatch.setattr("time.time", lambda: before.signed_at + 60.0)
    writer.renew_latest()
    assert latest(store, key) == before.model_copy(update={"signed_at": before.signed_at + 60})
    assert latest(store, key).manifest_sha256 == published.manifest_sha256


def test_a_reader_finds_all_that_the_newest_names(store, key, delta_writer):
    """It reads while versions are written, and while the newest is signed again all the time."""
    publish(delta_writer, 0, some_weights())
    ended = threading.Event()
    seen = []

    def renew():
        while not ended.is_set():
            delta_writer.renew_latest()

    def read():
        while not ended.is_set():
            newest = latest(store, key)
            found = manifest(store, key, newest.version, newest.manifest_sha256)
            groups = [found.full.files if found.full else [], found.delta.files if found.delta else []]
            for file in itertools.chain(*groups):
                assert (store / object_path(file.sha256)).stat().st_size == file.bytes
            seen.append(newest.version)

    weights = some_weights()
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(renew), pool.submit(read)]
        for version in range(1, 16):
            weights = stepped(weights, version)
            publish(delta_writer, version, weights)
        ended.set()
        for other in others:
            other.result()
    assert seen == sorted(seen) and len(set(seen)) > 2
    assert latest(store, key).version == 15


def test_writing_holds_one_file_in_memory(store):
    opened = new_writer(store, file_bytes=4 * 2**20)

    def large():
        for number in range(40):
            yield f"w{number}", "bfloat16", (2**19,), np.full(2**20, number, np.uint8)

    tracemalloc.start()
    written = opened.write_full_files(0, large())
    assert tracemalloc.get_traced_memory()[1] < 6 * 2**20
    tracemalloc.stop()
    assert len(written.files) == 10
    opened.close()


def test_a_manifest_that_readers_would_refuse_is_not_published(store, writer, monkeypatch):
    monkeypatch.setattr(writer_module, "MAX_MANIFEST_BYTES", 1000)
    with pytest.raises(ValueError, match="at most 1000"):
        publish(writer, 0, some_weights())
    assert not objects(store)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([f"{number}.json" for number in range(65)], "65 files beside the weights, of at most 64"),
        (["weights_manifest.json"], "weights_manifest.json cannot be the name"),
    ],
)
def test_files_beside_the_weights_that_readers_would_refuse_are_refused(store, tmp_path, names, says):
    for name in names:
        (tmp_path / name).write_text(name)
    with pytest.raises(BadManifestError, match=says):
        new_writer(store, model_files=[tmp_path / name for name in names])
    new_writer(store).close()  # nothing is held


def test_a_run_that_is_no_directory_name_is_refused(store):
    with pytest.raises(ValueError):
        new_writer(store, "../run", key=None)
