"""The service times of the devices of a simulated run."""

import math
from dataclasses import asdict, dataclass, replace

from contracts.model_shape import ModelShape
from pipelinerl.config import RunConfig


@dataclass(frozen=True)
class Rates:
    """Service times in seconds.

    decode_s: time per token on a server with one request.
    decode_per_request_s: additional time per token for each further request on the same server.
    train_tokens_per_s: tokens per second on one trainer rank, including prompts.
    optimizer_s: time of one optimizer update.
    update_s: time from the end of a step until its weights are live, during which the trainer waits.
    paused_s: part of `update_s` in which servers are paused.
    judging_s: time from an answer to its reward.
    """

    decode_s: float
    decode_per_request_s: float
    train_tokens_per_s: float
    optimizer_s: float = 0.0
    update_s: float = 0.0
    paused_s: float = 0.0
    judging_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            above = name in ("decode_s", "train_tokens_per_s")
            if not math.isfinite(value) or value < 0 or (above and not value):
                raise ValueError(f"{name} must be {'above 0' if above else '0 or more'}, not {value:g}")
        if self.paused_s > self.update_s:
            raise ValueError(
                f"paused_s {self.paused_s:g} is a part of update_s {self.update_s:g} and cannot be more; "
                "lower --paused-s or raise --update-s"
            )

    def token_s(self, requests: int) -> float:
        """Returns the seconds per token of each request on a server with `requests` requests."""
        return self.decode_s + self.decode_per_request_s * (requests - 1)


@dataclass(frozen=True)
class Device:
    """An accelerator's data sheet, and the assumed utilisation."""

    flops: float  # dense bfloat16
    memory_bytes_per_s: float
    network_bytes_per_s: float
    train_share: float = 0.4  # assumed share of the peak
    decode_share: float = 0.6  # assumed share of the memory bandwidth


# From NVIDIA's data sheets of H100 SXM and H200. The network is assumed to be one NVLink or InfiniBand port.
DEVICES = {
    "h100": Device(989e12, 3.35e12, 25e9),
    "h200": Device(989e12, 4.8e12, 25e9),
}


def by_arithmetic(name: str, config: RunConfig, shape: ModelShape, mean_context: float) -> Rates:
    """Estimates the rates of a run on a named device from the model's shape, in bfloat16.

    Decoding reads all weights, and each request's keys and values, once per token. Training takes six
    operations per parameter and token, and two more to recompute activations. A server and a trainer rank
    that share a GPU have half of it each.
    """
    device = DEVICES[name]
    if config.shares_gpus:
        device = replace(device, flops=device.flops / 2, memory_bytes_per_s=device.memory_bytes_per_s / 2)
    gpus_per_server = config.inference.gpus_per_server
    ranks = config.world.trainer_ranks
    weights = 2 * shape.parameters
    bandwidth = device.memory_bytes_per_s * device.decode_share * gpus_per_server
    training = 8 * (shape.parameters - shape.embedding)
    update = weights / device.network_bytes_per_s
    return Rates(
        decode_s=weights / bandwidth,
        decode_per_request_s=shape.kv_bytes(2) * mean_context / bandwidth,
        train_tokens_per_s=device.flops * device.train_share / training,
        optimizer_s=16 * shape.parameters / ranks / device.memory_bytes_per_s,
        update_s=update,
        paused_s=weights / gpus_per_server / device.memory_bytes_per_s,
    )
