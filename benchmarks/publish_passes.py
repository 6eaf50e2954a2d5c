"""Measures each pass of a publication: a bare gloo broadcast, to which one pass after the other is added.

python -m benchmarks.publish_passes [--rounds 10] [--bucket-bytes 8388608]

Two processes on this machine send and receive the weights of the 400 MB model of `benchmarks.publish`. The
rows take turns. What a publication has besides is not here: its HTTP requests, and the server's own work. CPU
seconds are those of a process with all its threads, and hold the kernel's copies.
"""

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from itertools import accumulate
from multiprocessing.connection import Connection

import torch
from transformers import Qwen2ForCausalLM

from benchmarks.arguments import positive_int
from benchmarks.publish import SHAPES, WARM_UP, model_config, spread
from benchmarks.ratios import ratio_of_medians
from contracts.bucket_packer import BucketPacker
from contracts.inference import Parameter
from contracts.support.command_line import command_parser
from contracts.weights import (
    WeightGroup,
    WeightManifest,
    WeightStore,
    pack_bucket,
    parameter_bytes,
    plan_buckets,
    receive_weights,
    send_weights,
)
from inference_adapters.finite_weights import why_not_finite
from inference_adapters.receive_memory import ReceiveMemory
from pipelinerl.training.bucket_size import usual_bucket_bytes

PATIENCE_S = 60
PASSES = {  # methods of the sender and the receiver, by the pass that they add to the row above
    "a broadcast in one piece": ("send_whole", "receive_whole"),
    "a broadcast for each bucket": ("send_pieces", "receive_pieces"),
    "packing small tensors together": ("send_packed", "receive_pieces"),
    "receiving ahead, into memory to serve from": ("send_packed", "receive_ahead"),
    "checking that all numbers are finite": ("send_packed", "receive_checked"),
}
HEADER = "| pass | s | one piece / this | CPU s per GB: sender, receiver |\n|---|---|---|---|"


class End:
    """One rank of the weight group, with memory for all weights in one piece."""

    def __init__(self, group: WeightGroup, bucket_bytes: int | None):
        with torch.device("meta"):
            model = Qwen2ForCausalLM(model_config(*SHAPES[400]))
        self.group = group
        self.parameters = [
            Parameter(name=name, dtype="float32", shape=tuple(parameter.shape))
            for name, parameter in model.named_parameters()
        ]
        self.total = sum(map(parameter_bytes, self.parameters))
        self.bucket_bytes = bucket_bytes or usual_bucket_bytes(self.total, "gloo")
        self.whole = torch.zeros(self.total, dtype=torch.uint8)

    def broadcast_whole(self) -> None:
        self.group.broadcast(self.whole, PATIENCE_S)

    def broadcast_pieces(self) -> None:
        """Broadcasts as many bytes as each bucket has."""
        plan = plan_buckets(self.parameters, self.bucket_bytes)
        sizes = [sum(map(parameter_bytes, bucket)) for bucket in plan]
        for size, end in zip(sizes, accumulate(sizes), strict=True):
            self.group.broadcast(self.whole[end - size : end], PATIENCE_S)


class Sender(End):
    def __init__(self, group: WeightGroup, bucket_bytes: int | None):
        super().__init__(group, bucket_bytes)
        self._weights = {parameter.name: torch.randn(parameter.shape) for parameter in self.parameters}
        self._manifest = WeightManifest(tuple(self.parameters), {})
        self._packer = BucketPacker()
        self.whole.copy_(pack_bucket(self._weights.values()))

    send_whole = End.broadcast_whole
    send_pieces = End.broadcast_pieces

    def send_packed(self) -> None:
        weights = iter(self._weights.items())
        send_weights(self.group, self._manifest, weights, self.bucket_bytes, PATIENCE_S, self._packer)


class Receiver(End):
    def __init__(self, group: WeightGroup, bucket_bytes: int | None):
        super().__init__(group, bucket_bytes)
        self._memory = ReceiveMemory()

    receive_whole = End.broadcast_whole
    receive_pieces = End.broadcast_pieces

    def _buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        memory = self._memory.begin()
        yield from receive_weights(self.group, self.parameters, self.bucket_bytes, PATIENCE_S, memory)
        self._memory.serve()

    def receive_ahead(self) -> None:
        for _ in self._buckets():
            pass

    def receive_checked(self) -> None:
        for bucket in self._buckets():
            if why := why_not_finite(bucket):
                raise RuntimeError(why)


def main() -> None:
    parser = command_parser("benchmarks.publish_passes", __doc__)
    parser.add_argument("--rounds", type=positive_int, default=10)
    parser.add_argument("--bucket-bytes", type=positive_int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    store = WeightStore("127.0.0.1", 0, PATIENCE_S)
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    other = spawn.Process(target=receive, args=(store.port, options.bucket_bytes, theirs), daemon=True)
    other.start()
    theirs.close()  # so that `recv` fails if the other process ends
    sender = Sender(store.group("passes", 2, "gloo", PATIENCE_S), options.bucket_bytes)
    ours.recv()  # the receiver has allocated its memory
    measured = [
        {name: run(sender, ours, *PASSES[name]) for name in PASSES} for _ in range(WARM_UP + options.rounds)
    ]
    other.kill()
    plan = plan_buckets(sender.parameters, sender.bucket_bytes)
    packed = sum(parameter_bytes(p) for bucket in plan if len(bucket) > 1 for p in bucket)
    print(f"{len(plan)} buckets; {packed / sender.total:.0%} of the bytes are packed")
    print(HEADER)
    bare = [one[next(iter(PASSES))][0] for one in measured[WARM_UP:]]
    for name in PASSES:
        seconds, sent, received = map(list, zip(*(one[name] for one in measured[WARM_UP:]), strict=True))
        per_gb = ", ".join(f"{statistics.mean(cpu) / sender.total * 1e9:.2f}" for cpu in (sent, received))
        print(f"| {name} | {spread(seconds)} | {ratio_of_medians(bare, seconds)} | {per_gb} |")


def run(sender: Sender, receiver: Connection, send: str, receive: str) -> tuple[float, float, float]:
    """Returns the seconds of one transfer, and the CPU seconds of the sender and of the receiver."""
    began = time.perf_counter()
    used = time.process_time()
    receiver.send(receive)
    getattr(sender, send)()
    theirs = receiver.recv()
    return time.perf_counter() - began, time.process_time() - used, theirs


def receive(port: int, bucket_bytes: int | None, sender: Connection) -> None:
    """Runs the receiver's methods that the other process names, and responds with their CPU seconds."""
    torch.set_num_threads(1)
    group = WeightGroup.join("127.0.0.1", port, "passes", 1, 2, "gloo", PATIENCE_S)
    receiver = Receiver(group, bucket_bytes)
    sender.send(None)
    while True:
        method = sender.recv()
        used = time.process_time()
        getattr(receiver, method)()
        sender.send(time.process_time() - used)


if __name__ == "__main__":
    main()
