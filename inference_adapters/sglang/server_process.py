"""SGLang's server as a child process: start, end, requests and memory.

This module must not depend on the contract.
"""

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from contracts.support.ports import ReservedPort
from inference_adapters.resident_memory import resident_bytes_of_family
from inference_adapters.sglang import API_KEY_VARIABLE, PARENT_VARIABLE

LAUNCHER = Path(__file__).with_name("launcher.py")
ASK_EVERY_S = 0.2
ANSWER_S = 60.0
TEXT_S = 5.0  # below Prometheus' timeout of 10 s
LINE_BYTES = 2**28  # maximum size of an event: that of an aborted request has all log-probabilities
STOP_S = 5.0


class SglangError(RuntimeError):
    """Raised if SGLang refused a request, or has ended."""


class SglangServer:
    """An SGLang server that listens on loopback only, with a secret key."""

    def __init__(self, options: list[str], environment: dict[str, str]):
        self._port = ReservedPort()
        self._key = secrets.token_hex(16)
        address = ["--host", "127.0.0.1", "--port", str(self._port.number)]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                str(LAUNCHER),
                *options,
                *address,
            ],  # -P keeps our directory off the module path
            env=os.environ | environment | self._variables(),
            start_new_session=True,  # so that Ctrl-C reaches only this process, which ends its child
        )
        self._session: aiohttp.ClientSession | None = None

    def _variables(self) -> dict[str, str]:
        return {
            API_KEY_VARIABLE: self._key,
            PARENT_VARIABLE: str(os.getpid()),
            # So that SGLang does not close an idle connection while a request is being sent.
            "SGLANG_TIMEOUT_KEEP_ALIVE": "3600",
        }

    def ended(self) -> bool:
        return self._process.poll() is not None

    async def ready(self) -> None:
        """Waits until SGLang accepts requests. Raises SglangError if it exits before."""
        self._session = aiohttp.ClientSession(
            f"http://127.0.0.1:{self._port.number}",
            headers={"Authorization": f"Bearer {self._key}"},
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=LINE_BYTES,
        )
        while not await self._takes_requests():
            if self.ended():
                raise SglangError(
                    f"SGLang ended with status {self._process.returncode}: see its messages before this"
                )
            await asyncio.sleep(ASK_EVERY_S)

    async def _takes_requests(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            async with self._session.get("/ready") as answer:
                return answer.status == 200
        return False

    async def get(self, path: str) -> dict:
        return await self._answer("GET", path, None, ANSWER_S)

    async def text(self, path: str) -> str:
        """Returns the text of a route. Raises SglangError if SGLang does not respond within TEXT_S."""
        try:
            async with asyncio.timeout(TEXT_S), self._session.get(path) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise SglangError(f"SGLang does not answer at {path}: {error!r}") from error
        if answer.status != 200:
            raise SglangError(f"SGLang at {path}: {answer.status} {text[:500]}")
        return text

    async def post(self, path: str, *, within_s: float = ANSWER_S, **body: Any) -> dict:
        """Returns SGLang's response. Raises SglangError, with SGLang's message, if the request fails.

        Kills SGLang if it does not respond within `within_s`, because its state is then unknown.
        """
        return await self._answer("POST", path, body, within_s)

    async def _answer(self, method: str, path: str, body: dict | None, within_s: float) -> dict:
        try:
            async with asyncio.timeout(within_s), self._session.request(method, path, json=body) as answer:
                text = await answer.text()
        except aiohttp.ClientError as error:
            raise SglangError(f"SGLang does not answer at {path}: {error!r}") from error
        except TimeoutError as error:
            self._process.kill()
            raise SglangError(
                f"SGLang did not answer at {path} within {within_s:g} s, and was ended"
            ) from error
        body_read = json.loads(text) if text.startswith("{") else {}
        if answer.status != 200 or body_read.get("success") is False:
            raise SglangError(f"SGLang at {path}: {answer.status} {text[:500]}")
        return body_read

    async def events(self, path: str, **body: Any) -> AsyncIterator[dict]:
        """Yields the server-sent events of a response. Raises SglangError if the connection fails."""
        try:
            async with self._session.post(path, json=body) as answer:
                if answer.status != 200:
                    raise SglangError(f"SGLang at {path}: {answer.status} {(await answer.text())[:500]}")
                async for line in answer.content:
                    if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                        yield json.loads(line[6:])
        except aiohttp.ClientError as error:
            raise SglangError(f"SGLang does not answer at {path}: {error!r}") from error

    def resident_bytes(self) -> int:
        return resident_bytes_of_family(self._process.pid)

    async def close(self) -> None:
        if self._session:
            await self._session.close()
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        descendants = []
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants = psutil.Process(self._process.pid).children(recursive=True)
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self._process.kill()
        self._process.wait()
        self._port.release()
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
