"""Checks how conversations become tokens, and tokens calls: options, clock, renderer, end tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from contracts.end_tokens import end_tokens_in
from contracts.support.messages import nearest
from pipelinerl.config import RunConfig
from pipelinerl.conversations.base import Conversation, Conversations, Option
from pipelinerl.conversations.options import CLOCK, stopped_clock
from pipelinerl.conversations.probes import difference, fault_of_tools, probes
from pipelinerl.conversations.shown_tokens import shown
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.domains.base import Domain, Problem
from pipelinerl.errors import PlanError

MOST_OPTIONS = 64
DAYS = ("2001-02-03", "2014-05-26")


def check_conversations(
    config: RunConfig, conversations: Conversations, template: TemplateConversations, domain: Domain
) -> None:
    """Checks what does not depend on the domain's problems, which a plan does not fetch. Raises PlanError."""
    options = config.model.template or {}
    with_tools = "tools" in domain.needs
    _check_clock(template, options)
    for asked in probes(with_tools, options):
        check_same_prompt(config, conversations, template, asked, "a conversation")
    if with_tools and (why := fault_of_tools(conversations, template, options)):
        raise PlanError(
            f"the domain {domain.name} needs tools; with model.renderer={config.model.renderer} and the chat "
            f"template in model.path={template.path}, {why}"
        )
    _check_stops(conversations, template)


def check_options(config: RunConfig, template: TemplateConversations, problems: Sequence[Problem]) -> None:
    """Raises PlanError for options that the chat template does not read, and for those that change no prompt.

    A problem may set an option to what the template does by itself.
    """
    options = config.model.template or {}
    for problem in problems:
        check_names(template, problem.template or {}, f"problem {problem.problem_id}: template option ")
    asked = [*probes(True, options), *(Conversation(p.messages, p.tools, options) for p in problems)]
    for name, value in options.items():
        if name != CLOCK and not any(_changes(template, one, name) for one in asked):
            raise PlanError(
                f"model.template.{name}={_shown(value)} changes no prompt: the model's chat template does "
                "the same without it, or reads other values, such as false, which is no text; leave it out"
            )


def check_names(
    template: TemplateConversations, options: Mapping[str, Option], where: str = "model.template."
) -> None:
    """Raises PlanError for options that the chat template does not read, and for values that are none."""
    if len(options) > MOST_OPTIONS:
        raise PlanError(f"{where} {len(options)} options of the chat template; {MOST_OPTIONS} are the most")
    for name, value in options.items():
        number = isinstance(value, int | float) and math.isfinite(value)
        if not (number or isinstance(value, str)):
            raise PlanError(f"{where}{name}={_shown(value)} must be true, false, a number or a text")
        if name not in template.renderer.options:
            raise PlanError(
                f"{where}{name}={_shown(value)}: the model's chat template reads no such option; it reads "
                f"{template.renderer.offered_options}{nearest(name, template.renderer.options)}"
            )
        if name == CLOCK:
            try:
                stopped_clock(str(value))
            except ValueError as error:
                raise PlanError(f"{where}{error}") from error


def _shown(value: object) -> str:
    return json.dumps(value, default=str)


def check_same_prompt(
    config: RunConfig,
    conversations: Conversations,
    template: TemplateConversations,
    asked: Conversation,
    what: str,
) -> None:
    """Raises PlanError if a prompt differs from the one of the model's own template."""
    try:
        own = isinstance(conversations, TemplateConversations)
        different = None if own else difference(conversations, template, asked)
    except ValueError as error:
        named = f"model.renderer={config.model.renderer}: "
        raise PlanError(named + str(error).removeprefix(named)) from error
    if different:
        raise PlanError(
            f"model.renderer={config.model.renderer} renders {what} differently from the model's chat "
            f"template: {different}; set model.renderer=template, or another one"
        )


def _check_clock(template: TemplateConversations, options: Mapping[str, Option]) -> None:
    if CLOCK in options:
        return
    for asked in probes(True, options):
        try:
            days = [
                template.render(Conversation(asked.messages, asked.tools, {**options, CLOCK: day}))
                for day in DAYS
            ]
        except ValueError:  # the template refuses the conversation
            continue
        if days[0] != days[1]:
            raise PlanError(
                f"the chat template in model.path={template.path} writes today's date into prompts, so a "
                f"resumed run would ask other questions; set model.template={{{CLOCK}: YYYY-MM-DD}}"
            )


def _changes(template: TemplateConversations, asked: Conversation, name: str) -> bool:
    without = {key: value for key, value in asked.options.items() if key != name}
    try:
        return template.render(asked) != template.render(Conversation(asked.messages, asked.tools, without))
    except ValueError:
        return False


def _check_stops(conversations: Conversations, template: TemplateConversations) -> None:
    tokenizer = template.renderer.tokenizer
    ends = end_tokens_in(template.path, tokenizer)
    missing = [token for token in conversations.stops if token not in ends]
    if missing:
        names = ", ".join(f"{shown(tokenizer, [token])} {token}" for token in missing)
        raise PlanError(
            f"the model's answers also end at {names}, and no file in model.path={template.path} says so: "
            "add them to eos_token_id in generation_config.json"
        )
