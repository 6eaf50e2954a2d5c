"""Weights that servers pull by themselves: content, deaths, full disks, and training that never waits."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.store.layout import stored_versions
from contracts.store.store_lock import locked
from contracts.store.tensor_file import write_tensor_file
from contracts.store.written import Written
from pipelinerl.config import RunConfig
from pipelinerl.errors import GaveUpError
from pipelinerl.training.candidates import LacksCapabilityError, NoServersError
from pipelinerl.training.publishing.base import publish
from pipelinerl.training.publishing.digests import DigestMismatchError
from pipelinerl.training.publishing.packer import Packer
from pipelinerl.training.publishing.relay import RelayPublisher
from pipelinerl.training.publishing.stored import StorePlace, VersionStore
from pipelinerl.training.ranks import Ranks
from tests.inference_adapters.servers import contract, serving, wait_ready
from tests.pipeline.launched import Launcher
from tests.pipeline.runs import wait_for
from tests.pipeline.stored_weights import (
    ORIGIN,
    SCRIPTED,
    WITHIN_S,
    made,
    origin_of,
    servers,
    wait_until_served,
)
from tests.pipeline.test_weight_publisher import assert_serves, change, config
from tests.ports import free_port
from tests.small_disk import fill, make_room
from trainer_adapters.scripted import ScriptedTrainer

QUICK = ("weights.poll_s=0.05", "world.server_grace_s=1")
AT_ONCE_S = 2.0  # far below every timeout


@pytest.fixture
def ranks() -> Ranks:
    return Ranks(0, 1, 5)


@contextlib.contextmanager
def relaying(
    worker: ScriptedTrainer, launcher: Launcher, directory: Path, *settings: str
) -> Iterator[RelayPublisher]:
    with origin_of(directory) as place:
        sender = made("relay", worker, launcher, place, *QUICK, *settings)
        yield sender
        sender.close()


def test_servers_come_to_serve_what_was_published(worker, ranks, tmp_path):
    with servers(2) as urls, relaying(worker, Launcher(*urls), tmp_path) as sender:
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


def test_a_version_is_offered_as_what_has_changed(worker, ranks, tmp_path):
    settings = ["weights.dtype=bfloat16", "weights.deltas=true"]
    with servers(1) as (url,), relaying(worker, Launcher(url), tmp_path, *settings) as sender:
        publish(worker, ranks, sender, 0)
        worker._weights["model.norm.weight"].data[0] += 1
        publish(worker, ranks, sender, 1)
        wait_until_served(url, 1, sender.run)
        objects = [path.stat().st_size for path in (tmp_path / "weights" / "objects").iterdir()]
        assert min(objects) < max(objects) / 2
        assert contract(url)["weights"]["digest"] == sender._packer.digests[1]


def test_a_server_that_hangs_delays_neither_the_others_nor_training(worker, ranks, tmp_path):
    with servers(2) as (one, other), serving(SCRIPTED) as hung:
        wait_ready(hung.url)
        with relaying(worker, Launcher(one, hung.url, other), tmp_path) as sender:
            publish(worker, ranks, sender, 0)
            hung.process.send_signal(signal.SIGSTOP)
            for version in (1, 2, 3):
                change(worker)
                began = time.monotonic()
                publish(worker, ranks, sender, version)
                assert time.monotonic() - began < AT_ONCE_S
            for url in (one, other):
                wait_until_served(url, 3, sender.run)
            hung.process.send_signal(signal.SIGCONT)
            wait_until_served(hung.url, 3, sender.run)


def test_a_server_that_is_started_again_joins_and_is_named_by_a_publication(worker, ranks, tmp_path):
    port = str(free_port())
    with contextlib.ExitStack() as stack:
        mortal = stack.enter_context(serving(SCRIPTED, "--port", port))
        wait_ready(mortal.url)
        launcher = Launcher(mortal.url)
        sender = stack.enter_context(relaying(worker, launcher, tmp_path))
        publish(worker, ranks, sender, 0)
        assert not sender.is_stranded()
        mortal.process.kill()
        mortal.process.wait()
        launcher.leave(mortal.url)
        change(worker)
        assert publish(worker, ranks, sender, 1).servers == []
        reborn = stack.enter_context(serving(SCRIPTED, "--port", port))
        launcher.join(reborn.url, name="server-0")
        wait_for(sender.is_stranded, WITHIN_S)
        again = publish(worker, ranks, sender, 1)
        assert (again.servers, again.joinings) == ([reborn.url], [2])
        wait_until_served(reborn.url, 1, sender.run)
        assert_serves(reborn.url, worker, 1)
        assert not sender.is_stranded() and launcher.condemned == []


def test_a_resumed_trainer_takes_servers_over_and_back_in_version(worker, ranks, tmp_path):
    with servers(1) as (url,), origin_of(tmp_path) as place:
        before = made("relay", worker, Launcher(url), place, *QUICK)
        publish(worker, ranks, before, 9)
        before.close()
        objects = {path.name for path in (place.directory / "objects").iterdir()}
        after = made("relay", worker, Launcher(url), place, *QUICK)
        assert after.run != before.run
        assert publish(worker, ranks, after, 4).live == [4]
        assert_serves(url, worker, 4)
        # The new life offers the same files, and nothing of the old one is left beside them.
        wait_for(lambda: not after._packer.is_busy)
        assert {path.name for path in (place.directory / "objects").iterdir()} == objects
        assert [path.name for path in (place.directory / "runs").iterdir()] == [after.run]
        after.close()


def test_a_version_that_is_published_again_is_not_written_again(worker, ranks, tmp_path):
    with servers(1) as (url,), relaying(worker, Launcher(url), tmp_path) as sender:
        first = publish(worker, ranks, sender, 0)
        before = list((tmp_path / "weights" / "objects").iterdir())
        again = publish(worker, ranks, sender, 0)
        assert (again.version, again.servers, again.live) == (0, first.servers, [0])
        assert list((tmp_path / "weights" / "objects").iterdir()) == before


def test_only_the_newest_versions_are_kept(worker, ranks, tmp_path, monkeypatch):
    monkeypatch.setattr("pipelinerl.training.publishing.packer.KEEP_S", 0.0)
    with servers(1) as (url,), relaying(worker, Launcher(url), tmp_path, "weights.keep=2") as sender:
        for version in range(5):
            publish(worker, ranks, sender, version)
            change(worker)
            wait_until_served(url, version, sender.run)
        wait_for(lambda: stored_versions(tmp_path / "weights", sender.run) == [3, 4], WITHIN_S)


# --- what fails -----------------------------------------------------------------------------------


def test_a_broken_path_is_seen_at_the_first_publication(worker, ranks, tmp_path):
    """The origin serves another directory, so that no server finds the version."""
    (tmp_path / "empty").mkdir()
    with servers(1) as (url,), serving(ORIGIN, str(tmp_path / "empty")) as other:
        (tmp_path / "weights").mkdir()
        place = StorePlace(tmp_path, tmp_path / "weights", other.url)
        sender = made("relay", worker, Launcher(url), place, *QUICK, "weights.live_timeout_s=1")
        with pytest.raises(NoServersError, match="no server has loaded version 0 within weights.live"):
            publish(worker, ranks, sender, 0)
        sender.close()


def test_without_a_source_no_server_joins_and_the_run_says_so(worker, ranks, tmp_path):
    (tmp_path / "weights").mkdir()
    nowhere = f"http://127.0.0.1:{free_port()}"
    with servers(1) as (url,):
        place = StorePlace(tmp_path, tmp_path / "weights", nowhere)
        sender = made("relay", worker, Launcher(url), place, *QUICK, "world.server_start_timeout_s=1")
        with pytest.raises(NoServersError, match="no inference server follows the weights; .*no_source"):
            publish(worker, ranks, sender, 0)
        sender.close()


def test_the_death_of_the_origin_stops_no_training(worker, ranks, tmp_path):
    store = tmp_path / "weights"
    store.mkdir()
    port = str(free_port())
    with servers(1) as (url,), contextlib.ExitStack() as stack:
        origin = stack.enter_context(serving(ORIGIN, str(store), "--port", port))
        place = StorePlace(tmp_path, store, origin.url)
        sender = made("relay", worker, Launcher(url), place, *QUICK)
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
        sender.close()


def assert_serves_version(url: str, version: int) -> None:
    weights = contract(url)["weights"]
    assert (weights["version"], weights["state"]) == (version, "live")


def test_a_full_disk_costs_versions_and_no_training(worker, ranks, small_disk, caplog):
    with servers(1) as (url,), relaying(worker, Launcher(url), small_disk) as sender:
        publish(worker, ranks, sender, 0)
        fill(small_disk)
        for version in (1, 2):
            change(worker)
            assert publish(worker, ranks, sender, version).servers == [url]
        wait_for(lambda: sender.figures["pack_failures"] >= 2)
        assert sum("cannot be written now" in record.message for record in caplog.records) == 1
        assert_serves_version(url, 0)
        make_room(small_disk)
        wait_for(sender.is_stranded, WITHIN_S)  # as when no rollout comes, because the server is held
        assert sender.must_repeat()
        publish(worker, ranks, sender, 2)
        assert not sender.must_repeat()
        wait_until_served(url, 2, sender.run)
        assert_serves(url, worker, 2)


def test_a_disk_that_is_full_at_the_start_is_waited_for(worker, ranks, small_disk):
    with servers(1) as (url,), relaying(worker, Launcher(url), small_disk) as sender:
        fill(small_disk)
        sender.open(0)
        sender.send(worker.gather_weights())
        assert sender.confirm(0) is None
        make_room(small_disk)
        assert publish(worker, ranks, sender, 0).live == [0]


def test_a_server_with_other_weights_ends_the_run(worker, ranks, tmp_path):
    with servers(1) as (url,), origin_of(tmp_path) as place:
        sender = made("relay", worker, Launcher(url), place, *QUICK)
        publish(worker, ranks, sender, 0)
        sender._packer.digests[0] = "0" * 64
        with pytest.raises(DigestMismatchError, match=f"digest_mismatch: {url} serves version 0 with"):
            wait_for(sender.is_stranded, WITHIN_S)
        with pytest.raises(DigestMismatchError):
            sender.close()


def test_a_server_without_the_capability_is_refused_by_name(worker, ranks, tmp_path):
    needs = {"telepathy": "weights.telepathy=true needs minds"}
    with servers(1) as (url,), origin_of(tmp_path) as place:
        launcher = Launcher(url)
        says = f"weights.telepathy=true needs minds: {url} .* does not declare the capability telepathy"
        with pytest.raises(LacksCapabilityError, match=says):
            made("relay", worker, launcher, place, *QUICK, needs=needs)
        (condemned,) = launcher.condemned
        assert (condemned.url, condemned.replaceable) == (url, False)


def test_a_server_that_does_not_accept_the_origin_is_replaced(worker, ranks, tmp_path):
    """As one that was started for an origin that has moved."""
    with servers(1, "--weight-sources", "http://127.0.0.1:1/") as (old,), servers(1) as (good,):
        launcher = Launcher(old, good)
        with relaying(worker, launcher, tmp_path) as sender:
            assert publish(worker, ranks, sender, 0).servers == [good]
            wait_for(lambda: sender.is_stranded() or launcher.condemned, WITHIN_S)
        (condemned,) = launcher.condemned
        assert condemned.url == old and condemned.replaceable and "source_refused" in condemned.why


def test_a_silent_server_is_replaced(worker, ranks, tmp_path):
    settings = ["world.server_start_timeout_s=2"]
    with servers(1) as (good,), serving(SCRIPTED) as hung:
        wait_ready(hung.url)
        launcher = Launcher(good, hung.url)
        with relaying(worker, launcher, tmp_path, *settings) as sender:
            publish(worker, ranks, sender, 0)
            hung.process.send_signal(signal.SIGSTOP)
            wait_for(lambda: sender.is_stranded() or launcher.condemned, WITHIN_S)
            hung.process.send_signal(signal.SIGCONT)
        assert [condemned.url for condemned in launcher.condemned] == [hung.url]


def test_a_pinned_server_keeps_its_weights_until_it_is_released(worker, ranks, tmp_path):
    with servers(2) as (one, other), relaying(worker, Launcher(one, other), tmp_path) as sender:
        publish(worker, ranks, sender, 0)
        for url in (one, other):
            wait_until_served(url, 0, sender.run)
        sender.pin(other)
        wait_for(lambda: publish(worker, ranks, sender, 0).servers == [one], WITHIN_S)
        change(worker)
        assert publish(worker, ranks, sender, 1).servers == [one]
        wait_until_served(one, 1, sender.run)
        assert_serves_version(other, 0)
        sender.release(other)
        wait_until_served(other, 1, sender.run)
        wait_for(lambda: len(publish(worker, ranks, sender, 1).servers) == 2, WITHIN_S)


# --- the packer -----------------------------------------------------------------------------------


def packer_of(directory: Path, worker: ScriptedTrainer, own_config: RunConfig) -> tuple[VersionStore, Packer]:
    (directory / "weights").mkdir()
    place = StorePlace(directory, directory / "weights")
    store = VersionStore(place, own_config, worker.weight_manifest("float32"))
    return store, Packer(store, own_config.weights.keep)


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
    again = VersionStore(
        StorePlace(tmp_path, store.directory), config("weights=relay"), worker.weight_manifest("float32")
    )
    assert again.public_key == store.public_key and again.run != store.run
    assert (tmp_path / "weights.key").stat().st_mode & 0o777 == 0o600
    again.close()
