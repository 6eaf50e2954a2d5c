"""Checks that the model's chat template renders the domain's messages, and describes it for the plan.

A template may refuse roles, leave messages out, or not open an answer. The run would then learn from other
prompts than the domain's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from contracts.end_tokens import end_tokens_in
from contracts.records import unsampled
from contracts.support.messages import one_line
from pipelinerl.config import RunConfig
from pipelinerl.conversations.base import Conversation, Parsed
from pipelinerl.conversations.rendering import Renderer, said, with_marks
from pipelinerl.conversations.shown_tokens import shown
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.domains.base import Domain, Problem
from pipelinerl.errors import PlanError

ASKED = [{"role": "user", "content": "the problem"}]
NEXT = [{"role": "user", "content": "the next message"}]
SAID = "the answer"
EMPTY_THOUGHT = re.compile(r"<think>\s*</think>")


def check_template(config: RunConfig, template: TemplateConversations, domain: Domain) -> None:
    """Checks the template without the domain's problems, which a plan does not fetch. Raises PlanError."""
    path = template.path
    tokenizer = template.renderer.tokenizer
    if not tokenizer.chat_template:
        raise PlanError(f"the tokenizer in model.path={path} has no chat template; add chat_template.jinja")
    try:
        unopened = _unopened(template.renderer)
    except ValueError as error:
        raise PlanError(f"model.path={path}: {error}") from error
    if unopened:
        raise PlanError(
            f"the chat template in model.path={path} ignores add_generation_prompt: the model itself would "
            f"have to begin its turn with {unopened!r}"
        )
    if not end_tokens_in(path, tokenizer):
        raise PlanError(
            f"no file in model.path={path} names a token that ends an answer; set eos_token_id in "
            "generation_config.json"
        )
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


def prompt_of(config: RunConfig, template: TemplateConversations, problem: Problem) -> list[int]:
    """Returns the token ids of a prompt. Raises PlanError if the template does not render the messages."""
    where = f"the chat template in model.path={template.path}"
    try:
        template.spells_special(problem.messages)  # warns
        left_out = _left_out(template.renderer, problem)
        tokens = template.render(asked_of(config, problem))
    except ValueError as error:
        words = one_line(error.__cause__ or error)
        what = "a system message" if _has_system(problem) else f"problem {problem.problem_id}"
        raise PlanError(f"{where} refuses {what} ({words}){_advice(config, problem)}") from error
    if left_out:
        what = f"the {left_out} message of problem {problem.problem_id}"
        raise PlanError(f"{where} leaves out {what}{_advice(config, problem)}")
    return tokens


def asked_of(config: RunConfig, problem: Problem) -> Conversation:
    """Returns the conversation that opens an attempt at the problem."""
    options = {**(config.model.template or {}), **(problem.template or {})}
    return Conversation(problem.messages, problem.tools, options)


def _has_system(problem: Problem) -> bool:
    return any(message["role"] == "system" for message in problem.messages)


def _advice(config: RunConfig, problem: Problem) -> str:
    options = config.domain.model_dump()
    return "; set domain.system_prompt=null" if _has_system(problem) and "system_prompt" in options else ""


def describe_template(config: RunConfig, path: str) -> Iterator[str]:
    """Yields lines that show a prompt, an answer, the next turn, and the end tokens."""
    template = TemplateConversations(path)
    tokenizer = template.renderer.tokenizer
    asked = Conversation(ASKED, options=config.model.template or {})
    prompt = template.render(asked)
    said = [*tokenizer(SAID, add_special_tokens=False)["input_ids"], template.renderer.end]
    yield f"chat template: {shown(tokenizer, prompt)}"
    yield f"  answered: {shown(tokenizer, said)}"
    try:
        following = template.extend(asked, unsampled(prompt, said), Parsed(SAID, SAID), NEXT)
        yield f"  next turn: {shown(tokenizer, following[len(prompt) + len(said) :])}"
        strips = template.strips_thoughts(asked)
    except ValueError as error:
        yield f"  next turn: none, because {error}"
        strips = False
    if strips:
        told = {"as_template": "begins a sequence of its own, without them", "keep": "keeps them"}
        yield f"  earlier thoughts: stripped; a user's message {told[config.model.old_thoughts]}"
    ends = (f"{shown(tokenizer, [end])} {end}" for end in template.stops)
    yield f"  servers end an answer at {', '.join(ends)}"
