"""Requests in flight while the weights change: who samples what, and with which state."""

import asyncio

import pytest

from tests.inference_adapters.conftest import TOKEN_DELAY_S
from tests.inference_adapters.reference import Weights, continuation_logprobs, distribution, state_after, step
from tests.inference_adapters.servers import Server
from tests.inference_adapters.trainer_peer import joined_trainer, logprobs, packed, weights

pytestmark = pytest.mark.asyncio


async def crossing(
    trainer, kv_cache: str, receive: str, requests: int = 1
) -> list[tuple[list[int], dict, int]]:
    """(prompt, choice, boundary) of greedy requests that version 2 overtakes."""
    in_flight = [asyncio.create_task(trainer.complete(max_tokens=80, temperature=0)) for _ in range(requests)]
    await trainer.wait_running(requests)
    await asyncio.sleep(20 * TOKEN_DELAY_S)  # some tokens of version 1
    assert (await trainer.publish(2, weights(2), kv_cache=kv_cache, receive=receive))["state"] == "live"
    assert not any(task.done() for task in in_flight)
    crossed = []
    for answer in await asyncio.gather(*in_flight):
        choice = answer["choices"][0]
        boundary = choice["weight_versions"][0]["end"]
        assert choice["weight_versions"] == [
            {"version": 1, "start": 0, "end": boundary},
            {"version": 2, "start": boundary, "end": 80},
        ]
        assert len(choice["token_ids"]) == 80 and choice["finish_reason"] == "length"
        crossed.append((answer["prompt_token_ids"], choice, boundary))
    return crossed


def kept_logprobs(
    old: Weights, new: Weights, prompt: list[int], sampled: list[int], boundary: int
) -> list[float]:
    """What the new weights say of the tokens after the boundary, on top of the old weights' state."""
    state = state_after(old, prompt + sampled[:boundary])
    found = []
    for token_id in sampled[boundary:]:
        found.append(distribution(new, state)[token_id].item())
        state = step(new, state, token_id)
    return found


@pytest.mark.parametrize("receive", ["paused", "staged"])
async def test_recomputed_requests_follow_the_new_weights_exactly(server: Server, receive):
    async with joined_trainer(server.url) as trainer:
        for prompt, choice, boundary in await crossing(trainer, "recompute", receive, requests=3):
            ids, found = choice["token_ids"], logprobs(choice)
            assert found[:boundary] == pytest.approx(
                continuation_logprobs(weights(1), prompt, ids[:boundary]), abs=1e-5
            )
            assert found[boundary:] == pytest.approx(
                continuation_logprobs(weights(2), prompt + ids[:boundary], ids[boundary:]), abs=1e-5
            )


async def test_kept_requests_carry_their_old_state_on(server: Server):
    async with joined_trainer(server.url) as trainer:
        [(prompt, choice, boundary)] = await crossing(trainer, "keep", "paused")
        ids, found = choice["token_ids"], logprobs(choice)[boundary:]
        assert found == pytest.approx(kept_logprobs(weights(1), weights(2), prompt, ids, boundary), abs=1e-5)
        recomputed = continuation_logprobs(weights(2), prompt + ids[:boundary], ids[boundary:])
        assert abs(found[0] - recomputed[0]) > 1e-3  # the two modes differ, so this test can fail


async def test_a_request_that_arrives_during_a_paused_update_waits_for_the_new_weights(server: Server):
    async with joined_trainer(server.url) as trainer:
        await trainer.request_update(2, weights(2))
        await trainer.send_first_bucket(weights(2))
        for _ in range(100):  # the pause follows the first bucket, not at once
            in_flight = asyncio.create_task(trainer.complete(max_tokens=1))
            done, _ = await asyncio.wait([in_flight], timeout=0.5)
            if not done:
                break
            assert in_flight.result()["choices"][0]["weight_versions"] == [
                {"version": 1, "start": 0, "end": 1}
            ]
        for bucket in packed(weights(2))[1:]:
            await trainer.broadcast(bucket)
        choice = (await in_flight)["choices"][0]
        assert choice["weight_versions"] == [{"version": 2, "start": 0, "end": 1}]


async def test_a_staged_update_lets_generation_go_on(server: Server):
    async with joined_trainer(server.url) as trainer:
        await trainer.request_update(2, weights(2), receive="staged")
        await trainer.send_first_bucket(weights(2))
        choice = (await trainer.complete(max_tokens=3))["choices"][0]
        assert choice["weight_versions"] == [{"version": 1, "start": 0, "end": 3}]
        for bucket in packed(weights(2))[1:]:
            await trainer.broadcast(bucket)
        status = await trainer.ended(2)
        assert status["state"] == "live" and status["paused_s"] < status["transfer_s"]


async def test_many_updates_under_load(server: Server):
    async with joined_trainer(server.url) as trainer:
        load = [asyncio.create_task(trainer.complete(max_tokens=150, temperature=0)) for _ in range(8)]
        await trainer.wait_running(8)
        for version in range(2, 12):
            kv_cache = ("keep", "recompute")[version % 2]
            receive = ("paused", "staged")[version // 2 % 2]
            status = await trainer.publish(version, weights(version), kv_cache=kv_cache, receive=receive)
            assert status["state"] == "live"
        for answer in await asyncio.gather(*load):
            spans = answer["choices"][0]["weight_versions"]
            assert [span["end"] for span in spans[:-1]] == [span["start"] for span in spans[1:]]
            assert spans[0]["start"] == 0 and spans[-1]["end"] == 150
            versions = [span["version"] for span in spans]
            assert versions == sorted(set(versions)) and len(versions) > 3
