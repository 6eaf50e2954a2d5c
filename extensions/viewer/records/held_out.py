"""Held-out problems with their answers in the first and in the last evaluation.

Used by `python -m extensions.viewer.records answers`.
"""

from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer

from contracts.records import Rollout
from contracts.support.messages import printable


def answers(rollouts: Iterable[Rollout], problems: int, tokenizer: Tokenizer | None) -> Iterator[str]:
    """Yields lines for the first problems of the first evaluation that the last one has answered too.

    rollouts: of all evaluations, in the order of their records. Of several attempts the first is shown.
    """
    evaluations: dict[int, dict[str, Rollout]] = {}
    for rollout in rollouts:
        if rollout.completions:
            version = int(rollout.rollout_id.split("-")[1])  # the newest when the evaluation began
            evaluations.setdefault(version, {}).setdefault(rollout.problem_id, rollout)
    if not evaluations:
        yield "no held-out problem has been answered yet"
        return
    chosen = [evaluations[version] for version in sorted({min(evaluations), max(evaluations)})]
    shared = [problem for problem in chosen[0] if problem in chosen[-1]]
    for problem in shared[:problems]:
        yield printable(problem)
        yield from (_answer(evaluation[problem], tokenizer) for evaluation in chosen)


def _answer(rollout: Rollout, tokenizer: Tokenizer | None) -> str:
    """Returns the last answer of a rollout on one line, with the weight versions that sampled it."""
    versions = sorted(rollout.versions)
    sampled = f"{versions[0]}" if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
    verdict = "failed" if rollout.success is None else "right" if rollout.success == 1 else "wrong"
    ids = rollout.completions[-1].token_ids.tolist()
    text = tokenizer.decode(ids) if tokenizer else " ".join(map(str, ids))
    return f"   version {sampled:8} {verdict:6} {printable(text.strip())}"
