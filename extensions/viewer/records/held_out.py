"""Held-out problems with their answers in the first and in the last evaluation.

Used by `python -m extensions.viewer.records answers`.
"""

from collections.abc import Iterator

from tokenizers import Tokenizer

from contracts.records import Rollout
from contracts.support.messages import printable
from pipelinerl.streams import Streams
from pipelinerl.streams.events import recorded, valid_results

LONGEST_PROMPT = 300  # characters, of its end


def answers(streams: Streams, problems: int, tokenizer: Tokenizer | None) -> Iterator[str]:
    """Yields lines for the first problems of the first evaluation.

    Only evaluations that have ended, and that no resumption has undone, are used. Of several attempts at a
    problem the first is shown.
    """
    versions = sorted({result.version for result in valid_results(streams)})
    if not versions:
        yield "no evaluation has ended yet"
        return
    chosen: dict[int, dict[str, Rollout]] = {version: {} for version in (versions[0], versions[-1])}
    for record in recorded(streams, "eval_rollouts"):
        if isinstance(record, Rollout) and record.versions:  # else nothing was sampled
            _, version, _, attempt = record.rollout_id.split("-")
            if int(version) in chosen and attempt == "0":
                chosen[int(version)][record.problem_id] = record
    if missing := [version for version, rollouts in chosen.items() if not rollouts]:
        yield f"the rollouts of the evaluation of version {missing[0]} are not here any more"
        return
    if tokenizer is None:
        yield "the run's tokenizer is not here, so token ids are shown"
    first = chosen[versions[0]]
    last = chosen[versions[-1]]
    for problem in [problem for problem in first if problem in last][:problems]:
        prompt = _text(first[problem].completions[-1].prompt_token_ids.tolist(), tokenizer)
        cut = "… " if len(prompt) > LONGEST_PROMPT else ""
        expected = first[problem].expected
        right = "" if expected is None else f"\n   expected          {printable(expected)}"
        yield f"{printable(problem)}\n   {cut}{prompt[-LONGEST_PROMPT:]}{right}"
        yield from (_answer(evaluation[problem], tokenizer) for evaluation in chosen.values())


def _answer(rollout: Rollout, tokenizer: Tokenizer | None) -> str:
    """Returns the last answer of a rollout on one line, with the weight versions that sampled it."""
    versions = sorted(rollout.versions)
    sampled = f"{versions[0]}" if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
    verdict = "failed" if rollout.success is None else "right" if rollout.success == 1 else "wrong"
    text = _text(rollout.completions[-1].token_ids.tolist(), tokenizer)
    return f"   version {sampled:8} {verdict:6} {text}"


def _text(ids: list[int], tokenizer: Tokenizer | None) -> str:
    return printable((tokenizer.decode(ids) if tokenizer else " ".join(map(str, ids))).strip())
