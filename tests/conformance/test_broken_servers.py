"""A correct server keeps all guarantees; some faults are caught only if nothing runs beside them."""

import pytest

from contracts.conformance.inference.kit import CHECKS, CODES
from tests.conformance.broken import SEEN_ALONE, assert_caught, by_name
from tests.conformance.broken_servers import MUTANTS
from tests.conformance.kept import assert_kept
from tests.conformance.servers import serving_mutant
from tests.limits import HANG_S


@pytest.mark.long
@by_name(SEEN_ALONE, CODES)
def test_caught_alone(name, trials):
    assert_caught(name, trials.submit_mutant(name))


@pytest.mark.engines
def test_a_correct_server_keeps_everything(trials):
    verdicts = trials.submit(serving_mutant("Correct")).result(HANG_S)
    assert [verdict.guarantee.code for verdict in verdicts] == CODES
    assert_kept(verdicts)


def test_every_part_of_a_guarantee_has_a_server_that_breaks_it():
    tried = {(mutant.own, mutant.part) for mutant in MUTANTS.values()} - {("none", "")}
    parts = {(guarantee.code, part) for guarantee, parts in CHECKS.items() for part in parts}
    assert tried <= parts
    assert {own for own, _ in tried} == set(CODES)
