"""T1: packed scores equal an unpacked Hugging Face forward, token for token.

A model that does more than a plain decoder must be scored correctly too, or refused when the worker starts.
"""

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.guarantees.t1_packs import group_packs, long_packs, make_packs
from contracts.conformance.trainer.guarantees.t1_program import score
from contracts.conformance.trainer.guarantees.t1_scores import check_form, check_isolation, check_scores
from contracts.conformance.trainer.models import SPECIAL_MODELS
from contracts.conformance.trainer.rank import Refusal
from contracts.conformance.trainer.reference import Reference
from contracts.conformance.trainer.sequences import LENGTHS
from contracts.conformance.verdicts import GuaranteeError
from contracts.trainer import OptimizerSpec

LONG_PACK = "more tokens than a block of the backend"


def decoders(bench: Bench) -> str:
    """Scores several packs with every model, and compares them with the reference."""
    worst = 0.0
    for number, model in enumerate(bench.models):
        reference = Reference(model)
        packs = make_packs(reference, bench)
        if number == 0:
            packs += [long_packs(reference, bench), group_packs(reference, bench)]
        doing = f"forward packs of lengths {LENGTHS}, [1], [], {LONG_PACK}, and groups; step; forward again"
        results = bench.session(score, model, OptimizerSpec(lr=1e-3), packs, doing=doing)
        reference.put(results[0].weights)
        for rank, result in enumerate(results):
            for pack, one in zip(packs, result.scored, strict=True):
                check_form(pack[rank], one)
            check_isolation(packs[0][rank], result.scored)
            for pack, one in zip(packs, result.scored, strict=True):
                worst = max(worst, check_scores(reference, pack[rank], one))
        reference.put(results[0].stepped_weights)
        for rank, result in enumerate(results):
            worst = max(worst, check_scores(reference, packs[0][rank], result.stepped, "after a step, "))
    return f"log-probabilities and entropies of every token within {worst:.0e} of the unpacked forward"


def special_models(bench: Bench) -> str:
    """Scores models that do more than a plain decoder, unless they are refused."""
    for number, (special, make) in enumerate(SPECIAL_MODELS.items()):
        _check_special(bench, special, make(bench.directory / f"special-{number}"))
    return f"{len(SPECIAL_MODELS)} special models scored or refused"


PARTS = {"decoders": decoders, "special-models": special_models}


def _check_special(bench: Bench, special: str, model: str) -> None:
    """Checks that a model that does more than a plain decoder is scored correctly, or refused at start."""
    reference = Reference(model)
    packs = make_packs(reference, bench)[:1]
    doing = f"init_worker with a model that {special}, forward, backward, step, forward again"
    results = bench.session(score, model, OptimizerSpec(lr=1e-3), packs, doing=doing, may_refuse=True)
    refused = [isinstance(result, Refusal) for result in results]
    if all(refused):
        return
    right = "the scores of the model's own logits, or a ValueError from init_worker on every rank"
    if any(refused):
        rank = refused.index(False)
        raise GuaranteeError(f"a model that {special} is not refused on rank {rank} alone", right, doing)
    try:
        reference.put(results[0].weights)
        for rank, result in enumerate(results):
            check_scores(reference, packs[0][rank], result.scored[0], f"on rank {rank}, ")
        reference.put(results[0].stepped_weights)
        for rank, result in enumerate(results):
            check_scores(reference, packs[0][rank], result.stepped, f"after a step on rank {rank}, ")
    except GuaranteeError as error:
        wrong = f"a model that {special} is scored wrongly, without an error: {error}"
        raise GuaranteeError(wrong, right, doing) from error
