"""How a completion ends by a stop string: where its text ends, and with which token its ids.

Each is compared with the same completion that ran on. It is called by G9, where `stop_strings` is declared.
"""

from contracts.conformance.inference.arrival import check_arrival
from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.endings import expect
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server

NEVER = "never met: 5f3a9c"
PROMPTS = 8  # of which one and its completion do not repeat a character


async def check_stop_strings(bench: Bench, server: Server, streams: bool) -> None:
    """Checks stop strings alone, in lists of either order, at the prompt's end, and in streams."""
    prompt = bench.reference.prompt(6)
    free = await server.complete(prompt, SHORT, temperature=0)
    stop = free.text[len(free.text) // 2 :][:2]
    if not (stop and stop.isascii() and stop.isprintable()):  # empty, or part of a character
        return
    longer = free.text[: free.text.index(stop) + len(stop)][-len(stop) - 1 :]
    for stream in (False, True) if streams else (False,):
        for stops in ([stop], [stop, NEVER], [longer, stop], [stop, longer]):
            await _check_end(bench, server, free, stops, stream)
    await _check_prompt_is_not_searched(bench, server)
    if streams:
        await check_arrival(bench, server, stop=[NEVER])


async def _check_prompt_is_not_searched(bench: Bench, server: Server) -> None:
    """Checks a stop string that the prompt's last character and the completion's first one would make."""
    for seed in range(PROMPTS):
        prompt = bench.reference.prompt(6, seed=seed)
        free = await server.complete(prompt, SHORT, temperature=0)
        stop = _text_of(bench, prompt)[-1:] + free.text[:1]
        if len(stop) == 2 and stop.isascii() and stop not in free.text:
            await _check_end(bench, server, free, [stop], stream=False)
            return


async def _check_end(bench: Bench, server: Server, free: Sample, stops: list[str], stream: bool) -> None:
    """Checks that the text ends before the first of the strings, and the ids with what completes it."""
    prompt = free.prompt_token_ids
    sample = await server.complete(prompt, SHORT, stream, temperature=0, stop=stops)
    where = f"{server}: complete {prompt} greedily with stop {stops!r}, stream {stream}"
    text = free.text
    reason = free.finish_reason
    if met := [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]:
        first = min(end for end, _ in met)  # of those that end together, the first of the list
        text = text[: next(start for end, start in met if end == first)]
        reason = "stop"
    expect(
        (sample.text, sample.finish_reason) == (text, reason),
        (sample.text, sample.finish_reason),
        f"{text!r} and {reason!r}",
        where,
    )
    ids = _until(bench, free.token_ids, stops)
    expect(ids in (None, sample.token_ids), sample.token_ids, f"{ids}: the last completes the string", where)
    bench.compare(sample, bench.weights(1), where)


def _until(bench: Bench, token_ids: list[int], stops: list[str]) -> list[int] | None:
    """Returns the ids up to the first after which their text has a stop string; None without a tokenizer."""
    if bench.reference.tokenizer is None:
        return None
    for end in range(1, len(token_ids) + 1):
        text = _text_of(bench, token_ids[:end])
        if any(stop in text for stop in stops):
            return token_ids[:end]
    return token_ids


def _text_of(bench: Bench, token_ids: list[int]) -> str:
    """Returns the text of ids; empty without a tokenizer."""
    tokenizer = bench.reference.tokenizer
    return str(tokenizer.decode(token_ids, skip_special_tokens=True)) if tokenizer else ""
