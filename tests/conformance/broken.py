"""Which broken servers a test tries, and when one of them is caught."""

import re
from concurrent.futures import Future

import pytest

from contracts.conformance.verdicts import Verdict
from tests.conformance.broken_servers import MUTANTS
from tests.limits import HANG_S


def broken(*guarantees: str) -> pytest.MarkDecorator:
    """Parametrises a test by the names of the servers that break these guarantees. `-k NAME` selects one.

    Those that only speed or the longer depth shows are `long`.
    """
    names = sorted(name for name, mutant in MUTANTS.items() if mutant.own in guarantees)
    return pytest.mark.parametrize("name", [_param(name) for name in names])


def _param(name: str) -> object:
    mutant = MUTANTS[name]
    alone = mutant.thorough or mutant.timed
    return pytest.param(name, id=f"{mutant.own}-{name}", marks=[pytest.mark.long] if alone else [])


def assert_caught(name: str, found: Future[list[Verdict]]) -> None:
    """Fails unless the guarantee that the server breaks says so, in the server's own sentence."""
    mutant = MUTANTS[name]
    (verdict,) = found.result(HANG_S)
    assert verdict.state == "fail" and re.search(mutant.says, verdict.measured), f"{name}: {verdict}"
    assert verdict.part == mutant.part and verdict.expected and verdict.reproduce
