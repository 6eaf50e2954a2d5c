"""Estimates the GPU memory of a run from the model's shape, and refuses a run that does not fit.

The trainer's backend estimates its own use (`TrainerWorker.memory`). A server uses the rest of its share of
each GPU, after the weights, for keys and values. Temporary buffers of kernels are not included.
"""

from typing import NamedTuple

from contracts.model_shape import ModelShape
from contracts.support.sizes import describe_bytes
from pipelinerl.batching.of_run import longest_rollout
from pipelinerl.components import instantiate
from pipelinerl.config import EngineConfig, RunConfig
from pipelinerl.errors import PlanError

GIB = 2**30
RUNTIME = 4 * GIB  # of every process on a GPU: CUDA's context, NCCL's buffers, fragmentation
VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
SERVERS_SHARE = 0.9  # default share of a GPU that a server uses
TRANSFORMERS = "inference_adapters.transformers"
BLOCKS = 1024  # of its keys and values, by default
BLOCK_TOKENS = 32


class Use(NamedTuple):
    """The memory of one GPU that one process uses."""

    who: str
    parts: dict[str, int]  # bytes by purpose

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def longest_sequence(config: RunConfig) -> int:
    """Returns the most tokens of one turn: prompt and completion."""
    return config.sampling.max_prompt_tokens + config.sampling.max_tokens


def server_use(config: RunConfig, shape: ModelShape) -> Use:
    engine = config.inference
    weights = value_bytes(engine) * shape.parameters // engine.gpus_per_server
    keys_and_values = _keys_and_values(config, shape, weights)
    return Use(
        "server", {"weights": weights, "keys and values": int(keys_and_values), "CUDA, NCCL, ...": RUNTIME}
    )


def _keys_and_values(config: RunConfig, shape: ModelShape, weights: int) -> float:
    """Returns bytes of a GPU, from the engine's arguments.

    vLLM's share includes all its memory, and a size may be given instead. SGLang's share includes only
    weights, keys and values, and a number of tokens may limit it. The transformers adapter's is a number of
    blocks.
    """
    engine = config.inference
    gpu = config.world.gpu_memory_gib * GIB
    if engine.module == TRANSFORMERS:
        return (number_of(engine, "num_blocks") or BLOCKS) * BLOCK_TOKENS * token_bytes(engine, shape)
    if size := number_of(engine, "kv_cache_memory_bytes"):
        return size
    if share := number_of(engine, "mem_fraction_static"):
        available = gpu * share - weights
    else:
        available = gpu * (number_of(engine, "gpu_memory_utilization") or SERVERS_SHARE) - weights - RUNTIME
    tokens = number_of(engine, "max_total_tokens")
    return min(available, tokens * token_bytes(engine, shape)) if tokens else available


def number_of(engine: EngineConfig, name: str) -> float | None:
    value = engine.arguments.get(name)
    if value is not None and (type(value) not in (int, float) or value <= 0):
        raise PlanError(f"inference.arguments.{name}={value}: a plan reads a number above 0, in digits")
    return value


def token_bytes(engine: EngineConfig, shape: ModelShape) -> int:
    """Returns the bytes of one token's keys and values on each GPU of a server."""
    return shape.kv_bytes(value_bytes(engine)) // min(engine.gpus_per_server, shape.kv_heads)


def sequences_held(config: RunConfig, shape: ModelShape) -> int:
    """Returns how many of the longest sequences fit into a server's memory for keys and values."""
    per_gpu = server_use(config, shape).parts["keys and values"]
    return per_gpu // (longest_sequence(config) * token_bytes(config.inference, shape))


def value_bytes(engine: EngineConfig) -> int:
    return VALUE_BYTES.get(engine.arguments.get("dtype"), 2)


def rank_use(config: RunConfig, shape: ModelShape) -> Use | None:
    """Returns the memory of a trainer rank, or None if the backend makes no estimate."""
    tokens = longest_rollout(config) or longest_sequence(config)  # of the largest micro-batch
    parts = instantiate(config.trainer).memory(shape, config.world.trainer_ranks, tokens)
    return parts and Use("trainer rank", {**parts, "CUDA, NCCL, ...": RUNTIME})


def check_fits(config: RunConfig, shape: ModelShape) -> None:
    """Raises PlanError if a server or a trainer rank does not fit on its GPUs."""
    _check_split(config.inference, shape)
    gib = config.world.gpu_memory_gib
    server = server_use(config, shape)
    if server.total > gib * GIB:
        raise PlanError(
            f"a server needs {describe_bytes(server.total)} of a GPU and world.gpu_memory_gib is {gib:g}; "
            "lower its share in inference.arguments, or what they give it for keys and values (transformers: "
            "num_blocks)"
        )
    if sequences_held(config, shape) < 1:
        parts = {name: describe_bytes(max(size, 0)) for name, size in server.parts.items()}
        instead = "" if config.shares_gpus else "inference.gpus_per_server, or "
        raise PlanError(
            f"a server has no room for a sequence of {longest_sequence(config)} tokens: of "
            f"world.gpu_memory_gib={gib:g} its weights take {parts['weights']} and leave "
            f"{parts['keys and values']} for keys and values; raise {instead}what inference.arguments give "
            "it for keys and values"
        )
    rank = rank_use(config, shape)
    if rank and rank.total > gib * GIB:
        largest = max(rank.parts, key=rank.parts.__getitem__)
        raise PlanError(
            f"a trainer rank needs about {describe_bytes(rank.total)} (the most for {largest}, "
            f"{describe_bytes(rank.parts[largest])}) and world.gpu_memory_gib is {gib:g}; raise "
            "world.trainer_ranks, or have the trainer hold less (docs/math-7b.md)"
        )


def _check_split(engine: EngineConfig, shape: ModelShape) -> None:
    gpus = engine.gpus_per_server
    split = engine.arguments.get("tensor_parallel_size") or 1
    if split != gpus:
        raise PlanError(
            f"inference.arguments.tensor_parallel_size={split}, but a server has "
            f"inference.gpus_per_server={gpus}; set both alike"
        )
    if shape.heads % split or (shape.kv_heads % split and split % shape.kv_heads):
        raise PlanError(
            f"a server cannot split the model over {split} GPUs: it has {shape.heads} heads of attention and "
            f"{shape.kv_heads} of keys and values; set inference.gpus_per_server to what divides them"
        )
