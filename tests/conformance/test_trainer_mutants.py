"""The kit tells every broken trainer from a correct one, by the guarantee that it breaks, and by no other but
those that it cannot help breaking. On each commit an eighth of them is tried on its own guarantee, here of a
few and by `make test-engines` of all; `make soak` tries all of them on all guarantees."""

import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from contracts.conformance.trainer.kit import GUARANTEES, check_trainer
from contracts.conformance.trainer.models import make_model
from tests.conformance.trainer_mutants import MUTANTS
from tests.rotation import eighth

BROKEN = {mutant.trainer.__name__: mutant for mutant in MUTANTS}
TRIED = eighth(sorted(BROKEN))
A_FEW = [
    "LetsNeighboursSeeEachOther",
    "ScoresWhateverTheModel",
    "AveragesOverRanks",
    "PretendsThatTheEntropyHasAGradient",
    "ReportsTheClippedNorm",
    "OmitsTheHead",
    "SendsTheTiedHeadToo",
    "ForgetsMomentsOnLoad",
    "RefusesEmptyBatches",
    "GathersAllAtOnce",
    "ComputesWithWhatIsGathered",
]


def failures(
    name: str, only: list[str] | None = None, model: str | None = None, patience_s: float = 0
) -> dict[str, str]:
    """What was measured, by the guarantee that does not hold."""
    mutant = BROKEN[name]
    path = f"{mutant.trainer.__module__}.{mutant.trainer.__qualname__}"
    patience_s = max(mutant.patience_s, patience_s)
    verdicts = check_trainer(path, ranks=mutant.ranks, model=model, only=only, patience_s=patience_s)
    failed = [verdict for verdict in verdicts if verdict.state == "fail"]
    assert all(verdict.expected and verdict.reproduce for verdict in failed)
    return {verdict.guarantee.code: verdict.measured for verdict in failed}


@pytest.mark.parametrize("name", eighth(A_FEW))
def test_caught_by_the_guarantee_that_names_it(name):
    mutant = BROKEN[name]
    assert re.search(mutant.says, failures(name, only=[mutant.breaks])[mutant.breaks])


def tried(folder: Path, **options: list[str]) -> dict[str, dict[str, str]]:
    """What each fails on, two at a time: most of their time goes into starting ranks. Each is tried on the
    one of the kit's two models that shows its fault."""
    models = {tied: make_model(folder / f"tied-{tied}", tied=tied) for tied in (True, False)}
    with ProcessPoolExecutor(2, get_context("forkserver")) as pool:
        found = {
            name: pool.submit(failures, name, options.get(name), models[BROKEN[name].tied], patience_s=30)
            for name in TRIED
        }
        return {name: future.result() for name, future in found.items()}


@pytest.fixture(scope="module")
def on_their_own(tmp_path_factory) -> dict[str, dict[str, str]]:
    own = {name: [mutant.breaks] for name, mutant in BROKEN.items()}
    return tried(tmp_path_factory.mktemp("models"), **own)


@pytest.mark.engines
@pytest.mark.parametrize("name", TRIED)
def test_fails_on_its_own_guarantee(name, on_their_own):
    assert re.search(BROKEN[name].says, on_their_own[name][BROKEN[name].breaks])


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> dict[str, dict[str, str]]:
    return tried(tmp_path_factory.mktemp("models"))


@pytest.mark.long
@pytest.mark.parametrize("name", TRIED)
def test_fails_on_no_other_but_those_that_it_cannot_help(name, everything):
    mutant, failed = BROKEN[name], everything[name]
    assert mutant.breaks in failed
    assert failed.keys() == {mutant.breaks} | mutant.also, failed


def test_every_guarantee_has_a_trainer_that_breaks_it():
    assert {mutant.breaks for mutant in MUTANTS} == {guarantee.code for guarantee in GUARANTEES}
