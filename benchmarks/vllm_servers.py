"""vLLM servers to measure: behind the adapter, and bare."""

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Iterator

import aiohttp

from pipelinerl.addresses import free_port
from pipelinerl.jobs import ROOT

PYTHON = str(ROOT / ".venv-vllm" / "bin" / "python")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
OPTIONS = ["--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(2**28)]
ADAPTER = ["inference_adapters.vllm"]
BARE = ["vllm.entrypoints.openai.api_server", "--logprobs-mode", "processed_logprobs"]
BARE += ["--disable-uvicorn-access-log"]  # the adapter writes none


@contextlib.contextmanager
def started(model: str, module: list[str]) -> Iterator[str]:
    """URL of a server that is ready."""
    port = free_port()
    command = [PYTHON, "-m", *module, "--model", model, "--port", str(port), *OPTIONS]
    process = subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        asyncio.run(_ready(url := f"http://127.0.0.1:{port}", process))
        yield url
    finally:
        process.terminate()
        process.wait()


async def _ready(url: str, process: subprocess.Popen, within_s: float = 300) -> None:
    deadline = time.monotonic() + within_s
    async with aiohttp.ClientSession() as http:
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(aiohttp.ClientError):
                if (await http.get(f"{url}/health")).status == 200:
                    return
            await asyncio.sleep(0.5)
    raise RuntimeError(f"not ready: {process.args} (status {process.poll()})")
