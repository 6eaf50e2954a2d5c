"""Reading versions in a directory that trainer and server share."""

import hashlib
import os

import pytest

from extensions.stored_weights.store.errors import BadManifestError, GoneError, NoBaseError
from extensions.stored_weights.store.layout import manifest_path, object_path
from extensions.stored_weights.store.shared import NotSharedError, SharedStore
from extensions.stored_weights.store.signing import SigningKey
from tests.extensions.stored_weights.store.builders import SHAPES, publish, some_weights, stepped


@pytest.fixture
def store(tmp_path, writer):
    (tmp_path / "store").chmod(0o700)
    return tmp_path / "store"


def open_store(store, run="run", key="run", shapes=SHAPES, url=None) -> SharedStore:
    public = SigningKey.load_or_create(store.parent / f"{key}.key").public
    return SharedStore.open(url or f"file://{store}", run, [public], shapes, {})


def read(store, published, **options):
    return open_store(store, **options).version(published.manifest.version, published.manifest_sha256)


def test_the_proof_is_the_hash_of_a_small_regular_file(store, writer):
    (store / "proofs").mkdir()
    (store / "proofs" / "right").write_bytes(b"random")
    (store / "proofs" / "large").write_bytes(bytes(2**20))
    (store / "proofs" / "link").symlink_to(store / "proofs" / "right")
    (store / "proofs" / "directory").mkdir()
    os.mkfifo(store / "proofs" / "fifo")
    os.symlink("/dev/zero", store / "proofs" / "zero")
    opened = open_store(store)
    assert opened.proof("right") == hashlib.sha256(b"random").hexdigest()
    for name in ("link", "directory", "fifo", "zero", "missing"):
        with pytest.raises(NotSharedError, match=f"^not_shared: .*{name} "):
            opened.proof(name)
    with pytest.raises(NotSharedError, match="larger than 4096"):
        opened.proof("large")


@pytest.mark.parametrize(
    "url", ["file://elsewhere/store", "http://127.0.0.1/", "file:///", "file:///no/such", "file://"]
)
def test_what_is_no_store_here_is_refused_in_one_line(store, url):
    with pytest.raises(NotSharedError, match="^not_shared: [^\n]*$"):
        open_store(store, url=url)


def test_a_directory_that_others_can_change_is_refused(store, writer):
    published = publish(writer, 1, some_weights())
    path = store / object_path(published.manifest.full.files[0].sha256)
    path.chmod(0o666)
    read(store, published)  # nobody else can enter the store
    store.chmod(0o755)
    with pytest.raises(NotSharedError, match="can be written to by others: chmod"):
        read(store, published)
    path.chmod(0o644)
    read(store, published)
    store.chmod(0o777)
    with pytest.raises(NotSharedError, match="can be written to by others"):
        open_store(store)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(store):
    os.chown(store, 12345, -1)
    with pytest.raises(NotSharedError, match="belongs to another user: 12345"):
        open_store(store)


def test_what_is_cut_off_or_no_regular_file_is_refused_at_once(store, writer):
    published = publish(writer, 1, some_weights())
    path = store / object_path(published.manifest.full.files[0].sha256)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadManifestError, match="bytes, not"):
        read(store, published)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(NotSharedError, match="cannot be read"):
        read(store, published)
    path = store / manifest_path("run", 1)
    path.unlink()
    with pytest.raises(GoneError):
        read(store, published)
    os.mkfifo(path)
    with pytest.raises(NotSharedError, match="no regular file"):
        read(store, published)


def test_a_version_that_is_a_delta_alone_is_refused(tmp_path, delta_writer):
    (tmp_path / "store").chmod(0o700)
    publish(delta_writer, 0, some_weights())
    published = publish(delta_writer, 1, stepped(some_weights(), 1))
    assert published.manifest.full is None
    with pytest.raises(NoBaseError):
        read(tmp_path / "store", published)
