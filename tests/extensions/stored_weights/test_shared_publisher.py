"""Weights in a directory that servers and trainer share: content, failing servers, full file systems."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from contracts.records import ServerCondemned
from extensions.stored_weights.store.layout import stored_versions
from extensions.stored_weights.store_location import StoreLocation
from extensions.stored_weights.trainer import shared
from extensions.stored_weights.trainer.digests import DigestMismatchError
from extensions.stored_weights.trainer.shared import SharedPublisher
from pipelinerl.clients.server_control import ServerControl
from pipelinerl.errors import GaveUpError
from pipelinerl.training.membership.servers import Servers
from pipelinerl.training.publishing.base import publish
from tests.extensions.stored_weights.runs import made
from tests.inference_adapters.failing_engine import ONCE, POISON
from tests.inference_adapters.servers import CHANNELS, Server, serving, wait_ready
from tests.limits import HANG_S
from tests.pipeline.launched import Launcher
from tests.pipeline.runs import wait_for
from tests.pipeline.test_weight_publisher import FAILING, assert_serves, change
from tests.small_disk import fill, make_room
from trainer_adapters.scripted import ScriptedTrainer


def place_in(directory: Path) -> StoreLocation:
    store = directory / "store"
    store.mkdir(mode=0o700, exist_ok=True)
    return StoreLocation(directory, store)


@contextmanager
def sharing(
    worker: ScriptedTrainer, launcher: Launcher, directory: Path, *settings: str
) -> Iterator[SharedPublisher]:
    sender = made("shared", worker, launcher, place_in(directory), *settings)
    yield sender
    sender.close()


def test_every_server_serves_what_was_published_and_two_versions_are_kept(worker, ranks, urls, tmp_path):
    with sharing(worker, Launcher(*urls), tmp_path) as sender:
        for version in range(4):
            published = publish(worker, ranks, sender, version)
            assert (published.version, published.servers) == (version, urls)
            assert published.live is None and len(published.updates) == 2
            for url in urls:
                assert_serves(url, worker, version)
            change(worker)
        assert stored_versions(tmp_path / "store", sender.run) == [2, 3]
    assert not any(path.is_dir() for path in (tmp_path / "store").iterdir())


@pytest.mark.parametrize("version", [pytest.param(POISON, marks=pytest.mark.engines), ONCE])
def test_a_server_that_fails_is_left_out_and_the_others_are_not_disturbed(
    worker, ranks, url, tmp_path, version
):
    good = url
    with serving(FAILING, *CHANNELS) as failing:
        wait_ready(failing.url)
        with sharing(worker, Launcher(good, failing.url), tmp_path) as sender:
            assert len(publish(worker, ranks, sender, version - 1).servers) == 2
            change(worker)
            assert publish(worker, ranks, sender, version).servers == [good]
            assert_serves(good, worker, version)
            change(worker)
            # After its rest it gets the newest version, and no group had to be formed again for it.
            names = [publish(worker, ranks, sender, version + later).servers for later in (1, 2)]
            assert [good, failing.url] in names
            assert_serves(failing.url, worker, version + 2)


class EndedOnes(list):
    """Records of condemned servers, which are ended as the launcher does it."""

    def __init__(self, server: Server):
        self._server = server

    def append(self, condemned: ServerCondemned) -> None:
        super().append(condemned)
        self._server.process.send_signal(signal.SIGKILL)


def test_servers_sleep_until_the_next_version_and_one_that_does_not_is_condemned(
    worker, ranks, url, tmp_path
):
    """A condemned server is waited for until it is gone, because its memory is in the way."""
    with serving(FAILING, *CHANNELS, "--awake") as failing:
        wait_ready(failing.url)
        launcher = Launcher(url, failing.url)
        launcher.condemned = EndedOnes(failing)
        with sharing(worker, launcher, tmp_path) as sender:
            publish(worker, ranks, sender, 0)
            sender.put_to_sleep(HANG_S)
            assert requests.get(f"{url}/health").json()["status"] == "asleep"
            assert not Servers.listening([ServerControl(None, failing.url)])
            (condemned,) = launcher.condemned
            assert (condemned.url, condemned.replaceable) == (failing.url, True)
            assert condemned.why.startswith(f"it does not sleep: {failing.url} answered 500 engine_failed")
            change(worker)
            assert publish(worker, ranks, sender, 1).servers == [url]
            assert_serves(url, worker, 1)


def test_a_server_that_joins_later_gets_the_next_version(worker, ranks, urls, tmp_path):
    early, late = urls
    launcher = Launcher(early)
    with sharing(worker, launcher, tmp_path) as sender:
        publish(worker, ranks, sender, 0)
        launcher.join(late)
        assert publish(worker, ranks, sender, 1).servers == [early, late]
        launcher.leave(early)
        assert not sender.is_stranded()  # the late one has the version too
        assert publish(worker, ranks, sender, 1).servers == [late]


def test_a_resumed_trainer_takes_servers_over_and_back_in_version(worker, ranks, url, tmp_path):
    with sharing(worker, Launcher(url), tmp_path) as before:
        publish(worker, ranks, before, 9)
    change(worker)
    with sharing(worker, Launcher(url), tmp_path) as after:
        assert after.run != before.run
        for _ in range(2):  # as when it is published again
            assert publish(worker, ranks, after, 4).version == 4
            assert_serves(url, worker, 4)


def test_a_server_that_does_not_see_the_store_is_condemned_by_name(worker, ranks, url, tmp_path):
    launcher = Launcher(url)
    with sharing(worker, launcher, tmp_path) as sender:
        for proof in (tmp_path / "store" / "proofs").iterdir():
            proof.write_bytes(b"as another host would have it")
        with pytest.raises(shared.NotTheSameStoreError, match=f"{url} does not see {tmp_path}/store"):
            publish(worker, ranks, sender, 0)
    (condemned,) = launcher.condemned
    assert (condemned.url, condemned.replaceable) == (url, False)


def test_a_server_with_other_weights_ends_the_run(worker, ranks, url, tmp_path):
    with sharing(worker, Launcher(url), tmp_path) as sender:
        publish(worker, ranks, sender, 0)
        written = sender._published[0]
        other = written.manifest.model_copy(update={"digest": "0" * 64})
        sender._published[0] = type(written)(other, written.manifest_sha256)
        with pytest.raises(DigestMismatchError, match=f"digest_mismatch: {url} serves version 0"):
            publish(worker, ranks, sender, 0)


def test_a_full_file_system_is_waited_for(worker, ranks, url, small_disk, caplog):
    with sharing(worker, Launcher(url), small_disk) as sender:
        publish(worker, ranks, sender, 0)
        change(worker)
        fill(small_disk)
        publishing = threading.Thread(target=publish, args=(worker, ranks, sender, 1))
        publishing.start()
        wait_for(lambda: "waiting for room" in caplog.text)
        make_room(small_disk)
        publishing.join(HANG_S)
        assert_serves(url, worker, 1)


def test_what_a_killed_trainer_left_unnamed_takes_no_space(worker, url, tmp_path):
    unnamed = place_in(tmp_path).directory / "objects" / ("0" * 64)
    unnamed.parent.mkdir()
    unnamed.write_bytes(b"of a version whose manifest was not written")
    with sharing(worker, Launcher(url), tmp_path):
        assert not unnamed.exists()


def test_why_a_server_refuses_a_version_is_said(worker, ranks, urls, tmp_path, caplog):
    with sharing(worker, Launcher(*urls), tmp_path) as sender:
        publish(worker, ranks, sender, 1)
        (server,) = [server for server in sender._joined if server.url == urls[1]]
        sender._joined[server] += 100  # it belongs to no such channel
        change(worker)
        assert publish(worker, ranks, sender, 2).servers == urls[:1]
        assert sender.candidates.last_failure.startswith(f"{urls[1]}: {urls[1]} answered 409 ")
    (warned,) = [record.getMessage() for record in caplog.records if "version 2 at" in record.message]
    assert warned.startswith(f"version 2 at {urls[1]}: {urls[1]} answered 409 ")


def test_a_file_system_that_can_never_hold_two_versions_is_refused(worker, ranks, url, tmp_path, monkeypatch):
    monkeypatch.setattr(shared.shutil, "disk_usage", lambda path: type("Usage", (), {"total": 5000}))
    says = "keeps two versions of 3812 bytes, .* a file system of 5000; set"
    with (
        sharing(worker, Launcher(url), tmp_path) as sender,
        pytest.raises(GaveUpError, match=says),
    ):
        publish(worker, ranks, sender, 0)
