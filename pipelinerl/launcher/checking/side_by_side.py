"""Refuses a server and a trainer rank that do not fit on one GPU, with what would (`world.share_gpus`).

They are side by side, or take turns (`pipelinerl/turns.py`).
"""

from collections.abc import Iterator

from contracts.model_shape import ModelShape
from contracts.support.sizes import describe_bytes
from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.gpu_memory import (
    BLOCK_TOKENS,
    GIB,
    RUNTIME,
    SERVERS_SHARE,
    TRANSFORMERS,
    Use,
    longest_sequence,
    number_of,
    rank_use,
    server_use,
    token_bytes,
)

LOADED = ("weights", "optimizer", "CUDA, NCCL, ...")  # what a rank holds once it is loaded


def server_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Returns the bytes of its GPU that a server needs beside a rank.

    vLLM asks for its whole share at each start, also if it was given a size for keys and values.
    """
    planned = server_use(config, shape).total
    if config.inference.package != "vllm":
        return planned
    share = number_of(config.inference, "gpu_memory_utilization") or SERVERS_SHARE
    return max(planned, int(share * config.world.gpu_memory_gib * GIB))


def peaks_in_turns(config: RunConfig, shape: ModelShape, rank: Use) -> dict[str, int]:
    """Returns the bytes of a GPU that a server and a rank hold if they take turns, by the time.

    At the start both are there, the rank with what it loads. Later, one of them has only its runtime.
    """
    loaded = sum(rank.parts.get(part, 0) for part in LOADED)
    server = server_bytes(config, shape)
    return {
        "at the start": server + loaded,
        "while it trains": rank.total + RUNTIME,
        "while the server generates": server + RUNTIME,
    }


def _check_turns(config: RunConfig, shape: ModelShape, rank: Use) -> None:
    """Raises PlanError if a server and a rank that take turns do not fit on one GPU at some time."""
    gpu = config.world.gpu_memory_gib * GIB
    peaks = peaks_in_turns(config, shape, rank)
    when = "while it trains" if peaks["while it trains"] > gpu else max(peaks, key=peaks.__getitem__)
    if peaks[when] <= gpu:
        return
    left = int(gpu - peaks[when] + server_bytes(config, shape))
    advice = f"leave the server {describe_bytes(left)}: set {_limit(config, shape, left)}"
    if when == "while it trains":
        advice = f"have the trainer hold less: {', '.join(_lighter(config))}"
    raise PlanError(
        f"{when}, a server and a trainer rank that take turns hold {describe_bytes(peaks[when])}, and "
        f"world.gpu_memory_gib is {config.world.gpu_memory_gib:g}; {advice} (docs/one-gpu.md)"
    )


def check_side_by_side(config: RunConfig, shape: ModelShape) -> None:
    """Raises PlanError if a server and a trainer rank do not fit on one GPU."""
    rank = rank_use(config, shape)
    if rank is None:
        return
    if config.takes_turns:
        return _check_turns(config, shape, rank)
    gpu = config.world.gpu_memory_gib * GIB
    left = int(gpu - rank.total)
    taken = server_bytes(config, shape)
    if taken <= left:
        return
    weights = server_use(config, shape).parts["weights"]
    least = weights + RUNTIME + longest_sequence(config) * token_bytes(config.inference, shape)
    if left - gpu / 1000 < least:  # a share is named in thousandths
        raise PlanError(
            f"a trainer rank ({describe_bytes(rank.total)}) and a server (at least {describe_bytes(least)}) "
            f"share a GPU, and world.gpu_memory_gib is {config.world.gpu_memory_gib:g}; take a smaller "
            f"model, or have the trainer hold less: {', '.join(_lighter(config))} (docs/one-gpu.md)"
        )
    raise PlanError(
        f"a server ({describe_bytes(taken)}) and a trainer rank ({describe_bytes(rank.total)}) share a GPU, "
        f"and world.gpu_memory_gib is {config.world.gpu_memory_gib:g}; leave the server "
        f"{describe_bytes(left)}: set {_limit(config, shape, left)}"
    )


def _lighter(config: RunConfig) -> Iterator[str]:
    """Yields what would have the rank hold less, and is not set."""
    if not getattr(config.trainer, "lora", None):
        yield "trainer.lora"
    if not getattr(config.trainer, "activation_checkpointing", None):
        yield "trainer.activation_checkpointing=true"
    if getattr(config.packing, "micro_batch_tokens", 0) > longest_sequence(config):
        yield f"packing.micro_batch_tokens={longest_sequence(config)}"
    yield "DeepSpeed's offloading"


def _limit(config: RunConfig, shape: ModelShape, left: int) -> str:
    """Returns the argument, with its value, that limits a server to `left` bytes of a GPU."""
    engine = config.inference
    gpu = config.world.gpu_memory_gib * GIB
    for_cache = left - RUNTIME - server_use(config, shape).parts["weights"]
    values = {
        "num_blocks": for_cache // (BLOCK_TOKENS * token_bytes(engine, shape)),
        "kv_cache_memory_bytes": for_cache,
        "mem_fraction_static": int(1000 * (left - RUNTIME) / gpu) / 1000,  # without the runtime
        "gpu_memory_utilization": int(1000 * left / gpu) / 1000,
    }
    option = "gpu_memory_utilization"
    if engine.module == TRANSFORMERS:
        option = "num_blocks"
    elif engine.package == "sglang":
        option = "mem_fraction_static"
    elif (number_of(engine, "kv_cache_memory_bytes") or 0) > for_cache:
        option = "kv_cache_memory_bytes"
    plus = "" if option in engine.arguments else "+"
    return f"{plus}inference.arguments.{option}={values[option]}"
