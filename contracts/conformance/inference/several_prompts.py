"""Checks that several prompts in one request are completed like single prompts. G9 calls it."""

from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.endings import expect
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.samples import Sample, samples, streamed
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.usage import check_usage

PATH = "/v1/completions"
TOKENS = 8
SEED = 11
TEMPERATURE = 5.0  # at a lower temperature, a model may repeat one token endlessly
TRIES = 6  # attempts at choices that should be equal, because rounding differs between batches


async def check_several_prompts(bench: Bench, server: Server, capabilities: list[str]) -> None:
    """Sends lists of prompts, of ids and of texts, streamed or not, with seeds and without."""
    prompts = [bench.reference.prompt(length, seed=length) for length in (5, 9, 3)]
    n = min(2, (await limits_of(server)).max_n)
    body: dict[str, Any] = {"prompt": prompts, "max_tokens": TOKENS, "n": n, "logprobs": True}
    answer = await server.generate(PATH, body)
    where = f"{server}: POST {PATH} {body}"
    check_usage(answer.get("usage"), prompts, samples_of_each(answer), where)
    await _check_answers(bench, samples_of_each(answer), prompts, n, where)
    texts = ["2 + 3 = ", "x"]
    alone = [(await server.complete(text, 1)).prompt_token_ids for text in texts]
    of_texts = samples_of_each(await server.generate(PATH, body | {"prompt": texts}))
    await _check_answers(bench, of_texts, alone, n, f"{where} with prompt {texts}")
    if "stream" in capabilities:
        chunks = await server.stream(PATH, body)
        await _check_answers(bench, streamed_of_each(chunks), prompts, n, f"{where} with stream: true")
    if "as_completed" in capabilities:
        answer = await server.joined_lines(PATH, body)
        await _check_answers(bench, samples_of_each(answer), prompts, n, f"{where} with as_completed: true")
    if "seed" in capabilities:
        await _check_seeds(bench, server, n)


def samples_of_each(answer: dict[str, Any]) -> list[Sample]:
    """Returns the choices of a response to several prompts, ordered by index."""
    found = []
    for choice in sorted(answer["choices"], key=lambda choice: choice["index"]):
        own = {"prompt_token_ids": choice.get("prompt_token_ids"), "choices": [choice]}
        found += samples(own)
    return found


def streamed_of_each(chunks: list[dict[str, Any]]) -> list[Sample]:
    parts: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            own = {"prompt_token_ids": choice.get("prompt_token_ids"), "choices": [choice]}
            parts.setdefault(choice["index"], []).append(own)
    return [sample for index in sorted(parts) for sample in streamed(parts[index])]


async def _check_answers(
    bench: Bench, found: list[Sample], prompts: list[list[int]], n: int, where: str
) -> None:
    """Checks that choice j of prompt p has index p * n + j, and is sampled from prompt p."""
    expected = [prompt for prompt in prompts for _ in range(n)]
    given = [sample.prompt_token_ids for sample in found]
    expect(given == expected, f"the prompts {given}, by index", f"{expected}", where)
    for sample in found:
        bench.compare(sample, bench.weights(1), where)


async def _check_seeds(bench: Bench, server: Server, n: int) -> None:
    """Checks that choice j of each prompt is sampled with `seed` + j."""
    temperature = min(TEMPERATURE, (await limits_of(server)).max_temperature)
    for attempt in range(TRIES):
        prompt = bench.reference.prompt(7, seed=7 + attempt)
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": TOKENS, "n": n, "logprobs": True}
        body |= {"seed": SEED + attempt, "temperature": temperature}
        alone = [sample.token_ids for sample in samples(await server.generate(PATH, body))]
        twice = samples_of_each(await server.generate(PATH, body | {"prompt": [prompt, prompt]}))
        found = [sample.token_ids for sample in twice]
        if found == alone * 2:
            return
        last = attempt == TRIES - 1
        expect(not last, f"ids {found}", f"twice those of the prompt alone, {alone}", f"{server}: {body}")
