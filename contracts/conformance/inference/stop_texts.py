"""Checks text and ids of completions that end at a stop string. G9 calls it if `stop_strings` is declared.

Compares each completion with the same one without the stop string.
"""

import random

from contracts.conformance.inference.arrival import check_arrival
from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.endings import expect
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.texts import texts_of

NEVER = "never met: 5f3a9c"
CHOICES = 4
STOPS = 300  # stop strings, of which a few occur
WAYS = 3  # ways to decode ids
PROMPTS = 8  # most prompts tried to find a suitable stop string


async def check_stop_strings(bench: Bench, server: Server, streams: bool, in_lines: bool) -> None:
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
    if in_lines:
        await _check_end(bench, server, free, [stop], in_lines=True)
    await _check_prompt_is_not_searched(bench, server)
    await _check_each_choice(bench, server)
    if streams:
        await check_arrival(bench, server, stop=[NEVER])


async def _check_prompt_is_not_searched(bench: Bench, server: Server) -> None:
    """Checks that a stop string across the end of the prompt has no effect."""
    for seed in range(PROMPTS):
        prompt = bench.reference.prompt(6, seed=seed)
        free = await server.complete(prompt, SHORT, temperature=0)
        stop = _text_of(bench, prompt)[-1:] + free.text[:1]
        if len(stop) == 2 and stop.isascii() and stop not in free.text:
            await _check_end(bench, server, free, [stop])
            return


async def _check_each_choice(bench: Bench, server: Server) -> None:
    """Checks that each of several choices ends by its own text, with many short stop strings."""
    n = min(CHOICES, (await limits_of(server)).max_n)
    prompt = bench.reference.prompt(6)
    free = await server.choices(prompt, SHORT, n=n, temperature=1)
    known = "".join(_text_of(bench, sample.token_ids) for sample in free)
    letters = sorted({letter for letter in known if letter.isascii() and letter.isprintable()})
    if bench.reference.tokenizer is None or not letters:
        return
    draw = random.Random(0)
    stops = sorted({draw.choice(letters) + draw.choice(letters) for _ in range(STOPS)})
    where = f"{server}: complete {prompt} with n {n} and stop {stops}"
    for sample in await server.choices(prompt, SHORT, n=n, temperature=1, stop=stops):
        bench.compare(sample, bench.weights(1), where)
        ended = {*sample.token_ids[-1:]} & {*bench.reference.ends}
        length = len(sample.token_ids) == SHORT and sample.finish_reason == "length"
        found = _ends(bench, sample.prompt_token_ids, sample.token_ids, stops)
        # A tokenizer may decode in several ways; one of them must explain both the ids and the reason.
        right = any(
            sample.finish_reason == "stop" if met else bool(ended) or length
            for ids, met in found
            if ids == sample.token_ids
        )
        expect(
            right,
            (sample.text, sample.token_ids, sample.finish_reason),
            "`stop` with the first token that completes a stop string in its own text, else `length`",
            where,
        )


async def _check_end(
    bench: Bench,
    server: Server,
    free: Sample,
    stops: list[str],
    stream: bool = False,
    in_lines: bool = False,
) -> None:
    """Checks that the text ends before the first stop string, and the ids with its last token."""
    prompt = free.prompt_token_ids
    sample = await server.complete(prompt, SHORT, stream, in_lines, temperature=0, stop=stops)
    where = f"{server}: complete {prompt} greedily with stop {stops!r}, stream {stream}, in lines {in_lines}"
    text = free.text
    reason = free.finish_reason
    if met := [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]:
        first = min(end for end, _ in met)  # if several end at the same place, the first in the list
        text = text[: next(start for end, start in met if end == first)]
        reason = "stop"
    expect(
        (sample.text, sample.finish_reason) == (text, reason),
        (sample.text, sample.finish_reason),
        f"{text!r} and {reason!r}",
        where,
    )
    found = [ids for ids, _ in _ends(bench, prompt, free.token_ids, stops)]
    expect(
        not found or sample.token_ids in found,
        sample.token_ids,
        f"{found[:1]}: the last completes the string",
        where,
    )
    bench.compare(sample, bench.weights(1), where)


def _ends(
    bench: Bench, prompt: list[int], token_ids: list[int], stops: list[str]
) -> list[tuple[list[int], bool]]:
    """Returns, for each way to decode, the ids up to the end of a stop string, and True if one occurs.

    Returns [] without a tokenizer.
    """
    tokenizer = bench.reference.tokenizer
    if tokenizer is None:
        return []
    met: dict[int, int] = {}
    for end in range(1, len(token_ids) + 1):
        for way, text in enumerate(texts_of(tokenizer, prompt, token_ids[:end])):
            if any(stop in text for stop in stops):
                met.setdefault(way, end)
    return [(token_ids[: met.get(way, len(token_ids))], way in met) for way in range(WAYS)]


def _text_of(bench: Bench, token_ids: list[int]) -> str:
    tokenizer = bench.reference.tokenizer
    return str(tokenizer.decode(token_ids, skip_special_tokens=True)) if tokenizer else ""
