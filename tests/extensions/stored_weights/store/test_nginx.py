"""The example of a relay: the real nginx in front of the real origin."""

import hashlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from extensions.stored_weights.store.layout import latest_path, manifest_path, object_path
from pipelinerl.paths import ROOT
from tests.extensions.stored_weights.store.builders import new_writer, publish, some_weights
from tests.extensions.stored_weights.store.plain_http import ask
from tests.inference_adapters.servers import Server, serving
from tests.ports import free_port

pytestmark = pytest.mark.engines

CONTENT = bytes(range(256)) * 2**14
NAME = hashlib.sha256(CONTENT).hexdigest()
OBJECT = f"/{object_path(NAME)}"
FOREVER = "public, max-age=31536000, immutable"
STATUS = "x-cache-status"


@pytest.fixture
def store(tmp_path) -> Path:
    store = tmp_path / "store"
    (store / "objects").mkdir(parents=True)
    (store / object_path(NAME)).write_bytes(CONTENT)
    return store


@pytest.fixture
def origin(store) -> Iterator[Server]:
    with serving("extensions.stored_weights.store.origin", str(store)) as running:
        yield running


@pytest.fixture
def relay(tmp_path, origin) -> Iterator[str]:
    """Yields the URL of nginx with the example's file, in which only the two addresses are changed."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    port = free_port()
    config = (ROOT / "examples" / "relay" / "nginx.conf").read_text()
    for before, after in (
        ("127.0.0.1:8100", urlsplit(origin.url).netloc),
        ("127.0.0.1:8200", f"127.0.0.1:{port}"),
    ):
        assert config.count(before) == 1
        config = config.replace(before, after)
    (tmp_path / "nginx.conf").write_text(config)
    (tmp_path / "relay").mkdir()
    command = ["nginx", "-p", str(tmp_path / "relay"), "-c", str(tmp_path / "nginx.conf")]
    if os.geteuid() == 0:
        command += ["-g", "user root;"]  # the workers of root's nginx could not read pytest's directory
    process = subprocess.Popen(command)
    while not is_listened_at(port):
        assert process.poll() is None, "nginx has ended"
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


def is_listened_at(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def test_a_transfer_is_resumed_from_what_is_kept(relay):
    for status in ("MISS", "HIT"):
        answer = ask(relay, OBJECT, {"Range": "bytes=1000-"})
        assert (answer.status, answer.headers[STATUS]) == (206, status)
        assert answer.body == CONTENT[1000:]
        assert answer.headers["content-range"] == f"bytes 1000-{len(CONTENT) - 1}/{len(CONTENT)}"


def test_of_many_who_ask_at_once_one_waits_for_the_origin(relay):
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask(relay, OBJECT))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.headers[STATUS] for answer in answers) == ["HIT"] * 7 + ["MISS"]
    for answer in answers:
        assert (answer.status, answer.body) == (200, CONTENT)
        assert answer.headers["cache-control"] == FOREVER
        assert answer.headers["content-length"] == str(len(CONTENT))


def test_a_file_that_was_missing_is_served_once_it_is_there(relay, store):
    path = f"/{object_path('f' * 64)}"
    missing = ask(relay, path)
    assert (missing.status, missing.headers["cache-control"]) == (404, "no-store")
    (store / object_path("f" * 64)).write_bytes(b"later")
    assert ask(relay, path).body == b"later"


def test_the_newest_version_is_never_an_old_one(relay, store):
    writer = new_writer(store)
    for version in range(3):
        publish(writer, version, some_weights(version))
        answer = ask(relay, f"/{latest_path('run')}")
        assert answer.body == (store / latest_path("run")).read_bytes()
        assert STATUS not in answer.headers
        same = ask(relay, f"/{latest_path('run')}", {"If-None-Match": answer.headers["etag"]})
        assert same.status == 304
    manifest = ask(relay, f"/{manifest_path('run', 2)}")
    assert manifest.headers[STATUS] == "MISS"
    assert ask(relay, f"/{manifest_path('run', 2)}").headers[STATUS] == "HIT"
    writer.close()


def test_nothing_else_is_asked_for(relay, store):
    (store / "proofs").mkdir()
    (store / "proofs" / "p").write_text("secret")
    for path in ("/", "/proofs/p", "/objects/../proofs/p", "/objects/%2e%2e/proofs/p"):
        answer = ask(relay, path)
        assert answer.status == 404 and b"secret" not in answer.body
