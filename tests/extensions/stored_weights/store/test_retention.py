import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from extensions.stored_weights.store import retention
from extensions.stored_weights.store.layout import latest_path, manifest_path, object_path, stored_versions
from extensions.stored_weights.store.local_manifest import read_manifest
from extensions.stored_weights.store.retention import remove_run, retain
from extensions.stored_weights.store.store_lock import locked
from tests.extensions.stored_weights.store.builders import new_writer, publish, some_weights, stepped


@pytest.fixture
def store(tmp_path) -> Path:
    return tmp_path / "store"


def objects(store: Path) -> set[str]:
    return {path.name for path in (store / "objects").iterdir()}


def named(store: Path, run: str = "*") -> set[str]:
    """Returns the objects that the manifests name."""
    found = set()
    for path in store.glob(f"runs/{run}/[0-9]*.json"):
        manifest, _ = read_manifest(path, None)
        for part in (manifest.full, manifest.delta):
            found |= {file.sha256 for file in (part.files if part else ())}
        found |= {file.sha256 for file in manifest.model_files}
    return found


def publish_full(store: Path, versions: range, run: str = "run"):
    """Returns the writer of full versions that have one file in common."""
    writer = new_writer(store, run, file_bytes=3000)
    for version in versions:
        publish(writer, version, stepped(some_weights(), version, names=["head", "norm"]))
    return writer


def made_older(path: Path, seconds: float) -> None:
    status = path.stat()
    os.utime(path, (status.st_atime - seconds, status.st_mtime - seconds))


def test_a_version_that_is_being_pulled_stays(store):
    publish_full(store, range(6)).close()
    retain(store, "run", 1, 0, time.time(), {2, 77})
    assert stored_versions(store, "run") == [2, 5]
    assert objects(store) == named(store)


def test_old_versions_and_their_objects_are_deleted(store):
    publish_full(store, range(6)).close()
    before = objects(store)
    deleted = retain(store, "run", 2, 0, time.time())
    assert stored_versions(store, "run") == [4, 5]
    assert objects(store) == named(store)
    assert {path.name for path in deleted} == {f"{v}.json" for v in range(4)} | (before - objects(store))
    assert not any(path.exists() for path in deleted)
    assert retain(store, "run", 2, 0, time.time()) == []
    assert (store / latest_path("run")).exists()


def test_young_versions_are_kept_but_not_without_bound(store):
    publish_full(store, range(12)).close()
    for version in range(4):
        made_older(store / manifest_path("run", version), 100)
    retain(store, "run", 2, 50, time.time())
    assert stored_versions(store, "run") == list(range(4, 12))
    retain(store, "run", 1, 50, time.time())
    assert stored_versions(store, "run") == list(range(8, 12))
    retain(store, "run", 1, 0, time.time())
    assert stored_versions(store, "run") == [11]


def test_what_deltas_are_based_on_is_kept(store):
    writer = new_writer(store, deltas=True, full_every=4)
    weights = some_weights()
    for version in range(11):
        weights = stepped(weights, version)
        publish(writer, version, weights)
        retain(store, "run", 1, 0, time.time())
        assert stored_versions(store, "run") == list(range(version - version % 4, version + 1))
        assert objects(store) == named(store)
    writer.close()


def test_no_object_of_another_run_is_deleted(store):
    publish_full(store, range(3)).close()
    publish_full(store, range(2, 5), "other").close()
    retain(store, "run", 1, 0, time.time())
    assert stored_versions(store, "other") == [2, 3, 4]
    assert objects(store) == named(store)


def test_a_young_object_without_a_manifest_is_kept(store):
    """It may belong to a version that a writer by another program is about to name."""
    publish_full(store, range(3)).close()
    young = store / object_path("0" * 64)
    old = store / object_path("1" * 64)
    for path in (young, old):
        path.write_bytes(b"content")
    made_older(old, retention.UNNAMED_S + 1)
    (store / "objects" / "directory").mkdir()
    made_older(store / "objects" / "directory", retention.UNNAMED_S + 1)
    assert old in retain(store, "run", 1, 0, time.time())
    assert young.exists()


def test_files_that_are_not_the_stores_stay(store):
    """Someone's own directory may have been named as the store."""
    publish_full(store, range(3)).close()
    foreign = [
        store / "objects" / "chair.obj",
        store / "writing" / "novel" / "chapter",
        store / "writing" / "x",
    ]
    foreign[1].parent.mkdir()
    for path in foreign:
        path.write_text("mine")
        made_older(path, retention.UNNAMED_S + 1)
    publish_full(store, range(3, 6)).close()
    retain(store, "run", 1, 0, time.time())
    assert [path.read_text() for path in foreign] == ["mine"] * 3


def test_a_malformed_manifest_disturbs_nothing(store):
    publish_full(store, range(3)).close()
    (store / "runs" / "run" / "7.json").write_text("no JSON")
    (store / "runs" / "other").mkdir()
    (store / "runs" / "other" / "0.json").write_bytes(b"\xff" * 100)
    retain(store, "run", 2, 0, time.time())
    assert stored_versions(store, "run") == [2, 7]


def test_the_newest_is_always_kept(store):
    publish_full(store, range(2)).close()
    with pytest.raises(ValueError, match="1 or more"):
        retain(store, "run", 0, 0, time.time())


def test_an_interrupted_deletion_leaves_whole_versions(store, monkeypatch):
    publish_full(store, range(6)).close()
    unlink = Path.unlink
    left = 5

    def interrupted(path, missing_ok=False):
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", interrupted)
    with pytest.raises(KeyboardInterrupt):
        retain(store, "run", 2, 0, time.time())
    monkeypatch.undo()
    assert named(store) < objects(store)
    retain(store, "run", 2, 0, time.time() + retention.UNNAMED_S + 1)
    assert objects(store) == named(store)


def test_a_run_that_has_ended_is_removed(store):
    publish_full(store, range(2)).close()
    publish_full(store, range(1, 3), "other").close()
    remove_run(store, "run", time.time())
    assert not list((store / "runs" / "run").iterdir())
    assert stored_versions(store, "other") == [1, 2]
    assert objects(store) == named(store)


@pytest.fixture
def asked(monkeypatch) -> threading.Event:
    """An event that is set when somebody is about to wait for the lock, once it is cleared."""
    event = threading.Event()
    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda *arguments: (event.set(), flock(*arguments)))
    return event


def test_deleting_waits_for_who_publishes(store, asked):
    publish_full(store, range(3)).close()
    with locked(store):
        asked.clear()
        deleting = threading.Thread(target=retain, args=(store, "run", 1, 0, time.time()))
        deleting.start()
        asked.wait()
        assert stored_versions(store, "run") == [0, 1, 2]
    deleting.join()
    assert stored_versions(store, "run") == [2]


def test_publishing_waits_for_who_deletes(store, asked):
    writer = publish_full(store, range(1))
    before = objects(store)
    with locked(store):
        asked.clear()
        publishing = threading.Thread(target=publish, args=(writer, 1, some_weights(1)))
        publishing.start()
        asked.wait()
        assert objects(store) == before and publishing.is_alive()
    publishing.join()
    assert stored_versions(store, "run") == [0, 1]
    writer.close()
