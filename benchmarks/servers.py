"""Starts inference servers to be measured."""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping

import aiohttp

from contracts.support.ports import ReservedPort
from pipelinerl.paths import ROOT


@contextlib.contextmanager
def started(command: list[str], model: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Yields the URL of the server that `command` starts, once it is ready."""
    with ReservedPort() as port:
        process = subprocess.Popen(
            [*command, "--model", model, "--port", str(port.number)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            asyncio.run(_ready(url := f"http://127.0.0.1:{port.number}", process))
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
