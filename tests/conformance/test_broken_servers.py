"""The kit bites: each broken server is caught by the guarantee that names its fault, and by no other but
those that it cannot help breaking. On each commit a quarter of them is tried, here of a few and by
`make test-engines` of all, on all guarantees; `make soak` tries all."""

import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from contracts.conformance.inference.kit import check_inference
from contracts.conformance.inference.reference import Reference
from tests.conformance.broken_servers import MUTANTS, TOKEN
from tests.conformance.models import make_scripted_model
from tests.conformance.servers import serving_mutant
from tests.rotation import quarter

SHORT = {"token": TOKEN, "timeout_s": 1.0, "grace_s": 2.0, "answer_s": 15.0, "updates": 12}
BROKEN = quarter(sorted(MUTANTS.keys() - {"Correct"}))
A_FEW = [
    "SwapsTwoTensors",
    "DropsRequestsInFlight",
    "KeepsThePrefixCache",
    "returns_raw_logprobs",
    "LabelsWithTheNextVersion",
    "refuses_a_retried_join",
    "SaysUntouchedAfterHalfAnUpdate",
    "LeaksMemory",
    "RetokenisesThePrompt",
    "ignores_the_token",
    "proves_with_a_constant",
    "fails_on_a_malformed_body",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return make_scripted_model(tmp_path_factory.mktemp("scripted"))


def failures(name: str, model: str, only: list[str] | None = None) -> dict[str, str]:
    """What was measured, by the guarantee that does not hold."""
    with serving_mutant(name) as url:
        verdicts = check_inference([url], Reference(model, trust_remote_code=True), only=only, **SHORT)
    failed = [verdict for verdict in verdicts if verdict.state == "fail"]
    assert all(verdict.expected and verdict.reproduce for verdict in failed)
    return {verdict.guarantee.code: verdict.measured for verdict in failed}


@pytest.mark.parametrize("name", quarter(A_FEW))
def test_caught_by_the_guarantee_that_names_it(name, model):
    own = MUTANTS[name].own
    assert re.search(MUTANTS[name].says, failures(name, model, only=[own])[own])


@pytest.fixture(scope="module")
def everything(model) -> dict[str, dict[str, str]]:
    """What each mutant, and the correct server, fail on; several at a time, for they mostly wait."""
    names = ["Correct", *BROKEN]
    with ProcessPoolExecutor(4, get_context("forkserver")) as pool:
        return dict(zip(names, pool.map(failures, names, [model] * len(names)), strict=True))


@pytest.mark.engines
@pytest.mark.parametrize("name", BROKEN)
def test_fails_on_its_own_guarantee_and_legitimately_on_others(name, everything):
    mutant, failed = MUTANTS[name], everything[name]
    assert re.search(mutant.says, failed[mutant.own])
    assert failed.keys() <= mutant.caught_by


@pytest.mark.engines
def test_a_correct_server_keeps_everything(everything):
    assert everything["Correct"] == {}
