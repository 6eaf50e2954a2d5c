"""Checks runs that learn from demonstrations, and those that compare nothing: each refusal is one line."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from contracts.end_tokens import end_tokens_in
from contracts.records import Completion, unsampled
from pipelinerl.advantages import Constant
from pipelinerl.clients.chat_template import ChatTemplate
from pipelinerl.config import RunConfig
from pipelinerl.domains.base import Domain
from pipelinerl.domains.demonstration_rows import Row
from pipelinerl.errors import PlanError
from pipelinerl.objectives.nesting import nested
from pipelinerl.samplers.base import Sampler

Parts = Mapping[str, Sequence[object]]
RENDERED = 64  # longest answers in text, whose tokens are counted before the run


def check_demonstrated(config: RunConfig, parts: Parts) -> None:
    """`parts`: what the configuration names, as built, by section."""
    (domain,) = parts["domain"]
    (objective,) = parts["objective"]
    of_file = [inner for inner in nested(objective) if hasattr(inner, "learns_from_demonstrations")]
    learns_from = of_file[0].learns_from_demonstrations if of_file else 0
    if learns_from != domain.demonstrated:
        raise PlanError(_misfit(type((of_file or [objective])[0]).__name__, learns_from, domain.demonstrated))
    if domain.demonstrated:
        _check_of_file(config)
    _check_compared(config, parts)
    in_pairs = learns_from == 2
    if in_pairs and config.credit != "completion":
        raise PlanError("objective: Dpo tells the preferred answer by its reward: set credit=completion")
    if config.credit == "completion" and not in_pairs:
        raise PlanError(
            "credit=completion gives each completion its own reward, for pairs of answers (objective=dpo); "
            f"with objective {type(objective).__name__} set credit=trajectory"
        )


def _misfit(name: str, learns_from: int, given: int) -> str:
    if not given:
        return f"objective: {name} learns from answers of a file: set domain=demonstrations"
    fit = {1: "cross_entropy", 2: "dpo"}[given]
    return (
        f"domain: the file has {given} answer(s) a line, and objective {name} does not learn from those; set "
        f"objective={fit}"
    )


def _check_compared(config: RunConfig, parts: Parts) -> None:
    """What compares the attempts of a group needs two of them, and what compares none must say so."""
    (advantage,) = parts["advantage"]
    (objective,) = parts["objective"]
    if config.group_size < getattr(advantage, "least_members", 2):
        raise PlanError(
            f"group_size={config.group_size}: advantage {type(advantage).__name__} compares the attempts of "
            "a group; set group_size=2 or more, or advantage=constant"
        )
    needs_none = any(getattr(inner, "needs_no_advantage", False) for inner in nested(objective))
    if isinstance(advantage, Constant) and not needs_none:
        raise PlanError(
            f"advantage: Constant is 1 whatever the reward, from which objective {type(objective).__name__} "
            "learns nothing; choose another advantage"
        )
    if config.group_size == 1:
        for part in parts.get("filters", []):
            if getattr(part, "compares_members", False):
                raise PlanError(
                    f"filters: {type(part).__name__} compares the attempts of a group, and group_size=1 "
                    "has one; set filters=[]"
                )


def _check_of_file(config: RunConfig) -> None:
    """Refuses what would be given, and would change nothing."""
    if config.group_size > 1:
        raise PlanError(f"group_size={config.group_size}: a line is one attempt; set group_size=1")
    if config.advantage.target != f"{Constant.__module__}.{Constant.__name__}":
        raise PlanError("domain: answers of a file are not compared: set advantage=constant")
    if config.rewards:
        raise PlanError(
            "rewards: answers of a file are given, and no term of the reward counts; set rewards=[]"
        )
    if config.credit == "turn":
        raise PlanError(
            "credit=turn: an answer of a file is one turn; set credit=trajectory, or completion for pairs"
        )
    if config.token_fields:
        raise PlanError("token_fields: answers of a file have none; leave them out")


def check_sampler(domain: Domain, sampler: Sampler) -> None:
    """Refuses a sampler that chooses by success, which answers of a file have always."""
    if domain.demonstrated and type(sampler).observe is not Sampler.observe:
        raise PlanError(
            f"sampler: {type(sampler).__name__} chooses by success, and answers of a file have no other; set "
            "sampler=shuffled_epochs"
        )


class Most(NamedTuple):
    """What the lines of a file may have at most."""

    vocabulary: int
    context: int  # tokens of one answer with its prompt
    line: int | None  # tokens of all answers of a line, each with the prompt


def check_answers(rows: Sequence[Row], template: ChatTemplate, most: Most) -> None:
    """Checks that the model has the token ids, that lines fit into it, and that text is rendered.

    An answer in token ids must end itself: the model would otherwise learn never to end one.
    """
    ends = end_tokens_in(template.path, template.renderer.tokenizer)
    for number, row in enumerate(rows, 1):
        for tokens in row.tokens:
            whole = [*row.prompt_token_ids, *tokens]
            if max(whole) >= most.vocabulary:
                raise PlanError(
                    f"domain: row {number} has the token id {max(whole)}; the model has {most.vocabulary}"
                )
        _check_lengths(number, [len(row.prompt_token_ids) + len(tokens) for tokens in row.tokens], most)
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
            answers = answers_of(row, template)
        except Exception as error:  # a chat template raises errors of its own
            raise PlanError(f"domain: row {number} cannot be rendered: {error}") from error
        lengths = [len(answer.prompt_token_ids) + len(answer.token_ids) for answer in answers]
        _check_lengths(number, lengths, most)


def _check_lengths(number: int, answers: Sequence[int], most: Most) -> None:
    for tokens in answers:
        if tokens > most.context:
            raise PlanError(
                f"domain: row {number} has {tokens} tokens; the model's context is {most.context}"
            )
    if most.line is not None and sum(answers) > most.line:
        raise PlanError(
            f"domain: row {number} has {sum(answers)} tokens, and a micro-batch at most {most.line}; raise "
            "packing.micro_batch_tokens"
        )


def answers_of(row: Row, template: ChatTemplate) -> list[Completion]:
    """Returns the answers of a line, as the model learns them. The first of two is the preferred one."""
    if row.prompt_token_ids:
        return [unsampled(row.prompt_token_ids, tokens) for tokens in row.tokens]
    return [template.answered(row.conversation, text) for text in row.texts]
