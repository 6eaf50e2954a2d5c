"""Which broken trainers a test tries, and when one of them is caught."""

import re
from collections.abc import Iterable

import pytest

from contracts.conformance.processes import PRELOAD
from contracts.conformance.trainer.kit import check_trainer
from contracts.conformance.verdicts import Verdict
from tests.conformance.trainer_mutants import MUTANTS
from tests.limits import HANG_S

PRELOAD.append("tests.conformance.trainer_mutants")  # ranks then start in milliseconds
BROKEN = {mutant.trainer.__name__: mutant for mutant in MUTANTS}
NEVER_ENDS_S = 15.0  # after which the kit gives up a trainer whose ranks wait for each other without end


def broken(*guarantees: str) -> pytest.MarkDecorator:
    """Parametrises a test by the names of the trainers that break these guarantees. `-k NAME` selects one."""
    names = [name for name, mutant in BROKEN.items() if mutant.breaks in guarantees]
    return pytest.mark.parametrize("name", [_param(name) for name in names])


def _param(name: str) -> object:
    mutant = BROKEN[name]
    marks = [pytest.mark.engines] if mutant.needs_deepspeed else []
    return pytest.param(name, id=f"{mutant.breaks}-{name}", marks=marks)


def verdicts_on(
    name: str, models: dict[bool, str], only: Iterable[str] | None = None, part: str | None = None
) -> dict[str, Verdict]:
    """Returns the verdicts on a broken trainer, by the code of the guarantee.

    It is tried on the one of the kit's two models that shows its fault.
    """
    mutant = BROKEN[name]
    verdicts = check_trainer(
        f"{mutant.trainer.__module__}.{mutant.trainer.__qualname__}",
        ranks=mutant.ranks,
        model=models[mutant.tied],
        only=only,
        part=part,
        patience_s=NEVER_ENDS_S if mutant.hangs else HANG_S,
    )
    return {verdict.guarantee.code: verdict for verdict in verdicts}


def assert_caught(name: str, models: dict[bool, str]) -> None:
    """Fails unless the part of its guarantee that names the trainer's fault says so."""
    mutant = BROKEN[name]
    verdict = verdicts_on(name, models, [mutant.breaks], mutant.part)[mutant.breaks]
    assert verdict.state == "fail" and re.search(mutant.says, verdict.measured), f"{name}: {verdict}"
    assert verdict.part == mutant.part and verdict.expected and verdict.reproduce
