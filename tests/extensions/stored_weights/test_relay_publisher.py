"""Weights that servers pull by themselves: content, deaths, full disks, and training that never waits."""

import contextlib
import dataclasses
import errno
import json
import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from extensions.stored_weights.store.layout import manifest_path, stored_versions
from extensions.stored_weights.store.local_manifest import unverified_payload
from extensions.stored_weights.store.store_lock import locked
from extensions.stored_weights.store.tensor_file import write_tensor_file
from extensions.stored_weights.store.written import Written
from extensions.stored_weights.store_location import StoreLocation
from extensions.stored_weights.trainer.digests import DigestMismatchError
from extensions.stored_weights.trainer.packer import Packer
from extensions.stored_weights.trainer.relay import RelayPublisher
from extensions.stored_weights.trainer.stored import VersionStore
from extensions.stored_weights.transport import Relay
from pipelinerl.config import RunConfig
from pipelinerl.errors import GaveUpError
from pipelinerl.training.membership.candidates import LacksCapabilityError, NoServersError
from pipelinerl.training.publishing.base import errors_of, publish
from tests.extensions.stored_weights.runs import (
    ORIGIN,
    made,
    origin_of,
    unwaited,
    wait_until_served,
)
from tests.inference_adapters.servers import (
    CHANNELS,
    Server,
    contract,
    ready_servers,
    serving,
    wait_ready,
)
from tests.limits import HANG_S
from tests.pipeline.launched import Launcher
from tests.pipeline.runs import wait_for
from tests.pipeline.test_weight_publisher import assert_serves, change, config
from tests.ports import free_port
from tests.small_disk import fill, make_room
from trainer_adapters.scripted import ScriptedTrainer

QUICK = ("weights.poll_s=0.05", "world.server_grace_s=1")


@pytest.fixture(scope="module")
def common_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreLocation]:
    """Yields the place of a store that several runs use one after the other."""
    with origin_of(tmp_path_factory.mktemp("store")) as place:
        yield place


@pytest.fixture
def place(common_store: StoreLocation, tmp_path: Path) -> StoreLocation:
    """Returns the place of the common store, for a run of its own."""
    return dataclasses.replace(common_store, run_dir=tmp_path)


def relaying(
    worker: ScriptedTrainer, launcher: Launcher, place: StoreLocation, *settings: str
) -> AbstractContextManager[RelayPublisher]:
    return contextlib.closing(made("relay", worker, launcher, place, *QUICK, *settings))


def test_servers_come_to_serve_what_was_published(worker, ranks, urls, place):
    with relaying(worker, Launcher(*urls), place) as sender:
        first = publish(worker, ranks, sender, 0)
        assert (first.version, sorted(first.servers)) == (0, sorted(urls)) and 0 in first.live
        for version in (1, 2):
            change(worker)
            published = publish(worker, ranks, sender, version)
            assert published.version == version and published.run == sender.run
            for url in urls:
                wait_until_served(url, version, sender.run)
                assert_serves(url, worker, version)
        assert sender.figures["pack_failures"] == 0 and sender.figures["pack_s"] > 0


def test_a_version_is_offered_as_what_has_changed(worker, ranks, url, place):
    settings = ["weights.dtype=bfloat16", "weights.deltas=true"]
    with relaying(worker, Launcher(url), place, *settings) as sender:
        publish(worker, ranks, sender, 0)
        worker._weights["model.norm.weight"].data[0] += 1
        publish(worker, ranks, sender, 1)
        wait_until_served(url, 1, sender.run)
        manifest = (place.directory / manifest_path(sender.run, 1)).read_bytes()
        assert json.loads(unverified_payload(manifest))["delta"]["base_version"] == 0
        assert contract(url)["weights"]["digest"] == sender._packer.digests[1]


def test_a_server_that_hangs_delays_neither_the_other_nor_training(worker, ranks, pair, place, monkeypatch):
    monkeypatch.setattr("extensions.stored_weights.trainer.followers.ANSWER_TIMEOUT_S", HANG_S)
    good, hung = pair
    with relaying(worker, Launcher(good.url, hung.url), place) as sender:
        publish(worker, ranks, sender, 0)
        with stopped(hung):
            for version in (1, 2, 3):
                change(worker)
                publish(worker, ranks, sender, version)
            wait_until_served(good.url, 3, sender.run)
        wait_until_served(hung.url, 3, sender.run)


@pytest.mark.engines  # for its time
def test_a_server_that_stays_silent_is_replaced(worker, ranks, pair, place):
    good, hung = pair
    launcher = Launcher(good.url, hung.url)
    with relaying(worker, launcher, place, "world.server_start_timeout_s=2") as sender:
        publish(worker, ranks, sender, 0)
        with stopped(hung):
            wait_for(lambda: sender.is_stranded() or launcher.condemned)
    assert [condemned.url for condemned in launcher.condemned] == [hung.url]


@contextlib.contextmanager
def stopped(server: Server) -> Iterator[None]:
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_a_server_that_is_started_again_joins_and_is_named_by_a_publication(worker, ranks, place):
    port = str(free_port())
    with contextlib.ExitStack() as stack:
        mortal = stack.enter_context(serving("inference_adapters.scripted", *CHANNELS, "--port", port))
        wait_ready(mortal.url)
        launcher = Launcher(mortal.url)
        sender = stack.enter_context(
            relaying(worker, launcher, place, f"world.server_start_timeout_s={HANG_S}")
        )
        publish(worker, ranks, sender, 0)
        assert not sender.is_stranded()
        mortal.process.kill()
        mortal.process.wait()
        launcher.leave(mortal.url)
        change(worker)
        assert publish(worker, ranks, sender, 1).servers == []
        reborn = stack.enter_context(serving("inference_adapters.scripted", *CHANNELS, "--port", port))
        launcher.join(reborn.url, name="server-0")
        wait_for(sender.is_stranded)
        again = publish(worker, ranks, sender, 1)
        assert (again.servers, again.joinings) == ([reborn.url], [2])
        wait_until_served(reborn.url, 1, sender.run)
        assert_serves(reborn.url, worker, 1)
        assert not sender.is_stranded() and launcher.condemned == []


def test_a_resumed_trainer_takes_servers_over_and_back_in_version(worker, ranks, url, tmp_path):
    with origin_of(tmp_path) as place:
        with relaying(worker, Launcher(url), place) as before:
            publish(worker, ranks, before, 9)
        objects = {path.name for path in (place.directory / "objects").iterdir()}
        with relaying(worker, Launcher(url), place) as after:
            assert after.run != before.run
            assert publish(worker, ranks, after, 4).live == [4]
            assert_serves(url, worker, 4)
        # The new life offers the same files, and nothing of the old one is left beside them.
        assert {path.name for path in (place.directory / "objects").iterdir()} == objects
        assert [path.name for path in (place.directory / "runs").iterdir()] == [after.run]


def test_a_version_that_is_published_again_is_not_written_again(worker, ranks, url, place):
    with relaying(worker, Launcher(url), place) as sender:
        first = publish(worker, ranks, sender, 0)
        before = (place.directory / manifest_path(sender.run, 0)).stat()
        again = publish(worker, ranks, sender, 0)
        assert (again.version, again.servers, again.live) == (0, first.servers, [0])
        assert not sender._packer.is_busy
        assert (place.directory / manifest_path(sender.run, 0)).stat() == before


def test_only_the_newest_versions_are_kept(worker, ranks, url, place, monkeypatch):
    monkeypatch.setattr("extensions.stored_weights.trainer.packer.KEEP_S", 0.0)
    with relaying(worker, Launcher(url), place, "weights.keep=2") as sender:
        for version in range(4):
            publish(worker, ranks, sender, version)
            change(worker)
            wait_until_served(url, version, sender.run)
            wait_for(lambda: not sender._followers.targets)  # a version that is pulled is kept
            wait_for(lambda: not sender._packer.is_busy)
        assert stored_versions(place.directory, sender.run) == [2, 3]


# --- what fails -----------------------------------------------------------------------------------


def test_a_broken_path_is_seen_at_the_first_publication(worker, ranks, url, place, tmp_path):
    """The origin serves another directory, so that no server finds the version."""
    other = dataclasses.replace(place, directory=tmp_path)
    with (
        relaying(worker, Launcher(url), other, "weights.live_timeout_s=1") as sender,
        pytest.raises(NoServersError, match="no server has loaded version 0 within weights.live_timeout"),
    ):
        publish(worker, ranks, sender, 0)


def test_without_a_source_no_server_joins_and_the_run_says_so(worker, ranks, url, place):
    nowhere = dataclasses.replace(place, origin=f"http://127.0.0.1:{free_port()}")
    with (
        relaying(worker, Launcher(url), nowhere, "world.server_start_timeout_s=1") as sender,
        pytest.raises(NoServersError, match="no inference server follows the weights; .*no_source"),
    ):
        publish(worker, ranks, sender, 0)


def test_the_death_of_the_origin_stops_no_training(worker, ranks, url, tmp_path):
    store = tmp_path / "weights"
    store.mkdir()
    port = str(free_port())
    with contextlib.ExitStack() as stack:
        origin = stack.enter_context(serving(ORIGIN, str(store), "--port", port))
        place = StoreLocation(tmp_path, store, origin.url)
        sender = stack.enter_context(relaying(worker, Launcher(url), place))
        publish(worker, ranks, sender, 0)
        origin.process.kill()
        origin.process.wait()
        for version in (1, 2):
            change(worker)
            assert publish(worker, ranks, sender, version).servers == [url]
        assert_serves_version(url, 0)
        stack.enter_context(serving(ORIGIN, str(store), "--port", port))
        wait_until_served(url, 2, sender.run)
        assert_serves(url, worker, 2)


def assert_serves_version(url: str, version: int) -> None:
    weights = contract(url)["weights"]
    assert (weights["version"], weights["state"]) == (version, "live")


def test_a_full_disk_costs_versions_and_no_training(worker, ranks, url, small_disk, caplog):
    with origin_of(small_disk) as place, relaying(worker, Launcher(url), place) as sender:
        fill(small_disk)
        sender.open(0)
        sender.send(worker.gather_weights())
        assert sender.confirm(0) is None  # the first version is waited for
        make_room(small_disk)
        assert publish(worker, ranks, sender, 0).live == [0]
        fill(small_disk)
        for version in (1, 2):
            change(worker)
            assert publish(worker, ranks, sender, version).servers == [url]
        wait_for(lambda: sender.figures["pack_failures"] == 3)
        assert sum("cannot be written now" in record.message for record in caplog.records) == 2
        assert_serves_version(url, 0)
        make_room(small_disk)
        wait_for(sender.is_stranded)  # as when no rollout comes, because the server is held
        assert sender.must_repeat()
        publish(worker, ranks, sender, 2)
        assert not sender.must_repeat()
        wait_until_served(url, 2, sender.run)
        assert_serves(url, worker, 2)


def test_a_run_ends_where_no_server_can_load_the_newest_version(worker, ranks, url, place):
    with relaying(worker, Launcher(url), place, "weights.live_timeout_s=5") as sender:
        publish(worker, ranks, sender, 0)
        worker._weights["model.norm.weight"].data[0] = float("nan")
        publish(worker, ranks, sender, 1)
        with pytest.raises(NoServersError, match=f"no server can load version 1: {url}: .*not finite"):
            wait_for(lambda: sender.is_stranded() and None)
        worker._weights["model.norm.weight"].data[0] = 1.0


def test_a_server_with_other_weights_ends_the_run(worker, ranks, url, place):
    sender = made("relay", worker, Launcher(url), place, *QUICK)
    publish(worker, ranks, sender, 0)
    sender._packer.digests[0] = "0" * 64
    with pytest.raises(DigestMismatchError, match=f"digest_mismatch: {url} serves version 0 with the digest"):
        wait_for(sender.is_stranded)
    with pytest.raises(DigestMismatchError):
        sender.close()


def test_a_server_without_the_capability_is_refused_by_name(worker, url, place):
    needs = {"telepathy": "weights.telepathy=true needs minds"}
    launcher = Launcher(url)
    sender = unwaited("relay", worker, launcher, place, *QUICK, needs=needs)
    says = f"weights.telepathy=true needs minds: {url} .* does not declare the capability telepathy"
    with pytest.raises(LacksCapabilityError, match=says):
        sender.wait_for_servers()
    (condemned,) = launcher.condemned
    assert (condemned.url, condemned.replaceable) == (url, False)
    with pytest.raises(LacksCapabilityError):
        sender.close()


@pytest.mark.engines  # for its time
def test_a_server_that_does_not_accept_the_origin_is_replaced(worker, ranks, url, place):
    """As one that was started for an origin that has moved."""
    with ready_servers(1, *CHANNELS, "--weight-sources", "http://127.0.0.1:1/") as (old,):
        launcher = Launcher(old.url, url)
        with relaying(worker, launcher, place) as sender:
            assert publish(worker, ranks, sender, 0).servers == [url]
            wait_for(lambda: sender.is_stranded() or launcher.condemned)
    (condemned,) = launcher.condemned
    assert condemned.url == old.url and condemned.replaceable and "source_refused" in condemned.why


def test_a_pinned_server_keeps_its_weights_until_it_is_released(worker, ranks, urls, place):
    one, other = urls
    with relaying(worker, Launcher(one, other), place) as sender:
        publish(worker, ranks, sender, 0)
        for url in urls:
            wait_until_served(url, 0, sender.run)
        sender.pin(other)
        wait_for(lambda: publish(worker, ranks, sender, 0).servers == [one])
        change(worker)
        assert publish(worker, ranks, sender, 1).servers == [one]
        wait_until_served(one, 1, sender.run)
        assert_serves_version(other, 0)
        sender.release(other)
        wait_until_served(other, 1, sender.run)
        wait_for(lambda: len(publish(worker, ranks, sender, 1).servers) == 2)


# --- the packer -----------------------------------------------------------------------------------


def packer_of(directory: Path, worker: ScriptedTrainer, own_config: RunConfig) -> tuple[VersionStore, Packer]:
    (directory / "weights").mkdir()
    place = StoreLocation(directory, directory / "weights")
    store = VersionStore(place, own_config.model.path, worker.weight_manifest("float32"))
    return store, Packer(store, Relay(own_config).options.keep)


def test_a_newer_version_takes_the_place_of_one_that_waits(worker, tmp_path):
    store, packer = packer_of(tmp_path, worker, config("weights=relay"))
    packer.put(store.write(0, worker.gather_weights()))
    wait_for(lambda: not packer.is_busy)
    with locked(store.directory):  # the packer waits for it
        packer.put(store.write(1, worker.gather_weights()))
        wait_for(lambda: packer._waiting is None)
        for version in (2, 3):
            packer.put(store.write(version, worker.gather_weights()))
        assert packer.has(1) and not packer.has(2) and packer.has(3)
    packer.close()
    assert list(packer.digests) == [0, 1, 3]
    assert not [path for path in (store.directory / "writing").rglob("*.safetensors")]
    store.close()


def test_a_full_disk_costs_older_versions_first_those_that_are_kept_for_their_age(worker, tmp_path):
    store, packer = packer_of(tmp_path, worker, config("weights=relay", "weights.keep=2"))
    for version in range(4):
        packer.put(store.write(version, worker.gather_weights()), {0})
        wait_for(lambda: not packer.is_busy)
        change(worker)
    assert stored_versions(store.directory, store.run) == [0, 1, 2, 3]
    for left in ([2, 3], [3]):
        packer.note_full(4, OSError(errno.ENOSPC, "full"))
        assert stored_versions(store.directory, store.run) == left
    packer.close()
    store.close()


def test_what_does_not_pass_ends_the_run_with_its_reason(worker, tmp_path):
    store, packer = packer_of(tmp_path, worker, config("weights=relay"))
    broken = tmp_path / "broken"
    broken.mkdir()
    write_tensor_file(broken / "0.safetensors", [("a", "float32", (2,), bytes(8))])
    os.truncate(broken / "0.safetensors", 20)
    packer.put(Written(0, broken, (broken / "0.safetensors",)))
    with pytest.raises(GaveUpError, match="the weights could not be packed into .*weights: "):
        wait_for(packer.check)
    packer.close()
    store.close()


def test_the_key_is_of_the_run_and_only_its_owner_reads_it(worker, tmp_path):
    store, packer = packer_of(tmp_path, worker, config("weights=relay"))
    packer.close()
    store.close()
    place = StoreLocation(tmp_path, store.directory)
    again = VersionStore(place, None, worker.weight_manifest("float32"))
    assert again.public_key == store.public_key
    assert again.run != store.run and again.run[:8] == store.run[:8]
    assert (tmp_path / "weights.key").stat().st_mode & 0o777 == 0o600
    again.close()


def test_the_store_of_a_life_before_is_removed_with_what_a_server_left_there(worker, tmp_path):
    store, packer = packer_of(tmp_path, worker, config("weights=relay"))
    before = store.directory / "runs" / f"{store.run[:8]}-before"
    before.mkdir(parents=True)
    (before / ".latest.json.part").touch()
    packer.put(store.write(0, worker.gather_weights()))
    packer.close()
    packer.check()
    assert not before.exists()
    store.close()


def test_the_end_of_a_reader_is_no_error_of_the_weights():
    errors: list[Exception] = []
    weights = errors_of(iter([("a", None), ("b", None)]), errors)
    next(weights)
    weights.close()
    assert errors == []
