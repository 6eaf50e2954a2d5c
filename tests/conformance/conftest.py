"""Broken and odd adapters, tried for the tests of one file."""

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from contracts.conformance.trainer.models import make_model
from contracts.conformance.verdicts import Verdict
from tests.conformance.models import make_scripted_model
from tests.conformance.selected import selected
from tests.conformance.trials import Trials

Found = dict[str, Future[list[Verdict]]]  # verdicts by the name of the server


@pytest.fixture(scope="session")
def scripted_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_scripted_model(tmp_path_factory.mktemp("scripted"))


@pytest.fixture(scope="module")
def trials(scripted_model: str) -> Iterator[Trials]:
    trials = Trials(scripted_model)
    yield trials
    trials.end()


@pytest.fixture(scope="module")
def on_their_part(request: pytest.FixtureRequest, trials: Trials) -> Found:
    """Tries each selected broken server on the part of its guarantee that names its fault."""
    return {name: trials.submit_mutant(name) for name in selected(request)}


@pytest.fixture(scope="session")
def kit_models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """Returns the kit's two models of trainers, by whether the head is tied."""
    folder = tmp_path_factory.mktemp("models")
    return {tied: make_model(folder / f"tied-{tied}", tied=tied) for tied in (True, False)}
