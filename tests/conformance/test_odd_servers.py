"""The kit passes odd servers that keep the contract, on the parts of guarantees that they bear on most.

`make soak` tries all of them on every guarantee.
"""

import pytest

from tests.conformance.conftest import Found
from tests.conformance.odd_servers import ODD
from tests.conformance.selected import selected
from tests.conformance.servers import serving_odd
from tests.conformance.trials import Trials
from tests.limits import HANG_S


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, trials: Trials) -> Found:
    return {name: trials.submit(serving_odd(name), ODD[name].on) for name in selected(request)}


@pytest.fixture(scope="module")
def on_all(request: pytest.FixtureRequest, trials: Trials) -> Found:
    return {name: trials.submit(serving_odd(name)) for name in selected(request)}


@pytest.mark.parametrize("name", sorted(ODD))
def test_keeps_what_it_bears_on(name, found):
    verdicts = found[name].result(HANG_S)
    assert len(verdicts) == len(ODD[name].on)
    assert [verdict for verdict in verdicts if verdict.state == "fail"] == []


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(ODD))
def test_keeps_everything(name, on_all):
    assert [verdict for verdict in on_all[name].result() if verdict.state == "fail"] == []
