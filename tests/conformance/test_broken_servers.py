"""A broken server breaks no other guarantees but those that it cannot help; a correct one breaks none.

`make soak` tries each on all guarantees, by the guarantee that it breaks: `-k G7-`.
"""

import pytest

from contracts.conformance.inference.kit import CHECKS, CODES
from tests.conformance.broken import BROKEN, SEEN_ALONE, assert_caught, by_name
from tests.conformance.broken_servers import MUTANTS
from tests.conformance.broken_servers.mutants import OF_STORES
from tests.conformance.conftest import Found
from tests.conformance.kept import assert_kept
from tests.conformance.selected import selected
from tests.conformance.servers import serving_mutant
from tests.conformance.trials import HANGING, Trials
from tests.limits import HANG_S

OTHERS = [code for code in CODES if code not in OF_STORES]


@pytest.fixture(scope="module")
def on_all(request: pytest.FixtureRequest, trials: Trials) -> Found:
    return {
        name: trials.submit(serving_mutant(name), only=_only(name), **HANGING) for name in selected(request)
    }


def _only(name: str) -> list[str]:
    """Returns all guarantees, without those of stores if the fault has nothing to do with them."""
    return CODES if MUTANTS[name].own in OF_STORES else OTHERS


@pytest.mark.long
@by_name(SEEN_ALONE, CODES)
def test_caught_alone(name, trials):
    assert_caught(name, trials.submit_mutant(name))


@pytest.mark.long
@by_name(BROKEN, CODES)
def test_breaks_only_what_it_cannot_help(name, on_all):
    failed = {verdict.guarantee.code for verdict in on_all[name].result() if verdict.state == "fail"}
    own = set() if name in SEEN_ALONE else {MUTANTS[name].own}
    assert own <= failed <= MUTANTS[name].caught_by


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
