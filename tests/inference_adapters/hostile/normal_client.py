"""The client that only generates, while other clients send hostile requests to the same server."""

import itertools
import json
from collections.abc import Callable

import aiohttp

PROMPTS = [[5, 6, 7, 8], [20, 21], [40, 41, 42, 43, 44, 45]]
TOKENS = 12


async def generate(http: aiohttp.ClientSession, model: str, count: Callable[[], None], stream: bool) -> None:
    """Generates repeatedly and greedily, expects the same result each time, and counts the responses."""
    first: dict[int, list[int]] = {}
    for number in itertools.count():
        which = number % len(PROMPTS)
        body = {
            "model": model,
            "prompt": PROMPTS[which],
            "max_tokens": TOKENS,
            "temperature": 0,
            "logprobs": True,
        }
        async with http.post("/v1/completions", json=body | {"stream": stream}) as answer:
            text = await answer.text()
        assert answer.status == 200, f"the normal client was answered {answer.status} {text}"
        bodies = [json.loads(text)] if not stream else _events(text)
        choices = [choice for chunk in bodies for choice in chunk["choices"]]
        ids = [token_id for choice in choices for token_id in choice["token_ids"]]
        logprobs = [item["logprob"] for c in choices if c["logprobs"] for item in c["logprobs"]["content"]]
        assert len(ids) == len(logprobs) and all(-100 < logprob <= 0 for logprob in logprobs), text
        assert choices[-1]["finish_reason"] in ("stop", "length") and choices[-1]["weight_versions"], text
        assert first.setdefault(which, ids) == ids, (first, ids)
        count()


def _events(text: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]", text
    return [json.loads(line) for line in lines[:-1]]
