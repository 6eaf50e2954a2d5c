"""Seconds in which vLLM, left to itself, reloads a model's weights from memory: the median of five.

.venv-vllm/bin/python -m benchmarks.vllm_reload MODEL
"""

import asyncio
import statistics
import sys
import time
from pathlib import Path

from safetensors.torch import load_file


class Reload:
    """Added to vLLM's worker."""

    def timed_reloads(self, model: str, times: int) -> list[float]:
        weights = {k: v for file in Path(model).glob("*.safetensors") for k, v in load_file(file).items()}
        found = []
        for _ in range(times):
            began = time.perf_counter()
            self.reload_weights(weights_iterator=iter(weights.items()), is_checkpoint_format=True)
            found.append(time.perf_counter() - began)
        return found


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
    (seconds,) = await llm.collective_rpc("timed_reloads", args=(model, 5))
    llm.shutdown()
    print(statistics.median(seconds))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
