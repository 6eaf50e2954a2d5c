"""Checks that the model's chat template renders the domain's messages, and describes it for the plan.

A template may refuse roles, leave messages out, or not open an answer. The run would then learn from other
prompts than the domain's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from contracts.end_tokens import end_tokens_in
from contracts.records import unsampled
from contracts.support.messages import one_line
from contracts.tool_templates import knows_tools
from pipelinerl.clients.chat_template import ChatTemplate
from pipelinerl.clients.rendering import Renderer, said, with_marks
from pipelinerl.clients.shown_tokens import shown
from pipelinerl.config import RunConfig
from pipelinerl.domains.base import Domain, Problem
from pipelinerl.errors import PlanError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ASKED = [{"role": "user", "content": "the problem"}]
NEXT = [{"role": "user", "content": "the next message"}]
SAID = "the answer"
EMPTY_THOUGHT = re.compile(r"<think>\s*</think>")
CALL = '<tool_call>\n{"name": "tool", "arguments": {}}\n</tool_call>'
RESULT = [{"role": "tool", "tool_call_id": "call_1", "content": "the result"}]


def check_template(config: RunConfig, tokenizer: PreTrainedTokenizerBase, domain: Domain, path: str) -> None:
    """Checks the template without the domain's problems, which a plan does not fetch. Raises PlanError."""
    if not tokenizer.chat_template:
        raise PlanError(f"the tokenizer in model.path={path} has no chat template; add chat_template.jinja")
    template = ChatTemplate(path, tokenizer)
    try:
        unopened = _unopened(template.renderer)
    except ValueError as error:
        raise PlanError(f"model.path={path}: {error}") from error
    if unopened:
        raise PlanError(
            f"the chat template in model.path={path} ignores add_generation_prompt: the model itself would "
            f"have to begin its turn with {unopened!r}"
        )
    if "tools" in domain.needs and not knows_tools(tokenizer):
        raise PlanError(
            f"the domain {domain.name} needs tools; the chat template in model.path={path} shows none, or "
            "does not write a call as <tool_call>{...}</tool_call>, in tokens that are not special"
        )
    if not end_tokens_in(path, tokenizer):
        raise PlanError(
            f"no file in model.path={path} names a token that ends an answer; set eos_token_id in "
            "generation_config.json"
        )
    if "tools" in domain.needs:
        _check_results(template)
    # `check_prompts` renders problems that are here, with their own system prompts.
    system = config.domain.model_dump().get("system_prompt") if domain.fetches else None
    opening = [{"role": "system", "content": str(system)}] if system else []
    prompt_of(config, template, Problem("any", [*opening, *ASKED]))


def _unopened(renderer: Renderer) -> str:
    """Returns the text that begins a turn in the template, if prompts do not include it, or ""."""
    place = next(renderer.private(ASKED))
    prompt = renderer.render(ASKED)
    before, answered, _ = renderer.render([*ASKED, said(place)], opens=False).partition(place)
    if not answered or prompt != renderer.render(ASKED, opens=False):
        return ""
    return EMPTY_THOUGHT.sub("", before.removeprefix(prompt)).strip()


def _left_out(renderer: Renderer, problem: Problem) -> str | None:
    """Returns the role of the first message whose text the template does not show, or None."""
    marked, marks = with_marks(problem.messages, renderer.private(problem.messages))
    text = renderer.render(marked, problem.tools)
    return next((m["role"] for m in marked if m.get("content") in marks and m["content"] not in text), None)


def _check_results(template: ChatTemplate) -> None:
    """Raises PlanError if a tool's result cannot follow a tool call."""
    called = template.renderer.tokenizer(CALL, add_special_tokens=False)["input_ids"]
    try:
        template.prompt_after(unsampled(template.prompt(ASKED), [*called, template.renderer.end]), RESULT)
    except ValueError as error:
        raise PlanError(
            f"model.path={template.path}: {error}, when a tool's result follows a call"
        ) from error


def prompt_of(config: RunConfig, template: ChatTemplate, problem: Problem) -> list[int]:
    """Returns the token ids of a prompt. Raises PlanError if the template does not render the messages."""
    where = f"the chat template in model.path={template.path}"
    try:
        template.spells_special(problem.messages)  # warns
        left_out = _left_out(template.renderer, problem)
        tokens = template.prompt(problem.messages, problem.tools)
    except ValueError as error:
        words = one_line(error.__cause__ or error)
        what = "a system message" if _has_system(problem) else f"problem {problem.problem_id}"
        raise PlanError(f"{where} refuses {what} ({words}){_advice(config, problem)}") from error
    if left_out:
        what = f"the {left_out} message of problem {problem.problem_id}"
        raise PlanError(f"{where} leaves out {what}{_advice(config, problem)}")
    return tokens


def _has_system(problem: Problem) -> bool:
    return any(message["role"] == "system" for message in problem.messages)


def _advice(config: RunConfig, problem: Problem) -> str:
    options = config.domain.model_dump()
    return "; set domain.system_prompt=null" if _has_system(problem) and "system_prompt" in options else ""


def describe_template(path: str) -> Iterator[str]:
    """Yields lines that show a prompt, an answer, the next turn, and the end tokens."""
    template = ChatTemplate(path)
    tokenizer = template.renderer.tokenizer
    prompt = template.prompt(ASKED)
    ends = end_tokens_in(path, tokenizer)
    said = [*tokenizer(SAID, add_special_tokens=False)["input_ids"], template.renderer.end]
    yield f"chat template: {shown(tokenizer, prompt)}"
    yield f"  answered: {shown(tokenizer, said)}"
    try:
        following = template.prompt_after(unsampled(prompt, said), NEXT)
        yield f"  next turn: {shown(tokenizer, following[len(prompt) + len(said) :])}"
    except ValueError as error:
        yield f"  next turn: none, because {error}"
    yield f"  servers end an answer at {', '.join(f'{shown(tokenizer, [end])} {end}' for end in ends)}"
