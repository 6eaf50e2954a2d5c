"""Measures the prompts of a domain before the run, and shows some of them in the plan (`plan=true`)."""

from collections.abc import Iterator, Sequence

from pipelinerl.clients.chat_template import ChatTemplate
from pipelinerl.clients.shown_tokens import shown
from pipelinerl.components import build_domain
from pipelinerl.config import RunConfig
from pipelinerl.demo_model.registry import DEMO_MODELS
from pipelinerl.domains.base import Domain, Problem
from pipelinerl.domains.demonstrations import Demonstration
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.demonstrated import answers_of
from pipelinerl.launcher.checking.model_source import Model
from pipelinerl.launcher.checking.template_checks import prompt_of

SHIPPED_DEMO = DEMO_MODELS["sums"]  # whose tokenizer and template all demo models have
MEASURED = 64  # problems of each side whose prompts are measured: the longest ones, if the domain knows them
SHOWN = 3
SHOWN_CHARACTERS = 2000


def check_prompts(config: RunConfig, template: ChatTemplate, domain: Domain) -> None:
    """Refuses prompts that are longer than the run allows for."""
    prompts = {
        problem.problem_id: prompt_of(config, template, problem) for problem in _measured(config, domain)
    }
    lengths = {problem_id: len(prompt) for problem_id, prompt in prompts.items()}
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
    if domain.fetches and not domain.makes:
        yield "problems: fetched when the run starts"
        return
    yield from (f"problems: {note}" for note in domain.plan_notes())
    if model.state not in ("here", "to be made"):
        return
    template = ChatTemplate(model.path if model.state == "here" else str(SHIPPED_DEMO.directory))
    for index in range(min(SHOWN, domain.train_size)):
        problem = domain.train_problem(index)
        if isinstance(problem, Demonstration):
            yield from _describe_answers(template, problem)
            continue
        yield f"{problem.problem_id}: {_first(template, prompt_of(config, template, problem))}"
        yield f"  expected: {_begin_of(repr(problem.data))}"


def _describe_answers(template: ChatTemplate, problem: Demonstration) -> Iterator[str]:
    """Yields the prompt of a line of a file, and each of its answers."""
    completions = answers_of(problem.row, template)
    yield f"{problem.problem_id}: {_first(template, completions[0].prompt_token_ids.tolist())}"
    for completion in completions:
        yield f"  answer: {_first(template, completion.token_ids.tolist())}"


def _first(template: ChatTemplate, tokens: Sequence[int]) -> str:
    return _begin_of(shown(template.renderer.tokenizer, tokens))


def _begin_of(text: str) -> str:
    more = len(text) - SHOWN_CHARACTERS
    return text[:SHOWN_CHARACTERS] + (f" and {more:,} more characters" if more > 0 else "")


def _measured(config: RunConfig, domain: Domain) -> Iterator[Problem]:
    if config.plan and domain.fetches:
        return
    if not domain.demonstrated:  # no server is given those
        yield from map(domain.train_problem, domain.longest_problems(MEASURED))
    yield from map(domain.heldout_problem, domain.longest_heldout(MEASURED))
