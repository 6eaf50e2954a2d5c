"""Weight channels of a server without HTTP: moments that the kit's G12 to G16 cannot bring about."""

import asyncio
import json
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch

from contracts.errors import ContractError, ErrorCode
from contracts.inference import AbortWeightUpdateRequest, WeightUpdateStatus
from contracts.weights import RendezvousStore
from extensions.stored_weights.channels import StoredChannels
from extensions.stored_weights.conformance.faults import MISSING
from extensions.stored_weights.server.base import LONGEST_PAUSE_S
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.weight_updates import WeightUpdates
from tests.extensions.stored_weights.channel_peer import ChannelPeer, channel_peer, until
from tests.forked import Forked
from tests.inference_adapters.servers import CHANNELS, contract, serving, wait_ready
from tests.inference_adapters.test_rules import join_request, joined, update
from tests.limits import HANG_S
from tests.moved_loop import let_pass, on_moved_loop

BOTH_WAYS = pytest.mark.parametrize("follow", [True, False])


class CountsLoads(ScriptedEngine):
    """Counts the versions that it was told to load, and loses its weights at the first if it is told to."""

    loads = 0
    loses = False

    def apply_weights(self, tensors, tied, version, kv_cache):
        self.loads += 1
        if self.loses and self.loads == 1:
            next(iter(self._weights.values())).zero_()
            raise torch.OutOfMemoryError("lost half-way")
        super().apply_weights(tensors, tied, version, kv_cache)


class Member:
    """A server of its own in the run's channel."""

    def __init__(self, peer: ChannelPeer, engine: ScriptedEngine):
        self.peer = peer
        self.source = peer.source
        self.engine = engine
        self.updates = WeightUpdates(engine, hold_timeout_s=HANG_S, channels=StoredChannels())

    def store(self, version: int, follow: bool, weights=None) -> None:
        """Publishes a version, and requests it unless it is followed."""
        published = self.peer.store_version(version, weights)
        if not follow:
            self.updates.request(self.peer.update(published))

    async def ended(self, version: int) -> WeightUpdateStatus:
        """Returns the state of a version once it has ended."""
        await until(lambda: self.updates.ledger.get(version))
        await self.updates.ledger.get(version).ended.wait()
        return await self.updates.status(version, 0)

    async def is_asked_again(self) -> None:
        """Lets a pause pass, and waits until a file is asked for."""
        asked = self.peer.objects_asked
        let_pass(LONGEST_PAUSE_S)
        await until(lambda: self.peer.objects_asked > asked)

    @property
    def target(self) -> int | None:
        return self.updates.contract().channel.target


@asynccontextmanager
async def member(directory: Path, engine: ScriptedEngine | None = None, **join) -> AsyncIterator[Member]:
    async with channel_peer(directory) as peer:
        found = Member(peer, engine or CountsLoads())
        await found.updates.start(0)
        await found.updates.membership.join_channel(peer.join(**join))
        try:
            yield found
        finally:
            peer.source.open.set()
            await found.updates.membership.close()


@on_moved_loop
async def test_of_versions_that_come_faster_than_they_are_fetched_every_second_is_completed(tmp_path):
    async with member(tmp_path, follow=True) as at:
        at.source.open.clear()
        at.store(1, follow=True)
        await until(lambda: at.target == 1)
        at.store(2, follow=True)
        skipped = await at.updates.status(1, HANG_S)
        assert skipped.state == "skipped" and skipped.error.startswith("superseded")
        at.store(3, follow=True)  # of two in a row, the second one is completed
        await until(lambda: at.updates.contract().channel.newest_seen == 3)
        at.store(4, follow=True)
        assert (await at.updates.status(3, HANG_S)).state == "skipped"  # it was not begun
        at.source.open.set()
        assert (await at.updates.status(2, HANG_S)).state == "live"
        await until(lambda: at.updates.ledger.version == 4)


@BOTH_WAYS
@on_moved_loop
async def test_what_passes_is_tried_again(tmp_path, follow):
    async with member(tmp_path, follow=follow) as at:
        at.source.fault = MISSING
        at.store(1, follow)
        await until(lambda: (record := at.updates.ledger.get(1)) and record.outcome.error)
        status = await at.updates.status(1, 0)
        assert status.state == "receiving" and status.error.startswith("gone: ")
        at.source.fault = None
        await at.is_asked_again()
        ended = await at.ended(1)
        assert (ended.state, ended.error) == ("live", None)


@on_moved_loop
async def test_a_followed_version_that_is_not_finite_is_not_tried_again(tmp_path):
    async with member(tmp_path, follow=True) as at:
        spoilt = at.peer.weights(1)
        next(iter(spoilt.values())).view(-1)[3] = torch.inf
        at.store(1, True, spoilt)
        ended = await at.ended(1)
        assert (ended.state, ended.touched) == ("failed", False) and "not finite" in ended.error
        let_pass(HANG_S)  # longer than any pause
        await at.peer.is_looked_for()
        assert at.updates.ledger.get(1).task is None and at.target is None and at.engine.loads == 0
        at.store(2, follow=True)
        await until(lambda: at.updates.ledger.version == 2)


@on_moved_loop
async def test_weights_that_were_lost_are_pulled_again(tmp_path):
    engine = CountsLoads()
    engine.loses = True
    async with member(tmp_path, engine, follow=True) as at:
        at.store(1, follow=True)
        await until(lambda: engine.loads == 1)
        await until(lambda: at.updates.health().status == "unhealthy")
        while at.updates.ledger.version != 1:
            let_pass(1.0)
            await asyncio.sleep(0.005)
        assert at.updates.health().status == "ready" and engine.loads == 2


@BOTH_WAYS
@on_moved_loop
async def test_a_version_that_is_fetched_may_be_aborted(tmp_path, follow):
    async with member(tmp_path, follow=follow) as at:
        at.source.open.clear()
        at.store(1, follow)
        await until(lambda: at.target == 1)
        request = AbortWeightUpdateRequest(run=at.peer.run, epoch=1, version=1)
        ended = await at.updates.abort(request)
        assert (ended.state, ended.touched) == ("failed", False)
        assert await at.updates.abort(request) == ended
        let_pass(HANG_S)  # longer than any pause
        if follow:
            await at.peer.is_looked_for()
        assert at.target is None
        at.source.open.set()
        at.store(2, follow)
        await until(lambda: at.updates.ledger.version == 2)
        assert (await at.updates.status(1, 0)).state == "failed"


@pytest.mark.asyncio
async def test_a_failed_join_keeps_the_group(tmp_path):
    updates, group = await joined(0, takeover=False, channels=StoredChannels())
    async with channel_peer(tmp_path) as peer:
        peer.epoch = 1
        request = peer.join(run="r", sources=["http://127.0.0.1:9/"])  # where no server listens
        with pytest.raises(ContractError) as refused:
            await updates.membership.join_channel(request)
        assert refused.value.code is ErrorCode.NO_SOURCE
        assert updates.contract().group.epoch == 1 and updates.contract().channel is None
        updates.request(update(1))
    group.close()
    assert (await updates.status(1, HANG_S)).state == "failed"


@pytest.mark.asyncio
async def test_a_newer_channel_replaces_a_group_that_is_forming(tmp_path):
    updates = WeightUpdates(ScriptedEngine(), hold_timeout_s=HANG_S, channels=StoredChannels())
    await updates.start(0)
    async with channel_peer(tmp_path) as peer:
        store = RendezvousStore("127.0.0.1", 0, HANG_S)  # rank 0 never comes
        forming = asyncio.create_task(
            updates.membership.join(join_request(store.port, run=peer.run, takeover=True))
        )
        await asyncio.sleep(0)
        peer.epoch = 1
        stored = peer.update(peer.store_version(1))
        with pytest.raises(ContractError) as refused:
            updates.request(stored)
        assert refused.value.code is ErrorCode.JOINING
        await updates.membership.join_channel(peer.join())
        with pytest.raises(ContractError) as given_up:
            await forming
        assert given_up.value.code is ErrorCode.STALE_EPOCH
        updates.request(stored.model_copy(update={"epoch": 2}))
        assert (await updates.status(1, HANG_S)).state == "live"
        store.abort()
        await updates.membership.close()


def puller_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "weight puller"]


@pytest.mark.asyncio
async def test_of_racing_joins_the_newest_stays_and_no_thread_is_left(tmp_path):
    updates = WeightUpdates(ScriptedEngine(), hold_timeout_s=HANG_S, channels=StoredChannels())
    await updates.start(0)
    async with channel_peer(tmp_path) as peer:
        published = peer.store_version(1)
        joins = []
        for epoch in range(1, 9):
            joins.append(
                asyncio.create_task(updates.membership.join_channel(peer.join(follow=epoch % 2 == 0)))
            )
            for _ in range(epoch**2):  # each join is at another point when the next one comes
                await asyncio.sleep(0)
        answers = await asyncio.gather(*joins, return_exceptions=True)
        assert answers[-1].version in (0, 1)
        for answer in answers[:-1]:
            stale = isinstance(answer, ContractError) and answer.code is ErrorCode.STALE_EPOCH
            assert stale or answer.version in (0, 1)
        assert updates.contract().channel.epoch == 8 and len(puller_threads()) == 1
        await until(lambda: updates.contract().weights.digest == published.digest)
        await updates.membership.close()
        assert puller_threads() == [] and updates.contract().channel is None
        assert not [task for task in asyncio.all_tasks() if "Follower" in repr(task)]


# --- the server's directory


async def pull(url: str, directory: Path, version: int) -> int:
    """Has a server follow a run, whose weights depend on nothing; returns the files that it asked for."""
    async with channel_peer(directory) as peer:
        peer.seed = 0
        peer.store_version(version, peer.weights(1))
        body = peer.join(follow=True).model_dump_json().encode()
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{url}/init_weight_channel", body, headers)
        with await asyncio.to_thread(urllib.request.urlopen, asked) as answer:
            assert json.load(answer)["proof"] is None
        while (await asyncio.to_thread(contract, url))["weights"]["version"] != version:
            await asyncio.sleep(0.01)
        return peer.objects_asked


def test_the_temporary_directory_is_removed_at_the_end(tmp_path):
    environment = {"TMPDIR": str(tmp_path)}
    with serving(
        "inference_adapters.scripted", *CHANNELS, python=sys.executable, environment=environment
    ) as server:
        wait_ready(server.url)
        assert asyncio.run(pull(server.url, tmp_path / "run", 1))
        assert list(tmp_path.glob("weights-*"))
        server.process.terminate()
        server.process.wait()
        assert not list(tmp_path.glob("weights-*"))


def test_fetched_files_are_used_again_after_a_restart(tmp_path):
    options = (*CHANNELS, "--weight-directory", str(tmp_path / "weights"))
    with serving("inference_adapters.scripted", *options) as server:
        wait_ready(server.url)
        assert asyncio.run(pull(server.url, tmp_path / "first", 1)) > 1
        second = Forked("-m", "inference_adapters.scripted", "--port", "0", *options)
        _, told = second.communicate()
        assert second.returncode == 1
        said = [line for line in told.splitlines() if "RuntimeWarning" not in line]  # of a forked process
        assert len(said) == 1 and said[0].startswith("cannot serve: ")
    with serving("inference_adapters.scripted", *options) as server:
        wait_ready(server.url)
        assert asyncio.run(pull(server.url, tmp_path / "second", 2)) == 0
