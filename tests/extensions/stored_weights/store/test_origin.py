import hashlib
import os
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from extensions.stored_weights.store.layout import latest_path, manifest_path, object_path, proofs_path
from tests.extensions.stored_weights.store.builders import new_writer, publish, some_weights
from tests.extensions.stored_weights.store.plain_http import ask
from tests.inference_adapters.servers import serving

ORIGIN = "extensions.stored_weights.store.origin"
CONTENT = bytes(range(256)) * 4096
NAME = hashlib.sha256(CONTENT).hexdigest()
OBJECT = f"/{object_path(NAME)}"
LATEST = f"/{latest_path('run')}"
FOREVER = "public, max-age=31536000, immutable"


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    """Returns a store with one version, an object of 1 MiB, and much that is not to be served."""
    store = tmp_path_factory.mktemp("origin") / "store"
    writer = new_writer(store)
    publish(writer, 0, some_weights())
    (store / object_path(NAME)).write_bytes(CONTENT)
    (store.parent / "secret").write_text("secret")
    secrets = ["proofs/p", "writing/x", "objects/a.part", f"objects/.{NAME}", "key", "runs/run/run.key"]
    secrets += ["runs/run/1.json.part", "runs/run/.1.json", "runs/run/deeper/1.json", "runs/1.json"]
    for name in secrets:
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_text("secret")
    (store / object_path("a" * 64)).symlink_to(store / object_path(NAME))
    (store / object_path("b" * 64)).symlink_to(store.parent / "secret")
    (store / object_path("d" * 64)).mkdir()
    os.mkfifo(store / object_path("c" * 64))
    (store / "runs" / "linked").symlink_to(store / "runs" / "run")
    return store


@pytest.fixture(scope="module")
def url(store):
    with serving(ORIGIN, str(store)) as origin:
        yield origin.url


def test_an_object_is_served_and_may_be_cached_forever(url):
    answer = ask(url, OBJECT, {"Accept-Encoding": "gzip, zstd, br"})
    assert (answer.status, answer.body) == (200, CONTENT)
    assert answer.headers["cache-control"] == FOREVER
    assert answer.headers["content-length"] == str(len(CONTENT))
    assert answer.headers["accept-ranges"] == "bytes"
    assert "content-encoding" not in answer.headers
    head = ask(url, OBJECT, method="HEAD")
    assert (head.status, head.body, head.headers["etag"]) == (200, b"", answer.headers["etag"])


def test_a_manifest_may_be_cached_forever_but_not_the_newest(store, url):
    answer = ask(url, f"/{manifest_path('run', 0)}")
    assert answer.body == (store / manifest_path("run", 0)).read_bytes()
    assert answer.headers["cache-control"] == FOREVER
    answer = ask(url, LATEST)
    assert answer.body == (store / latest_path("run")).read_bytes()
    assert answer.headers["cache-control"] == "no-cache"


def test_what_has_not_changed_is_not_sent_again(url):
    for path in (LATEST, OBJECT):
        answer = ask(url, path)
        again = ask(url, path, {"If-None-Match": answer.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        assert again.headers["cache-control"] == answer.headers["cache-control"]
        assert ask(url, path, {"If-None-Match": '"other"'}).status == 200


def test_the_newest_has_another_etag_once_it_is_signed_again(tmp_path):
    writer = new_writer(tmp_path / "store")
    publish(writer, 0, some_weights())
    with serving(ORIGIN, str(tmp_path / "store")) as origin:
        etag = ask(origin.url, LATEST).headers["etag"]
        writer.renew_latest()
        assert ask(origin.url, LATEST, {"If-None-Match": etag}).status == 200
    writer.close()


def test_a_transfer_is_resumed(url):
    etag = ask(url, OBJECT, method="HEAD").headers["etag"]
    for headers in ({}, {"If-Range": etag}):
        answer = ask(url, OBJECT, {"Range": "bytes=1000-"} | headers)
        assert (answer.status, answer.body) == (206, CONTENT[1000:])
        assert answer.headers["content-range"] == f"bytes 1000-{len(CONTENT) - 1}/{len(CONTENT)}"
    assert ask(url, OBJECT, {"Range": "bytes=1000-", "If-Range": '"other"'}).body == CONTENT
    assert ask(url, OBJECT, {"Range": f"bytes={len(CONTENT)}-"}).status == 416


HIDDEN = [
    "/", "/objects", "/objects/", "/runs/run/", f"/{object_path('e' * 64)}", f"/{object_path('a' * 64)}",
    f"/{object_path('b' * 64)}", f"/{object_path('c' * 64)}", f"/{object_path('d' * 64)}",
    "/runs/linked/latest.json", f"/{proofs_path('p')}", "/writing/x", "/objects/a.part", f"/objects/.{NAME}",
    "/key", "/runs/run/run.key", "/runs/run/1.json.part", "/runs/run/.1.json", "/runs/run/deeper/1.json",
    "/runs/1.json", "/../secret", "/objects/../../secret", "/objects/..%2f..%2fsecret", "/%2e%2e/secret",
    "//etc/passwd", "/objects/%00", f"/objects/{NAME}%0a", f"/objects/{NAME.upper()}",
    "/objects/" + "a" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("path", HIDDEN)
def test_nothing_else_is_served_and_no_cache_remembers_it(url, path):
    for method in ("GET", "HEAD"):
        answer = ask(url, path, method=method)
        assert answer.status == 404
        assert answer.headers["cache-control"] == "no-store"
        assert b"secret" not in answer.body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_is_accepted(store, url, method):
    answer = ask(url, OBJECT, method=method)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    assert (store / object_path(NAME)).read_bytes() == CONTENT


def test_it_ends_on_sigterm_also_while_somebody_reads_slowly(tmp_path):
    store = tmp_path / "store"
    (store / "objects").mkdir(parents=True)
    (store / object_path(NAME)).write_bytes(bytes(64 * 2**20))
    with serving(ORIGIN, str(store)) as origin:
        address = urlsplit(origin.url)
        with socket.create_connection((address.hostname, address.port)) as slow:
            slow.sendall(f"GET {OBJECT} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            assert slow.recv(10) == b"HTTP/1.1 2"
            origin.process.send_signal(signal.SIGTERM)
            origin.process.wait()
