"""vLLM, left to itself, reloads a model's weights from memory: once for each line on stdin, and says in
how many seconds: `.venv-vllm/bin/python -m benchmarks.vllm_reload MODEL`.
"""

import asyncio
import sys
import time
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file


class Reload:
    """An extension of vLLM's worker that reloads its weights."""

    def timed_reload(self, model: str) -> float:
        weights = _weights(model)
        began = time.perf_counter()
        self.reload_weights(weights_iterator=iter(weights.items()), is_checkpoint_format=True)
        return time.perf_counter() - began


@cache
def _weights(model: str) -> dict[str, torch.Tensor]:
    return {k: v.clone() for file in Path(model).glob("*.safetensors") for k, v in load_file(file).items()}


async def main(model: str) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    args = AsyncEngineArgs(
        model=model,
        dtype="float32",
        enforce_eager=True,
        kv_cache_memory_bytes=2**28,
        worker_extension_cls="benchmarks.vllm_reload.Reload",
    )
    llm = AsyncLLM.from_engine_args(args)
    for _ in sys.stdin:
        (seconds,) = await llm.collective_rpc("timed_reload", args=(model,))
        print(f"reloaded in {seconds}", flush=True)
    llm.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
