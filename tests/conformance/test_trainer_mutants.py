"""A broken trainer breaks no other guarantees but those that it cannot help.

`make soak` tries each on all guarantees, by the guarantee that it breaks: `-k T7-`.
"""

import pytest

from contracts.conformance.trainer.kit import CHECKS
from tests.conformance.broken_trainers import BROKEN, broken, verdicts_on

CODES = [guarantee.code for guarantee in CHECKS]


@pytest.mark.long
@broken(*CODES)
def test_breaks_only_what_it_cannot_help(name, kit_models):
    mutant = BROKEN[name]
    verdicts = verdicts_on(name, kit_models)
    failed = {code for code, verdict in verdicts.items() if verdict.state == "fail"}
    assert failed == {mutant.breaks} | mutant.also, verdicts


def test_every_part_of_a_guarantee_has_a_trainer_that_breaks_it():
    tried = {(mutant.breaks, mutant.part) for mutant in BROKEN.values()}
    assert tried == {(guarantee.code, part) for guarantee, parts in CHECKS.items() for part in parts}
