"""The kit tells every broken trainer from a correct one, and by the guarantee that it breaks."""

import re

import pytest

from contracts.conformance.trainer.kit import GUARANTEES, check_trainer
from contracts.conformance.verdicts import Verdict
from tests.conformance.trainer_mutants import MUTANTS, Mutant


def verdicts(mutant: Mutant, patience_s: float, only: list[str] | None = None) -> list[Verdict]:
    path = f"{mutant.trainer.__module__}.{mutant.trainer.__qualname__}"
    return check_trainer(path, ranks=mutant.ranks, only=only, patience_s=patience_s)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.trainer.__name__)
def test_a_broken_trainer_fails_on_its_own_guarantee(mutant: Mutant):
    (verdict,) = verdicts(mutant, mutant.patience_s, only=[mutant.breaks])
    assert verdict.state == "fail"
    assert re.search(mutant.says, verdict.measured), verdict.measured
    assert verdict.expected
    assert verdict.reproduce


@pytest.mark.engines
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.trainer.__name__)
def test_a_broken_trainer_fails_on_nothing_else(mutant: Mutant):
    found = {
        v.guarantee.code: v.measured
        for v in verdicts(mutant, max(mutant.patience_s, 20))
        if v.state == "fail"
    }
    assert set(found) == {mutant.breaks} | mutant.also, found


def test_every_guarantee_has_a_trainer_that_breaks_it():
    assert {mutant.breaks for mutant in MUTANTS} == {guarantee.code for guarantee in GUARANTEES}
