"""The kit bites: each broken server is caught by the guarantee that names its fault, and by no other but
those that it cannot help breaking. On each commit a few of an eighth of them are tried here. By
`make test-engines` that eighth is tried on its own guarantees, and one on all; by `make soak` every one on
all. Those that are seen by measured time are tried there alone, one after the other: a busy machine hides
them."""

import os
import re
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest

from contracts.conformance.inference.kit import CODES, check_inference
from contracts.conformance.inference.reference import Reference
from tests.conformance.broken_servers import MUTANTS, TOKEN
from tests.conformance.broken_servers.mutants import OF_STORES
from tests.conformance.models import make_scripted_model
from tests.conformance.selected import selected_names
from tests.conformance.servers import serving_mutant
from tests.rotation import eighth

SHORT = {"token": TOKEN, "timeout_s": 1.0, "grace_s": 2.0, "answer_s": 15.0, "updates": 8}
AT_A_TIME = 4  # they mostly wait
SEEN_ALONE = sorted(name for name in MUTANTS if MUTANTS[name].thorough or MUTANTS[name].timed)
BROKEN = eighth(sorted(MUTANTS.keys() - {"Correct", *SEEN_ALONE}))
ON_ALL = BROKEN if "SOAK_PART" in os.environ else ["ignores_the_token"]
ON_OWN = sorted(set(BROKEN) - set(ON_ALL))
OTHERS = [code for code in CODES if code not in OF_STORES]
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
    "fetches_everything_again",
    "MixesTwoVersions",
    "skips_the_object_hash",
    "starts_over_each_time",
    "keeps_the_old_channel",
    "fails_on_a_malformed_body",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return make_scripted_model(tmp_path_factory.mktemp("scripted"))


def loaded(model: str) -> Reference:
    """The reference. Python 3.11 at times fails to parse the model's code beside other threads."""
    try:
        return Reference(model, trust_remote_code=True)
    except SystemError:
        return Reference(model, trust_remote_code=True)


def failures(name: str, model: str, only: list[str] | None = None, thorough: bool = False) -> dict[str, str]:
    """What was measured, by the guarantee that does not hold."""
    with serving_mutant(name) as url:
        reference = loaded(model)
        verdicts = check_inference([url], reference, only=only, thorough=thorough, **SHORT)
    failed = [verdict for verdict in verdicts if verdict.state == "fail"]
    assert all(verdict.expected and verdict.reproduce for verdict in failed)
    return {verdict.guarantee.code: verdict.measured for verdict in failed}


def failures_of_own(name: str, model: str) -> dict[str, str]:
    return failures(name, model, [MUTANTS[name].own], MUTANTS[name].thorough)


def everything_for(name: str) -> list[str]:
    """All guarantees, without those of stores if the fault has nothing to do with them."""
    return CODES if name == "Correct" or MUTANTS[name].own in OF_STORES else OTHERS


def failures_of(name: str, everything: bool, model: str) -> dict[str, str]:
    try:
        return failures(name, model, everything_for(name)) if everything else failures_of_own(name, model)
    except Exception as error:  # it is the failure of this one alone
        return {"error": repr(error)}


def assert_caught(name: str, failed: dict[str, str]) -> None:
    mutant = MUTANTS[name]
    assert re.search(mutant.says, failed.get(mutant.own, "held")), failed


@pytest.mark.parametrize("name", eighth(A_FEW))
def test_caught_by_the_guarantee_that_names_it(name, model):
    assert_caught(name, failures_of_own(name, model))


@pytest.fixture(scope="module")
def found(request, model) -> dict[str, dict[str, str]]:
    """What the correct server and some others fail on, and of the rest the guarantee that names the fault."""
    selected = selected_names(request)
    names = [name for name in ["Correct", *ON_ALL, *ON_OWN] if name in selected]  # the long ones first
    everything = [name not in ON_OWN for name in names]
    with ProcessPoolExecutor(AT_A_TIME, get_context("forkserver")) as pool:
        return dict(zip(names, pool.map(partial(failures_of, model=model), names, everything), strict=True))


@pytest.mark.engines
@pytest.mark.parametrize("name", ON_OWN)
def test_fails_on_its_own_guarantee(name, found):
    assert_caught(name, found[name])


@pytest.mark.engines
@pytest.mark.parametrize("name", ON_ALL)
def test_fails_on_its_own_guarantee_and_legitimately_on_others(name, found):
    assert_caught(name, found[name])
    assert found[name].keys() <= MUTANTS[name].caught_by


@pytest.mark.long
@pytest.mark.parametrize("name", eighth(SEEN_ALONE))
def test_caught_alone(name, model):
    assert_caught(name, failures_of_own(name, model))


@pytest.mark.engines
@pytest.mark.parametrize("name", ["Correct"])
def test_a_correct_server_keeps_everything(name, found):
    assert found[name] == {}
