"""Checks that a conversation without `max_tokens` is completed up to the context length. G9 calls it."""

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.context_edge import CHEAP, longest
from contracts.conformance.inference.endings import expect
from contracts.conformance.inference.samples import Sample, samples
from contracts.conformance.inference.server import Server

PATH = "/v1/chat/completions"
LEFT = 300  # tokens left for the completion, approximately; exceeds usual defaults of max_tokens
WORD = "Go on. "


async def check_chat_length(bench: Bench, server: Server) -> None:
    """Sends a conversation that leaves about LEFT tokens, and checks that the completion fills them."""
    if bench.reference.context > CHEAP and not bench.settings.thorough:
        return
    context = await longest(bench, server)
    if not 2 * LEFT < context <= bench.reference.context:
        return
    length = len((await _chat(server, WORD, max_tokens=1)).prompt_token_ids)
    each = max(1, len((await _chat(server, WORD * 9, max_tokens=1)).prompt_token_ids) - length) / 8
    count = int((context - LEFT - length) / each)
    if count < 1:
        return
    sample = await _chat(server, WORD * count)
    whole = len(sample.prompt_token_ids) + len(sample.token_ids)
    ended = sample.finish_reason == "stop" and sample.token_ids[-1] in bench.reference.ends
    expect(
        ended or (whole, sample.finish_reason) == (context, "length"),
        f"{len(sample.token_ids)} tokens after a prompt of {len(sample.prompt_token_ids)}, and "
        f"{sample.finish_reason!r}",
        f"a completion up to the context of {context}",
        f"{server}: POST {PATH} with {WORD!r} {count} times, and without max_tokens",
    )


async def _chat(server: Server, content: str, **fields: int) -> Sample:
    body = {"messages": [{"role": "user", "content": content}], "logprobs": True} | fields
    return samples(await server.generate(PATH, body))[0]
