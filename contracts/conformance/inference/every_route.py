"""One short request on every route that a server offers, for requests that arrive during updates (G2)."""

from collections.abc import Coroutine
from typing import Any

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.http_client import describe_request
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.timed_stream import TimedStream
from contracts.conformance.verdicts import GuaranteeError


def completions_on_every_route(
    bench: Bench, server: Server, capabilities: list[str], seed: int
) -> list[Coroutine[Any, Any, list[Sample]]]:
    """Returns requests for a completion, a streamed completion and a chat, as far as they are offered."""
    prompt = bench.reference.prompt(9, seed)
    requests: list[Coroutine[Any, Any, list[Sample]]] = [server.choices(prompt, SHORT)]
    if "stream" in capabilities:
        requests.append(_streamed(TimedStream(server, prompt[1:], SHORT)))
    if bench.reference.chats:
        requests.append(server.chat([{"role": "user", "content": "Go on."}], SHORT))
    return requests


async def score_of(bench: Bench, server: Server, what: str) -> None:
    """Scores one sequence. Raises GuaranteeError unless the status is 200."""
    body: dict[str, Any] = {"sequences": [bench.reference.prompt(12)], "temperature": 1.0}
    status, answer = await server.post("/score", body)
    if status != 200:
        raise GuaranteeError(
            f"POST /score: {status} {answer}",
            "200 once the update is over: what arrives meanwhile is queued",
            f"{what}: {describe_request('/score', body)}",
        )


async def _streamed(stream: TimedStream) -> list[Sample]:
    return [await stream.read()]
