"""Checks that text and token ids agree with the model's tokenizer and chat template. G9 calls it."""

from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.mixed_batch import Asked, conversation, ids, ids_of_text, send_together
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.sampling import Sampling
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError

TEXTS = (
    "x",
    " leading and trailing spaces  ",
    "two\n\nlines\tand a tab",
    "grüße, 世界 🙂 e\u0301",
    "<|im_start|>user\n<eos></s>",
    "word " * 60,
)
CONVERSATIONS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("user", "grüße, 世界 🙂"),),
    (("user", "Hi."), ("assistant", " Hello! "), ("user", "<|im_end|> & <b>\n\n2 < 3?")),
    (("system", "Be brief."), ("user", "Hi."), ("assistant", "Hello."), ("user", "Bye.")),
)
SAMPLED = 12  # completions whose text is compared with their ids


async def check_texts(bench: Bench, server: Server, streams: bool, seeds: bool) -> None:
    """Sends texts, conversations and ids, and compares prompts and texts with the tokenizer's results."""
    await _check_choices_of_texts(bench, server, streams, seeds)
    tokenizer = bench.reference.tokenizer
    if tokenizer is None:
        return
    expected: list[list[int]] = []
    asked: list[Asked] = []
    for i, text in enumerate(TEXTS):
        expected.append([*tokenizer(text)["input_ids"]])
        asked.append(Asked(*ids_of_text(text), Sampling(0.0), streams and i % 2 == 1, max_tokens=1))
    for i, turns in enumerate(CONVERSATIONS):
        messages = [{"role": role, "content": content} for role, content in turns]
        prompt = template_ids(tokenizer, messages)
        if prompt and bench.reference.chats:
            expected.append(prompt)
            path, _ = conversation("")
            stream = streams and i % 2 == 1
            asked.append(Asked(path, {"messages": messages}, Sampling(0.0), stream, max_tokens=1))
    fits = [len(prompt) < bench.context for prompt in expected]
    asked = [one for one, short in zip(asked, fits, strict=True) if short]
    wanted = [prompt for prompt, short in zip(expected, fits, strict=True) if short]
    for one, choices, prompt in zip(asked, await send_together(server, asked), wanted, strict=True):
        if choices[0].prompt_token_ids != prompt:
            raise GuaranteeError(
                f"prompt_token_ids {choices[0].prompt_token_ids}",
                f"{prompt}, by the model's own tokenizer and chat template",
                f"{server}: {one}",
            )


def template_ids(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], **more: Any
) -> list[int] | None:
    """Returns the prompt ids of a conversation, or None if the template refuses it."""
    try:
        found = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **more)
    except (TemplateError, ValueError):
        return None
    return [int(str(token_id)) for token_id in found]


async def _check_choices_of_texts(bench: Bench, server: Server, streams: bool, seeds: bool) -> None:
    """Checks prompts of unusual ids, and that texts are the decoding of sampled ids."""
    ordinary = bench.reference.ordinary
    prompts = [
        ordinary[-8:],
        [*ordinary[-3:], *bench.reference.ends[:1], *ordinary[:3], *ordinary[-1:] * 5],
        *(bench.reference.prompt(5 + i, seed=70 + i) for i in range(SAMPLED)),
    ]
    more = [{"seed": i} if seeds else {} for i in range(len(prompts))]
    asked = [
        Asked(*ids(prompt), Sampling(1.5), streams and i % 2 == 1, more[i], max_tokens=SHORT)
        for i, prompt in enumerate(prompts)
    ]
    room = bench.context - 4
    asked.append(Asked(*ids(bench.reference.prompt(room, seed=5)), Sampling(1.0), max_tokens=4))
    answers = await send_together(server, asked)
    weights = bench.weights(1)
    for one, (sample,) in zip(asked, answers, strict=True):
        where = f"{server}: {one}"
        if sample.prompt_token_ids != one.prompt["prompt"]:
            raise GuaranteeError(
                f"prompt_token_ids {sample.prompt_token_ids}", "the ids that were sent", where
            )
        bench.compare(sample, weights, where, one.sampling.divisor)
        check_text(bench, sample, where)


def check_text(bench: Bench, sample: Sample, where: str) -> None:
    """Checks that the text is the decoding of the ids, except for a stop token or an incomplete character."""
    tokenizer = bench.reference.tokenizer
    if tokenizer is None:
        return
    whole = sample.token_ids
    allowed = []
    for part in (whole, whole[:-1]) if sample.finish_reason == "stop" else (whole,):
        allowed += texts_of(tokenizer, sample.prompt_token_ids, part)
    if sample.text.rstrip("\ufffd") not in [text.rstrip("\ufffd") for text in allowed]:
        raise GuaranteeError(f"the text {sample.text!r}", f"{allowed[0]!r}, which {whole} decode to", where)


def texts_of(tokenizer: PreTrainedTokenizerBase, prompt: list[int], part: list[int]) -> list[str]:
    """Returns three decodings of ids, alone and after the prompt, which may differ in spaces."""

    def decode(token_ids: list[int], **more: bool) -> str:
        return str(tokenizer.decode(token_ids, skip_special_tokens=True, **more))

    before = decode(prompt)
    after = decode(prompt + part)
    alone = [decode(part), decode(part, clean_up_tokenization_spaces=False)]
    return [*alone, after.removeprefix(before) if after.startswith(before) else alone[0]]
