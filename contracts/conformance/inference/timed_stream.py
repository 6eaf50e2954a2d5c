"""A streamed completion with the arrival times of its tokens."""

import asyncio
import json
from typing import Any

from contracts.conformance.inference.http_client import describe_request
from contracts.conformance.inference.samples import Sample, streamed
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError


class TimedStream:
    """One streamed completion. `arrivals` grows while `read` runs."""

    def __init__(self, server: Server, prompt: list[int], max_tokens: int, **fields: Any):
        self.server = server
        self.body = {"prompt": prompt, "max_tokens": max_tokens, "logprobs": True, "stream": True, **fields}
        self.arrivals: list[float] = []  # arrival of each token of choice 0, by the event loop's clock

    async def read(self) -> Sample:
        """Returns the completion. Raises GuaranteeError unless it is complete."""
        path = "/v1/completions"
        body = {"model": (await self.server.contract()).model} | self.body
        posted = self.server.http.post(self.server.url + path, json=body, headers=self.server.headers)
        chunks: list[dict[str, Any]] = []
        rest = b""
        last = b""
        try:
            async with posted as answer:
                async for data in answer.content.iter_any():
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        if line.startswith(b"data:"):
                            last = line.removeprefix(b"data:").strip()
                            chunks += self._chunks(last)
        except TimeoutError as error:
            raise self.server.unanswered("POST", path, body) from error
        if answer.status != 200 or last != b"[DONE]" or not chunks:
            raise GuaranteeError(
                f"POST {path}, stream: {answer.status}, ends with {(rest or last)[-200:]!r}",
                "200 and server-sent events that end with `data: [DONE]`",
                describe_request(path, body),
            )
        return streamed(chunks)[0]

    def _chunks(self, event: bytes) -> list[dict[str, Any]]:
        """Returns the chunk of an event, if it has one, and records the arrival of its tokens."""
        if event == b"[DONE]":
            return []
        chunk = json.loads(event)
        if "choices" not in chunk:
            raise GuaranteeError(
                f"a chunk {str(chunk)[:200]}", "choices in every chunk", "stream a completion"
            )
        now = asyncio.get_running_loop().time()
        for choice in chunk["choices"]:
            self.arrivals += [now] * len(choice.get("token_ids") or [])
        return [chunk]
