"""The kit bites: each broken server is caught by the guarantee that names its fault, and by no other but
those that it cannot help breaking."""

import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from contracts.conformance.inference.kit import check_inference
from contracts.conformance.inference.reference import Reference
from tests.conformance.broken_servers import MUTANTS, TOKEN
from tests.conformance.models import make_scripted_model
from tests.conformance.servers import serving_mutant

QUICK = {"token": TOKEN, "timeout_s": 1.0, "grace_s": 2.0, "answer_s": 8.0, "updates": 12}
BROKEN = sorted(MUTANTS.keys() - {"Correct"})


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return make_scripted_model(tmp_path_factory.mktemp("scripted"))


@pytest.fixture(scope="module")
def reference(model) -> Reference:
    return Reference(model, trust_remote_code=True)


@pytest.mark.parametrize("name", BROKEN)
def test_caught_by_the_guarantee_that_names_it(name, reference):
    with serving_mutant(name) as url:
        (verdict,) = check_inference([url], reference, only=[MUTANTS[name].own], **QUICK)
    assert verdict.state == "fail", verdict
    assert re.search(MUTANTS[name].says, verdict.measured), verdict
    assert verdict.expected and verdict.reproduce


@pytest.mark.engines
def test_a_correct_server_keeps_everything(reference):
    with serving_mutant("Correct") as url:
        verdicts = check_inference([url], reference, **QUICK)
    assert {verdict.state for verdict in verdicts} == {"pass"}, verdicts


def failing(name: str, model: str) -> set[str]:
    with serving_mutant(name) as url:
        verdicts = check_inference([url], Reference(model, trust_remote_code=True), **QUICK)
    return {verdict.guarantee.code for verdict in verdicts if verdict.state == "fail"}


@pytest.fixture(scope="module")
def everything(model) -> dict[str, set[str]]:
    """What each mutant fails on, of all guarantees; several at a time, for they mostly wait."""
    with ProcessPoolExecutor(4, get_context("forkserver")) as pool:
        return dict(zip(BROKEN, pool.map(failing, BROKEN, [model] * len(BROKEN)), strict=True))


@pytest.mark.engines
@pytest.mark.parametrize("name", BROKEN)
def test_fails_on_no_other_guarantee(name, everything):
    mutant = MUTANTS[name]
    assert mutant.own in everything[name] <= mutant.caught_by
