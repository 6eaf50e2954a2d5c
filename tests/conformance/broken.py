"""Which broken servers a test tries, and when one of them is caught."""

import re
from collections.abc import Iterable
from concurrent.futures import Future

import pytest

from contracts.conformance.verdicts import Verdict
from tests.conformance.broken_servers import MUTANTS
from tests.limits import HANG_S

BROKEN = sorted(MUTANTS.keys() - {"Correct"})
# Only speed shows them, which others that run beside them hide, or only the longer depth.
SEEN_ALONE = [name for name in BROKEN if MUTANTS[name].timed or MUTANTS[name].thorough]


def broken(*guarantees: str) -> pytest.MarkDecorator:
    """Parametrises a test by the servers that break these guarantees, and are seen beside others."""
    return by_name(set(BROKEN).difference(SEEN_ALONE), guarantees)


def by_name(names: Iterable[str], guarantees: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrises a test by those names whose servers break these guarantees. `-k NAME` selects one."""
    chosen = sorted(name for name in names if MUTANTS[name].own in guarantees)
    return pytest.mark.parametrize("name", chosen, ids=[f"{MUTANTS[name].own}-{name}" for name in chosen])


def assert_caught(name: str, found: Future[list[Verdict]]) -> None:
    """Fails unless the guarantee that the server breaks says so, in the server's own sentence."""
    mutant = MUTANTS[name]
    (verdict,) = found.result(HANG_S)
    assert verdict.state == "fail" and re.search(mutant.says, verdict.measured), f"{name}: {verdict}"
    assert verdict.part == mutant.part and verdict.expected and verdict.reproduce
