"""A whole run whose reference scores every answer after the same short prompt."""

from collections import defaultdict

from contracts.records import MicroBatchRow
from tests.pipeline.runs import assert_accounted, records, run_to_the_end

KL = "regularisers=[{_target_: pipelinerl.objectives.kl.KlToReference, coefficient: 0.01}]"


def test_the_same_tokens_have_the_same_scores_whatever_the_problem(tmp_path):
    """One server scores them, and only the prompts of the problems differ."""
    told = "domain._target_=tests.told_domain.ToldDomain"
    run_to_the_end(tmp_path / "run", told, "reference=scripted", KL, "max_steps=3", "eval.every=null")
    assert len(assert_accounted(tmp_path / "run")["trained"]) == 3 * 8
    rows = [row for row in records(tmp_path / "run", "rows") if isinstance(row, MicroBatchRow)]
    found: dict[tuple[int, ...], set[float]] = defaultdict(set)
    prompts: dict[tuple[int, ...], set[tuple[int, ...]]] = defaultdict(set)
    for sequence in (s for row in rows for rank in row.micro_batches for s in rank):
        first = int(sequence.loss_mask.argmax())
        answer = sequence.token_ids[first:].tolist()
        for end in range(1, len(answer) + 1):
            found[tuple(answer[:end])].add(float(sequence.reference_logprobs[first + end - 1]))
            prompts[tuple(answer[:end])].add(tuple(sequence.token_ids[:first].tolist()))
        assert sequence.reference_prompts == []
    shared = [answer for answer, of in prompts.items() if len(of) > 1]
    assert len(shared) > 10
    assert all(len(found[answer]) == 1 for answer in shared)
