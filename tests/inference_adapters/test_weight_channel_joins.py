"""Joining weight channels: refusals, replaced joins, runs, and the way from and to a weight group."""

import asyncio
import sys
import threading

import pytest

from contracts.channel import InitWeightChannelRequest
from contracts.errors import ContractError, ErrorCode
from contracts.weights import WeightStore
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.weight_updates import WeightUpdates
from tests.forked import Forked
from tests.inference_adapters.channel_peer import channel_peer
from tests.inference_adapters.servers import Server, contract, serving, wait_ready
from tests.inference_adapters.trainer_peer import TIMEOUT_S, expect, weights

NOBODY = "http://127.0.0.1:9/"  # where no server listens


@pytest.mark.asyncio
async def test_the_same_join_is_answered_alike(server: Server, tmp_path):
    async with channel_peer(server.url, tmp_path) as (peer, source):
        published = peer.store_version(1)
        answer = await peer.join_channel()
        assert answer[0] == 200 and answer[1]["proof"] is None
        assert (await peer.pulled(1, published))["state"] == "live"
        assert await peer.post("/init_weight_channel", peer.channel_request()) == answer
        again = await peer.join_channel()
        assert again == (200, {"version": 1, "digest": published.manifest.digest, "proof": None})


@pytest.mark.asyncio
async def test_epochs_and_runs_are_those_of_groups(server: Server, tmp_path):
    async with channel_peer(server.url, tmp_path) as (peer, source):
        peer.epoch = 5
        assert (await peer.join_channel())[0] == 200
        for stale in (4, 6):
            changed = peer.channel_request(epoch=stale, poll_s=2.0)
            expect(await peer.post("/init_weight_channel", changed), 409, "stale_epoch")
        other = peer.channel_request(epoch=1, run="other", takeover=False)
        expect(await peer.post("/init_weight_channel", other), 409, "other_run")
        assert (await peer.pulled(8, peer.store_version(8)))["state"] == "live"
    async with channel_peer(server.url, tmp_path) as (peer, source):  # takes over
        assert (await peer.join_channel(follow=True))[0] == 200
        _, told = await peer.get("/contract")
        assert told["run"] == peer.run and told["weights"]["version"] == 8
        assert told["weights"]["run"] is None
        expect(await peer.get("/weight_update/8"), 404, "not_found")
        peer.store_version(3)  # a new run may begin at any version
        told = await peer.until_live(3)
        assert told["weights"]["run"] == peer.run


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"kind": "shared", "follow": True, "sources": ["file:///tmp/x"]}, "invalid_request", "follow"),
        ({"kind": "shared", "sources": ["file:///tmp/x", "file:///tmp/y"]}, "invalid_request", "sources"),
        ({"proof": "abc"}, "invalid_request", "proof"),
        ({"kind": "swarm"}, "unsupported_channel", "kind"),
        ({"kv_cache": "burn"}, "unsupported_kv_cache", "kv_cache"),
        ({"public_keys": [{"id": "zeros", "ed25519": "00" * 32}]}, "bad_key", "public_keys"),
        ({"public_keys": [{"id": "off", "ed25519": "02" + "00" * 31}]}, "bad_key", "public_keys"),
        ({"public_keys": [{"id": "short", "ed25519": "00"}]}, "invalid_request", "public_keys"),
        ({"public_keys": []}, "invalid_request", "public_keys"),
        ({"sources": []}, "invalid_request", "sources"),
        ({"sources": ["ftp://127.0.0.1/"]}, "invalid_request", "sources"),
        ({"sources": ["http://192.0.2.1/"]}, "source_refused", "sources"),
        ({"sources": ["http://127.0.0.1@192.0.2.1/"]}, "source_refused", "sources"),
        ({"sources": ["file:///etc/"]}, "source_refused", "sources"),
        ({"kind": "shared"}, "source_refused", "sources"),
        ({"kind": "shared", "sources": ["file:///nowhere/at/all"]}, "not_shared", "sources"),
        ({"run": "../run"}, "invalid_request", "run"),
        ({"more": 1}, "invalid_request", "more"),
        ({"poll_s": 0}, "invalid_request", "poll_s"),
    ],
)
async def test_a_refusal_changes_nothing(server: Server, tmp_path, changes, code, param):
    async with channel_peer(server.url, tmp_path) as (peer, source):
        await peer.join_channel()
        _, before = await peer.get("/contract")
        body = peer.channel_request(epoch=2) | changes
        answer = await peer.post("/init_weight_channel", body)
        expect(answer, 422, code)
        assert answer[1]["error"]["param"] == param
        _, after = await peer.get("/contract")
        assert [after[key] for key in ("run", "group", "weights")] == [
            before[key] for key in ("run", "group", "weights")
        ]
        assert after["channel"]["epoch"] == 1
        assert (await peer.pulled(1, peer.store_version(1)))["state"] == "live"


@pytest.mark.asyncio
async def test_a_proof_shows_that_the_directory_is_the_same(server: Server, tmp_path):
    async with channel_peer(server.url, tmp_path) as (peer, _):
        name = peer.put_proof()
        status, body = await peer.post("/init_weight_channel", peer.shared_request(epoch=1, proof=name))
        assert status == 200 and len(body["proof"]) == 64
        missing = peer.shared_request(epoch=2, proof="other")
        expect(await peer.post("/init_weight_channel", missing), 422, "not_shared")
        (peer.store / "proofs" / "link").symlink_to("/etc/passwd")
        linked = peer.shared_request(epoch=2, proof="link")
        expect(await peer.post("/init_weight_channel", linked), 422, "not_shared")


@pytest.mark.asyncio
async def test_a_failed_join_keeps_the_group(server: Server, tmp_path):
    async with channel_peer(server.url, tmp_path) as (peer, _):
        await peer.join()
        assert (await peer.publish(1, weights(1)))["state"] == "live"
        body = peer.channel_request(epoch=2, sources=[NOBODY])
        expect(await peer.post("/init_weight_channel", body), 502, "no_source")
        _, told = await peer.get("/contract")
        assert told["group"]["epoch"] == 1 and told["channel"] is None
        expect(await peer.request_stored(2, peer.store_version(2)), 409, "no_channel")
        assert (await peer.publish(2, weights(2)))["state"] == "live"


@pytest.mark.asyncio
async def test_a_server_goes_from_a_group_to_a_channel_and_back(server: Server, tmp_path):
    async with channel_peer(server.url, tmp_path) as (peer, source):
        await peer.join()
        assert (await peer.publish(1, weights(1)))["state"] == "live"
        assert (await peer.join_channel(follow=True))[0] == 200
        peer.store_version(2)
        told = await peer.until_live(2)
        assert told["group"] is None and told["channel"]["epoch"] == 2
        assert (await peer.join())[0] == 200
        _, told = await peer.get("/contract")
        assert told["group"]["epoch"] == 3 and told["channel"] is None
        asked = len(source.paths)
        assert (await peer.publish(3, weights(3)))["state"] == "live"
        assert len(source.paths) == asked  # nothing of the channel is left
        told = (await peer.get("/contract"))[1]["weights"]
        assert told == {"version": 3, "state": "live", "run": peer.run, "digest": None}


@pytest.mark.asyncio
async def test_a_newer_channel_replaces_a_group_that_is_forming(server: Server, tmp_path):
    async with channel_peer(server.url, tmp_path) as (peer, _):
        store = WeightStore("127.0.0.1", 0, TIMEOUT_S)
        peer.epoch = 1
        forming = asyncio.create_task(peer.post("/init_process_group", peer.join_request(store.port)))
        await asyncio.sleep(0.1)
        expect(await peer.request_stored(1, peer.store_version(1)), 409, "joining")
        assert (await peer.join_channel())[0] == 200
        expect(await forming, 409, "stale_epoch")
        assert (await peer.get("/contract"))[1]["channel"]["epoch"] == 2
        assert (await peer.pulled(1, peer.store_version(1)))["state"] == "live"


@pytest.mark.asyncio
async def test_a_new_epoch_does_not_wait_for_a_version_that_is_being_fetched(server: Server, tmp_path):
    async with channel_peer(server.url, tmp_path) as (peer, source):
        await peer.join_channel(follow=True)
        source.open.clear()
        peer.store_version(1)
        await peer.until(lambda told: told["channel"]["target"] == 1)
        assert (await asyncio.wait_for(peer.join_channel(follow=True, poll_s=0.1), 5))[0] == 200
        source.open.set()
        await peer.until_live(1)
        assert (await peer.get("/weight_update/1"))[1]["epoch"] == 2


def puller_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "weight puller"]


@pytest.mark.asyncio
async def test_of_racing_joins_the_newest_stays_and_no_thread_is_left(tmp_path):
    updates = WeightUpdates(ScriptedEngine(), hold_timeout_s=1)
    await updates.start(0)
    async with channel_peer("", tmp_path) as (peer, source):
        published = peer.store_version(1)
        requests = [
            InitWeightChannelRequest(**peer.channel_request(epoch=epoch, follow=epoch % 2 == 0))
            for epoch in range(1, 9)
        ]
        joins = []
        for request in requests:
            joins.append(asyncio.create_task(updates.join_channel(request)))
            await asyncio.sleep(0.003 * request.epoch)
        answers = await asyncio.gather(*joins, return_exceptions=True)
        assert answers[-1].version in (0, 1)
        for answer in answers[:-1]:
            stale = isinstance(answer, ContractError) and answer.code is ErrorCode.STALE_EPOCH
            assert stale or answer.version in (0, 1)
        assert updates.contract().channel.epoch == 8 and len(puller_threads()) == 1
        async with asyncio.timeout(TIMEOUT_S):
            while updates.contract().weights.digest != published.manifest.digest:
                await asyncio.sleep(0.01)
        await updates.close()
        assert puller_threads() == [] and updates.contract().channel is None
        assert not [task for task in asyncio.all_tasks() if "Follower" in repr(task)]


def test_the_temporary_directory_is_removed_at_the_end(tmp_path):
    environment = {"TMPDIR": str(tmp_path)}
    with serving("inference_adapters.scripted", python=sys.executable, environment=environment) as server:
        wait_ready(server.url)

        async def pull() -> None:
            store = tmp_path / "run"
            store.mkdir()
            async with channel_peer(server.url, store) as (peer, _):
                await peer.join_channel(follow=True)
                peer.store_version(1)
                await peer.until_live(1)

        asyncio.run(pull())
        assert list(tmp_path.glob("weights-*"))
        server.process.terminate()
        server.process.wait(10)
        assert not list(tmp_path.glob("weights-*"))


def test_fetched_files_are_used_again_after_a_restart(tmp_path):
    directory = tmp_path / "weights"
    run = tmp_path / "run"
    run.mkdir()
    options = ("--weight-directory", str(directory))

    async def pull(url: str, version: int, fetched: bool) -> None:
        async with channel_peer(url, run) as (peer, source):
            peer.seed = 0
            await peer.join_channel(follow=True)
            published = peer.store_version(version, peer.weights(1))
            await peer.until_live(version)
            assert source.objects_asked == (len(published.manifest.full.files) if fetched else 0)

    with serving("inference_adapters.scripted", *options) as server:
        wait_ready(server.url)
        asyncio.run(pull(server.url, 1, fetched=True))
        second = Forked("-m", "inference_adapters.scripted", "--port", "0", *options)
        _, told = second.communicate(60)
        assert second.returncode == 1
        said = [line for line in told.splitlines() if "RuntimeWarning" not in line]  # of a forked process
        assert len(said) == 1 and said[0].startswith("cannot serve: ")
    with serving("inference_adapters.scripted", *options) as server:
        wait_ready(server.url)
        asyncio.run(pull(server.url, 2, fetched=False))
        assert contract(server.url)["weights"]["version"] == 2


class EndsRequestsSlowly(ScriptedEngine):
    async def abort_requests(self) -> None:
        await asyncio.sleep(0.3)  # in which a follower would look many times
        await super().abort_requests()


@pytest.mark.asyncio
async def test_a_run_that_takes_over_is_followed_from_its_first_version_on(tmp_path):
    updates = WeightUpdates(EndsRequestsSlowly(), hold_timeout_s=60)
    await updates.start(0)
    for run, version in (("before", 50), ("after", 41)):
        store = tmp_path / run
        store.mkdir()
        async with channel_peer("", store) as (peer, source):
            peer.epoch = 1
            peer.store_version(version)
            await updates.join_channel(InitWeightChannelRequest(**peer.channel_request(follow=True)))
            async with asyncio.timeout(TIMEOUT_S):
                while updates.contract().weights.version != version:
                    await asyncio.sleep(0.02)
            assert (await updates.status(version, TIMEOUT_S)).state == "live"
            assert updates.contract().weights.run == peer.run
    await updates.close()
