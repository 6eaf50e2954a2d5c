"""What is done with the conversations of known model families: `python -m` of this module.

It tries published chat templates with tokenizers that it fetches. --write puts the list into
docs/conversations.md. --conversations N tries N random conversations of each of some families instead.
"""

import argparse
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from transformers import AutoTokenizer, GenerationConfig

from contracts.records import unsampled
from contracts.tool_templates import knows_tools
from extensions.renderers.conversations import RendererConversations
from pipelinerl.clients.conversations import build_conversations
from pipelinerl.conversations.base import Conversation, Conversations
from pipelinerl.conversations.probes import NEXT, USER, difference, fault_of_tools, probes
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.errors import PlanError
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.paths import ROOT
from tests.conversations.families import MARKUP, published
from tests.conversations.fetched import FETCHED, NotFetchedError, fetched
from tests.conversations.random_conversations import FORMATS, Trial

PAGE = ROOT / "docs" / "conversations.md"
TAG = re.compile(r"<\|[\w/]+\|?>|<[\w/]+\|>|\[gMASK\]|<sop>|<(?:start|end)_of_turn>")
MORE = {"<|image>", "<image|>", "<|audio>", "<audio|>"}  # which no template writes
CLOCK = {"strftime_now": "2026-11-29"}
PROBES = ("question", "answer", "thought", "tools", "call")
ANSWER = "\n</think>\n\nthe answer"
THOUGHT = {"role": "assistant", "content": "the answer", "reasoning_content": "the thought"}
MOST_SHOWN = 5  # faults of each implementation
QWEN_ENDS = ("<|im_end|>", "<|endoftext|>")


class Family(NamedTuple):
    """A model family. related: True if the tokenizer is another family's, with this one's tokens added.

    template: name of the published one, or None for the one that comes with the tokenizer, if any.
    renderer: its name in the library. ends: as its checkpoints name them.
    """

    name: str
    tokenizer: str
    template: str | None
    renderer: str | None
    ends: tuple[str, ...]
    related: bool = False


FAMILIES = [
    Family("Qwen2.5", "qwen3", "qwen2_5", None, QWEN_ENDS, related=True),
    Family("Qwen3", "qwen3", "qwen3", "qwen3", QWEN_ENDS),
    Family("Qwen3-Instruct-2507", "qwen3", "qwen3_instruct_2507", "qwen3", QWEN_ENDS),
    Family("Qwen3-VL", "qwen3", "qwen3_vl", "qwen3-vl", QWEN_ENDS),
    Family("Qwen3.5", "qwen3_6", "qwen3_5_think", "qwen3.5", QWEN_ENDS),
    Family("Qwen3.6", "qwen3_6", "qwen3_6", "qwen3.6", QWEN_ENDS),
    Family("Qwen3.8", "qwen3_6", "qwen3_8", "qwen3.8", QWEN_ENDS, related=True),
    Family("gpt-oss", "gptoss", "gptoss", "gpt-oss", ("<|return|>", "<|call|>")),
    Family("DeepSeek V3", "deepseek_v3", None, "deepseek-v3", ("<｜end▁of▁sentence｜>",)),
    Family("DeepSeek R1", "deepseek_v3", "deepseekv3", "deepseek-r1", ("<｜end▁of▁sentence｜>",)),
    Family("DeepSeek V4", "deepseek_v4", None, "deepseek-v4", ("<｜end▁of▁sentence｜>",)),
    Family("Gemma 3", "gemma3", "gemma3", None, ("<end_of_turn>",)),
    Family("Gemma 4", "gemma3", "gemma4_v5", "gemma4", ("<turn|>", "<|tool_response>"), related=True),
    Family(
        "GLM-4.5",
        "qwen3",
        "glm4moe",
        "glm-4.5",
        ("<|endoftext|>", "<|user|>", "<|observation|>"),
        related=True,
    ),
    Family("Llama 3.1", "llama3_1", "llama3_1", "llama-3", ("<|eot_id|>", "<|eom_id|>"), related=True),
    Family("Nemotron 3 Nano", "qwen3", "nemotron_3_nano", "nemotron-3", QWEN_ENDS, related=True),
    Family("Nemotron 3 Ultra", "qwen3", "nemotron_3_ultra", "nemotron-3-ultra", QWEN_ENDS, related=True),
    Family("Nemotron 3.5", "qwen3", "nemotron_3_5_lightning", "nemotron-3.5", QWEN_ENDS, related=True),
    Family("LFM2.5", "qwen3", "lfm2_2_5_v2", None, QWEN_ENDS, related=True),
]


@cache
def directory_of(family: Family) -> Path:
    """Returns a directory with what a checkpoint of the family has, except for the model."""
    source = fetched(family.tokenizer)
    if family.renderer == "gpt-oss":
        os.environ.setdefault("TIKTOKEN_ENCODINGS_BASE", str(source))
    tokenizer = AutoTokenizer.from_pretrained(source)
    if family.template:
        tokenizer.chat_template = published(family.template)
    if family.related:
        tags = {*TAG.findall(tokenizer.chat_template), *family.ends, *MORE}
        tokenizer.add_tokens(sorted(tags - {*MARKUP}), special_tokens=True)
        tokenizer.add_tokens(MARKUP)
    tokenizer.eos_token = family.ends[0]
    directory = FETCHED / "families" / family.name
    tokenizer.save_pretrained(directory)
    ends = tokenizer.convert_tokens_to_ids(list(family.ends))
    GenerationConfig(eos_token_id=ends).save_pretrained(directory)
    return directory


def options_of_family(template: TemplateConversations) -> dict[str, str]:
    return CLOCK if "strftime_now" in str(template.renderer.tokenizer.chat_template) else {}


def item(family: Family) -> Iterator[str]:
    """Yields the parts of the family's item."""
    template = TemplateConversations(str(directory_of(family)))
    options = options_of_family(template)
    yield f"{family.name}†" if family.related else family.name
    if not template.renderer.tokenizer.chat_template:
        yield "none: it comes without a template"
        return
    asked = list(probes(True, options))
    used = _taken(template)
    fault = fault_of_tools(used, template, options)
    why = fault and fault.replace(f" of {template.path}", "").partition(":")[0]
    name = f"`{_name(used)}`"
    if _is_refused(template):
        name = f"none: `{family.renderer}` writes calls otherwise; without tools {name}"
    yield f"none: {why}" if fault else name
    yield from _disagreement(family, template, asked)
    yield _user_turn(used, template, asked[0])


def _taken(template: TemplateConversations) -> Conversations:
    """Returns what `auto` takes for a domain with tools, or else what it takes for one without."""
    made = _made(template)
    try:
        return made(True)
    except PlanError:
        return made(False)


def _made(template: TemplateConversations) -> Callable[[bool], Conversations]:
    model = compose_config([]).model.model_copy(update={"template": options_of_family(template)})
    return partial(build_conversations, model, path=template.path, tokenizer=template.renderer.tokenizer)


def _is_refused(template: TemplateConversations) -> bool:
    """Returns True if `auto` finds nothing for a domain with tools."""
    try:
        return _made(template)(True) is None
    except PlanError:
        return True


def _name(conversations: Conversations) -> str:
    return conversations.name if isinstance(conversations, RendererConversations) else "template"


def _disagreement(
    family: Family, template: TemplateConversations, asked: list[Conversation]
) -> Iterator[str]:
    """Yields which probes the family's renderer renders otherwise than the template, if any."""
    if family.renderer is None:
        return
    conversations = RendererConversations(family.renderer, template)
    try:
        differ = [
            name
            for name, each in zip(PROBES, asked, strict=True)
            if difference(conversations, template, each)
        ]
    except ValueError as error:
        yield f"`{family.renderer}` is refused: {error}"
        return
    if differ:
        yield f"`{family.renderer}` differs: {', '.join(differ)}"


def _user_turn(used: Conversations, template: TemplateConversations, asked: Conversation) -> str:
    """Returns what is done if a user's message follows an answer with a thought."""
    renderer = template.renderer
    try:
        prompt = used.render(asked)
        text = renderer.render([USER, template.with_thought(THOUGHT)], opens=False, options=asked.options)
        if "the thought" not in text:
            text = f"{renderer.render([USER], options=asked.options)}the thought{ANSWER}"
        ids = renderer.ids(text, next(renderer.private()))[len(prompt) :]
        until = next((i for i, token in enumerate(ids) if token in used.stops), len(ids))
        completion = unsampled(prompt, [*ids[:until], used.stops[0]])
        answer = used.parse(asked, completion)
        return "extends" if used.extend(asked, completion, answer, [NEXT]) else "begins anew"
    except ValueError as error:
        return f"refused: {error}"


def page() -> str:
    """Returns the list. A family whose tokenizer cannot be had has no item."""
    lines = []
    for family in FAMILIES:
        try:
            name, *parts = item(family)
            lines.append(f"* {name}: {'; '.join(parts)}")
        except NotFetchedError as error:
            print(f"{family.name}: {error}", file=sys.stderr)
        else:
            print(lines[-1], flush=True)
    return "\n".join(lines)


def try_conversations(count: int, seed: int) -> int:
    """Tries random conversations, with every implementation that suits. Returns the exit status.

    It is 1 after a fault, and if no tokenizer can be had.
    """
    faults = 0
    tried = 0
    for family in (each for each in FAMILIES if each.name in FORMATS):
        try:
            template = TemplateConversations(str(directory_of(family)))
        except NotFetchedError as error:
            print(f"{family.name}: {error}")
            continue
        options = options_of_family(template)
        kept = TemplateConversations(template.path, template.renderer.tokenizer, keeps_thoughts=True)
        made = {
            family.renderer: [
                RendererConversations(family.renderer, template, keeps) for keeps in (False, True)
            ]
        }
        if knows_tools(template.renderer.tokenizer):
            made["template"] = [template, kept]
        twin = kept if family.ends == QWEN_ENDS else None
        for name, both in made.items():
            trial = Trial(FORMATS[family.name], both, twin, template)
            found = trial.run(count, f"{seed}/{family.name}", options)
            faults += len(found)
            tried += count
            print(*found[:MOST_SHOWN], sep="\n", end="\n" if found else "")
            counts = ", ".join(f"{number} {what}" for what, number in sorted(trial.counts.items()))
            print(f"{family.name}, {name}: {count} conversations, {counts}; {len(found)} faults", flush=True)
    return 1 if faults or not tried else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the list into docs/conversations.md")
    parser.add_argument("--conversations", type=int, help="try so many random ones")
    parser.add_argument("--seed", type=int, default=0, help="of the random ones (0)")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if given.conversations:
        return try_conversations(given.conversations, given.seed)
    families = page()
    if given.write:
        before = PAGE.read_text().partition("<!-- families -->")[0]
        PAGE.write_text(f"{before}<!-- families -->\n\n{families}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
