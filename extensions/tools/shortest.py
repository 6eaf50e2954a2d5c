"""Samples training problems on a running server, and writes the shortest right answer to each.

    python -m extensions.tools.shortest --url http://127.0.0.1:8000 --out short.jsonl model.path=MODEL
    python launch.py +exp=sft domain.path=short.jsonl model.path=MODEL

With --pairs it writes a second file, for `+exp=dpo`. The shortest right answer to a problem is preferred to
each longer one that is wrong, or right and at least 1.5 times as long. Source of both files: Kimi k1.5, arXiv
2501.12599, §2.4, shortest rejection sampling and DPO.

Keys are those of launch.py; domain, sampling, rollout and inference.concurrency are used. Answers keep their
sampled token ids. Attempts of several answers are ignored, and truncated answers are never right.
"""

import argparse
import asyncio
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from contracts.records import Completion, Rollout
from contracts.support.files import write_atomically
from extensions.tools.attempts import Attempts, attempts_parser, check_attempts, check_new_file, composed
from pipelinerl.domains.demonstration_rows import Row
from pipelinerl.errors import PlanError

LONGER = 1.5  # smallest ratio of the lengths of a rejected right answer and the preferred one


@dataclass(frozen=True)
class Sample:
    """An attempt of one answer."""

    problem_id: str
    completion: Completion
    right: bool

    @property
    def tokens(self) -> int:
        return len(self.completion.token_ids)


def sample_of(rollout: Rollout) -> Sample | None:
    """Returns the attempt as a Sample, or None if it failed or does not have exactly one answer."""
    if rollout.failed or len(rollout.completions) != 1:
        return None
    right = rollout.success == 1.0 and rollout.status == "ok"
    return Sample(rollout.problem_id, rollout.completions[0], right)


def shortest(samples: Iterable[Sample]) -> Sample | None:
    """Returns the first right sample with the fewest tokens, or None if none is right."""
    return min((sample for sample in samples if sample.right), key=lambda s: s.tokens, default=None)


def rejected(samples: Sequence[Sample], preferred: Sample) -> Iterator[Sample]:
    """Yields the longer samples that are wrong, or right and at least `LONGER` times as long."""
    for sample in samples:
        least = LONGER * preferred.tokens if sample.right else preferred.tokens + 1
        if sample.tokens >= least:
            yield sample


def demonstration(sample: Sample) -> Row:
    completion = sample.completion
    return Row(
        problem_id=sample.problem_id,
        prompt_token_ids=completion.prompt_token_ids.tolist(),
        token_ids=completion.token_ids.tolist(),
    )


def preference(preferred: Sample, other: Sample) -> Row:
    return Row(
        problem_id=preferred.problem_id,
        prompt_token_ids=preferred.completion.prompt_token_ids.tolist(),
        chosen_token_ids=preferred.completion.token_ids.tolist(),
        rejected_token_ids=other.completion.token_ids.tolist(),
    )


def write_rows(rows: Sequence[Row], out: Path) -> None:
    write_atomically(out, msgspec.json.Encoder().encode_lines(rows))


def sample(options: argparse.Namespace) -> list[list[Sample]]:
    """Makes all attempts. Returns the samples of each problem. Raises PlanError."""
    config, domain = composed(options.overrides)
    problems = min(options.problems, domain.train_size)
    found: dict[int, list[Sample]] = defaultdict(list)

    def note(index: int, rollout: Rollout) -> None:
        if of_one_answer := sample_of(rollout):
            found[index].append(of_one_answer)

    attempts = Attempts("shortest", problems, options.attempts, note)
    asyncio.run(attempts.make(options.url, config, domain))
    return [found[index] for index in range(problems)]


def main(arguments: list[str]) -> None:
    """Samples the answers, and writes the files."""
    parser = attempts_parser("extensions.tools.shortest", __doc__, out="for +exp=sft")
    parser.add_argument("--pairs", type=Path, help="second new file, for +exp=dpo")
    options = parser.parse_intermixed_args(arguments)
    try:
        check_attempts(options)
        if options.pairs:
            check_new_file(options.pairs)
            if options.pairs.resolve() == options.out.resolve():
                raise PlanError("--out and --pairs are two files")
        by_problem = sample(options)
    except PlanError as error:
        sys.exit(f"shortest: {error}")
    solved = [(best, samples) for samples in by_problem if (best := shortest(samples))]
    pairs = [preference(best, other) for best, samples in solved for other in rejected(samples, best)]
    right = [s.tokens for _, samples in solved for s in samples if s.right]
    if not solved:
        sys.exit("shortest: no problem has a right answer, so nothing is written")
    write_rows([demonstration(best) for best, _ in solved], options.out)
    print(
        f"{len(by_problem)} problems, {len(solved)} with a right answer, of {_mean(right):.1f} tokens on "
        f"average; the shortest ones of {_mean([best.tokens for best, _ in solved]):.1f}"
    )
    if options.pairs and pairs:
        write_rows(pairs, options.pairs)
    if options.pairs:
        print(f"{len(pairs)} pairs" if pairs else f"no pairs, so {options.pairs} is not written")


def _mean(numbers: Sequence[int]) -> float:
    return sum(numbers) / len(numbers)


if __name__ == "__main__":
    main(sys.argv[1:])
