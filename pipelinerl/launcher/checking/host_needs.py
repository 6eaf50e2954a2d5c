"""Estimates what a run takes of host memory, of /dev/shm and of the run directory's disk.

Called by the plan and by `room.py`, once the model's shape is known. The trainer's backend estimates its own
part (`TrainerWorker.footprint`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from contracts.model_shape import ModelShape
from contracts.support.sizes import describe_bytes
from pipelinerl.components import instantiate
from pipelinerl.config import RunConfig
from pipelinerl.launcher.checking.gpu_memory import VALUE_BYTES, value_bytes
from pipelinerl.launcher.checking.prerequisites import SHARED_MEMORY
from pipelinerl.launcher.executors.base import executor_class
from pipelinerl.weight_transport import transport_of

if TYPE_CHECKING:  # imports torch, which the launcher does not need
    from contracts.trainer import Footprint


PROGRAM = 2**30 // 3  # bytes of a process that has imported torch
OTHER_PROGRAMS = 3  # the actor, the preprocessor, and judging


class Held(NamedTuple):
    """Copies of the weights in host memory, besides the trainer's."""

    who: str
    count: int  # of the processes that have a copy
    size: int  # bytes of each copy
    is_shared: bool  # whether it is in /dev/shm


def footprint(config: RunConfig, shape: ModelShape) -> Footprint | None:
    return instantiate(config.trainer).footprint(shape, config.world.trainer_ranks)


def held_weights(config: RunConfig, shape: ModelShape) -> list[Held]:
    """Returns what servers and transport hold while an update arrives."""
    sent = VALUE_BYTES[config.weights.dtype] * shape.parameters
    engines = [config.inference.engine_of(index).package for index in range(config.world.servers)]
    staging = engines.count("vllm") if config.inference.receive == "staged" else 0
    if config.reference and config.reference.renew_every:
        engines.append(config.reference.package)
    of_vllm = sent * config.inference.gpus_per_server  # each worker has a copy
    found = [
        Held("an SGLang server", engines.count("sglang"), sent, True),
        Held("a vLLM server, with inference.receive=staged", staging, of_vllm, False),
        Held("the store of weights", 1, transport_of(config).shared_memory(sent), True),
    ]
    return [one for one in found if one.count * one.size]


def shared_memory(config: RunConfig, shape: ModelShape) -> int:
    """Returns the bytes of /dev/shm that all processes of the run take."""
    return sum(one.count * one.size for one in held_weights(config, shape) if one.is_shared)


def disk_parts(config: RunConfig, shape: ModelShape, taken: Footprint) -> dict[str, int]:
    """Returns the most bytes of the run directory that are taken at a time, by purpose.

    Renewed references are not counted. The oldest checkpoint is removed once the next one is complete. The
    export comes after the last one.
    """
    sent = transport_of(config).disk(VALUE_BYTES[config.weights.dtype] * shape.parameters)
    of_servers = {"weights on their way to servers": sent} if sent else {}
    if config.checkpoint.every is None:
        return {"the export": taken.export} | of_servers
    keep = config.checkpoint.keep
    return {
        f"{keep} checkpoint{'s' * (keep > 1)}": keep * taken.checkpoint,
        "the next one or the export": max(taken.checkpoint, taken.export),
    } | of_servers


def cpu_parts(config: RunConfig, shape: ModelShape) -> dict[str, int]:
    """Returns the fewest bytes of memory of a run without a GPU, by purpose: without activations.

    A server also holds the weights of an update.
    """
    ranks = config.world.trainer_ranks
    held = instantiate(config.trainer).memory(shape, ranks, 0) or {}
    saving = taken.saving if (taken := footprint(config, shape)) else 0
    return {
        "training": ranks * (sum(held.values()) + saving),
        "servers": config.world.servers * 2 * value_bytes(config.inference) * shape.parameters,
        "programs": PROGRAM * (ranks + config.world.servers + OTHER_PROGRAMS),
    }


def describe_host(config: RunConfig, shape: ModelShape) -> Iterator[str]:
    """Yields the plan's lines."""
    yield "host memory, estimated, besides that of programs:"
    taken = footprint(config, shape)
    held = held_weights(config, shape)
    if taken is None:
        yield "  a trainer rank: its backend makes no estimate"
    else:
        kept = {"offloaded": taken.rank} if taken.rank else {}
        yield f"  a trainer rank: {describe_parts(kept | {'its part of a checkpoint': taken.saving})}"
        yield f"  trainer rank 0: {describe_parts(kept | {'all weights, to load or export': taken.whole})}"
    for one in held:
        yield f"  {one.who}: {describe_bytes(one.size)}{f' of {SHARED_MEMORY}' * one.is_shared}"
    if shared := shared_memory(config, shape):
        yield f"  {SHARED_MEMORY} in all: {describe_bytes(shared)}"
    if taken and not executor_class(config).spans_nodes:
        yield f"  all at a time: {describe_bytes(_most(config, taken, held))}"
    if taken:
        yield f"disk of the run directory, estimated: {describe_parts(disk_parts(config, shape, taken))}"


def _most(config: RunConfig, taken: Footprint, held: list[Held]) -> int:
    """Returns the most bytes of host memory at a time on one machine: the trainer saves, loads or exports."""
    ranks = config.world.trainer_ranks
    others = sum(one.count * one.size for one in held)
    return ranks * taken.rank + max(ranks * taken.saving, taken.whole) + others


def describe_parts(parts: dict[str, int]) -> str:
    shown = [f"{name} {describe_bytes(size)}" for name, size in parts.items()]
    return f"{describe_bytes(sum(parts.values()))} = {', '.join(shown)}"
