"""The kit passes odd servers that keep the contract.

By `make test-engines` an eighth of them is tried on the guarantees that they bear on most; by `make soak`
all of them on every guarantee.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from contracts.conformance.inference.kit import check_inference
from contracts.conformance.inference.reference import Reference
from tests.conformance.models import make_scripted_model
from tests.conformance.odd_servers import ODD, TOKEN
from tests.conformance.selected import selected_names
from tests.conformance.servers import serving_odd
from tests.rotation import eighth

AT_A_TIME = 4  # they mostly wait
TRIED = eighth(sorted(ODD))
FEWER = {"token": TOKEN, "updates": 8}


def failures(name: str, model: str) -> dict[str, str]:
    """What was measured and expected, by the guarantee that does not hold."""
    only = None if "SOAK_PART" in os.environ else list(ODD[name].on)
    with serving_odd(name) as url:
        verdicts = check_inference([url], Reference(model, trust_remote_code=True), only=only, **FEWER)
    assert verdicts
    return {
        verdict.guarantee.code: f"{verdict.measured}; expected {verdict.expected}; {verdict.reproduce}"
        for verdict in verdicts
        if verdict.state == "fail"
    }


@pytest.fixture(scope="module")
def everything(request, tmp_path_factory) -> dict[str, dict[str, str]]:
    """What each of them fails on."""
    model = make_scripted_model(tmp_path_factory.mktemp("scripted"))
    names = sorted(selected_names(request))
    with ProcessPoolExecutor(AT_A_TIME, get_context("forkserver")) as pool:
        return dict(zip(names, pool.map(failures, names, [model] * len(names)), strict=True))


@pytest.mark.engines
@pytest.mark.parametrize("name", TRIED)
def test_keeps_everything(name, everything):
    assert everything[name] == {}
