"""Versions over a weight channel: requested and followed, relay and shared."""

import asyncio

import pytest
import torch

from tests.inference_adapters.channel_peer import ChannelPeer, channel_peer, objects_of
from tests.inference_adapters.metrics import scraped, value
from tests.inference_adapters.reference import continuation_logprobs
from tests.inference_adapters.servers import Server
from tests.inference_adapters.trainer_peer import TIMEOUT_S, expect, logprobs, state_of

pytestmark = pytest.mark.asyncio


def ended_updates(server: Server) -> float:
    return value(scraped(server.url), "contract_weight_updates_total")


async def check_content(peer: ChannelPeer, version: int, sent) -> None:
    """Checks that the server samples with these weights, under this version."""
    answer = await peer.complete(max_tokens=20)
    choice = answer["choices"][0]
    expected = continuation_logprobs(sent, answer["prompt_token_ids"], choice["token_ids"])
    assert logprobs(choice) == pytest.approx(expected, abs=1e-5)
    assert [span["version"] for span in choice["weight_versions"]] == [version]


@pytest.mark.parametrize("kind", ["relay", "shared"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
async def test_a_requested_version_is_served(server: Server, tmp_path, kind, dtype):
    async with channel_peer(server.url, tmp_path) as (peer, _):
        sent = {name: tensor.to(dtype) for name, tensor in peer.weights(7).items()}
        published = peer.store_version(3, sent)
        changes = peer.shared_request() if kind == "shared" else {}
        changes.pop("epoch", None)
        assert (await peer.join_channel(**changes))[0] == 200
        status = await peer.pulled(3, published)
        assert (status["state"], status["touched"], status["error"]) == ("live", True, None)
        assert status["bytes"] >= sum(tensor.nbytes for tensor in sent.values())
        assert 0 < status["transfer_s"] < TIMEOUT_S and 0 < status["paused_s"] < TIMEOUT_S
        await check_content(peer, 3, sent)
        _, contract = await peer.get("/contract")
        digest = published.manifest.digest
        assert contract["weights"] == {"version": 3, "state": "live", "run": peer.run, "digest": digest}
        channel = contract["channel"]
        assert (channel["kind"], channel["epoch"], channel["follow"]) == (kind, 1, False)
        assert channel["target"] is None and contract["group"] is None
        assert [source["url"] for source in channel["sources"]] == changes.get("sources", peer.sources)


async def test_newer_versions_are_followed(server: Server, tmp_path):
    async with channel_peer(server.url, tmp_path) as (peer, source):
        assert (await peer.join_channel(follow=True))[0] == 200
        for version in (1, 2):
            peer.store_version(version)
            contract = await peer.until_live(version)
            await check_content(peer, version, peer.weights(version))
        assert contract["channel"]["newest_seen"] == 2 and contract["channel"]["stale_s"] < TIMEOUT_S
        assert (await peer.ended(1))["state"] == (await peer.ended(2))["state"] == "live"
        asked = source.objects_asked
        await peer.join_channel(follow=True)  # what is live is not pulled again
        await peer.until(lambda contract: contract["channel"]["newest_seen"] == 2)
        assert source.objects_asked == asked and (await peer.ended(2))["epoch"] == 1


async def test_requests_in_flight_go_on_while_a_version_is_fetched(server: Server, tmp_path):
    async with channel_peer(server.url, tmp_path) as (peer, source):
        await peer.join_channel(follow=True)
        source.open.clear()
        published = peer.store_version(1)
        contract = await peer.until(lambda contract: contract["channel"]["bytes_total"] > 0)
        assert contract["channel"]["target"] == 1 and contract["channel"]["bytes_done"] == 0
        assert contract["weights"]["state"] == "live"
        await peer.complete(max_tokens=20)
        status, body = await peer.get("/weight_update/1")
        assert (status, body["state"]) == (200, "receiving")
        running = asyncio.create_task(peer.complete(max_tokens=400, temperature=0))
        await peer.wait_running(1)
        source.open.set()
        await peer.ended(1)
        spans = (await running)["choices"][0]["weight_versions"]
        assert [span["version"] for span in spans][-1] == 1 and len(spans) == 2
        assert (await peer.get("/contract"))[1]["weights"]["digest"] == published.manifest.digest


async def test_a_version_that_is_superseded_is_skipped(server: Server, tmp_path):
    async with channel_peer(server.url, tmp_path) as (peer, source):
        await peer.join_channel(follow=True)
        source.open.clear()
        peer.store_version(1)
        await peer.until(lambda contract: contract["channel"]["target"] == 1)
        peer.store_version(2)
        skipped = await peer.ended(1)
        assert skipped["state"] == "skipped" and skipped["error"].startswith("superseded")
        peer.store_version(3)  # of two in a row, the second one is completed
        await peer.until(lambda contract: contract["channel"]["newest_seen"] == 3)
        peer.store_version(4)
        assert (await peer.ended(3))["state"] == "skipped"  # it was not begun
        source.open.set()
        assert (await peer.ended(2))["state"] == (await peer.ended(4))["state"] == "live"
        await check_content(peer, 4, peer.weights(4))


@pytest.mark.parametrize("follow", [True, False])
async def test_what_passes_is_tried_again(server: Server, tmp_path, follow):
    async with channel_peer(server.url, tmp_path) as (peer, source):
        await peer.join_channel(follow=follow)
        source.missing = True
        published = peer.store_version(1)
        if not follow:
            assert (await peer.request_stored(1, published))[0] == 202
        status = await peer.until_status(1, lambda status: status["error"])
        assert status["state"] == "receiving" and status["error"].startswith("gone: ")
        source.missing = False
        ended = await peer.ended(1)
        assert (ended["state"], ended["error"]) == ("live", None)


async def test_a_requested_version_fails_at_its_timeout(server: Server, tmp_path):
    async with channel_peer(server.url, tmp_path) as (peer, source):
        await peer.join_channel()
        source.missing = True
        ended = await peer.pulled(1, peer.store_version(1), timeout_s=0.3)
        assert (ended["state"], ended["touched"]) == ("failed", False)
        assert ended["error"].startswith("gone: ")
        source.missing = False
        source.open.clear()
        ended = await peer.pulled(2, peer.store_version(2), timeout_s=0.3)
        assert ended["state"] == "failed" and ended["error"].startswith("no_source: ")
        source.open.set()
        assert (await peer.get("/contract"))[1]["channel"] is not None  # unlike a group's, it goes on
        assert (await peer.pulled(2, peer.store_version(2)))["state"] == "live"


@pytest.mark.parametrize("follow", [True, False])
async def test_a_bad_version_is_skipped_and_the_next_one_served(server: Server, tmp_path, follow):
    async with channel_peer(server.url, tmp_path) as (peer, source):
        await peer.join_channel(follow=follow)
        before = await peer.greedy()
        source.spoils = True
        published = peer.store_version(1)
        if not follow:
            await peer.request_stored(1, published)
        await peer.until(lambda contract: source.objects_asked > 0)
        ended = await peer.ended(1)
        assert (ended["state"], ended["touched"]) == ("skipped", False)
        assert ended["error"].startswith("digest: ")
        _, contract = await peer.get("/contract")
        assert state_of(contract)[1] == "live" and await peer.greedy() == before
        source.spoils = False
        published = peer.store_version(2)
        if not follow:
            await peer.request_stored(2, published)
        await peer.until_live(2)


async def test_manifests_of_another_key_are_not_served(server: Server, tmp_path):
    async with channel_peer(server.url, tmp_path) as (peer, _):
        other = {"id": "other", "ed25519": "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"}
        await peer.join_channel(public_keys=[other])
        ended = await peer.pulled(1, peer.store_version(1))
        assert ended["state"] == "skipped" and ended["error"].startswith("signature: ")
        peer.store_version(2)
        await peer.join_channel(public_keys=[other], follow=True)
        contract = await peer.until(lambda c: c["channel"]["sources"][0]["failures"] > 0)
        assert contract["channel"]["newest_seen"] is None


@pytest.mark.parametrize("kind", ["relay", "shared"])
async def test_weights_that_are_not_finite_change_nothing(server: Server, tmp_path, kind):
    async with channel_peer(server.url, tmp_path) as (peer, _):
        good = peer.store_version(1)
        changes = peer.shared_request() if kind == "shared" else {}
        changes.pop("epoch", None)
        await peer.join_channel(**changes)
        assert (await peer.pulled(1, good))["state"] == "live"
        before = await peer.greedy()
        spoilt = peer.weights(2)
        next(iter(spoilt.values())).view(-1)[3] = torch.nan
        ended = await peer.pulled(2, peer.store_version(2, spoilt))
        assert (ended["state"], ended["touched"]) == ("failed", False) and "finite" in ended["error"]
        assert await peer.greedy() == before
        assert (await peer.pulled(3, peer.store_version(3)))["state"] == "live"


async def test_a_followed_version_that_is_not_finite_is_not_tried_again(server: Server, tmp_path):
    async with channel_peer(server.url, tmp_path) as (peer, source):
        await peer.join_channel(follow=True)
        spoilt = peer.weights(1)
        next(iter(spoilt.values())).view(-1)[3] = torch.inf
        peer.store_version(1, spoilt)
        await peer.until(lambda contract: contract["channel"]["newest_seen"] == 1)
        assert (await peer.ended(1))["state"] == "failed"
        ended = ended_updates(server)
        await asyncio.sleep(0.6)  # longer than the first pause
        assert ended_updates(server) == ended
        peer.store_version(2)
        await peer.until_live(2)


@pytest.mark.parametrize("follow", [True, False])
async def test_a_version_that_is_fetched_may_be_aborted(server: Server, tmp_path, follow):
    async with channel_peer(server.url, tmp_path) as (peer, source):
        await peer.join_channel(follow=follow)
        source.open.clear()
        published = peer.store_version(1)
        if not follow:
            await peer.request_stored(1, published)
        await peer.until(lambda contract: contract["channel"]["target"] == 1)
        body = {"run": peer.run, "epoch": peer.epoch, "version": 1}
        status, ended = await peer.post("/abort_weight_update", body)
        assert (status, ended["state"], ended["touched"]) == (200, "failed", False)
        assert await peer.post("/abort_weight_update", body) == (200, ended)
        await asyncio.sleep(0.6)  # longer than the first pause
        assert (await peer.get("/contract"))[1]["channel"]["target"] is None
        source.open.set()
        published = peer.store_version(2)
        if not follow:
            await peer.request_stored(2, published)
        await peer.until_live(2)
        assert (await peer.ended(1))["state"] == "failed"


async def test_requests_are_checked_like_those_of_a_group(server: Server, tmp_path):
    async with channel_peer(server.url, tmp_path) as (peer, source):
        published = peer.store_version(2)
        expect(await peer.request_stored(2, published), 409, "other_run")
        await peer.join_channel()
        accepted = await peer.request_stored(2, published)
        assert accepted == (202, {"state": "receiving"})
        assert (await peer.ended(2))["state"] == "live"
        asked = source.objects_asked
        assert await peer.request_stored(2, published) == accepted and source.objects_asked == asked
        expect(await peer.request_stored(3, published, epoch=7), 409, "stale_epoch")
        expect(await peer.request_stored(1, published), 409, "stale_version")
        expect(await peer.request_stored(3, published, kv_cache="burn"), 422, "unsupported_kv_cache")
        expect(await peer.request_update(3, peer.weights(3)), 409, "no_group")
        answer = await peer.request_stored(3, published, manifest_sha256="0f")
        expect(answer, 422, "invalid_request")
        assert answer[1]["error"]["param"] == "manifest_sha256"
        answer = await peer.request_stored(3, published, parameters=[])
        expect(answer, 422, "invalid_request")
        assert answer[1]["error"]["param"] == "parameters"
        source.open.clear()
        published = peer.store_version(4)
        await peer.request_stored(4, published)
        expect(await peer.request_stored(5, published), 409, "update_in_progress")
        source.open.set()
        assert (await peer.ended(4))["state"] == "live"
        await peer.join_channel(follow=True)
        expect(await peer.request_stored(9, published), 422, "invalid_request")


async def test_a_damaged_file_of_a_shared_store_is_not_served(server: Server, tmp_path):
    async with channel_peer(server.url, tmp_path) as (peer, _):
        published = peer.store_version(1)
        changes = peer.shared_request()
        del changes["epoch"]
        await peer.join_channel(**changes)
        before = await peer.greedy()
        path = objects_of(peer.store, published.manifest)[0]
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-8])
        ended = await peer.pulled(1, published)
        assert ended["state"] == "skipped" and ended["touched"] is False
        assert await peer.greedy() == before
