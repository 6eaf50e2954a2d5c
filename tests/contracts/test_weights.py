"""The weight group on the wire: buckets, and that engines which join as torch itself does can."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from contracts.bucket_packer import BucketPacker
from contracts.inference import Parameter
from contracts.weights import (
    PeerLostError,
    RendezvousStore,
    WeightGroup,
    WeightManifest,
    pack_bucket,
    plan_buckets,
    receive_weights,
    send_weights,
    unpack_bucket,
)
from tests.limits import HANG_S

ALWAYS_PASSES_S = 0.5  # for nobody ever sends


def parameter(name: str, *shape: int, dtype: str = "float32") -> Parameter:
    return Parameter(name=name, dtype=dtype, shape=shape)


def names(buckets) -> list[list[str]]:
    return [[p.name for p in bucket] for bucket in buckets]


def test_a_bucket_closes_before_its_limit_would_be_exceeded():
    parameters = [parameter("a", 4), parameter("b", 4), parameter("c", 1)]
    assert names(plan_buckets(parameters, 32)) == [["a", "b"], ["c"]]
    assert names(plan_buckets(parameters, 31)) == [["a"], ["b", "c"]]


def test_bytes_come_back_as_they_were_scalars_and_strides_included():
    tensors = [torch.randn(3, 4).T, torch.tensor(2.5), torch.empty(0, 3)]
    parameters = [parameter(f"p{i}", *t.shape) for i, t in enumerate(tensors)]
    unpacked = unpack_bucket(pack_bucket(tensors), parameters)
    assert all(torch.equal(unpacked[f"p{i}"], t) for i, t in enumerate(tensors))


def manifest() -> WeightManifest:
    return WeightManifest((parameter("a", 2, 3), parameter("b", 5), parameter("c", 2, dtype="bfloat16")), {})


def weights():
    yield "a", torch.arange(6.0).reshape(2, 3)
    yield "b", torch.arange(5.0)
    yield "c", torch.tensor([1.5, -2.0])


@pytest.mark.parametrize("phase", ["rendezvous", "broadcast"])
def test_a_group_that_waits_is_aborted_from_another_thread(phase):
    """A third rank never comes; or a second one never receives what no buffer of the system takes."""
    store = RendezvousStore("127.0.0.1", 0, HANG_S)
    size = 3 if phase == "rendezvous" else 2
    ended = []

    def join() -> None:
        try:
            ended.append(WeightGroup.join("127.0.0.1", store.port, "g", 1, size, "gloo", HANG_S))
        except RuntimeError as error:
            ended.append(error)

    def abort() -> None:
        if phase == "broadcast":
            formed.wait()
            peer.join()
        while not over.wait(0.05):  # who is only about to wait is aborted by a later call
            store.abort()

    formed = threading.Event()
    over = threading.Event()
    peer = threading.Thread(target=join, daemon=True)
    peer.start()
    threading.Thread(target=abort, daemon=True).start()
    with pytest.raises(RuntimeError) as raised:
        group = store.group("g", size, "gloo", HANG_S)
        formed.set()
        group.broadcast(torch.zeros(1 << 26, dtype=torch.uint8), HANG_S)
    over.set()
    peer.join()
    assert [isinstance(one, WeightGroup) for one in ended] == [phase == "broadcast"]
    if phase == "broadcast":
        assert isinstance(raised.value, PeerLostError) and not raised.value.timed_out


def test_another_group_outlives_the_abort_of_the_first():
    first = RendezvousStore("127.0.0.1", 0, HANG_S)
    with pair(first), pair() as (sender, receiver), ThreadPoolExecutor(1) as pool:
        first.abort()
        received = torch.zeros(4, dtype=torch.uint8)
        receiving = pool.submit(receiver.broadcast, received, HANG_S)
        sender.broadcast(torch.ones(4, dtype=torch.uint8), HANG_S)
        receiving.result()
    assert received.tolist() == [1, 1, 1, 1]


def test_weights_out_of_order_are_refused_before_they_are_sent():
    def swapped():
        yield from reversed(list(weights()))

    with pytest.raises(ValueError, match="expected a"):
        send_weights(None, manifest(), swapped(), 1000, HANG_S)


LARGE = 1 << 22  # elements: more bytes than the system's buffers take


@contextmanager
def pair(store: RendezvousStore | None = None) -> Iterator[tuple[WeightGroup, WeightGroup]]:
    """The two ends of a group. Each must be closed by whoever leaves it."""
    store = store or RendezvousStore("127.0.0.1", 0, HANG_S)
    joined: list[WeightGroup] = []
    name = ("127.0.0.1", store.port, "g", 1, 2, "gloo", HANG_S)
    joining = threading.Thread(target=lambda: joined.append(WeightGroup.join(*name)))
    joining.start()
    sender = store.group("g", 2, "gloo", HANG_S)
    joining.join()
    yield sender, joined.pop()


def large(count: int) -> WeightManifest:
    return WeightManifest(tuple(parameter(str(i), LARGE) for i in range(count)), {})


def test_the_next_bucket_is_gathered_and_packed_while_one_is_on_the_wire():
    with pair() as (sender, receiver), ThreadPoolExecutor(1) as pool:
        gathered = threading.Event()

        def weights():
            yield "0", torch.zeros(LARGE)
            gathered.set()
            yield "1", torch.ones(LARGE)

        sending = pool.submit(send_weights, sender, large(2), weights(), 1, HANG_S)
        gathered.wait()  # although nobody receives
        received = [bucket for bucket in receive_weights(receiver, list(large(2).parameters), 1, HANG_S)]
        sending.result()
        assert [bucket[str(i)].mean() for i, bucket in enumerate(received)] == [0, 1]


def test_packed_buckets_stay_as_they_are_until_a_late_receiver_has_them():
    parameters = [parameter(str(i), LARGE // 2) for i in range(8)]
    with pair() as (sender, receiver), ThreadPoolExecutor(1) as pool:
        packed = threading.Event()

        def weights():
            for p in parameters:
                if p is parameters[3]:
                    packed.set()
                yield p.name, torch.full(p.shape, float(p.name))

        manifest = WeightManifest(tuple(parameters), {})
        sending = pool.submit(send_weights, sender, manifest, weights(), 4 * LARGE, HANG_S)
        packed.wait()
        assert not sending.done()
        received = {}
        for bucket in receive_weights(receiver, parameters, 4 * LARGE, HANG_S):
            received |= {name: tensor.unique().tolist() for name, tensor in bucket.items()}
        assert received == {p.name: [float(p.name)] for p in parameters}
        sending.result()


def test_an_error_of_the_weights_comes_after_the_bucket_that_is_on_the_wire():
    with pair() as (sender, receiver), ThreadPoolExecutor(1) as pool:
        failed = threading.Event()

        def weights():
            yield "0", torch.ones(LARGE)
            failed.set()
            raise ArithmeticError("diverged")

        sending = pool.submit(send_weights, sender, large(2), weights(), 1, HANG_S)
        failed.wait()
        assert not sending.done()  # the tensor is still read
        first = next(receive_weights(receiver, list(large(2).parameters), 1, HANG_S))
        assert first["0"].mean() == 1
        with pytest.raises(ArithmeticError):
            sending.result()


def test_a_bucket_is_received_while_its_receiver_works_on_the_one_before():
    with pair() as (sender, receiver), ThreadPoolExecutor(1) as pool:
        buckets = receive_weights(receiver, list(large(2).parameters), 1, HANG_S)
        weights = iter([("0", torch.zeros(LARGE)), ("1", torch.ones(LARGE))])
        sending = pool.submit(send_weights, sender, large(2), weights, 1, HANG_S)
        next(buckets)
        sending.result()
        assert next(buckets)["1"].mean() == 1


@pytest.mark.parametrize("elements", [1000, LARGE])
def test_a_receiver_that_leaves_in_the_middle_frees_the_sender(elements):
    manifest = WeightManifest(tuple(parameter(str(i), elements) for i in range(8)), {})
    with pair() as (sender, receiver), ThreadPoolExecutor(1) as pool:
        buckets = receive_weights(receiver, list(manifest.parameters), 1, HANG_S)
        weights = ((p.name, torch.zeros(p.shape)) for p in manifest.parameters)
        sending = pool.submit(send_weights, sender, manifest, weights, 1, HANG_S)
        next(buckets)
        receiver.close()
        with pytest.raises(PeerLostError) as raised:
            sending.result()
        assert not raised.value.timed_out


def test_each_bucket_has_its_own_time():
    with pair() as (sender, receiver), ThreadPoolExecutor(1) as pool:
        buckets = receive_weights(receiver, [parameter("a", 1), parameter("b", 1)], 1, ALWAYS_PASSES_S)
        pool.submit(sender.broadcast, torch.zeros(4, dtype=torch.uint8), HANG_S)
        next(buckets)
        with pytest.raises(PeerLostError) as raised:
            next(buckets)
        assert raised.value.timed_out
        with pytest.raises(
            PeerLostError
        ):  # gloo may miss a peer that leaves at this moment, until the timeout
            sender.broadcast(torch.zeros(4 * LARGE, dtype=torch.uint8), ALWAYS_PASSES_S)


def test_a_packed_bucket_stays_while_the_next_is_packed_and_its_memory_is_used_again():
    packer = BucketPacker()
    first, second, third = (
        packer.pack([torch.full((3, 2), value).T, torch.tensor(value)], torch.bfloat16, torch.device("cpu"))
        for value in (1.0, 2.0, 3.0)
    )
    assert third.data_ptr() == first.data_ptr()
    assert second.view(torch.bfloat16).tolist() == [2.0] * 7
    assert third.view(torch.bfloat16).tolist() == [3.0] * 7


def test_a_lone_tensor_is_sent_from_where_it_lies():
    tensor = torch.randn(3, 4)
    packed = BucketPacker().pack([tensor], torch.float32, torch.device("cpu"))
    assert packed.data_ptr() == tensor.data_ptr()
    turned = BucketPacker().pack([tensor.T], torch.float32, torch.device("cpu"))
    assert torch.equal(turned.view(torch.float32), tensor.T.flatten())


NATIVE_JOIN = """
import sys, torch, torch.distributed as dist
from datetime import timedelta
from torch.distributed.distributed_c10d import _new_process_group_helper, rendezvous
timeout = timedelta(seconds=600)
store, rank, size = next(rendezvous(f"tcp://127.0.0.1:{sys.argv[1]}", 1, 2, timeout=timeout))
store = dist.PrefixStore("g", store)
group, _ = _new_process_group_helper(2, 1, [], "gloo", store, group_name="g", timeout=timeout)
tensor = torch.zeros(4, dtype=torch.uint8)
group.broadcast([tensor], dist.BroadcastOptions()).wait()
print(tensor.tolist())
"""


def test_an_engine_that_joins_as_torch_itself_does_is_a_member():
    store = RendezvousStore("127.0.0.1", 0, HANG_S)
    command = [sys.executable, "-c", NATIVE_JOIN, str(store.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as native:
        group = store.group("g", 2, "gloo", HANG_S)
        group.broadcast(torch.tensor([1, 2, 3, 4], dtype=torch.uint8), HANG_S)
        assert native.communicate()[0].strip() == "[1, 2, 3, 4]"


@pytest.mark.parametrize("sent", [True, False], ids=["the byte comes", "the byte does not come"])
def test_a_probe_is_part_of_joining(sent):
    store = RendezvousStore("127.0.0.1", 0, HANG_S)
    outcomes: list[object] = []

    def join():
        try:
            outcomes.append(WeightGroup.join("127.0.0.1", store.port, "g", 1, 2, "gloo", 2, probe=True))
        except PeerLostError as error:
            outcomes.append(error)

    joining = threading.Thread(target=join)
    joining.start()
    group = store.group("g", 2, "gloo", 10, probe=sent)
    joining.join()
    assert isinstance(outcomes[0], WeightGroup) == sent
    assert sent or outcomes[0].timed_out
    group.close()


def test_the_store_listens_on_its_address_only():
    store = RendezvousStore("127.0.0.1", 0, HANG_S)
    sockets = subprocess.run(["cat", "/proc/net/tcp"], capture_output=True, text=True).stdout
    listening = [line.split()[1] for line in sockets.splitlines()[1:] if line.split()[3] == "0A"]
    assert f"0100007F:{store.port:04X}" in listening and f"00000000:{store.port:04X}" not in listening
