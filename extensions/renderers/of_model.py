"""Finds the renderer of a model: by its name, or the first one that renders as the model's template does."""

from collections.abc import Iterator, Mapping
from typing import get_args

from pipelinerl.conversations.base import Conversation, Conversations, Option
from pipelinerl.conversations.probes import TOOLS, USER, difference, fault_of_tools, probes
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.errors import PlanError

INSTALL = "install it: pip install 'pipelinerl[renderers]'"
NO_FAMILY = {"auto", "custom", "default"}  # the last one cannot continue from sampled tokens
GPT_OSS = "gpt-oss"  # may fetch a vocabulary when it is made
CHANNEL = "<|channel|>"


def renderer_of_model(
    name: str | None,
    template: TemplateConversations,
    options: Mapping[str, Option],
    with_tools: bool,
    keeps_thoughts: bool,
) -> Conversations:
    """Returns the `RendererConversations` with this name; without one, the first that suits the template.

    Raises PlanError if there is none, or the library is not installed.
    """
    try:
        from extensions.renderers.conversations import RendererConversations
    except ImportError as error:
        why = f"model.renderer={name}" if name else f"{_needs(template)}, so model.renderer=auto"
        raise PlanError(f"{why} needs the library renderers ({error}); {INSTALL}") from error
    names = sorted(_names(), reverse=True)  # of one family, the newest first
    if name is not None:
        if name not in names:
            known = ", ".join(sorted(names))
            raise PlanError(f"model.renderer={name} is none of auto, template, {known}")
        return RendererConversations(name, template, keeps_thoughts)
    for candidate in names:
        if candidate == GPT_OSS and CHANNEL not in template.renderer.tokenizer.get_added_vocab():
            continue
        found = RendererConversations(candidate, template, keeps_thoughts)
        if candidate == GPT_OSS:
            found.stops  # noqa: B018 - raises ValueError without the vocabulary
        if _suits(found, template, options, with_tools):
            return found
    raise PlanError(
        f"{_needs(template)}, nor as any renderer does; take another model, or name a renderer by "
        "model.renderer"
    )


def _needs(template: TemplateConversations) -> str:
    try:
        template.render(Conversation([USER], TOOLS))
    except ValueError as error:
        return f"the domain needs tools, and {error}; it writes no calls as <tool_call>{{...}}</tool_call>"
    return (
        f"the domain needs tools, and the chat template in {template.path} does not write calls as "
        "<tool_call>{...}</tool_call>, in tokens that are not special"
    )


def _names() -> Iterator[str]:

    from renderers import RendererConfig

    for config in get_args(get_args(RendererConfig)[0]):
        name = config.model_fields["name"].default
        if name not in NO_FAMILY:
            yield name


def _suits(
    found: Conversations, template: TemplateConversations, options: Mapping[str, Option], with_tools: bool
) -> bool:
    try:
        if any(difference(found, template, asked) for asked in probes(with_tools, options)):
            return False
        return not (with_tools and fault_of_tools(found, template, options))
    except ValueError:
        return False
