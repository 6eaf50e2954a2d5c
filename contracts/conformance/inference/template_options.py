"""Checks `chat_template_kwargs`, if `template_options` is declared. G9 calls it."""

import re
from collections.abc import Iterator
from typing import Any

from jinja2 import Environment, TemplateError, meta
from transformers import PreTrainedTokenizerBase

from contracts.conformance.inference.bad_requests import BadRequest, check_all_refused
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.endings import expect
from contracts.conformance.inference.http_client import describe_request
from contracts.conformance.inference.server import Server
from contracts.template_options import is_option

PATH = "/v1/chat/completions"
UNREAD = {"no_such_option": True}
SET_BY_RENDERING = ("messages", "tools", "add_generation_prompt", "chat_template", "tokenize", "eos_token")
VALUES = (False, True, "low", "high", 1, 2)  # tried for each name
GENERATION_TAG = re.compile(r"{%-?\s*(end)?generation\s*-?%}")  # of transformers, unknown to Jinja
Options = dict[str, Any]


async def check_template_options(bench: Bench, server: Server, messages: list[dict[str, Any]]) -> bool:
    """Compares prompts with those of the model's template. Returns False if it reads no option."""
    body = {"model": await server.model(), "messages": messages, "max_tokens": 2}
    bad = [(name, body | {"chat_template_kwargs": {name: "x"}}) for name in SET_BY_RENDERING]
    await check_all_refused(
        server, [BadRequest(PATH, each, 422, "invalid_request", name) for name, each in bad]
    )
    plain = await _prompt(server, messages, {})
    await _expect_prompt(server, messages, UNREAD, plain)
    two = two_options(bench.reference.tokenizer, messages)
    for options, prompt in two:
        await _expect_prompt(server, messages, options, prompt)
    await _expect_prompt(server, messages, {}, plain)
    return bool(two)


def two_options(
    tokenizer: PreTrainedTokenizerBase | None, messages: list[dict[str, Any]]
) -> list[tuple[Options, list[int]]]:
    """Returns two options under which the template's prompts differ, each with its prompt, or []."""
    if tokenizer is None:
        return []
    for name in _read_by_template(tokenizer):
        found = list(_prompts(tokenizer, messages, name))
        for other in found[1:]:
            if other[1] != found[0][1]:
                return [found[0], other]
    return []


def _read_by_template(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    try:
        template = GENERATION_TAG.sub("", tokenizer.get_chat_template())
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)
    except (TemplateError, ValueError):
        return []
    return sorted(filter(is_option, meta.find_undeclared_variables(tree)))


def _prompts(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], name: str
) -> Iterator[tuple[Options, list[int]]]:
    for value in VALUES:
        options: Options = {name: value}
        try:
            ids = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=False, **options
            )
        except Exception:  # templates raise arbitrary errors for values that they do not know
            continue
        yield options, [int(str(token_id)) for token_id in ids]


async def _prompt(server: Server, messages: list[dict[str, Any]], options: Options) -> list[int]:
    more = {"chat_template_kwargs": options} if options else {}
    return (await server.chat(messages, 1, **more))[0].prompt_token_ids


async def _expect_prompt(
    server: Server, messages: list[dict[str, Any]], options: Options, expected: list[int]
) -> None:
    prompt = await _prompt(server, messages, options)
    body = {"messages": messages, "chat_template_kwargs": options, "logprobs": True}
    expect(
        prompt == expected,
        f"prompt_token_ids {prompt} with chat_template_kwargs {options}",
        f"{expected}, by the model's own chat template",
        f"{server}: after the same conversation with other options, {describe_request(PATH, body)}",
    )
