"""Checks that the domain's problems suit the run and the model, and have not changed when a run resumes.

Called by `prepare.py`, and by the plan, which shows some of them. A sampler's state refers to problems by
their index, so a resumed run needs the same problems.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from contracts.end_tokens import end_tokens_in
from contracts.records import Completion, unsampled
from contracts.support.files import replaced_atomically
from pipelinerl.components import build_domain, build_model_maker, build_sampler
from pipelinerl.config import RunConfig
from pipelinerl.conversations.base import Conversation, Conversations, Option
from pipelinerl.conversations.shown_tokens import shown
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.domains.base import Domain, Problem
from pipelinerl.domains.demonstration_rows import Row
from pipelinerl.domains.demonstrations import Demonstration
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.components import checked
from pipelinerl.launcher.checking.conversations import check_options, check_same_prompt
from pipelinerl.launcher.checking.model_source import Model
from pipelinerl.launcher.checking.template import asked_of, prompt_of
from pipelinerl.rollouts.evaluation import held_out
from pipelinerl.samplers.base import Sampler

FILE = "problems.json"
MEASURED = 64  # training and held-out problems whose prompts are measured, the longest ones if known
SHOWN = 3
SHOWN_CHARACTERS = 2000
RENDERED = 64  # answers in text whose tokens are counted before the run, the longest ones


class Problems(msgspec.Struct, frozen=True):
    count: int
    digest: str

    def __str__(self) -> str:
        return f"{self.count:,} training problems (digest {self.digest})"


def problems_of(domain: Domain) -> Problems:
    return Problems(domain.train_size, domain.digest())


def keep_problems(run_dir: Path, problems: Problems) -> None:
    with replaced_atomically(run_dir / FILE) as unfinished:
        unfinished.write_bytes(msgspec.json.encode(problems))


def check_same(run_dir: Path, problems: Problems) -> None:
    """Raises PlanError if the run in the directory began with other training problems."""
    path = run_dir / FILE
    if not path.is_file():
        return
    before = msgspec.json.decode(path.read_bytes(), type=Problems)
    if before != problems:
        raise PlanError(
            f"the run began with {before}, and the domain now has {problems}: resume it with the same data, "
            f"or start a new run from the last model in {run_dir / 'checkpoints'}; without {path} it is "
            "resumed with others"
        )


def check_problems(config: RunConfig) -> Problems | None:
    """Checks the domain's problems and the sampler. Returns None for a plan that would have to fetch them."""
    domain = build_domain(config)
    if config.plan and domain.fetches:
        return None
    checked("domain", lambda: (domain.train_size, domain.heldout_size))
    _check_held_out(config, domain)
    sampler = checked("sampler", lambda: build_sampler(config, domain))
    if domain.demonstrated and type(sampler).observe is not Sampler.observe:
        raise PlanError(
            f"sampler: {type(sampler).__name__} chooses by success, and answers of a file have no other; set "
            "sampler=shuffled_epochs"
        )
    checked("eval", lambda: held_out(domain, config.eval) if config.eval.attempts_of else None)
    return checked("domain", lambda: problems_of(domain))


def _check_held_out(config: RunConfig, domain: Domain) -> None:
    if domain.heldout_size == 0:
        raise PlanError(f"the domain {domain.name} holds out no problems, and every run is evaluated")
    if config.eval.problems > domain.heldout_size:
        raise PlanError(
            f"eval.problems={config.eval.problems}, and the domain {domain.name} holds out "
            f"{domain.heldout_size}; set eval.problems={domain.heldout_size}"
        )


# --- prompts --------------------------------------------------------------------------------------


def check_prompts(
    config: RunConfig, conversations: Conversations, template: TemplateConversations, domain: Domain
) -> None:
    """Raises PlanError for prompts longer than `sampling.max_prompt_tokens`, or not the template's."""
    problems = list(_measured(config, domain))
    check_options(config, template, problems)
    lengths = {}
    for problem in problems:
        lengths[problem.problem_id] = len(prompt_of(config, template, problem))
        what = f"problem {problem.problem_id}"
        check_same_prompt(config, conversations, template, asked_of(config, problem), what)
    limit = config.sampling.max_prompt_tokens
    longer = [problem_id for problem_id, length in lengths.items() if length > limit]
    if longer:
        name = max(longer, key=lengths.__getitem__)
        raise PlanError(
            f"the prompt of {name} has {lengths[name]} tokens, and sampling.max_prompt_tokens is {limit}; "
            f"raise it, or take such problems out ({len(longer)} of the {len(lengths)} measured are longer)"
        )


def _measured(config: RunConfig, domain: Domain) -> Iterator[Problem]:
    if config.plan and domain.fetches:
        return
    if not domain.demonstrated:  # servers do not get demonstrations
        yield from map(domain.train_problem, domain.longest_problems(MEASURED))
    yield from map(domain.heldout_problem, domain.longest_heldout(MEASURED))


def describe_problems(config: RunConfig, model: Model) -> Iterator[str]:
    """Yields lines of the plan: the domain's notes, and the first problems as the model sees them."""
    domain = build_domain(config)
    if domain.fetches and not domain.makes:
        yield "problems: fetched when the run starts"
        return
    yield from (f"problems: {note}" for note in domain.plan_notes())
    if model.state not in ("here", "to be made"):
        return
    here = Path(model.path) if model.state == "here" else build_model_maker(config).tokenizer
    if here is None:
        yield "problems: their prompts are shown once the model is made, which a run does at its start"
        return
    if not here.is_dir():
        raise PlanError(f"model.made_by._target_={config.model.made_by.target}: no tokenizer is in {here}")
    template = TemplateConversations(str(here))
    for index in range(min(SHOWN, domain.train_size)):
        problem = domain.train_problem(index)
        if isinstance(problem, Demonstration):
            completions = answers_of(problem.row, template, config.model.template)
            yield f"{problem.problem_id}: {_first(template, completions[0].prompt_token_ids.tolist())}"
            for completion in completions:
                yield f"  answer: {_first(template, completion.token_ids.tolist())}"
            continue
        prompt = prompt_of(config, template, problem)
        yield f"{problem.problem_id}: {_first(template, prompt)}"
        if index == 0:
            yield f"  sent as: {_begin_of(' '.join(map(str, prompt)))}"
        yield f"  expected: {_begin_of(repr(problem.data))}"


def _first(template: TemplateConversations, tokens: Sequence[int]) -> str:
    return _begin_of(shown(template.renderer.tokenizer, tokens))


def _begin_of(text: str) -> str:
    more = len(text) - SHOWN_CHARACTERS
    return text[:SHOWN_CHARACTERS] + (f" and {more:,} more characters" if more > 0 else "")


# --- demonstrations -------------------------------------------------------------------------------


class Limits(NamedTuple):
    """Limits on the rows of a file of demonstrations, in tokens."""

    vocabulary: int
    context: int  # of one answer with its prompt
    line: int | None  # of all answers of a row, each with its prompt


def check_answers(
    rows: Sequence[Row],
    template: TemplateConversations,
    limits: Limits,
    options: Mapping[str, Option] | None = None,
) -> None:
    """Raises PlanError for unknown token ids, rows that are too long, and texts that cannot be rendered.

    An answer in token ids must have an end token, so that the model learns to end its answers.
    """
    ends = end_tokens_in(template.path, template.renderer.tokenizer)
    for number, row in enumerate(rows, 1):
        for tokens in row.tokens:
            whole = [*row.prompt_token_ids, *tokens]
            if max(whole) >= limits.vocabulary:
                raise PlanError(
                    f"domain: row {number} has the token id {max(whole)}; the model has {limits.vocabulary}"
                )
        _check_lengths(number, [len(row.prompt_token_ids) + len(tokens) for tokens in row.tokens], limits)
        for tokens in row.tokens:
            if tokens[-1] not in ends:
                raise PlanError(
                    f"domain: an answer of row {number} ends with token {tokens[-1]}; the last token must be "
                    f"one that ends a turn: {', '.join(map(str, ends))}"
                )
    in_text = [(number, row) for number, row in enumerate(rows, 1) if row.texts]
    in_text.sort(key=lambda line: -line[1].characters)
    for number, row in in_text[:RENDERED]:
        try:
            answers = answers_of(row, template, options)
        except Exception as error:  # a chat template may raise any error
            raise PlanError(f"domain: row {number} cannot be rendered: {error}") from error
        lengths = [len(answer.prompt_token_ids) + len(answer.token_ids) for answer in answers]
        _check_lengths(number, lengths, limits)


def _check_lengths(number: int, answers: Sequence[int], limits: Limits) -> None:
    for tokens in answers:
        if tokens > limits.context:
            raise PlanError(
                f"domain: row {number} has {tokens} tokens; the model's context is {limits.context}"
            )
    if limits.line is not None and sum(answers) > limits.line:
        raise PlanError(
            f"domain: row {number} has {sum(answers)} tokens, and a micro-batch at most {limits.line}; raise "
            "packing.micro_batch_tokens"
        )


def answers_of(
    row: Row, template: TemplateConversations, options: Mapping[str, Option] | None = None
) -> list[Completion]:
    """Returns the answers of a row as completions. The first of two is the preferred one."""
    if row.prompt_token_ids:
        return [unsampled(row.prompt_token_ids, tokens) for tokens in row.tokens]
    asked = Conversation(row.conversation, options=options or {})
    return [template.answered(asked, text) for text in row.texts]
