"""Rules of `WeightUpdates` whose moments HTTP cannot hit: no server, but a real group."""

import asyncio
import gc
import logging
import uuid

import pytest
import torch

from contracts.conformance.inference.buckets import packed, parameters
from contracts.errors import ContractError, ErrorCode
from contracts.inference import AbortWeightUpdateRequest, InitProcessGroupRequest, WeightUpdateRequest
from contracts.weights import RendezvousStore, WeightGroup
from inference_adapters import update_record
from inference_adapters.channel import WeightChannels
from inference_adapters.membership import NOTICE_S
from inference_adapters.scripted import EMBED, HEAD, ScriptedEngine
from inference_adapters.weight_updates import WeightUpdates
from tests.extensions.stored_weights.channel_peer import until
from tests.inference_adapters.trainer_peer import weights
from tests.limits import HANG_S
from tests.moved_loop import let_pass, on_moved_loop


def join_request(port: int, **changes) -> InitProcessGroupRequest:
    request = {"run": "r", "takeover": False, "epoch": 1, "group_name": uuid.uuid4().hex, "backend": "gloo"}
    request |= {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2}
    return InitProcessGroupRequest(**request | {"timeout_s": HANG_S} | changes)


async def joined(
    version: int, takeover: bool, channels: WeightChannels | None = None
) -> tuple[WeightUpdates, WeightGroup]:
    """A server of its own that started with `version` and has joined run "r", epoch 1."""
    updates = WeightUpdates(ScriptedEngine(), hold_timeout_s=HANG_S, channels=channels)
    await updates.start(version)
    store = RendezvousStore("127.0.0.1", 0, HANG_S)
    request = join_request(store.port, takeover=takeover)
    form = asyncio.to_thread(store.group, request.group_name, 2, "gloo", HANG_S)
    _, group = await asyncio.gather(updates.membership.join(request), form)
    return updates, group


def update(version: int) -> WeightUpdateRequest:
    return WeightUpdateRequest(
        run="r", epoch=1, version=version, parameters=parameters(weights(1)), tied={HEAD: EMBED},
        bucket_bytes=512, timeout_s=HANG_S,
    )  # fmt: skip


@on_moved_loop
async def test_a_join_waits_for_an_update_as_long_as_that_may_be_silent_and_is_then_refused():
    updates, group = await joined(0, takeover=False)
    updates.request(update(1))
    store = RendezvousStore("127.0.0.1", 0, HANG_S)
    request = join_request(store.port, epoch=2)
    joining = asyncio.create_task(updates.membership.join(request))
    await asyncio.sleep(0)
    let_pass(HANG_S)
    await asyncio.sleep(0.01)
    assert not joining.done()
    let_pass(NOTICE_S)  # by then it would have failed, had it been silent
    with pytest.raises(ContractError) as refused:
        await joining
    assert refused.value.code is ErrorCode.UPDATE_IN_PROGRESS
    again = asyncio.create_task(updates.membership.join(request))
    group.close()  # the update fails, and the join goes on
    second = await asyncio.to_thread(store.group, request.group_name, 2, "gloo", HANG_S)
    assert await again == [1] == await updates.membership.join(request)
    assert (await updates.status(1, 0)).state == "failed"
    second.close()


@pytest.mark.asyncio
async def test_a_manifest_that_is_refused_is_not_hashed(monkeypatch):
    updates, group = await joined(0, takeover=False)
    updates.request(update(1))
    monkeypatch.setattr(update_record, "fingerprint", None)  # whose call would be a TypeError
    longer = update(1)
    longer.parameters.append(longer.parameters[0])
    for refused in (update(2), longer):
        with pytest.raises(ContractError):
            updates.request(refused)
    ended = await updates.abort(AbortWeightUpdateRequest(run="r", epoch=1, version=1))
    assert (ended.state, ended.touched) == ("failed", False)  # before it began
    assert updates.contract().weights.state == "live"
    group.close()


def sizes_of_buffers() -> list[int]:
    tensors = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]
    return [tensor.nbytes for tensor in tensors if tensor.dtype is torch.uint8]


@pytest.mark.asyncio
async def test_of_a_failed_update_neither_buffers_nor_manifest_are_kept(caplog):
    caplog.set_level(logging.CRITICAL)  # a log record kept by pytest would keep the traceback
    gc.collect()  # what other tests left behind
    updates, group = await joined(0, takeover=False)
    updates.request(update(1))
    first = packed(weights(1), 512)[0]
    await asyncio.to_thread(group.broadcast, first, HANG_S)
    received = first.nbytes
    del first
    group.close()
    ended = await updates.status(1, HANG_S)
    assert ended.state == "failed" and ended.bytes == received
    # Not only when the garbage collector finds the traceback: they are as large as the model.
    gc.disable()
    try:
        await until(lambda: received not in sizes_of_buffers())
    finally:
        gc.enable()
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) is WeightUpdateRequest]
