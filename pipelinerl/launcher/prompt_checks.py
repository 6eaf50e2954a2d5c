"""Measures the prompts of a domain before the run, and shows some of them in the plan (`plan=true`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipelinerl.clients.shown_tokens import shown
from pipelinerl.components import build_domain
from pipelinerl.config import RunConfig
from pipelinerl.domains.base import Domain, Problem
from pipelinerl.errors import PlanError
from pipelinerl.launcher.model_source import Model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MEASURED = 64  # problems of each side whose prompts are measured: the longest ones, if the domain knows them
SHOWN = 3
SHOWN_CHARACTERS = 2000


def check_prompts(config: RunConfig, tokenizer: PreTrainedTokenizerBase, domain: Domain) -> None:
    """Refuses prompts that are longer than the run allows for."""
    lengths = {problem.problem_id: len(_ids(tokenizer, problem)) for problem in _measured(config, domain)}
    limit = config.sampling.max_prompt_tokens
    longer = [problem_id for problem_id, length in lengths.items() if length > limit]
    if longer:
        name = max(longer, key=lengths.__getitem__)
        raise PlanError(
            f"the prompt of {name} has {lengths[name]} tokens, and sampling.max_prompt_tokens is {limit}; "
            f"raise it, or take such problems out ({len(longer)} of the {len(lengths)} measured are longer)"
        )


def describe_problems(config: RunConfig, model: Model) -> Iterator[str]:
    """Yields lines of the plan: the domain's notes, and the first problems as the model will see them."""
    domain = build_domain(config)
    if domain.fetches:
        yield "problems: fetched or made when the run starts"
        return
    yield from (f"problems: {note}" for note in domain.plan_notes())
    if model.state != "here":
        return
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.path, local_files_only=True)
    for index in range(min(SHOWN, domain.train_size)):
        problem = domain.train_problem(index)
        text = shown(tokenizer, _ids(tokenizer, problem))
        more = len(text) - SHOWN_CHARACTERS
        rest = f" and {more:,} more characters" if more > 0 else ""
        yield f"{problem.problem_id}: {text[:SHOWN_CHARACTERS]}{rest}"
        yield f"  expected: {problem.data!r}"


def _measured(config: RunConfig, domain: Domain) -> Iterator[Problem]:
    if config.plan and domain.fetches:
        return
    if not domain.demonstrated:  # no server is given those
        yield from map(domain.train_problem, domain.longest_problems(MEASURED))
    yield from map(domain.heldout_problem, domain.longest_heldout(MEASURED))


def _ids(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> list[int]:
    return tokenizer.apply_chat_template(
        problem.messages,
        tools=problem.tools,
        add_generation_prompt=True,
        return_dict=False,
        tokenizer_kwargs={"verbose": False},  # its warning of a long text says less than the refusal
    )
